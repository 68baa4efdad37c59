"""shoal.ray: runs, and scripts of one's own, as ranks on a Ray cluster.

import shoal
result = shoal.ray.train("config.yaml", num_workers=4, address="auto")
shoal.ray.launch("script.py", ["--epochs=3"], num_workers=4)
"""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from shoal import config as config_room
from shoal.config import Resolved
from shoal.config.collective import VARIABLE, choose_backend
from shoal.distributed.meeting import read_secret
from shoal.launch.ray_ranks import RayWorkers, run_on_ray
from shoal.models.own import check_launchable
from shoal.runs.results import check_copied
from shoal.runs.run import resolve, run_folder, train_here
from shoal.runs.user_code import own_names


def train(
    config: str | Path | Sequence[str | Path] = (),
    num_workers: int = 1,
    address: str | None = None,
    *,
    cpus_per_worker: float = 1.0,
    gpus_per_worker: float | None = None,
    max_retries: int = 3,
    patience: float = 600.0,
    resume: bool = False,
    **values: Any,
) -> dict[str, Any]:
    """Train as so many ranks on Ray; what result.json holds. Other keywords are config keys.

    config: a file or several, as `shoal train` takes them.
    address: of the cluster, "auto" for that of this machine; None: the one that this process is
        connected to, else one of its own.
    gpus_per_worker: 1 or 0; None: 1 where run.device is cuda.
    max_retries: how often Ray starts the ranks again when one was lost, from the last checkpoint.
    patience: seconds to wait for room in the cluster, also for a node that is to come back.
    """
    resolved = resolve([config] if isinstance(config, (str, Path)) else config, (), values)
    if gpus_per_worker is None:
        gpus_per_worker = gpus_of(resolved)
    workers = RayWorkers(num_workers, cpus_per_worker, gpus_per_worker, max_retries, patience)
    return train_resolved(resolved, workers, address, resume)


def gpus_of(resolved: Resolved) -> float:
    """GPUs of a rank that a config asks for; Ray gives them to nobody who did not ask."""
    return 1.0 if resolved.config.run.device == "cuda" else 0.0


def train_command(resolved: Resolved, resume: bool, address: str) -> dict[str, Any]:
    """`shoal train --ray=ADDRESS`: as many ranks and restarts as its launch section says."""
    section = resolved.config.launch
    number = section.nproc if section.world_size == -1 else section.world_size
    cpus = max(1, resolved.config.run.threads)
    workers = RayWorkers(number, cpus, gpus_of(resolved), section.max_restarts)
    return train_resolved(resolved, workers, None if address == "local" else address, resume)


def train_resolved(
    resolved: Resolved, workers: RayWorkers, address: str | None = None, resume: bool = False
) -> dict[str, Any]:
    """Train a config that is loaded already."""
    config = resolved.config
    if config.strategy.name == "ps":
        raise ValueError(
            "strategy.name=ps: on Ray there are single, ddp and sharded; use `shoal launch`"
        )
    for name in own_names(config.model.name, config.eval.metrics):
        check_launchable(name)
    folder = run_folder(config)
    folder.create(resume)
    values = {
        "run.output": str(folder.path.absolute()),
        "run.threads": config.run.threads or max(1, int(workers.cpus)),
        "run.device": "cuda" if workers.gpus else "cpu",
        **dict.fromkeys(("launch.max_restarts", "launch.min_nproc"), 0),  # Ray's part
    }
    resolved = resolved.with_values(values, "shoal.ray")
    work = partial(_train_rank, config_room.dump(resolved.config))
    return check_copied(run_on_ray(work, workers, address, read_secret(config.launch.secret)))


def _train_rank(text: str) -> dict[str, Any]:
    """One rank of a run; the folder was found to be free, so what is in it is this run's."""
    with tempfile.TemporaryDirectory(prefix="shoal-ray-") as scratch:
        file = Path(scratch) / "config.yaml"
        file.write_text(text)
        resolved = resolve([file])
    folder = run_folder(resolved.config)
    begun = folder.checkpoints.exists() or (folder.path / "metrics.jsonl").exists()
    return train_here(resolved, resume=begun)


def launch(
    script: str | Path,
    arguments: Sequence[str] = (),
    num_workers: int = 1,
    address: str | None = None,
    *,
    cpus_per_worker: float = 1.0,
    gpus_per_worker: float = 0.0,
    max_retries: int = 0,
    patience: float = 600.0,
) -> None:
    """Run a script as so many ranks on Ray, as `python -m shoal.launch` does on one host.

    max_retries: for a script that goes on from a checkpoint of its own, as an Estimator's does.
    """
    path = Path(script).absolute()
    if not path.is_file():
        raise ValueError(f"there is no script {script}")
    backend = choose_backend(report=False)
    workers = RayWorkers(num_workers, cpus_per_worker, gpus_per_worker, max_retries, patience)
    run_on_ray(partial(_run_script, str(path), list(arguments), backend), workers, address)


def _run_script(script: str, arguments: list[str], backend: str) -> None:
    """The script, as `python SCRIPT ARGUMENTS` runs it."""
    os.environ[VARIABLE] = backend
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise RuntimeError(f"{script} ended with {end.code}") from None

"""Ranks on a real Ray cluster of two nodes: equal numbers, and a node that is lost on the way."""

from __future__ import annotations

import gzip
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster_configs import LONG, MODELS, SHORT, write_config
from commands import ROOT, metrics, newest_step, result
from commands import shoal as start
from test_resume import assert_same

import shoal
from shoal.data.prepared.engine import LocalEngine, RayEngine
from shoal.data.prepared.folder import PrepareJob
from shoal.data.prepared.preparation import prepare
from shoal.launch.hosts import LaunchError
from shoal.runs.run import resolve

ray = pytest.importorskip("ray", reason="Ray is not installed: the extra `ray`")
pytestmark = pytest.mark.slow
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}
WAIT = 300.0  # for anything that happens on a busy machine


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with a CPU each, this process connected to them."""
    os.environ |= {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_register_timeout_seconds": str(int(WAIT)),
        "PYTHONPATH": _path(),
    }
    made = _start()
    add_node(made)
    ray.init(address=made.address)
    yield made
    ray.shutdown()
    made.shutdown()


def _start() -> Any:
    from ray.cluster_utils import Cluster

    args = {**NODE, "include_dashboard": False}
    return _patiently(lambda: Cluster(initialize_head=True, head_node_args=args))


def add_node(cluster: Any) -> None:
    _patiently(lambda: cluster.add_node(**NODE))


def _patiently(make: Callable[[], Any]) -> Any:
    """Ray gives a node 30 s to start, which a busy machine may not keep."""
    for _ in range(8):
        try:
            return make()
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
            last = error
    raise last


def _path() -> str:
    """Nodes find the project and Ray where this process does."""
    return os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A config, and the folder of its run on one process: what all others must equal."""
    place = tmp_path_factory.mktemp("alone")
    config = write_config(place / "short.yaml", MODELS["BPR"], SHORT)
    shoal.run(config_file_list=[config], **{"run.output": str(place / "run")})
    return config, place / "run"


def until(what: str, happened: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WAIT
    while not (found := happened()):
        assert time.monotonic() < deadline, f"no {what} after {WAIT} s"
        time.sleep(0.05)
    return found


def nodes() -> int:
    return sum(node["Alive"] for node in ray.nodes())


@pytest.mark.parametrize("strategy", ["ddp", "sharded"])
def test_equal_to_one_process(
    cluster: Any, short: tuple[Path, Path], tmp_path: Path, strategy: str
) -> None:
    config, alone = short
    folder = tmp_path / "run"
    given = {"strategy.name": strategy, "run.output": str(folder)}
    made = shoal.ray.train(config, num_workers=2, **given)
    assert made["world_size"] == 2 and made["folder"] == str(folder)
    assert_same(folder, alone, 1e-5)


@pytest.mark.parametrize("strategy", ["ddp", "sharded"])
def test_a_lost_node(
    cluster: Any, tmp_path: Path, strategy: str, capfd: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path / "long.yaml", MODELS["BPR"], LONG)
    reference, folder = tmp_path / "reference", tmp_path / "run"
    plain = {"checkpoint.every_steps": 0, "run.output": str(reference)}
    shoal.run(config_file_list=[config], **plain)
    given = {"strategy.name": strategy, "run.output": str(folder)}
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(shoal.ray.train, config, num_workers=2, max_retries=2, **given)
        until("checkpoint", lambda: run.done() or newest_step(folder) > 20)
        before = newest_step(folder)
        (lost,) = cluster.worker_nodes
        cluster.remove_node(lost, allow_graceful=False)
        until("loss of the node", lambda: nodes() == 1)
        assert not run.done()
        add_node(cluster)
        run.result(WAIT)
    assert_same(folder, reference, 1e-5)
    log = (folder / "train.log").read_text()
    assert log.count("resuming") == 1 and metrics(folder)[-1]["step"] > before
    said = capfd.readouterr()
    assert "Ray starts the ranks again" in said.out + said.err


def test_a_mistake_is_told_once(cluster: Any, short: tuple[Path, Path], tmp_path: Path) -> None:
    """What a user must mend is not tried again."""
    config = short[0]
    given = {"data.name": "nowhere", "data.path": str(tmp_path), "run.output": str(tmp_path / "x")}
    with pytest.raises(LaunchError, match=r"rank [01] on host .*nowhere"):
        shoal.ray.train(config, num_workers=2, **given)
    with pytest.raises(LaunchError, match="no room for 3 workers with 1 CPU each"):
        shoal.ray.train(config, num_workers=3, patience=3.0, **{"run.output": str(tmp_path / "y")})
    with pytest.raises(ValueError, match="use `shoal launch`"):
        shoal.ray.train(config, num_workers=2, **{"strategy.name": "ps"})


def test_the_command(cluster: Any, short: tuple[Path, Path], tmp_path: Path) -> None:
    (config, alone), folder = short, tmp_path / "run"
    words = ("--nproc=2", "--strategy.name=ddp", f"--ray={cluster.address}", "--output", folder)
    command = start("train", config, *words, cwd=tmp_path, PYTHONPATH=os.environ["PYTHONPATH"])
    assert command.wait(WAIT) == 0, command.output
    assert f"run: {folder}" in command.output and result(folder)["world_size"] == 2
    assert_same(folder, alone, 1e-5)


def test_a_script_of_ones_own(cluster: Any, tmp_path: Path) -> None:
    """The script that `python -m shoal.launch` and torchrun start."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, shoal\n"
        "strategy = shoal.CollectiveStrategy()\n"
        "open(sys.argv[1] + str(strategy.rank()), 'w').write(str(strategy.world_size()))\n"
    )
    shoal.ray.launch(script, [str(tmp_path / "rank-")], num_workers=2)
    assert [(tmp_path / f"rank-{rank}").read_text() for rank in (0, 1)] == ["2", "2"]
    script.write_text("raise KeyError('of the script')\n")
    with pytest.raises(LaunchError, match="KeyError: 'of the script'"):
        shoal.ray.launch(script, num_workers=2)


def test_a_prepared_folder_is_the_same_to_the_byte(cluster: Any, tmp_path: Path) -> None:
    """Two files, one of them packed, in parts that several tasks parse; users in several ranges."""
    draw = np.random.default_rng(0)
    users, items = draw.zipf(1.3, 30_000) % 900, draw.integers(0, 700, 30_000)
    lines = [f"u{u},i{i},{r},{t}" for t, (u, i, r) in enumerate(zip(users, items, users % 5))]
    head = "user_id,item_id,rating,timestamp\n"
    (tmp_path / "a.csv").write_text(head + "\n".join(lines[:20_000]) + "\n")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress((head + "\n".join(lines[20_000:])).encode()))
    config = resolve(values={"data.filter.user_inter_num": "[3,inf)"}).config.data
    folders = []
    for engine in (LocalEngine(), RayEngine()):
        to = tmp_path / type(engine).__name__ / "prepared"
        names = [str(tmp_path / name) for name in ("a.csv", "b.csv.gz")]
        prepare(
            PrepareJob(names, to, config, memory=2 << 20, command="shoal prepare", engine=engine)
        )
        folders.append(
            {str(f.relative_to(to)): f.read_bytes() for f in to.rglob("*") if f.is_file()}
        )
    assert len(folders[0]) > 10 and folders[0] == folders[1]
    (tmp_path / "c.csv").write_text(head + "\n".join(lines[:9000]) + "\nu1,i1,five,3\n")
    job = PrepareJob([str(tmp_path / "c.csv")], tmp_path / "bad", config, engine=RayEngine())
    with pytest.raises(ValueError, match=r"c\.csv, line 9002"):
        prepare(job)

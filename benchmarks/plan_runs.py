"""Runs that the planner is held against: small configs, trained here, a line of JSON each.

A line has the machine, the words of the command and the median step of its epochs without the
first. benchmarks/plan.py reads them.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from shoal.runs.planning.cluster import Cluster
from shoal.runs.planning.cluster_file import read_cluster
from shoal.runs.planning.compare import layout_of, measured
from shoal.runs.planning.counting import count_work
from shoal.runs.planning.presets import this_machine
from shoal.runs.run import resolve

if TYPE_CHECKING:
    from plan import Row

COMMON = [
    *("--train.epochs=4", "--train.eval_every=0", "--run.log_level=warning"),
    *("--run.progress=false", "--checkpoint.every_epochs=99"),
]
PAIRS = ["--data.name=planted", "--data.planted.users=20000", "--data.planted.items=10000"]
HISTORIES = ["--data.name=planted", "--data.planted.users=3000", "--data.planted.items=5000"]
HISTORIES += ["--data.planted.interactions=150000", "--data.max_len=50"]
CLICKS = ["--data.format=planted_clicks", "--data.clicks.planted.slots=26"]
CLICKS += ["--data.clicks.planted.samples=100000", "--data.clicks.planted.ids_per_slot=20000"]
CLICKS += ["--data.clicks.rows=500000", "--train.optimizer.name=adagrad"]
MODELS = {
    "BPR": [*PAIRS, "--data.planted.interactions=400000", "--train.batch_size=4096"],
    "DLRM": [*CLICKS, "--train.batch_size=2048"],
    "DCNV2": [*CLICKS, "--train.batch_size=2048"],
    "SASRec": [*HISTORIES, "--train.batch_size=256"],
    "BERT4Rec": [*HISTORIES, "--train.batch_size=256"],
    "HSTU": [*HISTORIES, "--train.batch_size=256"],
}
TIERED = ("BPR", "DLRM", "DCNV2")  # whose tables are looked up alone


def machine_name() -> str:
    """What ran: kind and number of cores, or the GPU."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name(0)
    return f"{os.cpu_count()} cores, {platform.machine()}"


def ways(model: str, scratch: str) -> dict[str, list[str]]:
    """Strategies of this machine, as words."""
    if torch.cuda.is_available():
        found = {"single": [], "single, batch x 4": ["--train.batch_size=8192"]}
        if model in TIERED:
            found["tiers"] = ["--rows.tiers.gpu=20MB"]
        return found
    cores = os.cpu_count() or 1
    found = {"single, 1 thread": ["--run.threads=1"]}
    if cores > 1:
        found[f"single, {min(4, cores)} threads"] = [f"--run.threads={min(4, cores)}"]
    for size in [n for n in (2, 4, 8) if n <= cores]:
        on = [f"--launch.nproc={size}", "--run.threads=1"]
        found[f"ddp on {size}"] = [*on, "--strategy.name=ddp"]
        found[f"sharded on {size}"] = [*on, "--strategy.name=sharded", "--strategy.place=row"]
        if size * 2 <= max(cores, 2):
            served = ["--strategy.name=ps", f"--launch.servers={max(1, size // 2)}"]
            found[f"ps on {size}"] = [*on, *served]
    if model in TIERED:
        tiers = ["--rows.tiers.host=8MB", f"--rows.tiers.ssd={scratch}", "--run.threads=1"]
        found["tiers, 1 thread"] = tiers
    return found


def measure_here(path: Path, quick: bool) -> None:
    """Train every config in every way; runs that the file has are left out."""
    machine = machine_name()
    known = {(line["machine"], line["model"], line["way"]) for line in _lines(path)}
    for model, words in MODELS.items():
        with tempfile.TemporaryDirectory() as scratch:
            every = ways(model, scratch)
            for number, (way, more) in enumerate(every.items()):
                if (machine, model, way) in known or (quick and number % 3):
                    continue
                line = _train(model, [*words, *more], Path(scratch) / "run")
                line |= {"machine": machine, "model": model, "way": way}
                with path.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                shown = line.get("ms")
                print(f"{model:9} {way:22} {'failed' if shown is None else f'{shown:.3f} ms'}")


def _train(model: str, words: list[str], folder: Path) -> dict[str, Any]:
    words = [f"--model={model}", *COMMON, *words]
    output = folder.with_name(f"{folder.name}-{abs(hash(tuple(words)))}")
    command = [sys.executable, "-m", "shoal", "train", *words, f"--run.output={output}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        print(done.stderr[-2000:])
        return {"words": words, "ms": None, "error": done.stderr[-300:]}
    ms, phases = measured(output)
    return {"words": words, "ms": ms, "phases": phases}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text().splitlines()] if path.is_file() else []


def cluster_named(machine: str, folder: Path | None) -> Cluster:
    """FOLDER/MACHINE.yaml, this machine, or a preset that is like it."""
    if folder is not None:
        return read_cluster(folder / f"{machine}.yaml")
    if machine == machine_name():
        return this_machine()
    if "H200" in machine:
        return read_cluster("DGX-H200")
    return read_cluster("x86-16" if "x86" in machine else "arm-2")


def rows_of(path: Path, clusters: Any) -> dict[str, list[tuple[Row, str]]]:
    """By machine: what was measured, and the model that it is of."""
    from plan import Row

    found: dict[str, list[tuple[Row, str]]] = {}
    works: dict[str, Any] = {}
    for line in _lines(path):
        if line.get("ms") is None:
            continue
        words = [w for w in line["words"] if not w.startswith("--rows.tiers")]
        config = resolve([], words).config
        what = " ".join(w for w in words if not w.startswith(("--strategy", "--launch", "--run")))
        if what not in works:
            works[what] = count_work(config)
        cluster = clusters(line["machine"])
        whole = resolve([], line["words"]).config
        row = (line["model"] + ", " + line["way"], works[what], cluster)
        made = Row(*row, layout_of(whole, cluster), line["ms"])
        found.setdefault(line["machine"], []).append((made, line["model"]))
    return found

"""Runs that the planner is held against: small configs, trained here, a line of JSON each.

A line has the machine, the words of the command and the median step of its epochs without the
first. The same run may have several lines, of different minutes: their median counts.

A virtual machine's speed changes within minutes, by half and more. So a layer is timed just before
and after each run, and when the machine is measured: the file MACHINE.yaml beside FILE. Steps on
cores are scaled by what the layer took, as if all of it had been in the same minute.
benchmarks/plan.py reads them.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from shoal.planning import layer_probes as layers
from shoal.planning.cluster import Cluster
from shoal.planning.cluster_file import read_cluster
from shoal.planning.comparison_with_run import layout_of, measured
from shoal.planning.step_counter import count_work
from shoal.runs.run import resolve

if TYPE_CHECKING:
    from plan import Row

COMMON = [
    *("--train.epochs=4", "--train.eval_every=0", "--run.log_level=warning"),
    *("--run.progress=false", "--checkpoint.every_epochs=99"),
]
PAIRS = ["--data.name=random", "--data.random.users=20000", "--data.random.items=50000"]
HISTORIES = ["--data.name=random", "--data.random.users=3000", "--data.random.items=5000"]
HISTORIES += ["--data.random.interactions=150000", "--data.max_len=50"]
CLICKS = ["--data.format=synthetic_clicks", "--data.clicks.synthetic.slots=26"]
CLICKS += ["--data.clicks.synthetic.samples=100000", "--data.clicks.synthetic.ids_per_slot=20000"]
CLICKS += ["--data.clicks.rows=500000", "--train.optimizer.name=adagrad"]
MODELS = {
    "BPR": [*PAIRS, "--data.random.interactions=400000", "--train.batch_size=4096"],
    "DLRM": [*CLICKS, "--train.batch_size=2048"],
    "DCNV2": [*CLICKS, "--train.batch_size=2048"],
    "SASRec": [*HISTORIES, "--train.batch_size=256"],
    "BERT4Rec": [*HISTORIES, "--train.batch_size=256"],
    "HSTU": [*HISTORIES, "--train.batch_size=256"],
}
MEASURED = "measured"  # in the place of a way: the machine itself was
TIERED = ("BPR", "DLRM", "DCNV2")  # whose tables are looked up alone


def machines() -> dict[str, list[str]]:
    """What this machine computes on, and the words that choose it."""
    found = {f"{os.cpu_count()} cores, {platform.machine()}": ["--run.device=cpu"]}
    if torch.cuda.is_available():
        found[torch.cuda.get_device_name(0)] = []
    return found


def gpu_ways(model: str) -> dict[str, list[str]]:
    """Runs of one GPU, as words."""
    found: dict[str, list[str]] = {"single": []}
    size = next(word for word in MODELS[model] if "batch_size" in word).partition("=")[2]
    found["single, batch x 4"] = [f"--train.batch_size={4 * int(size)}"]
    if model in TIERED:
        found["tiers"] = ["--rows.tiers.gpu=20MB"]
    return found


def core_ways(model: str, scratch: str) -> dict[str, list[str]]:
    """Strategies on cores, as words."""
    cores = os.cpu_count() or 1
    found = {"single, 1 thread": ["--run.threads=1"]}
    if cores > 1:
        found[f"single, {min(4, cores)} threads"] = [f"--run.threads={min(4, cores)}"]
    for size in [n for n in (2, 4, 8) if n <= cores]:
        on = [f"--launch.nproc={size}", "--run.threads=1"]
        found[f"ddp on {size}"] = [*on, "--strategy.name=ddp"]
        found[f"sharded on {size}"] = [*on, "--strategy.name=sharded", "--strategy.place=row"]
        servers = max(1, size // 4)
        workers = [f"--launch.nproc={size - servers}", "--run.threads=1"]
        served = ["--strategy.name=ps", f"--launch.servers={servers}"]
        found[f"ps on {size - servers} and {servers}"] = [*workers, *served]
    if model in TIERED:
        tiers = ["--rows.tiers.host=16MB", f"--rows.tiers.ssd={scratch}", "--run.threads=1"]
        found["tiers, 1 thread"] = tiers
    return found


def measure_here(path: Path, minutes: float, rounds: int) -> None:
    """Train every config in every way, the most different first; those of the file are kept."""
    until = time.monotonic() + 60 * minutes
    known = Counter((line["machine"], line["model"], line["way"]) for line in _lines(path))
    for machine, device in machines().items():
        if not known[machine, "", MEASURED]:
            _measure_cluster(path, machine, on_gpu=not device)
    with tempfile.TemporaryDirectory() as scratch:
        todo = []
        for machine, device in machines().items():
            for model, words in MODELS.items():
                every = core_ways(model, scratch) if device else gpu_ways(model)
                for number, (way, more) in enumerate(every.items()):
                    every_word = [*_without(words, more), *device, *more]
                    for turn in range(known[machine, model, way], rounds):
                        todo.append((turn, number, machine, model, way, every_word))
        for _, _, machine, model, way, words in sorted(todo, key=lambda one: one[:2]):
            if time.monotonic() > until:
                return print("the time is over: the same command goes on")
            before = layer_seconds()
            line = _train(model, words, scratch)
            line |= {"layer": (before + layer_seconds()) / 2}
            _write(path, {"machine": machine, "model": model, "way": way, **line})
            shown = "failed" if line["ms"] is None else f"{line['ms']:.3f} ms"
            print(f"{machine:22} {model:9} {way:18} {shown}", flush=True)


def _measure_cluster(path: Path, machine: str, on_gpu: bool) -> None:
    """As `shoal plan --measure`, without GPUs or with them."""
    before = layer_seconds()
    seen = {} if on_gpu else {"CUDA_VISIBLE_DEVICES": ""}
    file = path.absolute().with_name(f"{machine}.yaml")
    command = [sys.executable, "-m", "shoal", "plan", "--measure", f"--output={file}"]
    subprocess.run(command, check=True, env={**os.environ, **seen})
    layer = (before + layer_seconds()) / 2
    _write(path, {"machine": machine, "model": "", "way": MEASURED, "ms": None, "layer": layer})


def layer_seconds() -> float:
    """Of one core: how fast this machine is now."""
    return statistics.median(layers.layer(1, 1.0)[0])


def _write(path: Path, line: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def _without(words: list[str], others: list[str]) -> list[str]:
    """The words whose keys the others do not give."""
    given = {word.partition("=")[0] for word in others}
    return [word for word in words if word.partition("=")[0] not in given]


def _train(model: str, words: list[str], scratch: str) -> dict[str, Any]:
    words = [f"--model={model}", *COMMON, *words]
    output = Path(tempfile.mkdtemp(prefix="run-", dir=scratch)) / "run"
    command = [sys.executable, "-m", "shoal", "train", *words, f"--run.output={output}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        print(done.stderr[-2000:])
        return {"words": words, "ms": None, "error": done.stderr[-300:]}
    ms, phases = measured(output)
    plain = [word for word in words if not word.startswith("--rows.tiers")]
    seconds = count_work(resolve([], plain).config).input_seconds  # of this machine
    return {"words": words, "ms": ms, "phases": phases, "input_seconds": seconds}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text().splitlines()] if path.is_file() else []


def cluster_named(machine: str, folder: Path | None) -> Cluster:
    """FOLDER/MACHINE.yaml, or a preset that is like it."""
    if folder is not None:
        return read_cluster(folder / f"{machine}.yaml")
    if "cores" not in machine:
        return read_cluster("DGX-H200")
    cores, kind = machine.split(" cores, ")
    cluster = read_cluster("x86-16" if "x86" in kind else "arm-64")
    bandwidth = min(cluster.host.bandwidth, int(cores) * cluster.host.device.bandwidth)
    host = replace(cluster.host, devices=int(cores), cores=int(cores), bandwidth=bandwidth)
    return replace(cluster, host=host)


def rows_of(path: Path, clusters: Any) -> dict[str, list[tuple[Row, str]]]:
    """By machine: what was measured, and the model that it is of."""
    from plan import Row

    found: dict[str, list[tuple[Row, str]]] = {}
    works: dict[str, Any] = {}
    turns: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for line in _lines(path):
        if line.get("ms") is not None:
            turns.setdefault((line["machine"], line["model"], line["way"]), []).append(line)
    usual = {one["machine"]: one["layer"] for one in _lines(path) if one["way"] == MEASURED}
    for (machine, *_), lines in turns.items():
        of_cores = machine in usual and "cores" in machine
        speeds = [usual[machine] / one["layer"] if of_cores else 1.0 for one in lines]
        ms = statistics.median(speed * one["ms"] for speed, one in zip(speeds, lines))
        line = lines[0] | {"ms": ms}
        words = [w for w in line["words"] if not w.startswith("--rows.tiers")]
        config = resolve([], words).config
        what = " ".join(w for w in words if not w.startswith(("--strategy", "--launch", "--run")))
        if what not in works:
            works[what] = count_work(config)
        cluster = clusters(line["machine"])
        whole = resolve([], line["words"]).config
        work = replace(works[what], input_seconds=line["input_seconds"])
        row = (line["model"] + ", " + line["way"], work, cluster)
        made = Row(*row, layout_of(whole, cluster, work), line["ms"])
        found.setdefault(line["machine"], []).append((made, line["model"]))
    return found

"""A prediction beside what a run measured: `shoal plan --compare RUN`.

A run's metrics.jsonl has the seconds of every epoch and, on CPUs, of its phases; an epoch's step is
their median without the first, which also warms up. plan.json in the run's folder keeps the
comparison, and the run's report shows it.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.config.schema import Config
from shoal.embedding.placements.planner import in_columns
from shoal.runs.planning.cluster import Cluster
from shoal.runs.planning.counting import count_work
from shoal.runs.planning.prediction import Prediction, RunLayout
from shoal.runs.planning.presets import this_machine
from shoal.runs.planning.timing import predict
from shoal.runs.planning.work import Work
from shoal.runs.report.reading import inner, number, objects, text_of
from shoal.runs.run import resolve_run
from shoal.world.durable import replace_durably

FILE = "plan.json"
# What the clock of a step tells apart, and the parts of a prediction that fall into it.
PHASES = {
    "forward_backward": ("rows_read", "dense_forward", "dense_backward", "idle"),
    "update": ("exchange_inside", "exchange_between", "all_reduce", "rows_updated", "optimizer"),
    "rest": ("input",),
}
NAMES = {
    "forward_backward": "rows read, forward, backward",
    "update": "exchange, rows updated, optimizer",
    "rest": "input and the rest",
}


@dataclass(frozen=True)
class Comparison:
    """Milliseconds of a step, as predicted and as measured."""

    run: str
    prediction: Prediction
    measured_ms: float
    phases: dict[str, tuple[float, float | None]]  # predicted, measured; None: not recorded

    @property
    def error(self) -> float:
        """How much more was predicted than measured, as a share of what was measured."""
        return self.prediction.step.value / self.measured_ms - 1.0

    def facts(self) -> dict[str, Any]:
        """What plan.json and `--json` have of it."""
        return {
            "format": 1,
            "run": self.run,
            "predicted_ms": self.prediction.step.value,
            "low_ms": self.prediction.step.low,
            "high_ms": self.prediction.step.high,
            "measured_ms": self.measured_ms,
            "error": self.error,
            "phases": {
                name: {"predicted_ms": planned, "measured_ms": found}
                for name, (planned, found) in self.phases.items()
            },
            "prediction": self.prediction.facts(),
        }

    def __str__(self) -> str:
        step = self.prediction.step
        lines = [("of a step", "predicted, ms", "measured, ms", "predicted - measured")]
        shown = [(NAMES[name], *pair) for name, pair in self.phases.items()]
        for name, planned, found in [*shown, ("all", step.value, self.measured_ms)]:
            measured = ("not recorded", "") if found is None else (f"{found:.4g}", "")
            if found:
                measured = (measured[0], f"{planned / found - 1:+.0%}")
            lines.append((name, f"{planned:.4g}", *measured))
        where = f"{self.run}: {self.prediction.layout.title}"
        bars = f"predicted to lie between {step.low:.4g} and {step.high:.4g} ms"
        return f"{where}\n{in_columns(lines, left=(0,))}\n{bars}"


def layout_of(config: Config, cluster: Cluster, work: Work) -> RunLayout:
    """The layout that a config asks for."""
    launch, strategy = config.launch, config.strategy
    size = max(1, launch.nproc, launch.world_size)
    hosts = max(1, launch.hosts, -(-size // max(1, launch.nproc)))
    cores = cluster.host.devices if not cluster.host.on_gpu else cluster.host.cores
    threads = config.run.threads or max(1, cores // max(1, launch.nproc))
    name = strategy.name
    if name == "auto":
        name = "single" if size == 1 else "ddp"
    tiers, share = config.rows.tiers, 1.0
    if tiers.ssd is not None or tiers.gpu:
        name, budget = "tiers", tiers.host if tiers.ssd is not None else tiers.gpu
        share = min(1.0, size * (budget or math.inf) / max(1, work.table_bytes))
    servers = max(1, launch.servers, len(strategy.ps.addresses)) if name == "ps" else 0
    mode = "sync" if strategy.ps.mode == "sync" else "async"
    return RunLayout(
        *(name, size, hosts, threads),  # type: ignore[arg-type]
        place=strategy.place,
        servers=servers,
        mode=mode,  # type: ignore[arg-type]
        in_memory=share,
        over="host" if tiers.ssd is None else "ssd",
    )


def measured(folder: Path) -> tuple[float, dict[str, float]]:
    """Milliseconds of a step of a run, and of its phases; ValueError where it trained nothing."""
    before, epochs, path = 0, [], folder / "metrics.jsonl"
    for line in objects(text_of(path)) if path.is_file() else ():
        step, seconds = line.get("step"), number(line.get("train_seconds"))
        if isinstance(step, int) and seconds is not None:
            if step > before:
                epochs.append((seconds, inner(line, "phases"), step - before))
            before = step
    if not epochs:
        raise ValueError(f"{folder} has no epoch that was trained: there is nothing to compare")
    epochs = epochs[1:] or epochs
    whole = statistics.median(1e3 * seconds / steps for seconds, _, steps in epochs)
    found = {}
    for name in PHASES:
        some = [(number(phases.get(name)), steps) for _, phases, steps in epochs]
        each = [1e3 * seconds / steps for seconds, steps in some if seconds is not None]
        if each:
            found[name] = statistics.median(each)
    return whole, found


def compare_run(
    folder: str | Path, cluster: Cluster | None = None, trust: bool = False
) -> Comparison:
    """Predict a run on a cluster (this machine) and set it beside what it measured."""
    config = resolve_run(folder, values={"run.output": None}, trust=trust).config
    there = cluster or this_machine()
    work = count_work(config)
    prediction = predict(work, there, layout_of(config, there, work))
    whole, phases = measured(Path(folder))
    pairs = {
        name: (sum(prediction.parts[part] for part in parts), phases.get(name))
        for name, parts in PHASES.items()
    }
    made = Comparison(os.fspath(folder), prediction, whole, pairs)
    replace_durably(Path(folder) / FILE, json.dumps(made.facts(), indent=2).encode())
    return made

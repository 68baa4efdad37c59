"""A prediction compared with what a run measured: `shoal plan --compare RUN`.

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
from shoal.embedding.placements.table_plan import in_columns
from shoal.files.durable import replace_durably
from shoal.planning.cluster import Cluster
from shoal.planning.prediction import Prediction, RunLayout
from shoal.planning.presets import this_machine
from shoal.planning.step_counter import count_work
from shoal.planning.step_time import predict
from shoal.planning.step_work import Work
from shoal.runs.run import resolve_run
from shoal.runs.run_files import mapping, number, objects, text_of, whole

FILE = "plan.json"
# Phases that a run times in each step -> the parts of a prediction that fall into them.
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
        """The comparison as an object for plan.json and `--json`."""
        return {
            "format": 1,
            "run": self.run,
            "predicted_ms": self.prediction.step.value,
            "low_ms": self.prediction.step.low,
            "high_ms": self.prediction.step.high,
            "measured_ms": self.measured_ms,
            "error": self.error,
            "phases": {
                name: {"predicted_ms": planned, "measured_ms": measured_ms}
                for name, (planned, measured_ms) in self.phases.items()
            },
            "prediction": self.prediction.facts(),
        }

    def __str__(self) -> str:
        step = self.prediction.step
        lines = [("of a step", "predicted, ms", "measured, ms", "predicted - measured")]
        shown = [(NAMES[name], *pair) for name, pair in self.phases.items()]
        for name, planned, measured_ms in [*shown, ("all", step.value, self.measured_ms)]:
            measured = ("not recorded", "") if measured_ms is None else (f"{measured_ms:.4g}", "")
            if measured_ms:
                measured = (measured[0], f"{planned / measured_ms - 1:+.0%}")
            lines.append((name, f"{planned:.4g}", *measured))
        title = f"{self.run}: {self.prediction.layout.title}"
        bars = f"predicted to lie between {step.low:.4g} and {step.high:.4g} ms"
        return f"{title}\n{in_columns(lines, left=(0,))}\n{bars}"


def layout_of(config: Config, cluster: Cluster, work: Work) -> RunLayout:
    """The layout that a config sets."""
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
        strategy=name,  # type: ignore[arg-type]
        processes=size,
        hosts=hosts,
        threads=threads,
        place=strategy.place,
        servers=servers,
        mode=mode,  # type: ignore[arg-type]
        in_memory=share,
        over="host" if tiers.ssd is None else "ssd",
    )


def measured(folder: Path) -> tuple[float, dict[str, float]]:
    """Milliseconds of a step of a run, and of its phases; ValueError where it trained nothing."""
    path = folder / "metrics.jsonl"
    previous_step = 0
    epochs = []
    for line in objects(text_of(path)) if path.is_file() else ():
        step, seconds = whole(line.get("step")), number(line.get("train_seconds"))
        if step is not None and seconds is not None:
            if step > previous_step:
                epochs.append((seconds, mapping(line, "phases"), step - previous_step))
            previous_step = step
    if not epochs:
        raise ValueError(f"{folder} has no epoch that was trained: there is nothing to compare")
    epochs = epochs[1:] or epochs
    step_ms = statistics.median(1e3 * seconds / steps for seconds, _, steps in epochs)
    phase_ms = {}
    for name in PHASES:
        seconds_and_steps = [(number(phases.get(name)), steps) for _, phases, steps in epochs]
        step_times = [
            1e3 * seconds / steps for seconds, steps in seconds_and_steps if seconds is not None
        ]
        if step_times:
            phase_ms[name] = statistics.median(step_times)
    return step_ms, phase_ms


def compare_run(
    folder: str | Path, cluster: Cluster | None = None, trust: bool = False
) -> Comparison:
    """Compare a run's own times with those predicted on a cluster (None: this machine)."""
    config = resolve_run(folder, values={"run.output": None}, trust=trust).config
    planned_cluster = cluster or this_machine()
    work = count_work(config)
    prediction = predict(work, planned_cluster, layout_of(config, planned_cluster, work))
    step_ms, phases = measured(Path(folder))
    pairs = {
        name: (sum(prediction.parts[part] for part in parts), phases.get(name))
        for name, parts in PHASES.items()
    }
    comparison = Comparison(os.fspath(folder), prediction, step_ms, pairs)
    replace_durably(Path(folder) / FILE, json.dumps(comparison.facts(), indent=2).encode())
    return comparison

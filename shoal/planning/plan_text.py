"""A plan as people read it, and as programs do."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from shoal.config.sizes import show_size
from shoal.config.yaml_io import inline
from shoal.embedding.placements.table_plan import in_columns
from shoal.planning.cluster import Cluster
from shoal.planning.prediction import PARTS, Prediction
from shoal.planning.ranking import (
    Target,
    advice,
    choose,
    keys,
    rank_layouts,
    sensitivity,
    smallest_cluster,
)
from shoal.planning.step_work import Work

NAMES = {
    "rows_read": "rows read",
    "rows_updated": "rows updated",
    "exchange_inside": "exchange inside hosts",
    "exchange_between": "exchange between hosts",
    "dense_forward": "dense forward",
    "dense_backward": "dense backward",
    "all_reduce": "all-reduce",
}


@dataclass(frozen=True)
class TimePlan:
    """Times and costs that `shoal plan` prints."""

    work: Work
    cluster: Cluster
    ranking: list[Prediction]
    best: Prediction
    changes: list[tuple[str, float, float]]  # what if, ms, rate against now
    target: Target | None = None
    met: tuple[Prediction, Cluster] | None = None

    @classmethod
    def for_work(cls, work: Work, cluster: Cluster, target: Target | None = None) -> TimePlan:
        """Rank the layouts for this work; ValueError where no layout fits the cluster."""
        ranking = rank_layouts(work, cluster)
        best = choose(ranking)
        changes = sensitivity(work, cluster, best.layout)
        met = None if target is None else smallest_cluster(work, cluster, target)
        return cls(
            work=work,
            cluster=cluster,
            ranking=ranking,
            best=best,
            changes=changes,
            target=target,
            met=met,
        )

    @property
    def chosen(self) -> TimePlan:
        """The best prediction, on the fewest hosts that meet the target where one is set."""
        if self.met is None:
            return self
        best, cluster = self.met
        return replace(self, best=best, cluster=cluster)

    def facts(self) -> dict[str, Any]:
        """What `--json` prints."""
        work = self.work
        plan_facts: dict[str, Any] = {
            "format": 1,
            "model": work.name,
            "batch": work.batch,
            "samples": work.samples,
            "table_bytes": work.table_bytes,
            "parameters": work.parameters,
            "cluster": {"name": self.cluster.name, "hosts": self.cluster.hosts}
            | {"devices": self.cluster.devices, "device": self.cluster.host.device.name},
            "plans": [one.facts() for one in self.ranking],
            "chosen": self.best.layout.title,
            "keys": keys(self.best),
            "binds": self.best.binds,
            "advice": advice(self.best, self.cluster),
            "sensitivity": [
                {"what": change, "step_ms": ms, "rate": rate} for change, ms, rate in self.changes
            ],
        }
        if self.target is not None:
            plan_facts["target"] = asdict(self.target) | {"met": None}
            if self.met is not None:
                prediction, cluster = self.met
                cost = self.target.epochs * prediction.epoch_cost
                plan_facts["target"]["met"] = {
                    "hosts": cluster.hosts,
                    "cost": cost,
                } | prediction.facts()
        return plan_facts

    def __str__(self) -> str:
        blocks = [self._ranking(), self._step(), self._changes()]
        if self.target is not None:
            blocks.append(self._target(self.target))
        blocks.append(self._assumed())
        lines = [f"  {key}: {inline(value)}" for key, value in keys(self.best).items()]
        blocks.append("\n".join(["keys of this plan:", *lines]))
        return "\n\n".join(blocks)

    def _ranking(self) -> str:
        cluster, work = self.cluster, self.work
        device = cluster.host.device
        machines = f"{cluster.hosts} x {cluster.host.name} ({cluster.host.devices} x {device.name})"
        first = ("strategy", "processes", "ms a step", "may be")
        lines = [(*first, "samples/s", "an epoch", "costs", "memory", "fits")]
        for prediction in self.ranking:
            memory = (
                prediction.host_bytes if prediction.device_room is None else prediction.device_bytes
            )
            lines.append(
                (
                    prediction.layout.title,
                    str(prediction.layout.processes),
                    f"{prediction.step.value:.3g}",
                    f"{prediction.step.low:.3g} to {prediction.step.high:.3g}",
                    f"{prediction.samples_per_second:,.0f}",
                    duration(prediction.epoch_seconds),
                    f"{prediction.epoch_cost:.2f}",
                    show_size(memory),
                    "yes" if prediction.fits else f"lacks {show_size(prediction.short)}",
                )
            )
        head = f"{work.name}, batch {work.batch:,}, on {machines}"
        return f"{head}:\n{in_columns(lines, left=(0, 8))}"

    def _step(self) -> str:
        best = self.best
        lines = [("part of a step", "ms", "share", "beside others, ms")]
        for part in PARTS:
            ms, hidden = best.parts[part], best.hidden.get(part, 0.0)
            if ms > 0 or hidden > 0:
                share, shown = ms / best.step.value, f"{hidden:.3g}" if hidden else ""
                lines.append((NAMES.get(part, part), f"{ms:.3g}", f"{share:.0%}", shown))
        kinds = ", ".join(f"{k} {v:.3g} ms" for k, v in best.dense_by_kind.items() if v > 0)
        sent = ", ".join(f"{show_size(n)} {place}" for place, n in best.link_bytes.items() if n)
        text = f"chosen: {best.layout.title}\n{in_columns(lines, left=(0,))}"
        text += f"\ndense: {kinds}" if kinds else ""
        text += f"\na device sends in a step: {sent}" if sent else ""
        return f"{text}\nwhat binds: {best.binds}; to change it: {advice(best, self.cluster)}"

    def _changes(self) -> str:
        lines = [("what if", "ms a step", "samples/s")]
        lines += [(what, f"{ms:.3g}", f"{rate:.2f} x") for what, ms, rate in self.changes]
        return in_columns(lines, left=(0,))

    def _target(self, target: Target) -> str:
        goal = f"{target.epochs:g} epochs in {duration(target.seconds)}"
        if self.met is None:
            return f"target {goal}: not reached by any number of these hosts"
        prediction, cluster = self.met
        cost, seconds = (
            target.epochs * prediction.epoch_cost,
            target.epochs * prediction.epoch_seconds,
        )
        return (
            f"target {goal}: {cluster.hosts} x {cluster.host.name}, {prediction.layout.title}, "
            f"{duration(seconds)}, costs {cost:.2f}"
        )

    def _assumed(self) -> str:
        lines = [("assumed", "value", "may be", "adds ms", "from")]
        for assumption in self.best.assumptions:
            span = f"{assumption.low:.3g} to {assumption.high:.3g}"
            shown = (f"{assumption.value:.3g}", span, f"{assumption.effect_ms:.3g}")
            lines.append((assumption.name, *shown, assumption.source))
        return in_columns(lines, left=(0, 4))


def duration(seconds: float) -> str:
    """
    >>> duration(5400.0), duration(0.25)
    ('1.5 h', '250 ms')
    """
    for unit, size in (
        ("y", 365.25 * 86400.0),
        ("d", 86400.0),
        ("h", 3600.0),
        ("min", 60.0),
        ("s", 1.0),
    ):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{1e3 * seconds:.3g} ms"

"""The parts of a plan that are simulated: jobs that fail, servers with queues, elastic workers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from shoal.embedding.placements.planner import in_columns
from shoal.runs.planning.cluster import Cluster
from shoal.runs.planning.failures import (
    ElasticTimes,
    LongJob,
    LongTimes,
    best_interval,
    daly_interval,
    simulate_elastic,
    young_interval,
)
from shoal.runs.planning.links import Reach, StepTime, between_hosts, over
from shoal.runs.planning.prediction import Prediction, RunLayout
from shoal.runs.planning.row_time import ID, on_cores, read_rows, server_cores, update_rows
from shoal.runs.planning.showing import TimePlan, duration
from shoal.runs.planning.simulate import (
    BarrierTimes,
    ServedJob,
    ServedTimes,
    owner_shares,
    simulate_barriers,
    simulate_servers,
)
from shoal.runs.planning.timing import step_of
from shoal.runs.planning.work import Work

START = 90.0  # seconds until processes are started again and have read the data, an assumption
WAITING = 256 * 2**20  # bytes of a process that wait for the disk while training continues
STATE = 12  # bytes of a dense parameter in a checkpoint: its value and Adam's two
MOST_WORKERS = 400  # that are simulated: of more, a part with its part of the servers
BATCHES = 10_000  # that are simulated
DRAWN = 4_000_000  # times of ranks, about
# What ranks do between two moments at which all meet.
PHASES = (("rows_read",), ("dense_forward", "dense_backward"), ("rows_updated",))


@dataclass(frozen=True)
class Simulated:
    """What the simulation says of a plan's best layout."""

    epochs: float
    step: float  # seconds
    job: LongJob
    times: LongTimes
    steps: BarrierTimes | None = None  # of ranks that wait for the slowest
    elastic: ElasticTimes | None = None  # of servers: workers that come and go
    served: tuple[ServedJob, ServedTimes] | None = None
    expected: float = 0.0  # batches a second that arithmetic gives the servers

    @classmethod
    def of(cls, plan: TimePlan, epochs: float, seed: int = 0) -> Simulated:
        """Of so many epochs."""
        best, cluster = plan.best, plan.cluster
        job = long_job(plan.work, best, cluster, epochs)
        step = 1e-3 * best.step.value
        times = best_interval(job, least=step, seed=seed)
        if best.layout.strategy != "ps":
            return cls(epochs, step, job, times, steps=barriers(plan.work, cluster, best, seed))
        layout, hours = best.layout, job.hours_between_failures
        elastic = None
        if layout.mode == "async":
            elastic = simulate_elastic(job.work, layout.hosts, hours, START, seed=seed)
        served = served_job(plan.work, cluster, layout)
        found = simulate_many(served, seed)
        steps = layout.processes  # in a step of all workers
        return cls(
            *(epochs, step, job, times),
            elastic=elastic,
            served=(served, found),
            expected=steps / step,
        )

    @property
    def keys(self) -> dict[str, Any]:
        """Keys of a config; none where the job is over before the first checkpoint would pay."""
        if self.times.interval >= self.job.work:
            return {}
        return {"checkpoint.every_steps": max(1, round(self.times.interval / self.step))}

    def facts(self) -> dict[str, Any]:
        """What `--json` prints."""
        made: dict[str, Any] = {
            "epochs": self.epochs,
            "job": asdict(self.job) | {"between_failures": self.job.between_failures},
            "failures": asdict(self.times) | {"useful": self.times.useful},
            "young": young_interval(self.job),
            "daly": daly_interval(self.job),
            "keys": self.keys,
        }
        if self.steps is not None:
            made["steps"] = asdict(self.steps)
        if self.elastic is not None:
            made["elastic"] = asdict(self.elastic)
        if self.served is not None:
            made["servers"] = asdict(self.served[1]) | {"per_second": self.served[1].per_second}
        return made

    def rows(self) -> list[tuple[str, str]]:
        """A figure and its name each."""
        job, times = self.job, self.times
        undone = f"{duration(times.lost_each)}, 95 % less than {duration(times.lost_most)}"
        between = duration(times.interval) if self.keys else "none before the end"
        formulas = (
            f"{duration(young_interval(job))} by Young, {duration(daly_interval(job))} by Daly"
        )
        found = [
            ("without failures", duration(job.work)),
            ("one of the hosts fails every", duration(job.between_failures)),
        ]
        if times.seconds == float("inf"):
            return [*found, ("with failures", "never ends: it fails before it can save")]
        found += [
            ("with failures", f"{duration(times.seconds)}, 95 % within {duration(times.late)}"),
            ("failures", f"{times.failures:,.3g}"),
            *([("a failure undoes", undone)] if times.failures else []),
            ("best between checkpoints", f"{between} ({formulas})"),
            (
                "a checkpoint pauses",
                f"{duration(job.pause)}, on disk after {duration(job.on_disk)}",
            ),
            ("starting again takes", duration(job.recovery)),
            (
                "of the time",
                f"{times.useful:.1%} useful, {times.pausing:.1%} pauses, {times.redoing:.1%} "
                f"redone, {times.recovering:.1%} starting again",
            ),
        ]
        if self.steps is not None:
            steps = self.steps
            found.append(
                (
                    "steps of ranks",
                    f"{duration(steps.mean)} (arithmetic: {duration(self.step)}), 99 % less than "
                    f"{duration(steps.slowest)}; a rank waits {steps.waiting:.0%} for others",
                )
            )
        if self.elastic is not None:
            found.append(
                (
                    "elastic workers instead",
                    f"{duration(self.elastic.seconds)}, {self.elastic.present:,.1f} of "
                    "the workers' hosts there on average",
                )
            )
        if self.served is not None:
            served = self.served[1]
            found += [
                (
                    "servers' queues",
                    f"{served.per_second:,.3g} batches/s (arithmetic: {self.expected:,.3g}); "
                    f"the busiest server works {served.busy:.0%} of the time, a request waits "
                    f"{duration(served.queued)}",
                ),
                ("workers wait", f"{served.waiting:.0%} of the time"),
            ]
            if self.served[0].mode != "sync":
                found.append(
                    (
                        "a gradient's age",
                        f"{served.age:.1f} updates of others on average, {served.oldest} at most",
                    )
                )
        return found

    def __str__(self) -> str:
        head = ("simulated", f"{self.title} on {self.job.hosts:,} hosts")
        lines = [in_columns([head, *self.rows()], left=(0, 1))]
        return "\n".join([*lines, *(f"  {key}: {value}" for key, value in self.keys.items())])

    @property
    def title(self) -> str:
        """10 epochs"""
        return f"{self.epochs:g} epoch" + ("" if self.epochs == 1 else "s")


def long_job(work: Work, best: Prediction, cluster: Cluster, epochs: float) -> LongJob:
    """So many epochs of a layout. Who holds rows writes them to its host's disk, all at once."""
    layout, host = best.layout, cluster.host
    served = layout.strategy == "ps"
    # Hosts that write, and processes of each that do: of ddp the first process writes for all.
    writers, each = {
        "ps": (layout.servers, 1) if layout.hosts > 1 else (1, layout.servers),
        "single": (1, 1),
        "ddp": (1, 1),
    }.get(layout.strategy, (layout.hosts, layout.per_host))
    held = work.table_bytes / writers + STATE * work.parameters
    waiting = min(held, WAITING * each)
    return LongJob(
        work=epochs * best.epoch_seconds,
        hosts=layout.hosts + (layout.servers if served and layout.hosts > 1 else 0),
        hours_between_failures=host.hours_between_failures,
        pause=(held - waiting) / host.disk.write + waiting / host.bandwidth,
        write=held / host.disk.write,
        recovery=START + held / host.disk.read,
    )


def barriers(work: Work, cluster: Cluster, best: Prediction, seed: int = 0) -> BarrierTimes | None:
    """Steps of ranks that own uneven shares of the rows and whose times differ; None: one process.

    The fullest owner takes as long for rows as the prediction says, the others less.
    """
    ranks = best.layout.processes
    if ranks == 1:
        return None
    local = work.batch / ranks
    rows = sum(t.popularity.distinct(t.ids * local * ranks) for t in work.tables if not t.whole)
    even = best.layout.strategy == "ddp" or best.layout.place in ("column", "replicate") or not rows
    shares = np.ones(ranks) if even else np.array(owner_shares(rows, ranks, seed=seed))
    phases: list[np.ndarray] = []
    for names in PHASES:
        seconds = 1e-3 * sum(best.parts[name] for name in names)
        of_rows = names[0].startswith("rows")
        phases.append(seconds * (shares / shares.max() if of_rows else np.ones(ranks)))
    met = {name for names in PHASES for name in names} | {"idle"}
    together = 1e-3 * sum(ms for name, ms in best.parts.items() if name not in met)
    steps = int(np.clip(DRAWN // ranks, 100, 2000))
    found = simulate_barriers(phases, cluster.efficiency.jitter.value, steps, seed)
    return replace(
        found,
        mean=found.mean + together,
        middle=found.middle + together,
        slowest=found.slowest + together,
        phases=(*found.phases, together),
        waiting=found.waiting * found.mean / (found.mean + together),
    )


def simulate_many(job: ServedJob, seed: int = 0) -> ServedTimes:
    """Any number of workers: of too many a part is simulated, with as large a part of the servers.

    A server then gets as many fewer requests as each of them has more work for it.
    """
    factor = max(1.0, min(job.workers / MOST_WORKERS, len(job.shares)))
    servers = max(1, round(len(job.shares) / factor))
    factor = len(job.shares) / servers
    workers = max(1, round(job.workers / factor))
    part = job
    if factor > 1:
        part = replace(job, workers=workers, shares=(1.0 / servers,) * servers, slowdown=())
    found = simulate_servers(part, max(BATCHES, 4 * workers), seed)
    return replace(
        found,
        batches=round(factor * found.batches),
        age=factor * found.age,
        oldest=round(factor * found.oldest),
    )


def served_job(work: Work, cluster: Cluster, layout: RunLayout) -> ServedJob:
    """Workers and servers of a layout, by the bytes and operations that timing.py counts."""
    local = work.batch / (1 if layout.mode == "async" else layout.processes)
    dense = step_of(work, cluster, layout).seconds
    compute = dense["dense_forward"] + dense["dense_backward"]
    on_server = Reach.of(work, on_cores(cluster), replace(layout, threads=server_cores(cluster)))
    reach = Reach.of(work, cluster, layout)
    asked, here, rows, moved = StepTime(), StepTime(), 0.0, 0.0
    for table in work.tables:
        ids = table.ids * local
        mine = float(table.rows) if table.whole else table.popularity.distinct(ids)
        read_rows(asked, table, on_server, mine, mine)
        update_rows(asked, table, on_server, mine, mine, 4)
        read_rows(here, table, reach, ids, table.vectors * local)
        update_rows(here, table, reach, ids, 0.0, 4)
        moved += mine * (ID + table.dim * work.sent_bytes)
        rows += mine
    parameters = 4.0 * work.parameters
    link = between_hosts(cluster, layout) if layout.hosts > 1 else cluster.host.inside
    own = cluster.between if layout.hosts > 1 and cluster.between else link  # of a server's host
    at_servers = over(own, cluster.efficiency, moved + parameters, 0)
    servers = max(1, layout.servers)
    pull, push = asked.seconds["rows_read"], asked.seconds["rows_updated"]
    pull += parameters / on_server.stream
    push += 2 * parameters / on_server.stream
    return ServedJob(
        workers=layout.processes,
        compute=compute + sum(here.seconds.values()),
        # A server reads and sends at once: what takes longer counts.
        pull=max(pull, at_servers),
        push=max(push, at_servers),
        shares=owner_shares(max(1.0, rows), servers),
        travel=over(link, cluster.efficiency, moved + parameters, 1),
        mode=layout.mode,
        spread=cluster.efficiency.jitter.value,
    )

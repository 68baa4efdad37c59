"""Rows of a step, by strategy: who reads and updates how many, and what travels for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from shoal.planning.cluster import Cluster
from shoal.planning.links import (
    Reach,
    StepTime,
    all_gather,
    all_to_all,
    between_hosts,
    has_spare_core,
    over,
)
from shoal.planning.prediction import RunLayout
from shoal.planning.presets import DEVICES, EFFICIENCY
from shoal.planning.step_work import TableWork, Work

ROW_KERNELS = {"rows_read": 3, "rows_updated": 7}  # of all tables together
ID = 8  # bytes of an id that travels


def read_rows(step: StepTime, table: TableWork, reach: Reach, ids: float, vectors: float) -> None:
    """Add the time to read rows of `ids` ids and to write them as `vectors` vectors."""
    moved_bytes = ids * (ID + table.value_bytes) + vectors * 4 * table.dim
    step.add("rows_read", moved_bytes / reach.gather + ids * (reach.row + table.id_seconds) / 3)


def update_rows(
    step: StepTime, table: TableWork, reach: Reach, ids: float, distinct: float, width: int
) -> None:
    """Add the time to sum gradients and to update distinct rows; width: bytes of a number."""
    moved_bytes = ids * width * table.dim + 2 * distinct * table.row_bytes
    step.add(
        "rows_updated", moved_bytes / reach.gather + ids * (reach.row + table.id_seconds) * 2 / 3
    )


def _whole(step: StepTime, table: TableWork, reach: Reach, share: float) -> None:
    """A table that every step reads, forward and backward, and updates whole."""
    step.add("rows_read", share * table.rows * 2 * table.value_bytes / reach.stream)
    step.add("rows_updated", share * table.rows * 2 * table.row_bytes / reach.stream)


def _row_kernels(step: StepTime, reach: Reach) -> None:
    for part, count in ROW_KERNELS.items():
        step.add(part, count * max(reach.kernel, reach.launch))


def _single(step: StepTime, work: Work, cluster: Cluster, layout: RunLayout, local: float) -> None:
    """Rows of one process that holds all of them."""
    reach = Reach.for_layout(work, cluster, layout)
    for table in work.tables:
        ids = table.ids * local
        read_rows(step, table, reach, ids, table.vectors * local)
        if table.whole:
            _whole(step, table, reach, 1.0)
        else:
            update_rows(step, table, reach, ids, table.popularity.distinct(ids), 4)
    _row_kernels(step, reach)


def _ddp(step: StepTime, work: Work, cluster: Cluster, layout: RunLayout, local: float) -> None:
    """All rows are everywhere; every process applies the gradients of all."""
    reach, size = Reach.for_layout(work, cluster, layout), layout.processes
    sent_bytes = 0.0
    for table in work.tables:
        ids = table.ids * local
        read_rows(step, table, reach, ids, table.vectors * local)
        if table.whole:
            _whole(step, table, reach, 1.0 / size)
        distinct_here = table.popularity.distinct(ids)
        distinct_everywhere = table.popularity.distinct(ids * size)
        update_rows(step, table, reach, ids, 0.0, 4)  # summed here first
        if size > 1:
            update_rows(step, table, reach, distinct_here * size, distinct_everywhere, 4)
            sent_bytes += distinct_here * (ID + 4 * table.dim)
    if size > 1:
        all_gather(step, cluster, layout, sent_bytes)
    _row_kernels(step, reach)


def _sharded(step: StepTime, work: Work, cluster: Cluster, layout: RunLayout, local: float) -> None:
    """Each row has one owner in its group; ids go there a step ahead, rows and gradients now."""
    reach, group = Reach.for_layout(work, cluster, layout), layout.processes // layout.groups
    owners = _group_of(layout, group)
    rows = 0.0
    for table in work.tables:
        ids = table.ids * local
        if table.whole:  # every process meets its rows with the states of all
            _whole(step, table, reach, 1.0 / layout.processes)
            for _ in range(2):  # and their gradients back
                all_gather(step, cluster, layout, table.vectors * local * 4 * table.dim)
        distinct_here = table.popularity.distinct(ids)
        distinct_in_group = table.popularity.distinct(ids * group)
        skew = _skew(layout, table, group, distinct_in_group)
        if layout.place == "replicate" or group == 1:
            read_rows(step, table, reach, ids, table.vectors * local)
            update_rows(step, table, reach, ids, distinct_in_group, 4)
            # Rows are gathered: half of a trip there and back.
            rows += distinct_here * 4 * table.dim * group / 2
        elif work.pooled:  # owners sum the rows of each sample's list
            read_rows(step, table, reach, ids * skew, table.vectors * local)
            update_rows(step, table, reach, ids * skew, distinct_in_group / group, work.sent_bytes)
            rows += table.vectors * local * table.dim * work.sent_bytes
        else:
            requested = distinct_here * skew  # of a share of the rows by every process
            read_rows(step, table, reach, requested, requested)
            read_rows(step, table, reach, ids, table.vectors * local)  # the rows that came, by id
            update_rows(step, table, reach, ids, 0.0, 4)  # summed before they travel
            update_rows(step, table, reach, requested, distinct_in_group / group, 4)
            rows += distinct_here * table.dim * work.sent_bytes
    if group > 1:
        for _ in range(2):  # rows, and their gradients
            all_to_all(step, cluster, owners, rows)
        ahead = StepTime()
        all_to_all(ahead, cluster, owners, work.ids * local * ID)
        spare = has_spare_core(cluster, layout)
        for part in ("exchange_inside", "exchange_between"):
            if spare:
                step.hidden[part] = ahead.seconds[part]
            else:
                step.add(part, ahead.seconds[part])
    if layout.groups > 1:  # groups agree on the rows that any of them touched
        across = replace(layout, processes=layout.groups, hosts=min(layout.groups, layout.hosts))
        touched_bytes = sum(
            t.popularity.distinct(t.ids * local * group) / group * 4 * t.dim
            for t in work.tables
            if not t.whole
        )
        all_gather(step, cluster, across, touched_bytes)
    _row_kernels(step, reach)


def _group_of(layout: RunLayout, group: int) -> RunLayout:
    """The layout of one group of processes."""
    hosts = max(1, group // layout.per_host)
    return replace(layout, processes=group, hosts=min(hosts, layout.hosts), groups=1)


def _skew(layout: RunLayout, table: TableWork, size: int, distinct: float) -> float:
    """Rows of the fullest owner over the mean: uneven by chance, or by tables that are not cut."""
    by_chance = math.sqrt(2 * math.log(max(size, 2)) * size / max(distinct, size))
    if layout.place == "column":
        return 1.0
    if layout.place == "table":
        return 1.25
    return 1.0 + by_chance


def _served(step: StepTime, work: Work, cluster: Cluster, layout: RunLayout, local: float) -> None:
    """Servers hold rows and dense parameters; workers pull, compute and push."""
    servers, workers = max(1, layout.servers), layout.processes
    reach = Reach.for_layout(work, cluster, replace(layout, threads=max(1, layout.threads)))
    on_server = Reach.for_layout(
        work, on_cores(cluster), replace(layout, threads=server_cores(cluster))
    )
    link = between_hosts(cluster, layout) if layout.hosts > 1 else cluster.host.inside
    at_servers, pulled = StepTime(), 0.0
    for table in work.tables:
        ids = table.ids * local
        distinct_here = float(table.rows) if table.whole else table.popularity.distinct(ids)
        distinct_everywhere = (
            float(table.rows) if table.whole else table.popularity.distinct(ids * workers)
        )
        requested = distinct_here * workers / servers
        read_rows(at_servers, table, on_server, requested, requested)
        update_rows(at_servers, table, on_server, requested, distinct_everywhere / servers, 4)
        read_rows(step, table, reach, ids, table.vectors * local)
        update_rows(step, table, reach, ids, 0.0, 4)
        pulled += distinct_here * (ID + table.dim * work.sent_bytes)
    dense = 4.0 * work.parameters
    moved_bytes = pulled + dense
    # Between hosts a server's link has it all; inside one every core of a server copies.
    shared = workers / servers / (1 if layout.hosts > 1 else server_cores(cluster))
    trip = over(link, cluster.efficiency, moved_bytes * max(1.0, shared), 2)
    served = at_servers.seconds["rows_read"] + at_servers.seconds["rows_updated"]
    served += workers * dense * 3 / servers / on_server.stream
    part = "exchange_between" if layout.hosts > 1 else "exchange_inside"
    step.sent["between" if layout.hosts > 1 else "inside"] += 2 * moved_bytes
    step.add(part, 2 * trip)
    step.add("rows_read", at_servers.seconds["rows_read"])
    step.add("rows_updated", served - at_servers.seconds["rows_read"])
    if layout.mode == "async":  # pulls ahead, pushes behind
        busy = step.seconds["dense_forward"] + step.seconds["dense_backward"]
        for name in (part, "rows_read", "rows_updated"):
            step.hide(name, busy)
            busy -= step.hidden[name]
    _row_kernels(step, reach)


def on_cores(cluster: Cluster) -> Cluster:
    """The cluster as servers use it: they compute on cores, also on hosts with GPUs."""
    if not cluster.host.on_gpu:
        return cluster
    host = replace(cluster.host, device=DEVICES["x86-core"], devices=cluster.host.cores)
    return replace(cluster, host=host, efficiency=EFFICIENCY["core"])


def server_cores(cluster: Cluster) -> int:
    """Cores of a server: those of its host, or its share where GPUs use the host too."""
    return max(1, cluster.host.cores // max(1, cluster.host.devices if cluster.host.on_gpu else 1))


def _tiers(step: StepTime, work: Work, cluster: Cluster, layout: RunLayout, local: float) -> None:
    """`sharded` (or `single`), plus moving rows that are not in memory, in parallel if it can."""
    (_single if layout.processes == 1 else _sharded)(step, work, cluster, layout, local)
    reach = Reach.for_layout(work, cluster, layout)
    size = layout.processes
    moved_bytes = 0.0
    for table in work.tables:
        if not table.whole:  # of the rows that this process holds
            ids, slots = table.ids * local, layout.in_memory * table.rows
            missed = table.popularity.missed(ids * size, slots) / size
            moved_bytes += missed * table.row_bytes
            if (
                layout.over == "ssd"
            ):  # finding a slot for each takes time in which nothing else computes
                step.add("rows_read", ids * reach.row / 3 + missed * cluster.efficiency.cold.value)
    speed = 0.75 * cluster.host.to_device
    if layout.over == "ssd":
        speed = cluster.host.disk.read / layout.per_host
    transfer_seconds = moved_bytes / speed
    hidden_seconds = min(
        transfer_seconds, sum(step.seconds[part] for part in ("dense_forward", "dense_backward"))
    )
    hidden_seconds = hidden_seconds if has_spare_core(cluster, layout) else 0.0
    step.add("rows_read", transfer_seconds - hidden_seconds)
    step.hidden["rows_read"] = hidden_seconds


ROWS: dict[str, Callable[[StepTime, Work, Cluster, RunLayout, float], None]] = {
    "single": _single,
    "ddp": _ddp,
    "sharded": _sharded,
    "ps": _served,
    "tiers": _tiers,
}

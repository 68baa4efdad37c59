"""Milliseconds of a training step, part by part: bytes over bandwidths, operations over peaks,
messages times latencies.

Every layout is the same sum of parts; what differs is which process reads how many rows, what
travels, and what runs beside what. docs/understand/plan.md derives it in words.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from shoal.runs.planning.cluster import Cluster, Efficiency, Estimate, Link
from shoal.runs.planning.prediction import PARTS, Assumption, Layout, Prediction, Range
from shoal.runs.planning.work import Operations, TableWork, Work

ROOM = 0.9  # the share of a memory that a plan may fill
ROW_KERNELS = {"rows_read": 6, "rows_updated": 14}  # of all tables together
SORTED = 64  # bytes that sorting moves for an id
ID = 8  # bytes of an id that travels


@dataclass
class Step:
    """Seconds by part, while they are added up."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    hidden: dict[str, float] = field(default_factory=dict)
    kinds: dict[str, float] = field(default_factory=dict)
    sent: dict[str, float] = field(default_factory=lambda: {"inside": 0.0, "between": 0.0})

    def add(self, part: str, seconds: float) -> None:
        """More of a part."""
        self.seconds[part] += seconds

    def hide(self, part: str, beside: float) -> None:
        """A part runs beside `beside` seconds of others; what is longer stays."""
        free = min(self.seconds[part], beside)
        self.seconds[part] -= free
        self.hidden[part] = self.hidden.get(part, 0.0) + free


@dataclass(frozen=True)
class Reach:
    """What one process reaches of its device (or of its cores), per second."""

    products: float
    attention: float
    stream: float
    gather: float
    row: float  # seconds of an id
    kernel: float  # seconds of a kernel
    launch: float  # seconds of the host for an operation; 0: steps are recorded

    @classmethod
    def of(cls, work: Work, cluster: Cluster, layout: Layout) -> Reach:
        """Of one process of a layout."""
        host, device, rate = cluster.host, cluster.host.device, cluster.efficiency
        peak = device.flops.get(work.precision) or device.flops["float32"]
        bandwidth, cores = device.bandwidth, 1.0
        if not host.on_gpu:
            there = layout.per_host + (layout.servers / layout.hosts)
            cores = min(layout.threads, host.devices / max(1.0, there))
            bandwidth = min(cores * bandwidth, host.bandwidth / max(1.0, there))
        recorded = work.recorded and host.on_gpu
        return cls(
            products=cores * peak * rate.gemm.value,
            attention=cores * peak * rate.attention.value,
            stream=bandwidth * rate.stream.value,
            gather=bandwidth * rate.gather.value,
            row=rate.row.value / cores,
            kernel=rate.kernel.value,
            launch=0.0 if recorded else rate.launch.value,
        )


def predict(work: Work, cluster: Cluster, layout: Layout) -> Prediction:
    """A step of a layout, with error bars: each assumption at its worse and better end, alone."""
    step = step_of(work, cluster, layout)
    seconds = sum(step.seconds.values())
    low = high = 0.0
    assumptions = []
    for name, one in cluster.efficiency.named().items():
        ends = [_with(cluster, name, value) for value in (one.low, one.high)]
        moved = [sum(step_of(work, c, layout).seconds.values()) - seconds for c in ends]
        worse, better = max(0.0, *moved), min(0.0, *moved)
        low, high = low + better**2, high + worse**2
        if worse > 1e-3 * seconds:
            shown = (one.value, one.low, one.high, one.source)
            assumptions.append(Assumption(name, *shown, effect_ms=1e3 * worse))
    bars = Range(1e3 * seconds, 1e3 * (seconds - math.sqrt(low)), 1e3 * (seconds + math.sqrt(high)))
    parts = {name: 1e3 * value for name, value in step.seconds.items()}
    device, host = memory_of(work, cluster, layout)
    # In async every worker makes steps of the whole batch.
    steps = layout.processes if layout.strategy == "ps" and layout.mode == "async" else 1
    rate = steps * work.batch / seconds
    epoch = work.samples / rate
    paid = _hosts_paid(cluster, layout)
    return Prediction(
        layout=layout,
        batch=work.batch,
        step=bars,
        parts=parts,
        hidden={name: 1e3 * value for name, value in step.hidden.items() if value > 0},
        dense_by_kind={name: 1e3 * value for name, value in step.kinds.items()},
        samples_per_second=rate,
        link_bytes=step.sent,
        device_bytes=device,
        host_bytes=host,
        device_room=ROOM * cluster.host.device.memory if cluster.host.on_gpu else None,
        host_room=ROOM * cluster.host.memory,
        epoch_seconds=epoch,
        epoch_cost=epoch / 3600 * paid * cluster.host.price,
        binds=_binds(parts, step.kinds, cluster),
        assumptions=tuple(sorted(assumptions, key=lambda a: -a.effect_ms)),
    )


def step_of(work: Work, cluster: Cluster, layout: Layout) -> Step:
    """Seconds of the slowest process, by part."""
    reach, step = Reach.of(work, cluster, layout), Step()
    slices = 1 if layout.strategy == "ps" and layout.mode == "async" else layout.processes
    local = work.batch / slices
    _input(step, work, cluster, layout, local)
    _dense(step, work, reach, local)
    ROWS[layout.strategy](step, work, cluster, layout, local)
    if layout.strategy != "ps":
        update = work.parameters * work.optimizer_bytes / reach.stream
        step.add("optimizer", update + (2 * reach.kernel if work.parameters else 0.0))
        _all_reduce(step, cluster, layout, work.parameters * work.reduced_bytes)
        if work.overlapped:
            step.hide("all_reduce", step.seconds["rows_updated"])
    if work.ahead or cluster.host.on_gpu:
        step.hide("input", sum(step.seconds.values()) - step.seconds["input"])
    slowest = cluster.efficiency.jitter.value * math.sqrt(2 * math.log(max(1, layout.processes)))
    step.add("idle", slowest * sum(step.seconds.values()))
    return step


# ---- what every layout does ---------------------------------------------------------------------


def _input(step: Step, work: Work, cluster: Cluster, layout: Layout, local: float) -> None:
    """Batches are made by other cores and copied while the step before computes."""
    made = local * work.input_seconds
    copied = local * work.input_bytes / cluster.host.to_device if cluster.host.on_gpu else 0.0
    step.add("input", made + copied)


def _dense(step: Step, work: Work, reach: Reach, local: float) -> None:
    """Forward and backward; where launches take longer than the device, the rest is idle."""
    for part, each, fixed in (
        ("dense_forward", work.forward, work.forward_step),
        ("dense_backward", work.backward, work.backward_step),
    ):
        todo = each.times(local) + fixed
        times = _of_kind(todo, reach)
        for kind, seconds in times.items():
            step.kinds[kind] = step.kinds.get(kind, 0.0) + seconds
        busy = sum(times.values()) + todo.kernels * reach.kernel
        step.add(part, busy)
        step.add("idle", max(0.0, todo.kernels * reach.launch - busy))


def _of_kind(todo: Operations, reach: Reach) -> dict[str, float]:
    return {
        "products": todo.products / reach.products,
        "attention": todo.attention / reach.attention,
        "elementwise": todo.elementwise / reach.stream,
    }


def _read(step: Step, table: TableWork, reach: Reach, ids: float, vectors: float) -> None:
    """Rows of so many ids, written as so many vectors."""
    moved = ids * (ID + table.value_bytes) + vectors * 4 * table.dim
    step.add("rows_read", moved / reach.gather + ids * (reach.row + table.id_seconds) / 3)


def _update(
    step: Step, table: TableWork, reach: Reach, ids: float, distinct: float, width: int
) -> None:
    """Gradients of ids are sorted and summed, and distinct rows are written; width: of a number."""
    moved = ids * (SORTED + width * table.dim) + 2 * distinct * table.row_bytes
    step.add("rows_updated", moved / reach.gather + ids * (reach.row + table.id_seconds) * 2 / 3)


def _whole(step: Step, table: TableWork, reach: Reach, share: float) -> None:
    """A table that every step reads and updates whole; its products count as dense ones."""
    step.add("rows_updated", share * table.rows * 2 * table.row_bytes / reach.stream)


def _row_kernels(step: Step, reach: Reach) -> None:
    for part, count in ROW_KERNELS.items():
        step.add(part, count * max(reach.kernel, reach.launch))


# ---- links --------------------------------------------------------------------------------------


def _over(link: Link, rate: Efficiency, bytes_: float, messages: float) -> float:
    return bytes_ / (link.bandwidth * rate.link(link).value) + messages * link.latency


def _all_to_all(step: Step, cluster: Cluster, layout: Layout, bytes_: float) -> None:
    """Every process sends its share of `bytes_` to every other; between hosts by way of its host.

    What goes to another host is brought together inside first, so that a device sends one message
    to each other host.
    """
    inside, hosts = layout.per_host, layout.hosts
    if inside > 1:
        moved = bytes_ * (inside - 1) / inside
        step.sent["inside"] += moved
        step.add("exchange_inside", _over(cluster.host.inside, cluster.efficiency, moved, 1))
    if hosts > 1:
        assert cluster.between is not None
        moved = bytes_ * (hosts - 1) / hosts
        step.sent["between"] += moved
        messages = 1 + (hosts - 1) / 8
        step.add("exchange_between", _over(cluster.between, cluster.efficiency, moved, messages))


def _all_gather(step: Step, cluster: Cluster, layout: Layout, bytes_: float) -> None:
    """Every process receives `bytes_` of every other one."""
    inside, hosts = layout.per_host, layout.hosts
    if hosts > 1:
        assert cluster.between is not None
        moved = bytes_ * (hosts - 1)
        step.sent["between"] += moved
        part = _over(cluster.between, cluster.efficiency, moved, math.log2(hosts))
        step.add("exchange_between", part)
    if inside > 1:
        moved = bytes_ * hosts * (inside - 1)
        step.sent["inside"] += moved
        part = _over(cluster.host.inside, cluster.efficiency, moved, math.log2(inside))
        step.add("exchange_inside", part)


def _all_reduce(
    step: Step, cluster: Cluster, layout: Layout, bytes_: float, part: str = "all_reduce"
) -> None:
    """A sum over all processes: scattered inside a host, then between hosts, then gathered."""
    inside, hosts = layout.per_host, layout.hosts
    if inside > 1 and bytes_:
        moved = 2 * bytes_ * (inside - 1) / inside
        step.sent["inside"] += moved
        step.add(part, _over(cluster.host.inside, cluster.efficiency, moved, 2 * math.log2(inside)))
    if hosts > 1 and bytes_:
        assert cluster.between is not None
        moved = 2 * bytes_ / inside * (hosts - 1) / hosts
        step.sent["between"] += moved
        step.add(part, _over(cluster.between, cluster.efficiency, moved, 2 * math.log2(hosts)))


# ---- rows, by strategy --------------------------------------------------------------------------


def _single(step: Step, work: Work, cluster: Cluster, layout: Layout, local: float) -> None:
    """All rows are here."""
    reach = Reach.of(work, cluster, layout)
    for table in work.tables:
        ids = table.ids * local
        _read(step, table, reach, ids, table.vectors * local)
        if table.whole:
            _whole(step, table, reach, 1.0)
        else:
            _update(step, table, reach, ids, table.popularity.distinct(ids), 4)
    _row_kernels(step, reach)


def _ddp(step: Step, work: Work, cluster: Cluster, layout: Layout, local: float) -> None:
    """All rows are everywhere; every process applies the gradients of all."""
    reach, size = Reach.of(work, cluster, layout), layout.processes
    travels = 0.0
    for table in work.tables:
        ids = table.ids * local
        _read(step, table, reach, ids, table.vectors * local)
        if table.whole:
            _whole(step, table, reach, 1.0 / size)
        mine = table.popularity.distinct(ids)
        every = table.popularity.distinct(ids * size)
        _update(step, table, reach, ids, 0.0, 4)  # summed here first
        if size > 1:
            _update(step, table, reach, mine * size, every, 4)
            travels += mine * (ID + 4 * table.dim)
    if size > 1:
        _all_gather(step, cluster, layout, travels)
    _row_kernels(step, reach)


def _sharded(step: Step, work: Work, cluster: Cluster, layout: Layout, local: float) -> None:
    """Each row has one owner in its group; ids go there a step ahead, rows and gradients now."""
    reach, group = Reach.of(work, cluster, layout), layout.processes // layout.groups
    owners = _group_of(layout, group)
    rows = 0.0
    for table in work.tables:
        if table.whole:
            _whole(step, table, reach, 1.0 / layout.processes)
        ids = table.ids * local
        mine = table.popularity.distinct(ids)
        every = table.popularity.distinct(ids * group)
        skew = _skew(layout, table, group, every)
        if layout.place == "replicate" or group == 1:
            _read(step, table, reach, ids, table.vectors * local)
            _update(step, table, reach, ids, every, 4)
            rows += mine * 4 * table.dim * group / 2  # gathered: half of a trip there and back
        elif work.pooled:  # owners sum the rows of each sample's list
            _read(step, table, reach, ids * skew, table.vectors * local)
            _update(step, table, reach, ids * skew, every / group, work.sent_bytes)
            rows += table.vectors * local * table.dim * work.sent_bytes
        else:
            asked = mine * skew  # of a share of the rows by every process
            _read(step, table, reach, asked, asked)
            _read(step, table, reach, ids, table.vectors * local)  # the rows that came, by id
            _update(step, table, reach, ids, 0.0, 4)  # summed before they travel
            _update(step, table, reach, asked, every / group, 4)
            rows += mine * table.dim * work.sent_bytes
    if group > 1:
        for _ in range(2):  # rows, and their gradients
            _all_to_all(step, cluster, owners, rows)
        ahead = Step()
        _all_to_all(ahead, cluster, owners, work.ids * local * ID)
        step.hidden["exchange_inside"] = ahead.seconds["exchange_inside"]
        step.hidden["exchange_between"] = ahead.seconds["exchange_between"]
    if layout.groups > 1:  # groups agree on the rows that any of them touched
        across = replace(layout, processes=layout.groups, hosts=min(layout.groups, layout.hosts))
        touched = sum(
            t.popularity.distinct(t.ids * local * group) / group * 4 * t.dim
            for t in work.tables
            if not t.whole
        )
        _all_gather(step, cluster, across, touched)
    _row_kernels(step, reach)


def _group_of(layout: Layout, group: int) -> Layout:
    """The processes that one group of a layout has, as a layout."""
    hosts = max(1, group // layout.per_host)
    return replace(layout, processes=group, hosts=min(hosts, layout.hosts), groups=1)


def _skew(layout: Layout, table: TableWork, size: int, distinct: float) -> float:
    """How much more than the mean the fullest owner has: by chance, or by what cannot be cut."""
    by_chance = math.sqrt(2 * math.log(max(size, 2)) * size / max(distinct, size))
    if layout.place == "column":
        return 1.0
    if layout.place == "table":
        return 1.25
    return 1.0 + by_chance


def _served(step: Step, work: Work, cluster: Cluster, layout: Layout, local: float) -> None:
    """Servers hold rows and dense parameters; workers pull, compute and push."""
    servers, workers = max(1, layout.servers), layout.processes
    reach = Reach.of(work, cluster, replace(layout, threads=max(1, layout.threads)))
    on_server = Reach.of(work, _on_cores(cluster), replace(layout, threads=_server_cores(cluster)))
    link = cluster.between if layout.hosts > 1 and cluster.between else cluster.host.inside
    at_servers, pulled = Step(), 0.0
    for table in work.tables:
        ids = table.ids * local
        mine = float(table.rows) if table.whole else table.popularity.distinct(ids)
        every = float(table.rows) if table.whole else table.popularity.distinct(ids * workers)
        asked = mine * workers / servers
        _read(at_servers, table, on_server, asked, asked)
        _update(at_servers, table, on_server, asked, every / servers, 4)
        _read(step, table, reach, ids, table.vectors * local)
        _update(step, table, reach, ids, 0.0, 4)
        pulled += mine * (ID + table.dim * work.sent_bytes)
    dense = 4.0 * work.parameters
    moved = pulled + dense
    trip = max(
        _over(link, cluster.efficiency, moved, 2),
        _over(link, cluster.efficiency, moved * workers / servers, 2),
    )
    served = at_servers.seconds["rows_read"] + at_servers.seconds["rows_updated"]
    served += workers * dense * 3 / servers / on_server.stream
    part = "exchange_between" if layout.hosts > 1 else "exchange_inside"
    step.sent["between" if layout.hosts > 1 else "inside"] += 2 * moved
    step.add(part, 2 * trip)
    step.add("rows_read", at_servers.seconds["rows_read"])
    step.add("rows_updated", served - at_servers.seconds["rows_read"])
    if layout.mode == "async":  # pulls ahead, pushes behind
        busy = step.seconds["dense_forward"] + step.seconds["dense_backward"]
        for name in (part, "rows_read", "rows_updated"):
            step.hide(name, busy)
            busy -= step.hidden[name]
    _row_kernels(step, reach)


def _on_cores(cluster: Cluster) -> Cluster:
    """Servers compute on cores, also beside GPUs."""
    if not cluster.host.on_gpu:
        return cluster
    from shoal.runs.planning.presets import CORE, DEVICES

    host = replace(cluster.host, device=DEVICES["x86-core"], devices=cluster.host.cores)
    return replace(cluster, host=host, efficiency=CORE)


def _server_cores(cluster: Cluster) -> int:
    return max(1, cluster.host.cores // max(1, cluster.host.devices if cluster.host.on_gpu else 1))


def _tiers(step: Step, work: Work, cluster: Cluster, layout: Layout, local: float) -> None:
    """As `sharded` (or `single`); rows that are not in memory come, and others go, beside it."""
    (_single if layout.processes == 1 else _sharded)(step, work, cluster, layout, local)
    moved = 0.0
    for table in work.tables:
        if not table.whole:
            ids = table.ids * local
            slots = layout.in_memory * table.rows / layout.processes
            missed = max(0.0, table.popularity.distinct(ids * layout.processes) - slots)
            late = max(missed, (1 - table.popularity.after(ids * 64, slots)) * ids)
            moved += min(late, table.popularity.distinct(ids)) * table.row_bytes
    speed = 0.75 * cluster.host.to_device if layout.over == "host" else cluster.host.disk.read
    if layout.over == "ssd":
        speed /= layout.per_host
    step.add("rows_read", moved / speed)
    step.hide("rows_read", sum(step.seconds[p] for p in ("dense_forward", "dense_backward")))


ROWS: dict[str, Callable[[Step, Work, Cluster, Layout, float], None]] = {
    "single": _single,
    "ddp": _ddp,
    "sharded": _sharded,
    "ps": _served,
    "tiers": _tiers,
}


# ---- memory, money, what binds ------------------------------------------------------------------


def memory_of(work: Work, cluster: Cluster, layout: Layout) -> tuple[float, float]:
    """Bytes of the fullest device and of the fullest host."""
    rows = float(work.table_bytes)
    local = work.batch / layout.processes
    activations = local * (work.forward.elementwise / 2 + 4 * sum(
        t.vectors * t.dim for t in work.tables if not t.whole
    ))  # fmt: skip
    dense = 16.0 * work.parameters + activations
    held, beside = rows, 0.0
    if layout.strategy in ("sharded", "tiers") and layout.place != "replicate":
        held = rows * layout.groups / layout.processes
    if layout.strategy == "tiers":
        held, beside = held * layout.in_memory, held * (1 - layout.in_memory)
        beside = beside if layout.over == "host" else 0.0
    if layout.strategy == "ps":
        held, beside = 0.0, rows * 1.1 / max(1, layout.servers)
        return dense, beside if cluster.host.on_gpu else beside + dense * layout.per_host
    if cluster.host.on_gpu:
        return held + dense, beside * layout.per_host
    return 0.0, (held + dense + beside) * layout.per_host


def _hosts_paid(cluster: Cluster, layout: Layout) -> float:
    per_host = cluster.host.devices if cluster.host.on_gpu else cluster.host.cores
    used = layout.processes * (1 if cluster.host.on_gpu else layout.threads)
    servers = layout.servers if layout.hosts > 1 else 0
    return max(layout.hosts, math.ceil(used / per_host)) + servers


def _binds(parts: dict[str, float], kinds: dict[str, float], cluster: Cluster) -> str:
    """The resource that most of the step waits for."""
    dense = sum(parts[p] for p in ("dense_forward", "dense_backward"))
    whose = {
        "memory bandwidth, by rows": parts["rows_read"] + parts["rows_updated"],
        f"links inside a host ({cluster.host.inside.kind})": parts["exchange_inside"],
        "links between hosts": parts["exchange_between"],
        "all-reduce of dense gradients": parts["all_reduce"],
        "products of matrices": kinds.get("products", 0.0) * 1e3,
        "attention": kinds.get("attention", 0.0) * 1e3,
        "memory bandwidth, by elementwise work": kinds.get("elementwise", 0.0) * 1e3,
        "kernels too small for the device": dense - 1e3 * sum(kinds.values()),
        "input": parts["input"],
        "launches and waiting": parts["idle"],
        "optimizer of dense parameters": parts["optimizer"],
    }
    return max(whose, key=lambda name: whose[name])


def _with(cluster: Cluster, name: str, value: float) -> Cluster:
    one: Estimate = getattr(cluster.efficiency, name)
    changed = replace(cluster.efficiency, **{name: replace(one, value=value)})
    return replace(cluster, efficiency=changed)

"""Milliseconds of a training step, part by part: bytes over bandwidths, operations over peaks,
messages times latencies.

Every layout is the same sum of parts; what differs is which process reads how many rows, what
travels, and what overlaps with what. docs/understand/plan.md derives it in words.
"""

from __future__ import annotations

import math
from dataclasses import replace

from shoal.planning.cluster import Cluster, Estimate
from shoal.planning.links import Reach, StepTime, all_reduce, has_spare_core
from shoal.planning.prediction import Assumption, Prediction, Range, RunLayout
from shoal.planning.row_time import ROWS
from shoal.planning.step_work import Operations, Work

# Exchanges of a step one after the other: ddp gathers rows and sums dense gradients; sharded sends
# counts, ids, rows, gradients and sums; servers are asked for rows and parameters, and get both.
MEETINGS = {"single": 0, "ddp": 2, "sharded": 5, "ps": 4, "tiers": 5}
TIER_OPERATIONS = 100  # that the host launches for rows which come to a GPU, recorded step or not
ROOM = 0.9  # the share of a memory that a plan may fill


def predict(work: Work, cluster: Cluster, layout: RunLayout, bars: bool = True) -> Prediction:
    """Predict a step of a layout; its range moves each assumption alone to its two ends."""
    step = step_of(work, cluster, layout)
    seconds = sum(step.seconds.values())
    low = high = 0.0
    assumptions = []
    for name, estimate in cluster.efficiency.named().items() if bars else ():
        ends = [_with(cluster, name, value) for value in (estimate.low, estimate.high)]
        effects = [sum(step_of(work, c, layout).seconds.values()) - seconds for c in ends]
        worse, better = max(0.0, *effects), min(0.0, *effects)
        low, high = low + better**2, high + worse**2
        if worse > 1e-3 * seconds:
            assumptions.append(
                Assumption(
                    name=name,
                    value=estimate.value,
                    low=estimate.low,
                    high=estimate.high,
                    source=estimate.source,
                    effect_ms=1e3 * worse,
                )
            )
    step_ms = Range(
        1e3 * seconds, 1e3 * (seconds - math.sqrt(low)), 1e3 * (seconds + math.sqrt(high))
    )
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
        step=step_ms,
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


def step_of(work: Work, cluster: Cluster, layout: RunLayout) -> StepTime:
    """Seconds of the slowest process, by part."""
    reach, step = Reach.for_layout(work, cluster, layout), StepTime()
    slices = 1 if layout.strategy == "ps" and layout.mode == "async" else layout.processes
    local = work.batch / slices
    _input(step, work, cluster, layout, local)
    _dense(step, work, reach, local, work.joined if cluster.host.on_gpu else 1.0)
    ROWS[layout.strategy](step, work, cluster, layout, local)
    if layout.strategy != "ps":
        update = work.parameters * work.optimizer_bytes / reach.stream
        step.add("optimizer", update + (2 * reach.kernel if work.parameters else 0.0))
        all_reduce(step, cluster, layout, work.parameters * work.reduced_bytes)
        if work.overlapped:
            step.hide("all_reduce", step.seconds["rows_updated"])
    if cluster.host.on_gpu or (work.ahead and has_spare_core(cluster, layout)):
        step.hide("input", sum(step.seconds.values()) - step.seconds["input"])
    _host(step, cluster, layout)
    if (layout.processes > 1 or layout.servers) and not (work.recorded and cluster.host.on_gpu):
        step.add("idle", MEETINGS[layout.strategy] * cluster.efficiency.meet.value)
    slowest = cluster.efficiency.jitter.value * math.sqrt(2 * math.log(max(1, layout.processes)))
    step.add("idle", slowest * sum(step.seconds.values()))
    return step


# ---- what every layout does ---------------------------------------------------------------------


def _input(step: StepTime, work: Work, cluster: Cluster, layout: RunLayout, local: float) -> None:
    """Batches are made by other cores and copied while the step before computes."""
    making = local * work.input_seconds
    copied = local * work.input_bytes / cluster.host.to_device if cluster.host.on_gpu else 0.0
    step.add("input", making + copied)


def _dense(step: StepTime, work: Work, reach: Reach, local: float, joined: float) -> None:
    """Forward and backward; where launches take longer than the device, the rest is idle."""
    for part, per_sample, fixed in (
        ("dense_forward", work.forward, work.forward_step),
        ("dense_backward", work.backward, work.backward_step),
    ):
        operations = per_sample.times(local) + fixed
        remainder = (joined * operations.elementwise, joined * operations.kernels)
        operations = replace(operations, elementwise=remainder[0], kernels=remainder[1])
        times = _of_kind(operations, reach)
        for kind, seconds in times.items():
            step.kinds[kind] = step.kinds.get(kind, 0.0) + seconds
        busy = sum(times.values()) + operations.kernels * reach.kernel
        step.add(part, busy)
        step.add("idle", max(0.0, operations.kernels * reach.launch - busy))


def _host(step: StepTime, cluster: Cluster, layout: RunLayout) -> None:
    """Python between the parts: added to them on cores, in parallel where a GPU computes."""
    rate, busy = cluster.efficiency, sum(step.seconds.values())
    if not cluster.host.on_gpu:
        return step.add("idle", rate.step.value)
    tiers = TIER_OPERATIONS * rate.launch.value if layout.strategy == "tiers" else 0.0
    step.add("idle", max(0.0, rate.step.value + tiers - busy))


def _of_kind(operations: Operations, reach: Reach) -> dict[str, float]:
    return {
        "products": operations.products / reach.products,
        "attention": operations.attention / reach.attention,
        "elementwise": operations.elementwise / reach.stream,
    }


# ---- memory, money, what binds ------------------------------------------------------------------


def memory_of(work: Work, cluster: Cluster, layout: RunLayout) -> tuple[float, float]:
    """Bytes of the fullest device and of the fullest host."""
    rows = float(work.table_bytes)
    local = work.batch / layout.processes
    activations = local * (work.forward.elementwise / 2 + 4 * sum(
        t.vectors * t.dim for t in work.tables if not t.whole
    ))  # fmt: skip
    dense = 16.0 * work.parameters + activations
    on_device, outside = rows, 0.0
    if layout.strategy in ("sharded", "tiers") and layout.place != "replicate":
        on_device = rows * layout.groups / layout.processes
    if layout.strategy == "tiers":
        on_device, outside = on_device * layout.in_memory, on_device * (1 - layout.in_memory)
        outside = outside if layout.over == "host" else 0.0
    if layout.strategy == "ps":
        on_device, outside = 0.0, rows * 1.1 / max(1, layout.servers)
        return dense, outside if cluster.host.on_gpu else outside + dense * layout.per_host
    if cluster.host.on_gpu:
        return on_device + dense, outside * layout.per_host
    return 0.0, (on_device + dense + outside) * layout.per_host


def _hosts_paid(cluster: Cluster, layout: RunLayout) -> float:
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
    estimate: Estimate = getattr(cluster.efficiency, name)
    changed = replace(cluster.efficiency, **{name: replace(estimate, value=value)})
    return replace(cluster, efficiency=changed)

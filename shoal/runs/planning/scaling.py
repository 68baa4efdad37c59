"""How strategies scale: samples a second on more and more hosts of one kind."""

from __future__ import annotations

from shoal.runs.planning.choosing import MOST_HOSTS, layouts
from shoal.runs.planning.cluster import Cluster
from shoal.runs.planning.prediction import RunLayout
from shoal.runs.planning.timing import ROOM, memory_of, step_of
from shoal.runs.planning.work import Work

Curves = dict[str, list[tuple[int, float]]]  # a layout's name -> (hosts, samples a second)


def scaling(work: Work, cluster: Cluster) -> dict[str, Curves]:
    """By batch: the same global one, and one that grows with the hosts. Only what fits is there."""
    found: dict[str, Curves] = {"The same global batch": {}, "The same batch on each device": {}}
    hosts = 1
    while hosts <= (MOST_HOSTS if cluster.between is not None else 1):
        there = cluster.of_size(hosts)
        grown = work.of_batch(max(1, work.batch * hosts // cluster.hosts))
        for one, curves in zip((work, grown), found.values()):
            for layout in layouts(one, there):
                if layout.strategy != "single" and fits(one, there, layout):
                    points = curves.setdefault(_name(layout), [])
                    points.append((hosts, samples_per_second(one, there, layout)))
        hosts *= 2
    return found


def samples_per_second(work: Work, cluster: Cluster, layout: RunLayout) -> float:
    """As `predict` has it, without its error bars."""
    batches = layout.processes if layout.strategy == "ps" and layout.mode == "async" else 1
    return batches * work.batch / sum(step_of(work, cluster, layout).seconds.values())


def fits(work: Work, cluster: Cluster, layout: RunLayout) -> bool:
    """Whether every memory has room."""
    device, host = memory_of(work, cluster, layout)
    enough = not cluster.host.on_gpu or device <= ROOM * cluster.host.device.memory
    return enough and host <= ROOM * cluster.host.memory


def _name(layout: RunLayout) -> str:
    """The same for any number of hosts."""
    if layout.strategy == "sharded":
        return f"sharded by {layout.place}" + (", a group a host" if layout.groups > 1 else "")
    return f"ps {layout.mode}" if layout.strategy == "ps" else layout.strategy

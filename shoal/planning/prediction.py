"""What the planner answers: the layout of a run, and a step's time with its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

# In the order of a step. Their times add up to the step: what overlaps with something longer is in
# `hidden` instead.
PARTS = (
    "input",  # batches: made, and brought to the device
    "rows_read",
    "exchange_inside",  # ids, rows and their gradients between devices of a host
    "exchange_between",  # ids, rows and their gradients between hosts, or with servers
    "dense_forward",
    "dense_backward",
    "all_reduce",  # of dense gradients
    "rows_updated",
    "optimizer",  # of dense parameters
    "idle",  # launches, and waiting for the slowest
)
StrategyName = Literal["single", "ddp", "sharded", "ps", "tiers"]
Place = Literal["row", "column", "table", "replicate", "auto"]


@dataclass(frozen=True)
class RunLayout:
    """A strategy, and the processes that it runs on."""

    strategy: StrategyName
    processes: int = 1  # of all hosts; of ps: workers
    hosts: int = 1
    threads: int = 1  # cores of a process, where it computes on cores
    place: Place = "auto"  # sharded
    groups: int = 1  # sharded: groups of ranks that hold all rows each (2D)
    servers: int = 0  # ps
    mode: Literal["sync", "async"] = "sync"  # ps
    in_memory: float = 1.0  # tiers: the share of rows in the device's memory
    over: Literal["host", "ssd"] = "host"  # tiers: where the other rows are

    @property
    def title(self) -> str:
        """The layout as tables show it.

        >>> RunLayout("sharded", 64, 8, place="row", groups=8).title
        'sharded by row, 8 groups'
        """
        if self.strategy == "sharded":
            by = "" if self.place == "auto" else f" by {self.place}"
            return f"sharded{by}" + (f", {self.groups} groups" if self.groups > 1 else "")
        if self.strategy == "ps":
            return f"ps {self.mode}, {self.servers} servers"
        if self.strategy == "tiers":
            return f"tiers, {self.in_memory:.0%} in memory"
        return self.strategy

    @property
    def per_host(self) -> int:
        """Processes of a host."""
        return -(-self.processes // self.hosts)


@dataclass(frozen=True)
class Range:
    """A figure, and what it may be."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Assumption:
    """A constant that the prediction used."""

    name: str
    value: float
    low: float
    high: float
    source: str
    effect_ms: float = 0.0  # how much the step grows where it is at its worse end


@dataclass(frozen=True)
class Prediction:
    """One layout on one cluster: times in milliseconds of a step, bytes of one device."""

    layout: RunLayout
    batch: int
    step: Range
    parts: Mapping[str, float]  # by PARTS; they add up to step.value
    hidden: Mapping[str, float]  # what overlaps with other parts, and costs nothing
    dense_by_kind: Mapping[str, float]  # products, attention, elementwise: of forward and backward
    samples_per_second: float
    link_bytes: Mapping[str, float]  # a step of a device: inside, between
    device_bytes: float  # memory of the fullest device
    host_bytes: float  # memory of the fullest host (of ps: of a server's)
    device_room: float | None  # None: processes compute on cores, in the host's memory
    host_room: float
    epoch_seconds: float
    epoch_cost: float  # at the hosts' price, servers included
    binds: str  # what limits it, in words
    assumptions: tuple[Assumption, ...] = field(default=())

    @property
    def fits(self) -> bool:
        """Whether every memory has room."""
        return self.short == 0

    @property
    def short(self) -> float:
        """Bytes that the fullest memory lacks."""
        device = 0.0 if self.device_room is None else self.device_bytes - self.device_room
        return max(0.0, device, self.host_bytes - self.host_room)

    def facts(self) -> dict[str, Any]:
        """The prediction as an object for `--json`."""
        values = asdict(self)
        values["layout"]["title"] = self.layout.title
        return {**values, "fits": self.fits}

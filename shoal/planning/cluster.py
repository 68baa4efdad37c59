"""Machines as the planner sees them: devices, hosts, links, and what programs reach of them.

A device is what one process computes on: a GPU, or a core of a CPU (a process may have several).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal, get_args

from shoal.config.errors import ConfigError

LinkKind = Literal["nvlink", "pcie", "infiniband", "ethernet", "memory"]
LINKS: tuple[str, ...] = get_args(LinkKind)
PRECISIONS = ("float32", "tf32", "bfloat16", "float8")


@dataclass(frozen=True)
class Estimate:
    """A figure that the model assumes: its value, the range it lies in, and where it is from."""

    value: float
    low: float
    high: float
    source: str = ""

    @classmethod
    def about(cls, value: float, spread: float, source: str = "") -> Estimate:
        """An estimate whose true value may differ by a share of itself."""
        return cls(value, value * (1 - spread), value * (1 + spread), source)


@dataclass(frozen=True)
class ComputeDevice:
    """What a process computes on: a GPU, or a core."""

    name: str
    kind: Literal["gpu", "core"] = "gpu"
    memory: float = 0.0  # of a core 0: it has the host's
    bandwidth: float = 0.0  # read or written
    flops: Mapping[str, float] = field(default_factory=dict)  # peaks by precision
    source: str = ""


@dataclass(frozen=True)
class NetworkLink:
    """A link between devices of a host, or between hosts; figures of a device, each direction."""

    kind: LinkKind
    bandwidth: float
    latency: float = 0.0


@dataclass(frozen=True)
class Disk:
    """Storage of a host."""

    size: float = 1e12
    read: float = 2e9
    write: float = 1e9
    latency: float = 1e-4


@dataclass(frozen=True)
class Host:
    """One machine."""

    name: str
    device: ComputeDevice
    devices: int
    inside: NetworkLink
    memory: float = 0.0
    bandwidth: float = 0.0  # of its memory, all cores together
    cores: int = 1
    to_device: float = 25e9  # host memory to a GPU's, each way
    disk: Disk = Disk()
    price: float = 0.0  # per hour
    source: str = ""

    @property
    def on_gpu(self) -> bool:
        """Whether its devices are GPUs."""
        return self.device.kind == "gpu"

    def with_devices(self, devices: int) -> Host:
        """The host with this number of devices; fewer GPUs come with their share of the host."""
        if not self.on_gpu or devices >= self.devices:
            return replace(self, devices=devices)
        cores = max(1, self.cores * devices // self.devices)
        return replace(
            self, devices=devices, cores=cores, memory=self.memory * devices / self.devices
        )


@dataclass(frozen=True)
class Efficiency:
    """What programs reach of data sheets. Shares of a peak, or seconds."""

    gemm: Estimate  # share of the peak that products of matrices reach
    attention: Estimate  # share of the peak that attention reaches
    stream: Estimate  # share of a memory's bandwidth, reading and writing in order
    gather: Estimate  # share of the bandwidth that rows of tables reach
    row: Estimate  # seconds of a device for an id, without the row's bytes: find, sort, sum
    kernel: Estimate  # seconds of a kernel, without its bytes and operations
    launch: Estimate  # seconds of the host for an operation that is not recorded
    nvlink: Estimate  # of a link's bandwidth
    pcie: Estimate
    infiniband: Estimate
    ethernet: Estimate
    memory: Estimate  # between processes of a host, through its memory
    jitter: Estimate  # by which share the step of one device differs from that of another
    meet: Estimate = Estimate(0.0, 0.0, 0.0)  # seconds until processes begin an exchange
    cold: Estimate = Estimate(0.0, 0.0, 0.0)  # seconds of a process for a row that a disk brings
    threads: Estimate = Estimate(1.0, 1.0, 1.0)  # of a core, that one more busy core adds
    step: Estimate = Estimate(0.0, 0.0, 0.0)  # seconds of the host for a step that does nothing

    def link(self, link: NetworkLink) -> Estimate:
        """The share of a link's bandwidth that programs reach."""
        estimate: Estimate = getattr(self, link.kind)
        return estimate

    def named(self) -> dict[str, Estimate]:
        """Name -> estimate, for every figure."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


@dataclass(frozen=True)
class Cluster:
    """Hosts of one kind, and the link between them."""

    name: str
    host: Host
    hosts: int
    between: NetworkLink | None
    efficiency: Efficiency

    @property
    def devices(self) -> int:
        """Devices of all hosts."""
        return self.hosts * self.host.devices

    def of_size(self, hosts: int) -> Cluster:
        """This cluster with another number of hosts."""
        if hosts > 1 and self.between is None:
            raise ConfigError(
                f"{self.name} has no link between hosts: give between: {{kind: ethernet, "
                "bandwidth: 100Gb/s, latency: 20us}, or hosts: 1"
            )
        return replace(self, hosts=hosts)

"""What this machine reaches, measured in about a minute: memory, rows, products, links, disk.

Every figure is the median of several repeats; low and high are the quarter and three quarters of
them. probed_cluster.py makes a cluster's file of them.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from shoal.config.schema import Config, LaunchSection
from shoal.distributed.world import World
from shoal.embedding.engines.local import make_engines
from shoal.embedding.engines.tiered import Tiered
from shoal.embedding.rows.table import Table
from shoal.kernels.core import has_core
from shoal.launch.hosts import scratch_folder
from shoal.launch.ranks import launch
from shoal.optimizers.row_optimizer import RowOptimizer
from shoal.planning import layer_probes, link_probes
from shoal.planning.layer_probes import PRECISIONS, Shape, repeat, with_threads
from shoal.planning.step_counter import parts_of

DIMS = (16, 64, 128)
# Rows, inputs, outputs of a linear layer, used where no model is given. On a GPU those of large
# models: products of narrow layers wait for its memory, and the planner counts their bytes besides.
SHAPES = ((4096, 64, 64), (4096, 256, 128), (2048, 512, 512), (2048, 1024, 1024))
GPU_SHAPES = ((65536, 1024, 512), (65536, 1024, 1024), (65536, 3456, 512), (32768, 2048, 2048))
LARGE = 1 << 28  # bytes: beyond every cache


@dataclass(frozen=True)
class Timing:
    """Repeated timings of one operation: units (bytes, operations) a second, or seconds."""

    value: float
    low: float
    high: float

    @classmethod
    def from_seconds(cls, seconds: Sequence[float], units: float | None = None) -> Timing:
        """A timing from the seconds of each repeat; units: done in each, None: keep seconds."""
        figures = sorted(s if units is None else units / s for s in seconds)
        quarter = len(figures) // 4
        return cls(statistics.median(figures), figures[quarter], figures[-1 - quarter])


@dataclass
class Measurement:
    """Figures of this machine. Bytes a second count both reads and writes."""

    device: str  # cpu, or the name of a GPU
    on_gpu: bool
    cores: int
    memory: int  # bytes of the host
    device_memory: int = 0
    devices: int = 0  # GPUs
    copy: Timing | None = None  # of one device
    copy_all: Timing | None = None  # of all cores of the host
    stream: Timing | None = None  # elementwise operations on one device
    rows: dict[int, tuple[Timing, Timing]] = field(default_factory=dict)  # dim: seconds an id
    products: dict[str, dict[Shape, Timing]] = field(default_factory=dict)  # by precision
    attention: Timing | None = None
    threads: Timing | None = None  # of a core, that one more thread of a process adds
    kernel: Timing | None = None  # seconds
    launch: Timing | None = None
    step: Timing | None = None  # of a step that computes next to nothing
    cold: Timing | None = None  # seconds of a row that a disk brings; None: there is no core
    to_device: Timing | None = None
    links: dict[str, Timing] = field(default_factory=dict)  # all_reduce, all_to_all, latency, steps
    disk: dict[str, Timing] = field(default_factory=dict)  # read, write, latency


def measure(
    shapes: Sequence[Shape] | None = None,
    folder: str | Path | None = None,
    scale: float = 1.0,
    report: Callable[[str], None] = lambda line: None,
) -> Measurement:
    """Measure this machine; shapes: of linear layers, None: SHAPES or GPU_SHAPES.

    folder: of the disk that is measured; scale: of sizes and seconds, for tests.
    report: called with the name of each part before it is measured.
    """
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    measurement = Measurement(
        device=torch.cuda.get_device_properties(0).name if on_gpu else "cpu",
        on_gpu=on_gpu,
        cores=len(os.sched_getaffinity(0)),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )
    shapes = shapes or (GPU_SHAPES if on_gpu else SHAPES)
    size, seconds = int(LARGE * scale) // 4096 * 4096, 0.8 * scale
    if on_gpu:
        measurement.device_memory = torch.cuda.get_device_properties(0).total_memory
        measurement.devices = torch.cuda.device_count()
    with with_threads(measurement.cores):
        report("memory")
        measurement.copy_all = Timing.from_seconds(*_copy(torch.device("cpu"), size, seconds))
    with with_threads(1):
        measurement.copy = Timing.from_seconds(*_copy(device, size * (8 if on_gpu else 1), seconds))
        if on_gpu:
            measurement.stream = Timing.from_seconds(*_add(device, 4 * size, seconds))
            measurement.to_device = Timing.from_seconds(*_to_device(size, seconds))
        report("rows")
        for dim in DIMS:
            measurement.rows[dim] = _rows(device, dim, scale, seconds)
        report("products")
        for precision in (*PRECISIONS, *(["tf32"] if on_gpu else [])):
            measurement.products[precision] = {
                shape: Timing.from_seconds(
                    *layer_probes.product(device, shape, precision, seconds / len(shapes))
                )
                for shape in shapes
            }
        measurement.attention = Timing.from_seconds(*layer_probes.attention(device, seconds))
        report("layers")
        if not on_gpu:
            speeds = [one.value for one in measurement.products["float32"].values()]
            products, attention = statistics.median(speeds), measurement.attention.value
            measurement.stream = Timing.from_seconds(
                *layer_probes.elementwise(products, attention, seconds)
            )
        measurement.threads = Timing.from_seconds(
            layer_probes.added_by_thread(min(4, measurement.cores), seconds)
        )
        report("operations")
        measurement.kernel = Timing.from_seconds(layer_probes.kernel(device, seconds / 4))
        measurement.launch = Timing.from_seconds(layer_probes.launch(device, seconds / 4))
        little = link_probes.make_tiny_step(World(device), "single")
        measurement.step = Timing.from_seconds(repeat(little, device, seconds / 4))
    report("links between processes")
    measurement.links = _links(measurement.devices, scale)
    report("disk")
    measurement.disk = _disk(Path(folder or "."), size)
    if has_core():  # without it no rows lie on a disk
        with with_threads(1):
            measurement.cold = Timing.from_seconds(_cold_rows(Path(folder or "."), scale))
    return measurement


def shapes_of(config: Config, most: int = 8) -> list[Shape]:
    """Shapes of the linear layers of a config's model with its batch, the largest first."""
    parts = parts_of(config)
    batch = min(65536, parts.config.samples_per_step(1))
    layer_shapes = {(batch, *one.shape[::-1]) for one in parts.strategy.dense if one.dim() == 2}
    usable_shapes = [shape for shape in layer_shapes if min(shape) > 1]
    return sorted(usable_shapes, key=lambda shape: -shape[1] * shape[2])[:most]


def _copy(device: torch.device, size: int, seconds: float) -> tuple[list[float], float]:
    source = torch.ones(size // 4, device=device)
    to = torch.empty_like(source)
    return repeat(lambda: to.copy_(source), device, seconds), 2.0 * size


def _add(device: torch.device, size: int, seconds: float) -> tuple[list[float], float]:
    a = torch.ones(size // 4, device=device)
    to = torch.empty_like(a)
    return repeat(lambda: torch.add(a, to, out=to), device, seconds), 3.0 * size


def _to_device(size: int, seconds: float) -> tuple[list[float], float]:
    source = torch.ones(size // 4).pin_memory()
    to = torch.empty(size // 4, device="cuda")
    run = lambda: to.copy_(source, non_blocking=True)  # noqa: E731
    return repeat(run, torch.device("cuda"), seconds), float(size)


def _rows(device: torch.device, dim: int, scale: float, seconds: float) -> tuple[Timing, Timing]:
    """Seconds per id to read, and to update (Adagrad), random rows of a large table."""
    gpu = device.type == "cuda"
    rows = max(1000, int((16 if gpu else 1) * LARGE * scale) // (8 * dim))  # values and state
    number = max(256, int((1 << 22 if gpu else 1 << 15) * scale))
    table, optimizer = Table("measured", dim, rows), RowOptimizer("adagrad")
    engine = make_engines(
        {"measured": table},
        {"measured": optimizer},
        0,
        admissions={"measured": None},
        device=device,
    )["measured"]
    sets = distinct_row_ids(rows, number, device)
    grads = torch.ones(number, dim, device=device)
    turn = iter(range(10**9))
    for ids in sets:  # rows exist from their first gradient on
        engine.push(ids, grads, 0.01)
    read = repeat(lambda: engine.pull(sets[next(turn) % 4]), device, seconds / 2)
    updated = repeat(lambda: engine.push(sets[next(turn) % 4], grads, 0.01), device, seconds / 2)
    return (
        Timing.from_seconds([s / number for s in read]),
        Timing.from_seconds([s / number for s in updated]),
    )


def distinct_row_ids(rows: int, number: int, device: torch.device) -> list[torch.Tensor]:
    """Four sets of random row ids, none of which stands twice in a set.

    A row that stands twice moves its bytes once, so repeats would make memory look faster than it
    is: of as many ids as rows only 63 % are distinct.
    """
    generator = torch.Generator(device).manual_seed(1)
    return [
        torch.randperm(rows, generator=generator, device=device)[:number].clone() for _ in range(4)
    ]


def _cold_rows(folder: Path, scale: float) -> list[float]:
    """Seconds of each row that comes from a disk and sends another one there (Adagrad).

    Its steps ask for rows of a table of which memory holds a half, and for as many that it holds.
    """
    dim = 64
    rows = max(2048, int((1 << 17) * scale))
    number = max(128, int((1 << 13) * scale))
    optimizer = RowOptimizer("adagrad")
    grads, generator = torch.ones(number, dim), torch.Generator().manual_seed(1)
    seconds_per_row = []
    with tempfile.TemporaryDirectory(dir=folder, prefix=".shoal-measure-") as scratch:
        engine = Tiered(Table("measured", dim, rows), optimizer, 0, rows // 2, Path(scratch))
        for row_ids in torch.arange(rows).split(number):  # all exist, the first half is cold
            engine.push(row_ids, torch.ones(len(row_ids), dim), 0.01)
        for _ in range(12):
            ids = torch.randint(0, rows, (number,), generator=generator)
            before = engine.traffic.cold
            begin = time.perf_counter()
            engine.pull(ids)
            cold_seconds = time.perf_counter() - begin
            second_begin = time.perf_counter()
            engine.pull(ids)
            warm_seconds = time.perf_counter() - second_begin
            engine.push(ids, grads, 0.01)
            seconds_per_row.append(
                max(1e-9, cold_seconds - warm_seconds) / max(1, engine.traffic.cold - before)
            )
        engine.cold.close()
    return seconds_per_row[2:]


def _links(gpus: int, scale: float) -> dict[str, Timing]:
    """Time the communication of two ranks on this machine."""
    section = LaunchSection(nproc=2)
    device = "cuda" if gpus > 1 else "cpu"
    with scratch_folder() as scratch:
        file = Path(scratch) / "links.json"
        args = [str(Path(link_probes.__file__)), str(file), device, str(scale)]
        launch(args, section, scratch, module="shoal.launch.script", ending="")
        times_by_probe = json.loads(file.read_text())
    timings = {
        name: Timing.from_seconds(times, units) for name, (times, units) in times_by_probe.items()
    }
    return timings


def _disk(folder: Path, size: int) -> dict[str, Timing]:
    """Write and read a file of a folder, past the system's page cache."""
    block = os.urandom(1 << 20)
    writes, reads, single = [], [], []
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".shoal-measure-") as file:
        for _ in range(3):
            begin = time.perf_counter()
            file.seek(0)
            for _ in range(max(1, size // len(block))):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            writes.append(time.perf_counter() - begin)
        written = max(1, size // len(block)) * len(block)
        for _ in range(3):
            _forget(file.fileno())
            begin = time.perf_counter()
            for start in range(0, written, 1 << 22):
                os.pread(file.fileno(), 1 << 22, start)
            reads.append(time.perf_counter() - begin)
        _forget(file.fileno())
        for k in range(64):
            place = (k * 2654435761) % max(1, written - 4096) // 4096 * 4096
            begin = time.perf_counter()
            os.pread(file.fileno(), 4096, place)
            single.append(time.perf_counter() - begin)
    return {
        "write": Timing.from_seconds(writes, written),
        "read": Timing.from_seconds(reads, written),
        "latency": Timing.from_seconds(single),
    }


def _forget(file: int) -> None:
    """Drop a file from the system's page cache, so that a read goes to the disk."""
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)

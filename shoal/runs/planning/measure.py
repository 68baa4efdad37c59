"""What this machine reaches, measured in about a minute: memory, rows, products, links, disk.

Every figure is the median of several repeats; low and high are the quarter and three quarters of
them. measured_cluster.py makes a cluster's file of them.
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
from shoal.embedding.engines.local import make_engines
from shoal.embedding.engines.tiered import Tiered
from shoal.embedding.optim.rows import RowOptimizer
from shoal.embedding.rows.table import Table
from shoal.kernels.core import has_core
from shoal.launch.hosts import scratch_folder
from shoal.launch.ranks import launch
from shoal.runs.planning import measure_layers as layers
from shoal.runs.planning import measure_links
from shoal.runs.planning.counting import parts_of
from shoal.runs.planning.measure_layers import PRECISIONS, Shape, repeat, with_threads
from shoal.world.world import World

DIMS = (16, 64, 128)
# Rows in, inputs, outputs of a linear layer, where no model says.
SHAPES = ((4096, 64, 64), (4096, 256, 128), (2048, 512, 512), (2048, 1024, 1024))
LARGE = 1 << 28  # bytes: beyond every cache


@dataclass(frozen=True)
class Timing:
    """Repeats of one thing: units (bytes, operations) a second, or seconds."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float], units: float | None = None) -> Timing:
        """Seconds of every repeat; units: done in each, None: seconds are the figure."""
        found = sorted(s if units is None else units / s for s in seconds)
        quarter = len(found) // 4
        return cls(statistics.median(found), found[quarter], found[-1 - quarter])


@dataclass
class Measured:
    """What was found. Bytes a second count what is read and what is written."""

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
    tell: Callable[[str], None] = lambda line: None,
) -> Measured:
    """This machine; shapes: of linear layers, None: SHAPES, with more rows on a GPU.

    folder: of the disk that is measured; scale: of sizes and seconds, for tests.
    tell: called with a word for each part before it is measured.
    """
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    found = Measured(
        device=torch.cuda.get_device_properties(0).name if on_gpu else "cpu",
        on_gpu=on_gpu,
        cores=len(os.sched_getaffinity(0)),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )
    shapes = shapes or [(n * (16 if on_gpu else 1), a, b) for n, a, b in SHAPES]
    size, seconds = int(LARGE * scale) // 4096 * 4096, 0.8 * scale
    if on_gpu:
        found.device_memory = torch.cuda.get_device_properties(0).total_memory
        found.devices = torch.cuda.device_count()
    with with_threads(found.cores):
        tell("memory")
        found.copy_all = Timing.of(*_copy(torch.device("cpu"), size, seconds))
    with with_threads(1):
        found.copy = Timing.of(*_copy(device, size * (8 if on_gpu else 1), seconds))
        if on_gpu:
            found.stream = Timing.of(*_add(device, 4 * size, seconds))
            found.to_device = Timing.of(*_to_device(size, seconds))
        tell("rows")
        for dim in DIMS:
            found.rows[dim] = _rows(device, dim, scale, seconds)
        tell("products")
        for precision in (*PRECISIONS, *(["tf32"] if on_gpu else [])):
            found.products[precision] = {
                shape: Timing.of(*layers.product(device, shape, precision, seconds / len(shapes)))
                for shape in shapes
            }
        found.attention = Timing.of(*layers.attention(device, seconds))
        tell("layers")
        if not on_gpu:
            speeds = [one.value for one in found.products["float32"].values()]
            products, attention = statistics.median(speeds), found.attention.value
            found.stream = Timing.of(*layers.elementwise(products, attention, seconds))
        found.threads = Timing.of(layers.added_by_thread(min(4, found.cores), seconds))
        tell("operations")
        found.kernel = Timing.of(layers.kernel(device, seconds / 4))
        found.launch = Timing.of(layers.launch(device, seconds / 4))
        little = measure_links.little_step(World(device), "single")
        found.step = Timing.of(repeat(little, device, seconds / 4))
    tell("links between processes")
    found.links = _links(found.devices, scale)
    tell("disk")
    found.disk = _disk(Path(folder or "."), size)
    if has_core():  # without it no rows lie on a disk
        with with_threads(1):
            found.cold = Timing.of(_cold_rows(Path(folder or "."), scale))
    return found


def shapes_of(config: Config, most: int = 8) -> list[Shape]:
    """Linear layers of a config's model with its batch, the largest first; none: []."""
    parts = parts_of(config)
    batch = min(65536, config.samples_per_step(1))
    found = {(batch, *one.shape[::-1]) for one in parts.strategy.dense if one.dim() == 2}
    some = [shape for shape in found if min(shape) > 1]
    return sorted(some, key=lambda shape: -shape[1] * shape[2])[:most]


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
    """Seconds an id that rows anywhere in a large table take to be read, and updated (Adagrad)."""
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
    generator = torch.Generator().manual_seed(1)
    sets = [torch.randint(0, rows, (number,), generator=generator).to(device) for _ in range(4)]
    grads = torch.ones(number, dim, device=device)
    turn = iter(range(10**9))
    for ids in sets:  # rows exist from their first gradient on
        engine.push(ids, grads, 0.01)
    read = repeat(lambda: engine.pull(sets[next(turn) % 4]), device, seconds / 2)
    updated = repeat(lambda: engine.push(sets[next(turn) % 4], grads, 0.01), device, seconds / 2)
    return (
        Timing.of([s / number for s in read]),
        Timing.of([s / number for s in updated]),
    )


def _cold_rows(folder: Path, scale: float) -> list[float]:
    """Seconds of each row that comes from a disk and sends another one there (Adagrad).

    Its steps ask for rows of a table of which memory holds a half, and for as many that it holds.
    """
    dim, rows, number = 64, max(2048, int((1 << 17) * scale)), max(128, int((1 << 13) * scale))
    optimizer = RowOptimizer("adagrad")
    grads, generator = torch.ones(number, dim), torch.Generator().manual_seed(1)
    taken = []
    with tempfile.TemporaryDirectory(dir=folder, prefix=".shoal-measure-") as scratch:
        engine = Tiered(Table("measured", dim, rows), optimizer, 0, rows // 2, Path(scratch))
        for some in torch.arange(rows).split(number):  # all exist, the first half is cold
            engine.push(some, torch.ones(len(some), dim), 0.01)
        for _ in range(12):
            ids = torch.randint(0, rows, (number,), generator=generator)
            before = engine.traffic.cold
            begin = time.perf_counter()
            engine.pull(ids)
            moved = time.perf_counter() - begin
            again = time.perf_counter()
            engine.pull(ids)
            hit = time.perf_counter() - again
            engine.push(ids, grads, 0.01)
            taken.append(max(1e-9, moved - hit) / max(1, engine.traffic.cold - before))
        engine.cold.close()
    return taken[2:]


def _links(gpus: int, scale: float) -> dict[str, Timing]:
    """Two processes of this machine, as ranks of a run talk."""
    section = LaunchSection(nproc=2)
    device = "cuda" if gpus > 1 else "cpu"
    with scratch_folder() as scratch:
        file = Path(scratch) / "links.json"
        words = [str(Path(measure_links.__file__)), str(file), device, str(scale)]
        launch(words, section, scratch, module="shoal.launch.script", ending="")
        found = json.loads(file.read_text())
    made = {name: Timing.of(times, units) for name, (times, units) in found.items()}
    return made


def _disk(folder: Path, size: int) -> dict[str, Timing]:
    """A file there, written and read past the memory that the system keeps of it."""
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
        "write": Timing.of(writes, written),
        "read": Timing.of(reads, written),
        "latency": Timing.of(single),
    }


def _forget(file: int) -> None:
    """The system may keep nothing of the file in memory, so that a read goes to the disk."""
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)

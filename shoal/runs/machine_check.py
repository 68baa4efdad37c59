"""What a machine has for training: each finding with its state and what to type about it.

Values name no user, no host and no place of the machine, so that they can be shown to anybody.
"""

import mmap
import os
import platform
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch

import shoal
from shoal.kernels.core import CoreError, core_vectors

GIB = 2**30
# Extra: a package by which it is known, and what it is for.
EXTRAS = {
    "serve": ("uvicorn", "shoal serve, shoal board"),
    "report": ("matplotlib", "shoal report"),
    "tune": ("optuna", "shoal tune"),
    "index": ("usearch", "shoal recommend --approximate"),
    "onnx": ("onnxruntime", "shoal export --onnx"),
    "torchrec": ("torchrec", "tables sharded by TorchRec"),
    "ray": ("ray", "training on a Ray cluster"),
    "torchx": ("torchx", "jobs on Slurm and Kubernetes"),
    "mlflow": ("mlflow", "run.trackers"),
    "wandb": ("wandb", "run.trackers"),
    "tensorboard": ("tensorboard", "run.trackers: curves of runs"),
    "servers": ("zmq", "parameter servers: shoal launch"),
    "zstd": ("zstandard", "files that zstd packed"),
    "remote": ("fsspec", "checkpoints copied elsewhere"),
}


@dataclass(frozen=True)
class Finding:
    """good: as it should be; slow: works, and could be better; missing: optional; broken: no."""

    name: str
    value: str
    state: Literal["good", "slow", "missing", "broken"] = "good"
    advice: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def examine() -> list[Finding]:
    """Everything, in the order of importance. What cannot be found out is a finding as well."""
    found: list[Finding] = []
    for look in LOOKS:
        try:
            found += look()
        except Exception as error:  # such as a folder of the system that a container hides
            name = look.__name__.strip("_").replace("_", " ")
            found.append(Finding(name, f"not known: {type(error).__name__}", "missing"))
    return found


def _software() -> Iterator[Finding]:
    yield Finding("shoal", shoal.__version__)
    python = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", f"{python}, {platform.system()} {platform.machine()}")
    yield Finding("torch", torch.__version__)


def _cores() -> Iterator[Finding]:
    here = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    busy = load > 1.5 * here
    yield Finding(
        "cores",
        f"{here} to use, load {load:.1f}",
        "slow" if busy else "good",
        "other programs compete for the cores: `top` shows them" if busy else "",
    )
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    free = _available() or total
    low = free < GIB
    advice = "close other programs, or take smaller batches; `shoal plan CONFIG` counts"
    state: Literal["slow", "good"] = "slow" if low else "good"
    size = f"{total / GIB:.1f} GiB, {free / GIB:.1f} free"
    yield Finding("memory", size, state, advice if low else "")


def _available() -> int | None:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _core() -> Iterator[Finding]:
    build = (
        "it needs a C++ compiler (apt install g++): then `make setup` in the clone, or install "
        "the package from its source again"
    )
    try:
        found = core_vectors()
    except CoreError as error:
        advice = str(error).rpartition(": ")[2]
        yield Finding("native core", "older or newer than the Python code", "broken", advice)
        return
    from shoal.kernels.machine import is_wide  # which needs one that fits

    if found is None:
        yield Finding("native core", "not built: torch does its work, slower", "slow", build)
    elif is_wide():
        yield Finding("native core", f"{found}: lookups, updates, sampling, softmax, top-k")
    else:
        yield Finding("native core", f"{found}: softmax stays with torch", "slow")


def _gpus() -> Iterator[Finding]:
    if not torch.cuda.is_available():
        there = Path("/proc/driver/nvidia/version").exists()
        advice = "this torch has no CUDA: install it from https://pytorch.org" if there else ""
        why = "a driver, but torch sees no GPU" if there else "none: training uses the cores"
        yield Finding("GPU", why, "slow" if there else "missing", advice)
        return
    for number in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(number)
        name = torch.cuda.get_device_properties(number).name
        yield Finding(f"GPU {number}", f"{name}, {free / GIB:.0f} of {total / GIB:.0f} GiB free")
    from shoal.kernels.machine import has_triton

    if has_triton():
        yield Finding("Triton", "kernels for rows, softmax and attention")
    else:
        advice = "pip install triton"
        yield Finding("Triton", "not installed: the plain torch forms run", "slow", advice)


def _extras() -> Iterator[Finding]:
    for name, (package, use) in EXTRAS.items():
        if find_spec(package) is None:
            value, advice = f"not installed ({use})", shoal.how_to_install(name)
            yield Finding(f"extra {name}", value, "missing", advice)
        else:
            yield Finding(f"extra {name}", f"{_version_of(package)} ({use})")


def _version_of(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:  # installed under another name
        return package


def _shared_memory() -> Iterator[Finding]:
    """Ranks of one host talk through it."""
    free = shutil.disk_usage("/dev/shm").free
    low = free < 256 << 20
    advice = "docker run --shm-size=2g, or --launch.shared_memory=false" if low else ""
    state: Literal["slow", "good"] = "slow" if low else "good"
    yield Finding("shared memory", f"{free / GIB:.2f} GiB free", state, advice)


def _limits() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = soft < 1024
    yield Finding(
        *("open files", f"{soft} of {hard}", "slow" if low else "good"),
        f"ulimit -n {min(4096, hard) if hard > 0 else 4096}" if low else "",
    )


def _loopback() -> Iterator[Finding]:
    """Processes of one run meet there."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
        yield Finding("loopback", "ports can be had")
    except OSError as error:
        why = f"no port of 127.0.0.1 can be had: {error.strerror}"
        yield Finding("loopback", why, "broken", "ip link set lo up")


def _disks() -> Iterator[Finding]:
    """The present folder, where runs go, and that of temporary files."""
    for name, folder, option in (
        ("disk of this folder", Path.cwd(), "--output on another disk"),
        ("temporary files", Path(tempfile.gettempdir()), "TMPDIR=/another/disk"),
    ):
        try:
            with tempfile.NamedTemporaryFile(dir=folder) as file:
                file.write(bytes(mmap.PAGESIZE))
                file.flush()
                skew = os.fstat(file.fileno()).st_mtime - time.time()
        except OSError as error:
            why = f"cannot be written: {error.strerror}"
            # Runs may go elsewhere; processes that are started cannot do without temporary files.
            here = "slow" if "this" in name else "broken"
            yield Finding(name, why, here, option)  # type: ignore[arg-type]
            continue
        free = shutil.disk_usage(folder).free
        low = free < GIB
        state: Literal["slow", "good"] = "slow" if low else "good"
        yield Finding(name, f"{free / GIB:.1f} GiB free", state, option if low else "")
        if "this" in name:
            yield _clock(skew)


def _clock(skew: float) -> Finding:
    """Files of a disk elsewhere have the times of its host."""
    if abs(skew) < 5.0:
        return Finding("clock", "agrees with the disk's")
    advice = "set both by the same time server (timedatectl set-ntp true): pages show wrong ages"
    return Finding("clock", f"{skew:+.0f} s away from the disk's", "slow", advice)


LOOKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    *(_software, _cores, _core, _gpus, _shared_memory, _limits, _loopback, _disks, _extras),
)

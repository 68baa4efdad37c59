"""What a machine has for training: each finding with its state and what to type about it.

Values name no user, no host and no place of the machine, so that they can be published.
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
    "encode": ("sentence_transformers", "texts as vectors: data.encode"),
    "onnx": ("onnxruntime", "shoal export --onnx"),
    "torchrec": ("torchrec", "tests of sharded tables against TorchRec's"),
    "ray": ("ray", "training on a Ray cluster"),
    "torchx": ("torchx", "jobs on Slurm and Kubernetes"),
    "trees": ("lightgbm", "models LightGBM and XGBoost"),
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
    """Examine everything, the most important first. A check that fails is a finding as well."""
    findings: list[Finding] = []
    for check in CHECKS:
        try:
            findings += check()
        except Exception as error:  # such as a folder of the system that a container hides
            name = check.__name__.strip("_").replace("_", " ")
            findings.append(Finding(name, f"not known: {type(error).__name__}", "missing"))
    return findings


def _software() -> Iterator[Finding]:
    yield Finding("shoal", shoal.__version__)
    python = ".".join(map(str, sys.version_info[:3]))
    yield Finding("python", f"{python}, {platform.system()} {platform.machine()}")
    yield Finding("torch", torch.__version__)


def _cores() -> Iterator[Finding]:
    num_cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    busy = load > 1.5 * num_cores
    yield Finding(
        "cores",
        f"{num_cores} to use, load {load:.1f}",
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
        instructions = core_vectors()
    except CoreError as error:
        advice = str(error).rpartition(": ")[2]
        yield Finding("native core", "older or newer than the Python code", "broken", advice)
        return
    from shoal.kernels.machine import is_wide  # which needs one that fits

    if instructions is None:
        yield Finding("native core", "not built: torch does its work, slower", "slow", build)
    elif is_wide():
        yield Finding("native core", f"{instructions}: lookups, updates, sampling, softmax, top-k")
    else:
        yield Finding("native core", f"{instructions}: softmax stays with torch", "slow")


def _gpus() -> Iterator[Finding]:
    if not torch.cuda.is_available():
        has_driver = Path("/proc/driver/nvidia/version").exists()
        advice = "this torch has no CUDA: install it from https://pytorch.org" if has_driver else ""
        reason = (
            "a driver, but torch sees no GPU" if has_driver else "none: training uses the cores"
        )
        yield Finding("GPU", reason, "slow" if has_driver else "missing", advice)
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
    """Shared memory, through which ranks of one host exchange data."""
    free = shutil.disk_usage("/dev/shm").free
    low = free < 256 << 20
    advice = "docker run --shm-size=2g, or --launch.shared_memory=false" if low else ""
    state: Literal["slow", "good"] = "slow" if low else "good"
    yield Finding("shared memory", f"{free / GIB:.2f} GiB free", state, advice)


def _limits() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = soft < 1024
    yield Finding(
        "open files",
        f"{soft} of {hard}",
        "slow" if low else "good",
        f"ulimit -n {min(4096, hard) if hard > 0 else 4096}" if low else "",
    )


def _loopback() -> Iterator[Finding]:
    """The loopback interface, through which processes of one run meet."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
        yield Finding("loopback", "ports can be had")
    except OSError as error:
        reason = f"no port of 127.0.0.1 can be had: {error.strerror}"
        yield Finding("loopback", reason, "broken", "ip link set lo up")


def _disks() -> Iterator[Finding]:
    """The disks of the current folder, where runs are written, and of temporary files."""
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
            reason = f"cannot be written: {error.strerror}"
            # Runs may go elsewhere; processes that are started cannot do without temporary files.
            severity = "slow" if "this" in name else "broken"
            yield Finding(name, reason, severity, option)  # type: ignore[arg-type]
            continue
        free = shutil.disk_usage(folder).free
        low = free < GIB
        state: Literal["slow", "good"] = "slow" if low else "good"
        yield Finding(name, f"{free / GIB:.1f} GiB free", state, option if low else "")
        if "this" in name:
            yield _clock(skew)


def _clock(skew: float) -> Finding:
    """Compare the clock with the disk's: files of a remote disk have the times of its host."""
    if abs(skew) < 5.0:
        return Finding("clock", "agrees with the disk's")
    advice = "set both by the same time server (timedatectl set-ntp true): pages show wrong ages"
    return Finding("clock", f"{skew:+.0f} s away from the disk's", "slow", advice)


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _software,
    _cores,
    _core,
    _gpus,
    _shared_memory,
    _limits,
    _loopback,
    _disks,
    _extras,
)

"""GPUs: which of them this process sees, and which one is its own."""

from __future__ import annotations

import glob
import logging
import os

import torch

from shoal.distributed.hosts import WorldError

NO_GPU = "run.device is cuda but this machine has no usable GPU; use auto or cpu"
log = logging.getLogger("shoal")


def count_gpus(ids: str | None, device: str = "auto") -> int:
    """How many GPUs a run may use: those of run.gpu_ids, or all that CUDA_VISIBLE_DEVICES shows."""
    if device == "cpu":
        return 0
    if ids is None:
        return torch.cuda.device_count()
    return len(_split(ids)) if _has_gpus() else 0


def check_gpus(device: str, ids: str | None, processes: int, share: bool = False) -> None:
    """Before processes are started: refuse GPUs that this machine does not have for all of them.

    processes: that are to run here; share: several may compute on one GPU.
    """
    built = torch.version.cuda is not None or torch.version.hip is not None
    usable = count_gpus(ids, device) if built else 0
    if device == "cuda" and not usable:
        raise WorldError(NO_GPU)
    if 0 < usable < processes and not share:
        raise WorldError(too_few(processes, usable))


def too_few(processes: int, usable: int) -> str:
    """Error for more processes than GPUs."""
    return (
        f"{processes} processes on this host but {usable} GPU(s): each process needs its own; "
        "lower --nproc, name more in run.gpu_ids, let them share with run.share_gpu=true, or set "
        "run.device=cpu"
    )


def choose_gpus(ids: str | None, tell: bool = True) -> None:
    """Show only these GPUs to CUDA ("0,1"; "": none); no effect without GPUs.

    Must come before any use of CUDA, which reads the variable once.
    """
    if ids is None:
        return
    gpu_ids = _split(ids)
    if not _has_gpus():
        return
    if torch.cuda.is_initialized() and os.environ.get("CUDA_VISIBLE_DEVICES") != ",".join(gpu_ids):
        raise WorldError(
            f"run.gpu_ids={ids!r} comes too late: this process already uses CUDA; set "
            "CUDA_VISIBLE_DEVICES before it starts"
        )
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpu_ids)
    num_visible = torch.cuda.device_count()
    if gpu_ids and not num_visible:
        raise WorldError(
            f"run.gpu_ids={ids!r} names no GPU of this machine (nvidia-smi lists them); correct "
            'it, leave it out to use all, or set it to "" to use none'
        )
    if num_visible < len(gpu_ids) and tell:
        log.warning("run.gpu_ids names %d GPUs; %d of them can be used", len(gpu_ids), num_visible)


def pick_device(choice: str, local_rank: int = 0) -> torch.device:
    """`auto` takes this rank's GPU where there is one."""
    if choice == "cuda" and not torch.cuda.is_available():
        raise WorldError(NO_GPU)
    if choice == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", local_rank % torch.cuda.device_count())


def _has_gpus() -> bool:
    """Whether this machine has GPUs; CUDA itself would look at its variable, too early."""
    return bool(glob.glob("/dev/nvidia[0-9]*") or torch.version.hip)  # files of NVIDIA's driver


def _split(ids: str) -> list[str]:
    return [word.strip() for word in ids.split(",") if word.strip()]

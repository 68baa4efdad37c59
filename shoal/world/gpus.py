"""GPUs: which of them this process sees, and which one is its own."""

from __future__ import annotations

import glob
import logging
import os

import torch

from shoal.world.hosts import WorldError

log = logging.getLogger("shoal")


def count_gpus(ids: str | None, device: str = "auto") -> int:
    """How many GPUs a run may use: those of run.gpu_ids, or all that CUDA_VISIBLE_DEVICES shows."""
    if device == "cpu":
        return 0
    if ids is None:
        return torch.cuda.device_count()
    return len(_split(ids)) if _has_gpus() else 0


def choose_gpus(ids: str | None, tell: bool = True) -> None:
    """Let CUDA see these GPUs only ("0,1"; "": none); no effect where there are none.

    Must come before anything asks CUDA: it looks at the variable once.
    """
    if ids is None:
        return
    wanted = _split(ids)
    if not _has_gpus():
        return
    if torch.cuda.is_initialized() and os.environ.get("CUDA_VISIBLE_DEVICES") != ",".join(wanted):
        raise WorldError(
            f"run.gpu_ids={ids!r} comes too late: this process already uses CUDA; set "
            "CUDA_VISIBLE_DEVICES before it starts"
        )
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(wanted)
    found = torch.cuda.device_count()
    if wanted and not found:
        raise WorldError(
            f"run.gpu_ids={ids!r} names no GPU of this machine (nvidia-smi lists them); correct "
            'it, leave it out to use all, or set it to "" to use none'
        )
    if found < len(wanted) and tell:
        log.warning("run.gpu_ids names %d GPUs; %d of them can be used", len(wanted), found)


def pick_device(choice: str, local_rank: int = 0) -> torch.device:
    """`auto` takes this rank's GPU where there is one."""
    if choice == "cuda" and not torch.cuda.is_available():
        raise WorldError("run.device is cuda but this machine has no usable GPU; use auto or cpu")
    if choice == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", local_rank % torch.cuda.device_count())


def _has_gpus() -> bool:
    """Whether this machine has GPUs; CUDA itself would look at its variable, too early."""
    return bool(glob.glob("/dev/nvidia[0-9]*") or torch.version.hip)  # files of NVIDIA's driver


def _split(ids: str) -> list[str]:
    return [word.strip() for word in ids.split(",") if word.strip()]

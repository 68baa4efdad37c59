"""GPUs: which of them this process sees, and which one is its own."""

from __future__ import annotations

import glob
import logging
import os

import torch

from shoal.world.hosts import WorldError

log = logging.getLogger("shoal")


def choose_gpus(ids: str | None, tell: bool = True) -> None:
    """Let CUDA see these GPUs only ("0,1"; "": none); no effect where there are none.

    Must come before anything asks CUDA: it looks at the variable once.
    """
    if ids is None:
        return
    wanted = [word.strip() for word in ids.split(",") if word.strip()]
    # NVIDIA's driver makes these files; asking CUDA itself would start it too early.
    if not glob.glob("/dev/nvidia[0-9]*") and not torch.version.hip:
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

"""Progress bars with step rate and memory, on a terminal or in a notebook; never in a log file."""

import os
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import TypeVar

import torch

T = TypeVar("T")


def memory(device: torch.device) -> str:
    """Memory in use: the GPU's where there is one, this process's otherwise."""
    if device.type == "cuda":
        used = torch.cuda.max_memory_reserved(device) / 2**30
        total = torch.cuda.get_device_properties(device).total_memory / 2**30
        return f"GPU RAM: {used:.2f} G/{total:.2f} G"
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # KiB, the most so far
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return f"RAM: {used:.2f} G/{total:.2f} G"


def is_watched() -> bool:
    """Whether standard error is a terminal that can draw, with a person before it and no CI."""
    unattended = os.environ.get("CI", "").lower() not in ("", "0", "false")
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not unattended


def bar(
    steps: Iterable[T],
    total: int | None,
    label: str,
    device: torch.device,
    show: bool,
    start: int = 0,
) -> Iterator[T]:
    """`Train     3: 100%|█████| 20/20 [00:00<00:00, 341.07it/s, RAM: 0.31 G/23.40 G]`"""
    notebook = "ipykernel" in sys.modules
    if not show or not (notebook or is_watched()):
        yield from steps
        return
    if notebook and find_spec("ipywidgets") is not None:
        from tqdm.auto import tqdm  # a bar of the page
    else:
        from tqdm import tqdm

    shown, width = 0.0, None
    if not notebook:  # which would keep hundreds of them
        width = min(100, os.get_terminal_size(sys.stderr.fileno()).columns or 100)
    with tqdm(total=total, initial=start, desc=label, ncols=width, leave=not notebook) as line:
        for step in steps:
            yield step
            line.update()
            if time.perf_counter() - shown > 0.5:
                shown = time.perf_counter()
                line.set_postfix_str(memory(device), refresh=False)

"""What the machine refused, in one line: which file, what to do, what is kept."""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from pathlib import Path

from shoal.files.durable import OF_WRITES
from shoal.launch.child import is_launched

REMEDIES = {
    errno.ENOSPC: "remove something there, or name a place on another disk",
    errno.EDQUOT: "remove something there, or name a place on another disk",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EROFS: "name a place that can be written to",
    errno.EACCES: "change its mode or owner, or name another",
    errno.EPERM: "change its mode or owner, or name another",
    errno.ELOOP: "remove it",  # a link, where only a file of the folder itself may be
    errno.EMFILE: "raise the limit on open files (ulimit -n)",
    errno.ENFILE: "close other programs: the host has no more files to open",
    errno.EIO: "the disk fails: the kernel's log (dmesg) has more",
}
MEMORY = re.compile(r"not enough memory|can't allocate memory|out of memory|bad_alloc", re.I)
MEMORY_REMEDY = (
    "take a smaller train.batch_size or eval.batch_size, less data or fewer processes; "
    "`shoal plan CONFIG` prints what a run takes"
)


def explain(error: BaseException) -> str | None:
    """One line about what the machine refused; None about any other error."""
    if isinstance(error, OSError) and error.errno in REMEDIES:
        return f"{_refused(error)}; {REMEDIES[error.errno]}{_describe_kept_work()}"
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return _refused(error)
    is_torch_memory = isinstance(error, RuntimeError) and MEMORY.search(str(error))
    if (
        isinstance(error, MemoryError)
        or is_torch_memory
        or getattr(error, "errno", 0) == errno.ENOMEM
    ):
        details = re.sub(r"^\[enforce fail.*?(?=DefaultCPU)", "", str(error).strip()).split("\n")[0]
        details = f": {details[:300].rstrip('.')}" if details else ""
        return f"out of memory{details}; {MEMORY_REMEDY}{_describe_kept_work()}"
    return None


def _refused(error: OSError) -> str:
    """cannot write FILE: No space left on device (12.0 MB free)"""
    verb = "write" if error.errno in OF_WRITES else "use"
    if error.filename is None:
        hint = "; `df` shows which disk is full" if error.errno == errno.ENOSPC else ""
        return f"cannot {verb} a file: {error.strerror}{hint}"
    room = ""
    if error.errno == errno.ENOSPC:
        room = f" ({_free(Path(os.fsdecode(error.filename)))} free)"
    return f"cannot {verb} {os.fsdecode(error.filename)}: {error.strerror}{room}"


def _free(path: Path) -> str:
    while not path.exists() and path != path.parent:
        path = path.parent
    return f"{shutil.disk_usage(path).free / 1e6:.1f} MB"


def _describe_kept_work() -> str:
    """What a run that failed here has kept; empty in a rank, whose launcher prints it."""
    room = sys.modules.get("shoal.training.run_folder")
    if room is None or not room.TRAINED_IN or is_launched():
        return ""
    folder = room.TRAINED_IN[-1]
    saved = (folder / "checkpoints").is_dir() and any((folder / "checkpoints").glob("step-*"))
    if not saved:
        return "; no checkpoint was saved yet"
    return f"; its checkpoints are kept: continue with --resume {folder}"

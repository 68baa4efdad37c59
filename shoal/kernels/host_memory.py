"""Memory: of the host, and what steps and messages of megabytes took, kept for the next ones."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

CGROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc")


def keep_freed_memory() -> None:
    """Let the allocator keep some memory that was freed, instead of giving it back each time.

    The kernel clears every page that it hands out: to fetch rows in pages that are new each time
    takes a tenth longer, and so does a training step of a click model. Does nothing where the
    allocator is not glibc's.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(-1, 64 << 20)  # M_TRIM_THRESHOLD
    mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD: the largest that glibc takes


def half_of_memory() -> int:
    """Bytes: half of what this host has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


MEMORY_SIGNALS = {
    signal.SIGKILL: "; the system does that when memory runs out",
    signal.SIGABRT: "; native libraries do that when memory runs out",
}


def describe_kill(number: int) -> str:
    """What a signal did to a process, and whether memory may be the reason.

    >>> describe_kill(9)
    'killed by signal 9 (SIGKILL); the system does that when memory runs out'
    """
    return f"killed by signal {number} ({signal.Signals(number).name})" + MEMORY_SIGNALS.get(
        signal.Signals(number), ""
    )


class FreeMemory(NamedTuple):
    """Memory that this process may still take; limit: what bounds it, for messages."""

    num_bytes: int
    limit: str

    def __str__(self) -> str:
        return f"{self.num_bytes / 1e9:.1f} GB are free {self.limit}"


def free_memory() -> FreeMemory:
    """What is free by the tightest limit: of the host, of its containers, or of ulimit -v."""
    return min(_free_by_limit())


def _free_by_limit() -> Iterator[FreeMemory]:
    host = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, KeyError):
        host = 1024 * int(_read_pairs(PROC / "meminfo")["MemAvailable:"])
    yield FreeMemory(max(0, host), "on this host")
    for group in _groups():
        with suppress(OSError, ValueError, KeyError):  # "max": no limit
            most = int((group / "memory.max").read_text())
            # Files that were read stay in memory until it is needed.
            counts = _read_pairs(group / "memory.stat")
            files = int(counts["inactive_file"]) + int(counts["active_file"])
            free = most - int((group / "memory.current").read_text()) + files
            yield FreeMemory(max(0, free), "in this container or control group (memory.max)")
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY:
        with suppress(OSError, IndexError):
            pages = int((PROC / "self/statm").read_text().split()[0])
            free = space - pages * os.sysconf("SC_PAGE_SIZE")
            yield FreeMemory(max(0, free), "below the limit on address space (ulimit -v)")


def _read_pairs(path: Path) -> dict[str, str]:
    """First word of every line -> its second."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0]: words[1] for words in lines if len(words) > 1}


def _groups() -> Iterator[Path]:
    """The folders of this process's control groups: its own, and those that it is part of."""
    yield CGROUPS
    with suppress(OSError):
        for line in (PROC / "self/cgroup").read_text().splitlines():
            if line.startswith("0::/"):  # version 2
                path = Path(line.removeprefix("0::/"))
                yield from (CGROUPS / part for part in (path, *path.parents) if part.parts)

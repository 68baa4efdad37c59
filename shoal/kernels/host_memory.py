"""Memory: of the host, and what steps and messages of megabytes took, kept for the next ones."""

from __future__ import annotations

import ctypes
import os


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

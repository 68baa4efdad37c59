"""Memory: messages of megabytes come and go with every step, so what they took is kept."""

from __future__ import annotations

import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
KEEP_FREE = 64 << 20
MOST_IN_HEAP = 32 << 20  # the largest that glibc takes


def keep_freed_memory() -> None:
    """Let the allocator keep some memory that was freed, instead of giving it back each time.

    The kernel clears every page that it hands out: to fetch rows in pages that are new each time
    takes a tenth longer. Does nothing where the allocator is not glibc's.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(TRIM_THRESHOLD, KEEP_FREE)
    mallopt(MMAP_THRESHOLD, MOST_IN_HEAP)

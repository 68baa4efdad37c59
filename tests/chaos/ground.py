"""Ground: the room on a disk, which runs can lose. It needs root: a disk is a small tmpfs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from net_hosts import run

DISK = 8 << 20  # bytes; a checkpoint of a trial has some 50,000


@contextmanager
def small_disk(place: Path) -> Iterator[Path]:
    """A folder on a disk of its own."""
    place.mkdir()
    run("mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(place))
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], capture_output=True)


def fill(disk: Path) -> Path:
    """Leave no room on a disk; the file that takes it."""
    file = disk / "filler"
    with suppress(OSError), open(file, "wb", buffering=0) as out:
        while True:
            out.write(bytes(1 << 12))
    return file

"""Ground: what runs stand on and can lose: a line between two hosts, the room on a disk.

Both need root. Hosts are network namespaces with a switch between them, a disk is a small tmpfs.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ADDRESSES = ("10.213.79.1", "10.213.79.2")
DISK = 8 << 20  # bytes; a checkpoint of a trial has some 50,000
_numbers = itertools.count()


class Impossible(Exception):
    """It cannot be had here; the text says why."""


def run(*words: str) -> None:
    """A command of the system's."""
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise Impossible(f"{' '.join(words)}: {done.stderr.strip()}")


class Hosts:
    """Two hosts: network namespaces, and a third that is the switch between them."""

    def __init__(self) -> None:
        stem = f"chaos-{os.getpid()}-{next(_numbers)}"
        self.names = [f"{stem}-{k}" for k in range(2)]
        self._switch = f"{stem}-switch"

    def make(self) -> None:
        for name in (self._switch, *self.names):
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", self._switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", self._switch, "link", "set", "bridge", "up")
        for k, (name, address) in enumerate(zip(self.names, ADDRESSES)):
            ends = ("type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "-n", self._switch, "link", "add", f"port{k}", *ends)
            run("ip", "-n", self._switch, "link", "set", f"port{k}", "master", "bridge", "up")
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "eth0", "up")

    def cut(self, seconds: float) -> None:
        """Nothing passes for a while; for good where that is infinite."""
        run("ip", "-n", self._switch, "link", "set", "port1", "down")
        if seconds != float("inf"):
            time.sleep(seconds)
            run("ip", "-n", self._switch, "link", "set", "port1", "up")

    def remove(self) -> None:
        for name in (self._switch, *self.names):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@contextmanager
def two_hosts() -> Iterator[Hosts]:
    """Hosts that can reach each other."""
    found = Hosts()
    try:
        found.make()
        yield found
    finally:
        found.remove()


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

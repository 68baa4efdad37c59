"""Hosts for tests: network namespaces with a switch between them. They need root."""

import itertools
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

ADDRESSES = ("10.213.79.1", "10.213.79.2", "10.213.79.3")
_numbers = itertools.count()


class Impossible(Exception):
    """It cannot be had here; the text says why."""


def run(*words: str) -> None:
    """A command of the system's."""
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise Impossible(f"{' '.join(words)}: {done.stderr.strip()}")


class Hosts:
    """Hosts: network namespaces, and one more that is the switch between them."""

    def __init__(self, count: int) -> None:
        stem = f"shoal-{os.getpid()}-{next(_numbers)}"
        self.names = [f"{stem}-{k}" for k in range(count)]
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

    def cut(self, host: int, seconds: float = float("inf")) -> None:
        """Nothing passes to a host for a while; for good where that is infinite."""
        run("ip", "-n", self._switch, "link", "set", f"port{host}", "down")
        if seconds != float("inf"):
            time.sleep(seconds)
            run("ip", "-n", self._switch, "link", "set", f"port{host}", "up")

    def remove(self) -> None:
        for name in (self._switch, *self.names):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@contextmanager
def joined_hosts(count: int = 2) -> Iterator[Hosts]:
    """Hosts that can reach each other."""
    found = Hosts(count)
    try:
        found.make()
        yield found
    finally:
        found.remove()

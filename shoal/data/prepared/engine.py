"""Engines: where the steps of a prepare that can be done apart are done.

Here    in this process, one after the other
OnRay   as tasks of a Ray cluster, whose nodes see the raw files under the same names

Results come in the order of what they are made of, so that a folder is the same to the byte.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from shoal.world.cluster import open_ray

Given = TypeVar("Given")
Made = TypeVar("Made")


class Here:
    """This process."""

    width = 1  # how many are worked on at a time

    def map(
        self, function: Callable[[Given], Made], given: Iterable[Given]
    ) -> Iterator[tuple[Given, Made]]:
        """What is given with what the function makes of it, in order."""
        return ((one, function(one)) for one in given)


class OnRay(Here):
    """A Ray cluster: a task for each CPU, and one that waits. Ray does a lost one again."""

    def __init__(self, address: str | None = None):
        self._ray = open_ray(address)
        self.width = max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def map(
        self, function: Callable[[Given], Made], given: Iterable[Given]
    ) -> Iterator[tuple[Given, Made]]:
        """As tasks; no more are begun than what is taken from here leaves room for."""
        task = self._ray.remote(_do).options(num_cpus=1, scheduling_strategy="SPREAD")
        pending: deque = deque()
        try:
            for one in given:
                pending.append((one, task.remote(function, one)))
                if len(pending) > 2 * self.width:
                    first, made = pending.popleft()
                    yield first, self._ray.get(made)
            while pending:
                first, made = pending.popleft()
                yield first, self._ray.get(made)
        finally:
            for _, made in pending:
                self._ray.cancel(made)


def _do(function: Callable[[Given], Made], one: Given) -> Made:
    return function(one)  # Ray takes plain functions alone

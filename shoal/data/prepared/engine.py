"""Engines: where the steps of a prepare run that do not depend on each other.

LocalEngine  in this process, one after the other
RayEngine    as tasks of a Ray cluster, whose nodes see the raw files under the same names

Results come in the order of their items, so that a folder is the same to the byte.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from shoal.distributed.ray_address import open_ray

Item = TypeVar("Item")
Result = TypeVar("Result")


class LocalEngine:
    """Runs the steps in this process."""

    width = 1  # how many items are worked on at a time

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[tuple[Item, Result]]:
        """Every item with the function's result for it, in order."""
        return ((item, function(item)) for item in items)


class RayEngine(LocalEngine):
    """A Ray cluster: a task for each CPU, and one that waits. Ray repeats a lost task."""

    def __init__(self, address: str | None = None):
        self._ray = open_ray(address)
        self.width = max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def map(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Iterator[tuple[Item, Result]]:
        """Every item with its result, computed by tasks; few more are begun than are read here."""
        task = self._ray.remote(_call).options(num_cpus=1, scheduling_strategy="SPREAD")
        pending: deque = deque()
        try:
            for item in items:
                pending.append((item, task.remote(function, item)))
                if len(pending) > 2 * self.width:
                    first, result = pending.popleft()
                    yield first, self._ray.get(result)
            while pending:
                first, result = pending.popleft()
                yield first, self._ray.get(result)
        finally:
            for _, result in pending:
                self._ray.cancel(result)


def _call(function: Callable[[Item], Result], item: Item) -> Result:
    return function(item)  # Ray takes plain functions alone

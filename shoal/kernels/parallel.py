"""ThreadTeam: threads that share tiles of work, each of which computes its tile alone.

Torch's own threads share every single product instead. They wait for each other after each of them,
spinning, so on a machine with other work one thread without a core holds up all the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Self, TypeVar

import torch

T = TypeVar("T")


class ThreadTeam:
    """Threads, as many as torch has; meanwhile torch itself uses one in each of them.

    >>> from shoal.kernels.parallel import ThreadTeam
    >>> squares = [0] * 5
    >>> def work(tile):
    ...     squares[tile] = tile * tile
    >>> with ThreadTeam() as workers:
    ...     workers.each(work, range(5))
    >>> squares
    [0, 1, 4, 9, 16]
    """

    def __init__(self, threads: int | None = None):
        """threads: how many; None: as many as torch has."""
        self.threads = threads or torch.get_num_threads()
        self._before = torch.get_num_threads()
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        if self._before > 1:
            torch.set_num_threads(1)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._pool is not None:
                self._pool.shutdown()
        finally:
            if self._before > 1:
                torch.set_num_threads(self._before)

    def each(self, work: Callable[[T], None], tiles: Iterable[T]) -> None:
        """Do the work of every tile, in any order; its first error is raised."""
        tiles = list(tiles)
        if self.threads == 1 or len(tiles) < 2:
            for tile in tiles:
                work(tile)
            return
        if self._pool is None:
            limit = torch.set_num_threads
            self._pool = ThreadPoolExecutor(self.threads, initializer=limit, initargs=(1,))
        inference = torch.is_inference_mode_enabled()

        def work_alone(tile: T) -> None:
            with torch.inference_mode(inference):
                work(tile)

        list(self._pool.map(work_alone, tiles))

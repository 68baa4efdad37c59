"""ShmGroup: ranks of one host, who talk through memory that they share.

Between processes of one host a socket costs two copies by the kernel and threads that wake each
other; here bytes are copied into a ring that the other side reads (csrc/lanes.h). What is started
is under way without any thread: it is in the ring. Sums are made in order of rank.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from shoal.kernels.core import has_core
from shoal.kernels.shm_rings import open_rings, rings_memory

RING = 1 << 20  # bytes between two ranks, at most


def can_share_memory() -> bool:
    """Whether shared memory can be used here: on Linux, with the native core."""
    has_system = hasattr(os, "memfd_create") and hasattr(os, "pidfd_open")
    return has_system and has_core()


def capacity_of(size: int) -> int:
    """Bytes of the ring between two of so many ranks."""
    share = (1 << 27) // (size * size)  # of what all rings take
    return max(1 << 16, min(RING, share // 64 * 64))


def make_memory(size: int, mark: str) -> int:
    """A file that exists in memory alone, for as long as someone has it open: its descriptor."""
    file = os.memfd_create("shoal")
    try:
        os.ftruncate(file, _bytes_of(size) + len(mark))
        os.pwrite(file, mark.encode(), _bytes_of(size))  # after the rings
    except OSError:
        os.close(file)
        raise
    return file


def meet(store: Any, rank: int, size: int, timeout: float) -> ShmGroup | None:
    """The way through shared memory, where it is open to all ranks of this host; they vote.

    store: where they meet, with torch's `set` and `get`; timeout: seconds, of what is sent later.
    """
    everyone, willing = range(size), can_share_memory()
    file, mark = -1, secrets.token_hex(16)
    if willing and rank == 0:
        with suppress(OSError):  # the kernel shares no memory: no rank will open it
            file = make_memory(size, mark)
    try:
        if rank == 0:
            store.set("memory", json.dumps([f"/proc/{os.getpid()}/fd/{file}", mark]))
        store.set(f"pid/{rank}", str(os.getpid()))
        path, mark = json.loads(store.get("memory"))
        pids = [int(store.get(f"pid/{one}")) for one in everyone]
        near = None
        if willing:
            # In another container, or it was not made, or there is no room for it.
            with suppress(OSError, ValueError, RuntimeError, MemoryError):
                near = ShmGroup(path, mark, rank, pids, timeout)
        store.set(f"near/{rank}", str(int(near is not None)))
        votes = sum(int(store.get(f"near/{one}")) for one in everyone)
    finally:
        if file >= 0:
            os.close(file)
    if votes < size and near is not None:
        near.close()
        near = None
    return near


def _bytes_of(size: int) -> int:
    return rings_memory(size, capacity_of(size))


class ShmGroup:
    """One rank among others of its host. Every call is made by all, in the same order."""

    def __init__(self, path: str, mark: str, rank: int, pids: list[int], timeout: float):
        """path: of the file that one rank made, whose mark it must bear.

        OSError or ValueError where it is not to be had, or where a process cannot be watched.
        """
        self.rank, self.size, self.timeout = rank, len(pids), timeout
        self._watched: list[int] = []
        file = os.open(path, os.O_RDWR)
        try:
            if os.pread(file, len(mark), _bytes_of(self.size)) != mark.encode():
                raise ValueError(f"{path} is another file")
            for pid in pids:
                self._watched.append(os.pidfd_open(pid))
            # Looks before a rank goes to sleep; where ranks share cores, none.
            spins = 2000 if self.size <= len(os.sched_getaffinity(0)) else 0
            alive = [-1 if r == rank else one for r, one in enumerate(self._watched)]
            self._rings = open_rings(file, rank, self.size, capacity_of(self.size), alive, spins)
        except BaseException:  # raised again: no descriptor may stay open behind it
            self.close()
            raise
        finally:
            os.close(file)
        self._travelling: dict[int, Any] = {}  # memory that must stay

    def start(self, sends: list[list[Tensor]], receives: list[list[Tensor]]) -> Callable[[], None]:
        """Start sending and receiving contiguous tensors; returns the call that waits."""
        ticket = self._rings.start(_pieces(sends), _pieces(receives))
        if len(self._travelling) >= 16:  # some are never waited for
            done = [finished for finished in self._travelling if self._rings.done(finished)]
            for finished in done:
                del self._travelling[finished]
        self._travelling[ticket] = (sends, receives)
        return lambda: self._wait(ticket)

    def _wait(self, ticket: int) -> None:
        if ticket not in self._travelling:
            return
        deadline = time.monotonic() + self.timeout
        while (state := self._rings.wait(ticket, 0.2)) == -2:  # not yet; a signal is heard
            if time.monotonic() > deadline:
                raise RuntimeError(f"nothing came for {self.timeout:g} s")
        if state >= 0:
            raise RuntimeError(f"rank {state} is gone")
        del self._travelling[ticket]

    def gather(self, tensors: list[Tensor]) -> tuple[list[Tensor], list[list[int]]]:
        """Gather tensors of all ranks (World.gather)."""
        tensors = [tensor.contiguous() for tensor in tensors]
        lengths = torch.tensor([[len(tensor) for tensor in tensors]] * self.size)
        lengths_come = self.start(
            self._but_mine([[lengths[self.rank]]] * self.size),
            self._but_mine([[row] for row in lengths]),
        )
        mine_go = self.start(self._but_mine([tensors] * self.size), self._nothing)
        lengths_come()
        counts = lengths.tolist()
        columns = list(zip(*counts))  # of each tensor, its lengths
        joined = [t.new_empty(sum(c), *t.shape[1:]) for t, c in zip(tensors, columns)]
        parts = list(zip(*(one.split(column) for one, column in zip(joined, columns))))
        for place, own_tensor in zip(parts[self.rank], tensors):
            place.copy_(own_tensor)
        self.start(self._nothing, self._but_mine([list(some) for some in parts]))()
        mine_go()  # not before: a ring may be too small for all, and the others' receives come now
        return joined, counts

    def stack(self, tensor: Tensor) -> Tensor:
        """Stack tensors of all ranks (World.stack)."""
        out = tensor.new_empty(self.size, *tensor.shape)
        self.start([[tensor.contiguous()]] * self.size, [[one] for one in out])()
        return out

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum a tensor over ranks: each rank sums a slice, so all have the same bits."""
        flat = tensor.contiguous().view(-1)
        if tensor.nbytes <= 1 << 16:  # so little that all ranks may add it up for themselves
            self._add_up(self.stack(flat).unbind(), flat)
        else:
            size, count = self.size, flat.numel()
            slices = [flat[count * r // size : count * (r + 1) // size] for r in range(size)]
            own_slice = slices[self.rank]
            others = iter(own_slice.new_empty(size - 1, len(own_slice)))
            parts = [own_slice if r == self.rank else next(others) for r in range(size)]
            other_slices = self._but_mine([[one] for one in slices])
            self.start(other_slices, self._but_mine([[part] for part in parts]))()
            self._add_up(parts, own_slice)
            self.start(self._but_mine([[own_slice]] * size), other_slices)()
        if flat.data_ptr() != tensor.data_ptr():
            tensor.copy_(flat.view_as(tensor))

    def _add_up(self, parts: Sequence[Tensor], out: Tensor) -> None:
        """The sum of all ranks' parts [count], in order; `out` may be the part of this rank."""
        total = parts[0]
        for rank, part in enumerate(parts[1:], 1):
            total = torch.add(total, part, out=out if rank >= self.rank else total)

    def start_all_to_all(
        self, tensor: Tensor, sent: list[int], received: list[int], out: Tensor
    ) -> Callable[[], None]:
        """Start an all-to-all (World.start_all_to_all); returns the call that waits."""
        return self.start([[one] for one in tensor.split(sent)], [[o] for o in out.split(received)])

    def _but_mine(self, tensors: list[list[Tensor]]) -> list[list[Tensor]]:
        return [[] if rank == self.rank else some for rank, some in enumerate(tensors)]

    @property
    def _nothing(self) -> list[list[Tensor]]:
        return [[] for _ in range(self.size)]

    def close(self) -> None:
        """Go; what was sent can still be read."""
        for watched in self._watched:
            os.close(watched)
        self._watched = []


def _pieces(tensors: list[list[Tensor]]) -> list[tuple[int, int, int]]:
    return [(rank, t.data_ptr(), t.nbytes) for rank, some in enumerate(tensors) for t in some]

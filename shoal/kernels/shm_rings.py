"""Rings between the ranks of one host, through memory that they share (csrc/lanes.h)."""

from __future__ import annotations

from typing import Any

from shoal.kernels.core import load_core


def rings_memory(size: int, capacity: int) -> int:
    """Bytes that the rings between so many ranks take, `capacity` bytes each."""
    return load_core().Lanes.memory_of(size, capacity)


def open_rings(file: int, rank: int, size: int, capacity: int, alive: list[int], spins: int) -> Any:
    """One rank's ends of all rings. alive: descriptors of the others' processes, -1: itself; spins:
    looks before it goes to sleep. It has `start`, `wait` and `done`."""
    return load_core().Lanes(file, rank, size, capacity, alive, spins)

"""A target: sound inputs, how they are spoiled, and what reads one."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from fuzz.mutate import mutate

Spoil = Callable[[random.Random, bytes, list[bytes]], bytes]


class Target(NamedTuple):
    """Sound inputs, and what reads one of them; `name` is the file's name."""

    seeds: list[bytes]
    name: str
    read: Callable[[Path], Any]
    spoil: Spoil | None = None  # None: as bytes
    every: int = 1  # tried in one round of so many

    def make(self, rng: random.Random) -> bytes:
        """An input."""
        return (self.spoil or mutate)(rng, rng.choice(self.seeds), self.seeds)

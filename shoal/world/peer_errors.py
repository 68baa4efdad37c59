"""Talking: what every collective does besides: it shows that others are waited for, and an error
in it says that one of them is gone.
"""

from __future__ import annotations

import re
from types import TracebackType

from shoal.world.hosts import WorldError
from shoal.world.liveness import BEAT


class PeerLost(WorldError):
    """A collective failed because another rank is gone; its own error is the one to read."""


class Talking:
    """In here a rank waits for the others. (A class: a generator would take twice as long.)"""

    def __init__(self, rank: int, what: str):
        self.rank, self.what = rank, what

    def __enter__(self) -> None:
        BEAT.begin_waiting(self.what)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        BEAT.end_waiting()
        if isinstance(error, RuntimeError):
            raise PeerLost(
                f"rank {self.rank} lost its peers during {self.what}: {first_words(str(error))}"
            ) from error


def first_words(text: str) -> str:
    """What an error of Gloo's or NCCL's says, less its place in their sources and their advice."""
    words = re.sub(r"^\[[^\]]*\] *", "", text.splitlines()[0])
    return words.split(". This is typically")[0]

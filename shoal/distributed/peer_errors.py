"""Talking: what every collective does besides: it shows that others are waited for, and an error
in it says that one of them is gone.
"""

from __future__ import annotations

import re
from types import TracebackType

from shoal.distributed.hosts import WorldError
from shoal.distributed.liveness import BEAT


class PeerLost(WorldError):
    """A collective failed because another rank is gone; its own error is the one to read."""


class Talking:
    """Context in which a rank waits for others; a class, since a generator takes twice as long."""

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
    """The message of a Gloo or NCCL error, without source position and advice."""
    words = re.sub(r"^\[[^\]]*\] *", "", text.splitlines()[0])
    return words.split(". This is typically")[0]

"""StepBytes: what a rank sends in a training step for the rows of its tables, worked out from ids.

    heads      how much each rank asks of each other, ahead of what it asks
    ids        asked of the owners, with lengths and weights where sums are asked
    vectors    rows and sums, from owners to those who asked
    gradients  back to the owners, with counts where ids are counted
    groups     between groups that agree in each step: rows that were touched, and their gradients

What a rank keeps to itself is no traffic. Dense gradients, a softmax over a whole table and rows
that get no gradient although they were looked up are not part of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass

import torch

from shoal.embedding.placements.asked import HEAD, WORD, Asker, BagPieces, Distinct, ask
from shoal.embedding.rows.placement import Sharding
from shoal.embedding.service import Lookup

COUNTS = 8  # bytes of how often an id was shown and clicked


@dataclass(frozen=True)
class StepBytes:
    """Bytes that one rank sends in a step."""

    heads: int = 0
    ids: int = 0
    vectors: int = 0
    gradients: int = 0
    groups: int = 0

    @property
    def total(self) -> int:
        return sum(astuple(self))


def step_bytes(
    shardings: Mapping[str, Sharding],
    lookups: Sequence[Sequence[Lookup]],
    itemsize: int = 4,
    counted: Collection[str] = (),
) -> list[StepBytes]:
    """Of every rank, for what each of them looks up: lookups[rank], in trips of all tables.

    There are as many groups as the ranks are times those of a sharding.
    """
    size = next(iter(shardings.values())).size
    asked = [
        _asked(shardings, some, rank % size, itemsize, counted) for rank, some in enumerate(lookups)
    ]
    found = []
    for rank in range(len(lookups)):
        first = rank - rank % size
        group = asked[first : first + size]
        found.append(_of_rank(shardings, group, rank % size, len(asked) // size, itemsize, counted))
    return found


def _asked(
    shardings: Mapping[str, Sharding],
    lookups: Sequence[Lookup],
    rank: int,
    itemsize: int,
    counted: Collection[str],
) -> dict[str, Distinct | BagPieces]:
    """What a rank asks of the others in its group, by table."""
    grouped: dict[str, list[Lookup]] = {}
    for one in lookups:
        grouped.setdefault(one.table, []).append(one)
    made = {}
    for name, some in grouped.items():
        table, asker = shardings[name].table, None if name in counted else Asker(rank, itemsize)
        flat = [one.ids_in(table, torch.device("cpu")).cpu() for one in some]
        made[name] = ask(shardings[name], flat, [one.bags for one in some], asker)
    return made


def _of_rank(
    shardings: Mapping[str, Sharding],
    group: Sequence[Mapping[str, Distinct | BagPieces]],
    rank: int,
    groups: int,
    itemsize: int,
    counted: Collection[str],
) -> StepBytes:
    mine, others = group[rank], [r for r in range(len(group)) if r != rank]
    ids = vectors = gradients = 0
    for name, own in mine.items():
        sharding = shardings[name]
        extra = COUNTS if name in counted else 0
        for other in others:
            head = own.head(other)
            ids += WORD * head.words
            gradients += head.vectors * (itemsize * sharding.width(other) + extra)
            if not sharding.replicated:
                theirs = group[other][name].head(rank).vectors
                vectors += theirs * itemsize * sharding.width(rank)
    between = 0
    if groups > 1:
        sent = 3 if any(name in counted for name in shardings) else 2  # ids, gradients, counts
        between = WORD * (sent + len(shardings))  # how long they are, and each table's part
        for name, sharding in shardings.items():
            touched = [one[name].keys_of(rank) for one in group if name in one]
            distinct = len(torch.cat(touched).unique()) if touched else 0
            extra = COUNTS if name in counted else 0
            between += distinct * (WORD + itemsize * sharding.width(rank) + extra)
    return StepBytes(
        WORD * HEAD * len(mine) * len(others), ids, vectors, gradients, between * (groups - 1)
    )

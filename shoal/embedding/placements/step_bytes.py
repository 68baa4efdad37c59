"""StepBytes: what a rank sends in a training step for the rows of its tables, worked out from ids.

    heads      sizes of the requests of each rank to each other rank, ahead of the requests
    ids        requested ids, with lengths and weights where sums are requested
    vectors    rows and sums, from their owners to the requesters
    gradients  back to the owners, with counts where ids are counted
    groups     between groups that agree in each step: rows that were touched, and their gradients

What a rank keeps to itself is no traffic. Dense gradients, a softmax over a whole table and rows
that get no gradient although they were looked up are not part of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass

import torch

from shoal.embedding.placements.row_requests import (
    HEAD,
    WORD,
    RankRequest,
    Requester,
    plan_request,
)
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
    """The bytes that every rank sends in a step for its lookups[rank], with all tables in one trip.

    The number of groups is the number of ranks over the number of ranks of a sharding.
    """
    size = next(iter(shardings.values())).size
    requests = [
        _plan_rank_requests(shardings, rank_lookups, rank % size, itemsize, counted)
        for rank, rank_lookups in enumerate(lookups)
    ]
    bytes_by_rank = []
    for rank in range(len(lookups)):
        first = rank - rank % size
        group = requests[first : first + size]
        bytes_by_rank.append(
            _bytes_of_rank(shardings, group, rank % size, len(requests) // size, itemsize, counted)
        )
    return bytes_by_rank


def _plan_rank_requests(
    shardings: Mapping[str, Sharding],
    lookups: Sequence[Lookup],
    rank: int,
    itemsize: int,
    counted: Collection[str],
) -> dict[str, RankRequest]:
    """The requests of a rank to the others in its group, by table."""
    grouped: dict[str, list[Lookup]] = {}
    for lookup in lookups:
        grouped.setdefault(lookup.table, []).append(lookup)
    requests = {}
    for name, table_lookups in grouped.items():
        table = shardings[name].table
        requester = None if name in counted else Requester(rank, itemsize)
        flat = [lookup.ids_in(table, torch.device("cpu")).cpu() for lookup in table_lookups]
        requests[name] = plan_request(
            shardings[name], flat, [lookup.bags for lookup in table_lookups], requester
        )
    return requests


def _bytes_of_rank(
    shardings: Mapping[str, Sharding],
    group: Sequence[Mapping[str, RankRequest]],
    rank: int,
    groups: int,
    itemsize: int,
    counted: Collection[str],
) -> StepBytes:
    own_requests, others = group[rank], [r for r in range(len(group)) if r != rank]
    ids = vectors = gradients = 0
    for name, request in own_requests.items():
        sharding = shardings[name]
        extra = COUNTS if name in counted else 0
        for other in others:
            head = request.head(other)
            ids += WORD * head.words
            gradients += head.vectors * (itemsize * sharding.width(other) + extra)
            if not sharding.replicated:
                peer_vectors = group[other][name].head(rank).vectors
                vectors += peer_vectors * itemsize * sharding.width(rank)
    between = 0
    if groups > 1:
        # Ids, gradients and, where ids are counted, counts:
        num_messages = 3 if any(name in counted for name in shardings) else 2
        # The lengths of the messages, and the number of rows of each table:
        between = WORD * (num_messages + len(shardings))
        for name, sharding in shardings.items():
            touched = [requests[name].keys_of(rank) for requests in group if name in requests]
            distinct = len(torch.cat(touched).unique()) if touched else 0
            extra = COUNTS if name in counted else 0
            between += distinct * (WORD + itemsize * sharding.width(rank) + extra)
    return StepBytes(
        WORD * HEAD * len(own_requests) * len(others),
        ids,
        vectors,
        gradients,
        between * (groups - 1),
    )

"""Groups of ranks that each hold all rows, sharded inside, and how they agree.

    ranks 0 1 | 2 3     two groups; ranks 0 and 2 hold the same rows, and so do 1 and 3: peers

Each step (every 1): peers exchange the gradients of the rows that their groups touched, and apply
the sums of all, in order of group: the numbers of one process, and the same bits in every group.

Every k steps: between, each group updates its rows by the gradients of its own samples, times the
number of groups. Then the values of all rows that a group touched meanwhile are averaged over the
groups; what optimizers keep of a row stays with each group. That is not exact. Dense parameters
agree in each step either way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from shoal.embedding.placements.exchange import WirePrecision
from shoal.embedding.placements.sharded_table import ShardedTable
from shoal.embedding.rows.store import EVERY, Every
from shoal.embedding.service import Gradients, RowGradients
from shoal.world.world import World


class RankGroups:
    """What a rank and its peers, who hold the same rows in the other groups, agree upon."""

    def __init__(self, whole: World, peers: World | None = None, every: int = 1):
        """whole: all ranks; peers: of this one, None: there is one group."""
        self.whole, self.peers = whole, peers or World(whole.device)
        self.count, self.every = self.peers.size, every
        self.exact = every == 1
        self._touched: dict[str, list[Tensor]] = {}  # keys since groups last agreed
        self._steps = 0  # likewise

    def agreed(
        self, gradients: Gradients, tables: Mapping[str, ShardedTable], precision: WirePrecision
    ) -> Gradients:
        """The gradients that this rank applies, of those that its group has."""
        if self.count == 1:
            return gradients
        if self.exact:
            return self._summed(gradients, tables, precision)
        for name, one in gradients.items():
            self._touched.setdefault(name, []).append(
                tables[name].keys(one.ids).to(one.grads.device)
            )
        return {name: one.scaled(self.count) for name, one in gradients.items()}

    def _summed(
        self, gradients: Gradients, tables: Mapping[str, ShardedTable], precision: WirePrecision
    ) -> Gradients:
        """Those of all groups, one after the other: of distinct keys in each."""
        found: Gradients = {}
        some: dict[str, RowGradients] = {}
        for name, one in gradients.items():
            if isinstance(one.ids, Every):
                found[name] = replace(one, grads=self.peers.all_reduce(one.grads))
            else:
                some[name] = one.summed(tables[name].num_held)
        if not some:
            return found
        device = self.whole.device
        lengths = torch.tensor([len(one.grads) for one in some.values()], device=device)
        ids = [lengths, *(one.ids.to(device) for one in some.values() if one.ids is not EVERY)]
        grads = [precision.narrow(one.grads.to(device)) for one in some.values()]
        counts = [one.counts.reshape(-1) for one in some.values() if one.counts is not None]
        sent = [torch.cat(ids), torch.cat(grads)]
        came, sizes = self.peers.gather(
            [*sent, *([torch.cat(counts).to(device)] if counts else [])]
        )
        per_peer = [one.split([size[k] for size in sizes]) for k, one in enumerate(came)]
        parts: dict[str, list[RowGradients]] = {name: [] for name in some}
        for mine in zip(*per_peer):
            self._take(mine, some, parts, precision)
        for name, of_peers in parts.items():
            found[name] = replace(
                some[name],
                ids=torch.cat([one.ids for one in of_peers if one.ids is not EVERY]),
                grads=torch.cat([one.grads for one in of_peers]),
                counts=_joined_counts(of_peers),
            )
        return {name: found[name] for name in gradients}

    def _take(
        self,
        came: tuple[Tensor, ...],
        some: Mapping[str, RowGradients],
        parts: dict[str, list[RowGradients]],
        precision: WirePrecision,
    ) -> None:
        """What one peer sent, table by table."""
        lengths = came[0][: len(some)].tolist()
        widths = [one.grads.shape[1] for one in some.values()]
        ids = came[0][len(some) :].split(lengths)
        grads = came[1].split([n * width for n, width in zip(lengths, widths)])
        counted = [one.counts is not None for one in some.values()]
        counts = iter(
            came[2].split([2 * n for n, own in zip(lengths, counted) if own])
            if any(counted)
            else ()
        )
        for name, keys, values, width, own in zip(some, ids, grads, widths, counted):
            parts[name].append(
                RowGradients(
                    keys,
                    precision.widen(values).view(len(keys), width),
                    next(counts).view(-1, 2).cpu() if own else None,
                )
            )

    def stepped(self, tables: Mapping[str, ShardedTable]) -> None:
        """A step is applied: every k of them the groups agree."""
        self._steps += 1
        if self._steps >= self.every:
            self.agree(tables)

    def agree(self, tables: Mapping[str, ShardedTable]) -> None:
        """Average the rows that were touched since the last time; all ranks call it."""
        self._steps = 0
        for name, keys in self._touched.items():
            table = tables[name]
            if table.engine is None:
                continue  # nor has a peer
            mine = torch.cat(keys).unique()
            ids = self.peers.all_gather(mine.to(self.whole.device)).unique()
            values = self.peers.all_reduce(table.engine.pull(ids).to(self.whole.device))
            table.engine.assign(ids, values.div_(self.count))
        self._touched = {}


def _joined_counts(parts: list[RowGradients]) -> Tensor | None:
    counts = [one.counts for one in parts if one.counts is not None]
    return torch.cat(counts) if counts else None

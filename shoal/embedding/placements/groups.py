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
from shoal.embedding.placements.local import join
from shoal.embedding.placements.sharded_table import ShardedTable
from shoal.embedding.rows.store import Every
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
        mine: Gradients = {}
        for name, one in gradients.items():
            if isinstance(one.ids, Every):
                found[name] = replace(one, grads=self.peers.all_reduce(one.grads))
            else:
                mine[name] = one.summed(tables[name].num_held)
        if not mine:
            return found
        came, lengths = self.peers.gather(self._message(mine, precision))
        cuts = [one.split([some[k] for some in lengths]) for k, one in enumerate(came)]
        peers = [_parse(list(message), mine, precision) for message in zip(*cuts)]
        for (name, one), parts in zip(mine.items(), zip(*peers)):
            joined = join(list(parts), one.grads.shape[1], one.counts is not None)
            found[name] = replace(joined, partial=one.partial)
        return {name: found[name] for name in gradients}

    def _message(self, gradients: Gradients, precision: WirePrecision) -> list[Tensor]:
        """How many rows of each table, and their keys; gradients; counts, where there are any."""
        some, device = gradients.values(), self.whole.device
        keys = [torch.tensor([len(one.grads) for one in some], device=device)]
        keys += [one.ids.to(device) for one in some if not isinstance(one.ids, Every)]
        grads = [precision.narrow(one.grads.to(device)) for one in some]
        counts = [one.counts.reshape(-1).to(device) for one in some if one.counts is not None]
        return [torch.cat(part) for part in (keys, grads, counts) if part]

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


def _parse(message: list[Tensor], like: Gradients, precision: WirePrecision) -> list[RowGradients]:
    """A peer's message, table by table; like: this rank's own gradients of them."""
    keys, grads, *more = message
    lengths = keys[: len(like)].tolist()
    widths = [one.grads.shape[1] for one in like.values()]
    counted = [2 * n for n, one in zip(lengths, like.values()) if one.counts is not None]
    counts = iter(more[0].split(counted) if more else ())
    values = precision.widen(grads).split([n * width for n, width in zip(lengths, widths)])
    return [
        RowGradients(
            some,
            part.view(len(some), width),
            None if one.counts is None else next(counts).view(-1, 2).cpu(),
        )
        for one, some, part, width in zip(
            like.values(), keys[len(like) :].split(lengths), values, widths
        )
    ]

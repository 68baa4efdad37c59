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

from shoal.distributed.world import World
from shoal.embedding.placements.row_requests import WirePrecision
from shoal.embedding.placements.sharded_table import ShardedTable
from shoal.embedding.rows.store import Every
from shoal.embedding.service import Gradients, RowGradients, join


class RankGroups:
    """A rank and its peers: the ranks of the other groups that hold the same rows."""

    def __init__(self, whole: World, peers: World, every: int = 1):
        """whole: all ranks; every: the steps after which groups agree."""
        self.whole, self.peers = whole, peers
        self.count, self.every = self.peers.size, every
        self.exact = every == 1
        self._touched: dict[str, list[Tensor]] = {}  # keys since groups last agreed
        self._steps = 0  # since groups last agreed

    def agreed(
        self, gradients: Gradients, tables: Mapping[str, ShardedTable], precision: WirePrecision
    ) -> Gradients:
        """The gradients that this rank applies, from the gradients of its group."""
        if self.exact:
            return self._summed(gradients, tables, precision)
        for name, rows in gradients.items():
            self._touched.setdefault(name, []).append(
                tables[name].keys(rows.ids).to(rows.grads.device)
            )
        return {name: rows.scaled(self.count) for name, rows in gradients.items()}

    def _summed(
        self, gradients: Gradients, tables: Mapping[str, ShardedTable], precision: WirePrecision
    ) -> Gradients:
        """Gradients of all groups, one after the other: of distinct keys in each group."""
        summed: Gradients = {}
        own_gradients: Gradients = {}
        for name, rows in gradients.items():
            if isinstance(rows.ids, Every):
                summed[name] = replace(rows, grads=self.peers.all_reduce(rows.grads))
            else:
                own_gradients[name] = rows.summed(tables[name].num_held)
        if not own_gradients:
            return summed
        buffers, lengths = self.peers.gather(self._message(own_gradients, precision))
        cuts = [
            buffer.split([message_lengths[k] for message_lengths in lengths])
            for k, buffer in enumerate(buffers)
        ]
        peers = [_parse(list(message), own_gradients, precision) for message in zip(*cuts)]
        for (name, rows), parts in zip(own_gradients.items(), zip(*peers)):
            joined = join(list(parts), rows.grads.shape[1], rows.counts is not None)
            summed[name] = replace(joined, partial=rows.partial)
        return {name: summed[name] for name in gradients}

    def _message(self, gradients: Gradients, precision: WirePrecision) -> list[Tensor]:
        """This rank's message: row counts and keys of all tables; gradients; counts, if any."""
        row_gradients, device = gradients.values(), self.whole.device
        keys = [torch.tensor([len(one.grads) for one in row_gradients], device=device)]
        keys += [one.ids.to(device) for one in row_gradients if not isinstance(one.ids, Every)]
        grads = [precision.narrow(one.grads.to(device)) for one in row_gradients]
        counts = [
            rows.counts.reshape(-1).to(device) for rows in row_gradients if rows.counts is not None
        ]
        return [torch.cat(part) for part in (keys, grads, counts) if part]

    def stepped(self, tables: Mapping[str, ShardedTable]) -> None:
        """Count an applied step; after every k steps the groups agree."""
        self._steps += 1
        if self._steps >= self.every:
            self.agree(tables)

    def agree(self, tables: Mapping[str, ShardedTable]) -> None:
        """Average the rows that were touched since the last time; all ranks call it."""
        self._steps = 0
        for name, keys in self._touched.items():
            table = tables[name]
            if table.engine is None:
                continue  # no peer has rows of it either
            own_keys = torch.cat(keys).unique()
            ids = self.peers.all_gather(own_keys.to(self.whole.device)).unique()
            values = self.peers.all_reduce(table.engine.pull(ids).to(self.whole.device))
            table.engine.assign(ids, values.div_(self.count))
        self._touched = {}


def _parse(message: list[Tensor], like: Gradients, precision: WirePrecision) -> list[RowGradients]:
    """The gradients in a peer's message; like: this rank's gradients of the same tables."""
    keys, grads, *count_pieces = message
    lengths = keys[: len(like)].tolist()
    widths = [row_gradients.grads.shape[1] for row_gradients in like.values()]
    counted = [
        2 * n
        for n, row_gradients in zip(lengths, like.values())
        if row_gradients.counts is not None
    ]
    counts = iter(count_pieces[0].split(counted) if count_pieces else ())
    values = precision.widen(grads).split([n * width for n, width in zip(lengths, widths)])
    return [
        RowGradients(
            table_keys,
            part.view(len(table_keys), width),
            None if row_gradients.counts is None else next(counts).view(-1, 2).cpu(),
        )
        for row_gradients, table_keys, part, width in zip(
            like.values(), keys[len(like) :].split(lengths), values, widths
        )
    ]

"""Catalogue: a fixed table that a softmax reads whole in every step, and how its rows learn.

    plain      gradients of all rows, as of any other rows
    parallel   rows spread over ranks: positions travel, rows stay (softmax.py)
    fused      rows learn in `step`, and the gradient of the table is never written: by kernels on a
               GPU (fused.py), by the native core on a CPU (fused_cpu.py)

Which of them is chosen by what the stores can do; all give the same numbers.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shoal.embedding.placed.exchange import Exchange
from shoal.embedding.softmax.full import full_softmax_loss
from shoal.embedding.softmax.fused import ALONE, FusedSoftmax, can_fuse
from shoal.embedding.softmax.fused_cpu import CoreSoftmax, can_fuse_on_cpu
from shoal.embedding.softmax.parallel import parallel_softmax_loss
from shoal.embedding.softmax.whole import every_id
from shoal.embedding.store import Store

if TYPE_CHECKING:
    from shoal.embedding.module import Embeddings


class Catalogue:
    """One field of Embeddings as the output layer of a model."""

    def __init__(self, embed: Embeddings, field: str):
        self.embed, self.field, self.table = embed, field, embed.fields[field]
        if self.table.rows is None:
            raise ValueError(f"table {self.table.name!r} grows: it has no whole for a softmax")
        if self.table.padding != 0:
            raise ValueError(
                f"table {self.table.name!r} has padding={self.table.padding}; a softmax over all "
                "rows takes row 0 for padding: make it with padding=0"
            )
        self.rows = self.table.rows
        self._fused: FusedSoftmax | None = None
        self._ready: list[CoreSoftmax] = []  # whose backward came by
        self._candidates: dict[int, tuple[Tensor, Tensor]] = {}  # by `stop`, see _places

    def loss(
        self, hidden: Tensor, targets: Tensor, bias_field: str | None, stop: int | None
    ) -> Tensor:
        """As Embeddings.full_softmax."""
        embed, stop = self.embed, stop or self.rows
        exchange = embed.exchange
        if exchange is not None and exchange.stores[self.table.name].layout.cut_by_rows:
            return self._parallel(exchange, hidden, targets, bias_field, stop)
        bias_table = None if bias_field is None else embed.fields[bias_field]
        rows = embed.stores.get(self.table.name)
        bias = None if bias_table is None else embed.stores.get(bias_table.name)
        alone = embed.learns and not self._is_shared(bias_field)
        if alone and can_fuse(rows, bias):
            return self._by_kernels(rows, bias, targets, stop).loss(hidden)
        fused = self._in_core(alone, rows, bias, _outside(self.rows, stop))
        added = None if bias_field is None else embed.lent(bias_field).squeeze(1)
        return full_softmax_loss(hidden, embed.lent(self.field), targets, None, added, stop, fused)

    def _is_shared(self, bias_field: str | None) -> bool:
        """Whether other fields read these tables too."""
        fields = self.embed.fields
        tables = list(fields.values())
        mine = [self.table] if bias_field is None else [self.table, fields[bias_field]]
        return any(tables.count(table) > 1 for table in mine)

    # ---- rows that learn in `step` --------------------------------------------------------------

    def _by_kernels(
        self, rows: Store | None, bias: Store | None, targets: Tensor, stop: int
    ) -> FusedSoftmax:
        if self._fused is not None:
            self._fused.replace()
        self._fused = FusedSoftmax(rows, bias, targets, stop)  # type: ignore[arg-type]
        return self._fused

    def _in_core(
        self, alone: bool, rows: Store | None, bias: Store | None, others: Tensor
    ) -> CoreSoftmax | None:
        if not alone or not can_fuse_on_cpu(rows, bias):
            return None
        return CoreSoftmax(rows, bias, others, self._ready)  # type: ignore[arg-type]

    def step(self, lr: float, scale: float) -> None:
        """Let the rows of a fused softmax learn; after the pushes, which count the steps.

        `scale` is what the pushed gradients were multiplied with after backward.
        """
        if self._fused is not None:
            self._fused.step()
            self._fused = None
        for softmax in self._ready:
            softmax.step(lr, scale)
        self._ready.clear()

    def write_gradients(self, always: bool = False) -> None:
        """Write the gradients of rows down after all, where others must be added to them."""
        by_kernels = self._fused
        if by_kernels is not None and by_kernels.learns and self._has_others(by_kernels.bias):
            raise RuntimeError(ALONE)
        if not always and len(self._ready) == 1 and not self._has_others(self._ready[0].bias):
            return
        for softmax in self._ready:
            for store, ids, grads in softmax.gradients():
                leaf = store.values.detach().requires_grad_()
                leaf.grad = grads
                self.embed.add_leaf(store.table.name, ids, leaf)
        self._ready.clear()

    def _has_others(self, bias: Store | None) -> bool:
        """Whether rows of these tables have gradients besides those of the softmax."""
        names = [self.table.name] if bias is None else [self.table.name, bias.table.name]
        return any(self.embed.has_gradients(name) for name in names)

    # ---- rows that are spread over ranks --------------------------------------------------------

    def _parallel(
        self,
        exchange: Exchange,
        hidden: Tensor,
        targets: Tensor,
        bias_field: str | None,
        stop: int,
    ) -> Tensor:
        """Every rank makes the logits of its own rows."""
        embed, name, rank = self.embed, self.table.name, exchange.world.rank
        low, high = (int(x) for x in targets.aminmax()) if len(targets) else (1, 1)
        if not 0 <= low <= high < stop:
            raise ValueError(
                f"full_softmax over table {name!r}: targets are {low} to {high}; they must be 1 to "
                f"{stop - 1}, or 0 where a position does not count"
            )
        if low == 0:
            real = targets.nonzero().squeeze(1)
            hidden, targets = hidden[real], targets[real]
        layout = exchange.stores[name].layout
        place, others = self._places(exchange, stop)
        keys = every_id(layout.shares[rank], embed.device)
        rows_leaf, bias_leaf, bias = exchange.stores[name].leaf, None, None
        if bias_field is not None:
            bias_name = embed.fields[bias_field].name
            if exchange.stores[bias_name].layout == layout:
                bias = exchange.own_rows(bias_name, keys, embed.learns)
                bias_leaf = exchange.stores[bias_name].leaf
            else:
                bias = embed.rows(bias_field, layout.ids(rank).to(embed.device))
                rows_leaf = None  # its gradients travel
            bias = bias.squeeze(1)
        rows = exchange.own_rows(name, keys, embed.learns)
        alone = embed.learns and not self._is_shared(bias_field)
        return parallel_softmax_loss(
            exchange.world,
            hidden,
            rows,
            bias,
            targets,
            place,
            others,
            max(layout.shares),
            self._in_core(alone, rows_leaf, bias_leaf, others),
        )

    def _places(self, exchange: Exchange, stop: int) -> tuple[Tensor, Tensor]:
        """The place of every candidate among this rank's rows (-1: not here) and the rows of this
        rank that are no candidates."""
        if stop not in self._candidates:
            ids = exchange.stores[self.table.name].layout.ids(exchange.world.rank)
            inside = (ids > 0) & (ids < stop)
            place = torch.full((self.rows,), -1)
            place[ids[inside]] = inside.nonzero().squeeze(1)
            others = (~inside).nonzero().squeeze(1)
            self._candidates[stop] = place.to(self.embed.device), others.to(self.embed.device)
        return self._candidates[stop]


@cache
def _outside(rows: int, stop: int) -> Tensor:
    """Rows of a whole table that are no candidates: padding, and those from `stop` on."""
    return torch.tensor([0, *range(stop, rows)])

"""Embeddings: the one nn.Module that knows a Store.

A model says which field of the batch reads which table; where the rows live is decided later, by
the strategy that attaches stores. Rows come in as autograd leaves, so that backward leaves their
gradients here, and `push` hands them to the stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from shoal.data.batch import Batch
from shoal.embedding.store import Store
from shoal.embedding.table import Table
from shoal.nn.losses import full_softmax_loss


class Embeddings(nn.Module):
    """Looks up the rows of a model's fields.

    self.embed = Embeddings(user_id=users, item_id=items, neg_item=items)
    rows = self.embed(batch)          # rows["neg_item"]: batch.ids["neg_item"].shape + [dim]
    rows = self.embed.rows("item_id", ids)   # ids of one's own, any shape
    every = self.embed.whole("item_id")      # all rows of a fixed table: [rows, dim]
    """

    def __init__(self, fields: dict[str, Table] | None = None, **more: Table):
        super().__init__()
        self.fields = {**(fields or {}), **more}
        self.tables: dict[str, Table] = {}
        for table in self.fields.values():
            if self.tables.setdefault(table.name, table) != table:
                raise ValueError(f"two different tables are both named {table.name!r}")
        self.stores: dict[str, Store] = {}
        self._pending: dict[str, list[tuple[Tensor, Tensor]]] = {}
        # Moves with the model, so it tells which device rows are wanted on.
        self.register_buffer("_here", torch.empty(0), persistent=False)

    def attach(self, make_store: Callable[[Table], Store]) -> None:
        """Give every table its store. Called by the strategy, once."""
        self.stores = {name: make_store(table) for name, table in self.tables.items()}
        self._pending = {name: [] for name in self.tables}

    def forward(self, batch: Batch, fields: Iterable[str] | None = None) -> dict[str, Tensor]:
        """Rows of the batch's fields that this module has a table for (or of those named)."""
        names = [f for f in self.fields if f in batch.ids] if fields is None else fields
        return {name: self.rows(name, batch.ids[name]) for name in names}  # type: ignore[arg-type]

    def rows(self, field: str, ids: Tensor) -> Tensor:
        """Rows of explicit ids: ids.shape + [dim]."""
        table = self.fields[field]
        store = self.stores.get(table.name)
        if store is None:
            raise RuntimeError(
                f"table {table.name!r} has no store yet; set the model up with a strategy first"
            )
        flat = ids.reshape(-1)
        leaf = store.pull(flat).to(self._here.device)
        if torch.is_grad_enabled() and self.training:
            leaf.requires_grad_()
            self._pending[table.name].append((flat, leaf))
        return leaf.view(*ids.shape, table.dim)

    def whole(self, field: str) -> Tensor:
        """Every row of a fixed table, in order of id (for models that walk the whole graph)."""
        table = self.fields[field]
        if table.rows is None:
            raise ValueError(f"table {table.name!r} grows: it has no whole to read")
        return self.rows(field, torch.arange(table.rows))

    def full_softmax(
        self,
        field: str,
        hidden: Tensor,
        targets: Tensor,
        bias_field: str | None = None,
        stop: int | None = None,
    ) -> Tensor:
        """Summed cross entropy over all rows of a fixed table: hidden [n, d], targets [n] -> scalar.

        Row 0 is padding, never a candidate nor a target. `bias_field` names a table of dim 1 whose
        rows are added to the logits; candidates end before row `stop` (default: all rows).
        """
        rows = self.whole(field)[:stop]
        if bias_field is not None:
            rows = torch.cat([rows, self.whole(bias_field)[:stop]], 1)
            hidden = torch.cat([hidden, hidden.new_ones(len(hidden), 1)], 1)
        return full_softmax_loss(hidden, rows, targets)

    def prefetch(self, batch: Batch) -> None:
        """Tell the stores which rows the next batch will pull."""
        for name, table in self.fields.items():
            if name in batch.ids:
                self.stores[table.name].prefetch(batch.ids[name].reshape(-1))  # type: ignore[union-attr]

    def take_gradients(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Table -> (ids [n], gradients [n, dim]) since the last call; forgets them."""
        taken = {}
        for name, pending in self._pending.items():
            parts = [(ids, leaf.grad) for ids, leaf in pending if leaf.grad is not None]
            pending.clear()
            if len(parts) == 1:
                taken[name] = parts[0]
            elif parts:
                taken[name] = (torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts]))
            else:
                dim = self.tables[name].dim
                taken[name] = (torch.empty(0, dtype=torch.int64), torch.empty(0, dim))
        return taken  # type: ignore[return-value]

    def extra_repr(self) -> str:
        return ", ".join(f"{t.name}: [{t.rows}, {t.dim}]" for t in self.tables.values())

"""Embeddings: the one nn.Module that knows a Store.

A model says which field of the batch reads which table; where the rows live is decided later, by
the strategy that attaches stores. Rows come in as autograd leaves, so that backward leaves their
gradients here, and `push` hands them to the stores. Tables that are spread over ranks are read
through an exchange, which lets all of them travel together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from shoal.data.batch import Batch
from shoal.embedding.leaves.local import pull_all
from shoal.embedding.leaves.pooling import pool_rows
from shoal.embedding.placed.exchange import Exchange, Lookups
from shoal.embedding.softmax.catalogue import Catalogue
from shoal.embedding.softmax.whole import every_id, is_every
from shoal.embedding.store import Store
from shoal.embedding.table import Table


class Embeddings(nn.Module):
    """Looks up the rows of a model's fields.

    self.embed = Embeddings(user_id=users, item_id=items, neg_item=items)
    rows = self.embed(batch)          # rows["neg_item"]: batch.ids["neg_item"].shape + [dim]
    rows = self.embed.rows("item_id", ids)   # ids of one's own, any shape
    rows = self.embed.pooled("slots", batch) # of lists (Jagged), summed: [lists, dim]
    every = self.embed.whole("item_id")      # all rows of a fixed table: [rows, dim]
    """

    _here: Tensor

    def __init__(self, fields: dict[str, Table] | None = None, **more: Table):
        super().__init__()
        self.fields = {**(fields or {}), **more}
        self.tables: dict[str, Table] = {}
        for table in self.fields.values():
            if self.tables.setdefault(table.name, table) != table:
                raise ValueError(f"two different tables are both named {table.name!r}")
        self.stores: dict[str, Store] = {}
        self.exchange: Exchange | None = None
        self._pending: dict[str, list[tuple[Tensor, Tensor]]] = {}
        self._noted: list[tuple[Tensor, Tensor]] = []  # ids of the batch, their samples' labels
        self._clicks: dict[int, Tensor] = {}  # the same of pulled rows, by id()
        self._catalogues: dict[str, Catalogue] = {}  # fields that a softmax reads whole
        # Moves with the model, so it tells which device rows are wanted on.
        self.register_buffer("_here", torch.empty(0), persistent=False)

    def stay_out_of_compilation(self) -> None:
        """Lookups go to stores, which torch.compile must not look into."""
        # Here and not as decorators: naming torch.compiler at all takes seconds to import.
        for name in ("_look_up", "full_softmax"):
            setattr(self, name, torch.compiler.disable(getattr(self, name)))

    def attach(self, make_store: Callable[[Table], Store]) -> None:
        """Give every table its store. Called by the strategy, once."""
        self.stores = {name: make_store(table) for name, table in self.tables.items()}
        self._pending = {name: [] for name in self.tables}

    def forward(self, batch: Batch, fields: Iterable[str] | None = None) -> dict[str, Tensor]:
        """Rows of the batch's fields that this module has a table for (or of those named)."""
        names = [f for f in self.fields if f in batch.ids] if fields is None else list(fields)
        return dict(zip(names, self._look_up([(f, batch.tensor(f)) for f in names])))

    def rows(self, field: str, ids: Tensor) -> Tensor:
        """Rows of explicit ids: ids.shape + [dim]."""
        return self._look_up([(field, ids)])[0]

    def pooled(self, field: str, batch: Batch, how: Literal["sum", "mean"] = "sum") -> Tensor:
        """Rows of a field, one for each place: ids [b, s] -> [b, s, dim]; lists -> [lists, dim].

        The rows of a list are summed (or their mean is taken), by their weights where it has any;
        an empty list reads as zeros.
        """
        ids, table = batch.ids[field], self.fields[field]
        rows = self.rows(field, batch.flat_ids(field))
        if isinstance(ids, Tensor):
            return rows
        return pool_rows(rows, ids.values, ids.offsets, how, ids.weights, table.padding)

    @property
    def device(self) -> torch.device:
        """Where rows are wanted."""
        return self._here.device

    @property
    def learns(self) -> bool:
        """Whether a lookup now takes part in training."""
        return torch.is_grad_enabled() and self.training

    def _look_up(self, wanted: list[tuple[str, Tensor]]) -> list[Tensor]:
        tables = [self.fields[field] for field, _ in wanted]
        if self.exchange is not None:
            lookups = [(table.name, ids) for table, (_, ids) in zip(tables, wanted)]
            return self.exchange.pull(lookups, self.learns)
        stores = [self._store(table) for table in tables]
        flat = [ids.reshape(-1) for _, ids in wanted]
        result = []
        for table, (_, ids), flat_ids, rows in zip(tables, wanted, flat, pull_all(stores, flat)):
            leaf = rows.to(self._here.device).view(*ids.shape, table.dim)
            if self.learns:
                leaf.requires_grad_()
                self._pending[table.name].append((flat_ids, leaf))
                for known, labels in self._noted:
                    if known is ids:
                        self._clicks[id(leaf)] = labels
            result.append(leaf)
        return result

    def _store(self, table: Table) -> Store:
        store = self.stores.get(table.name)
        if store is None:
            raise RuntimeError(
                f"table {table.name!r} has no store yet; set the model up with a strategy first"
            )
        return store

    def whole(self, field: str) -> Tensor:
        """Every row of a fixed table, in order of id (for models that walk the whole graph)."""
        table = self.fields[field]
        if table.rows is None:
            raise ValueError(f"table {table.name!r} grows: it has no whole to read")
        return self.rows(field, every_id(table.rows, self.device))

    def lent(self, field: str) -> Tensor:
        """As whole, but the store's own memory where it lends it: only to be read at once."""
        table = self.fields[field]
        lend = getattr(self.stores[table.name], "lend", None)
        if lend is None or table.rows is None:
            return self.whole(field)
        leaf = lend().detach()
        if self.learns:
            self.add_leaf(table.name, every_id(table.rows, leaf.device), leaf.requires_grad_())
        return leaf

    # ---- a softmax over all rows of a table -----------------------------------------------------

    def full_softmax(
        self,
        field: str,
        hidden: Tensor,
        targets: Tensor,
        bias_field: str | None = None,
        stop: int | None = None,
    ) -> Tensor:
        """Summed cross entropy over a fixed table's rows: hidden [n, d], targets [n] -> scalar.

        Row 0 is padding, never a candidate nor a target. `bias_field` names a table of dim 1 whose
        rows are added to the logits; candidates end before row `stop` (default: all rows). A
        position whose target is 0 does not count.
        """
        if field not in self._catalogues:
            self._catalogues[field] = Catalogue(self, field)
        # Layers before it may be in bfloat16; sums of exponentials over a catalogue are not.
        with torch.autocast(hidden.device.type, enabled=False):
            return self._catalogues[field].loss(hidden.float(), targets, bias_field, stop)

    def step_softmax(self, lr: float, scale: float) -> None:
        """Let rows learn that have no gradient of their own; see Catalogue."""
        for catalogue in self._catalogues.values():
            catalogue.step(lr, scale)

    def write_softmax(self, always: bool = False) -> None:
        """Have gradients of such rows after all, where others must be added to them."""
        for catalogue in self._catalogues.values():
            catalogue.write_gradients(always)

    # ---- what a step needs ----------------------------------------------------------------------

    def add_leaf(self, name: str, ids: Tensor, leaf: Tensor) -> None:
        """Let rows that were read on another way take part in the step, once they have a grad."""
        if self.exchange is not None:
            self.exchange.add_own(name, ids, leaf)
        else:
            self._pending[name].append((ids, leaf))

    def has_gradients(self, name: str) -> bool:
        """Whether rows of a table have gradients that were not taken yet."""
        if self.exchange is not None:
            return self.exchange.has_gradients(name)
        return any(leaf.grad is not None for _, leaf in self._pending[name])

    def lookups(self, batch: Batch) -> Lookups:
        """Table and ids of every field that the batch has and that is looked up row by row."""
        return [
            (table.name, batch.flat_ids(field))
            for field, table in self.fields.items()
            if field in batch.ids and field not in self._catalogues
        ]

    def labels(self, batch: Batch) -> list[tuple[Tensor, Tensor]]:
        """Ids of each of `lookups`, and the label of the sample that each stands in: [ids]."""
        return [
            (batch.flat_ids(field), _spread_labels(batch, field))
            for field in self.fields
            if field in batch.ids and field not in self._catalogues
        ]

    def note_labels(self, batch: Batch) -> None:
        """Remember the labels of a batch whose rows will be looked up, for `take_counts`."""
        self._noted = self.labels(batch)

    def take_counts(self) -> dict[str, Tensor]:
        """Table -> shows and clicks of each id [n, 2] that `take_gradients` gives next."""
        counts = {}
        for name, pending in self._pending.items():
            clicks = [
                self._clicks.get(id(leaf), torch.zeros(len(ids)))
                for ids, leaf in pending
                if leaf.grad is not None
            ]
            flat = torch.cat(clicks) if clicks else torch.empty(0)
            counts[name] = torch.stack([torch.ones_like(flat), flat], 1)
        self._clicks, self._noted = {}, []
        return counts

    def prefetch(self, batch: Batch) -> None:
        """Tell the stores which rows the next batch will pull."""
        for name, ids in self.lookups(batch):
            self.stores[name].prefetch(ids.reshape(-1))

    def take_gradients(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Table -> (ids [n], gradients [n, dim]) since the last call; forgets them."""
        self.write_softmax()
        taken = {}
        for name, pending in self._pending.items():
            dim = self.tables[name].dim
            parts = [
                (ids, leaf.grad.view(-1, dim)) for ids, leaf in pending if leaf.grad is not None
            ]
            pending.clear()
            if len(parts) > 1:
                parts = _join_whole(parts, self.tables[name].rows)
            if len(parts) == 1:
                taken[name] = parts[0]
            elif parts:
                taken[name] = (torch.cat([p[0] for p in parts]), _joined([p[1] for p in parts]))
            else:
                taken[name] = (torch.empty(0, dtype=torch.int64), torch.empty(0, dim))
        return taken

    def extra_repr(self) -> str:
        return ", ".join(f"{t.name}: [{t.rows}, {t.dim}]" for t in self.tables.values())


def _spread_labels(batch: Batch, field: str) -> Tensor:
    """The label of the sample of each id of a field: [ids], 0 where samples have none."""
    ids, size = batch.ids[field], max(1, batch.size)
    flat = batch.flat_ids(field)
    if batch.labels is None:
        return torch.zeros(flat.numel())
    labels = batch.labels.reshape(-1).float().cpu()
    if isinstance(ids, Tensor):
        return labels.repeat_interleave(flat.numel() // size)
    return labels.repeat_interleave(len(ids) // size).repeat_interleave(ids.lengths.cpu())


def _joined(parts: list[Tensor]) -> Tensor:
    """Parts [n, dim] one after the other; no copy where they lie so in one memory already."""
    first, total, dim = parts[0], 0, parts[0].shape[1]
    memory = first.untyped_storage().data_ptr()
    for part in parts:
        follows = part.data_ptr() == first.data_ptr() + first.element_size() * dim * total
        if not (follows and part.is_contiguous() and part.untyped_storage().data_ptr() == memory):
            return torch.cat(parts)
        total += len(part)
    return first.as_strided((total, dim), (dim, 1))


def _join_whole(
    parts: list[tuple[Tensor, Tensor]], rows: int | None
) -> list[tuple[Tensor, Tensor]]:
    """Where one part has every row, the others are added to it, in place."""
    found = [k for k, (ids, _) in enumerate(parts) if rows is not None and is_every(ids, rows)]
    if not found:
        return parts
    every, total = parts.pop(found[0])
    for ids, grads in parts:
        total.index_add_(0, ids.to(total.device), grads)
    return [(every, total)]

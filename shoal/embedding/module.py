"""Embeddings: the one nn.Module that knows a row service.

A model says which field of the batch reads which table; where the rows live is decided later, by
the strategy that attaches a service. Rows come in as autograd leaves, so that backward leaves their
gradients where the service collects them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional

from shoal.data.batch import Batch, Jagged
from shoal.embedding.output_table import OutputTable
from shoal.embedding.rows.bags import Bags, Pooling, check_pooling, shares_of
from shoal.embedding.rows.store import EVERY, Every, Ids
from shoal.embedding.rows.table import Table
from shoal.embedding.service import Lookup, RowService
from shoal.embedding.softmax.full import full_softmax_loss
from shoal.embedding.vectors import ProjectedVectors, among


class Embeddings(nn.Module):
    """Looks up the rows of a model's fields.

    self.embed = Embeddings(user_id=users, item_id=items, neg_item=items)
    rows = self.embed(batch)          # rows["neg_item"]: batch.ids["neg_item"].shape + [dim]
    rows = self.embed.field("item_id", batch)  # of one field of the batch
    rows = self.embed.rows("item_id", ids)     # explicit ids, any shape
    rows = self.embed.pooled("slots", batch)   # of lists (Jagged), summed: [lists, dim]
    rows = self.embed.listed("seen", batch, 9)  # of lists, one by one: [lists, 9, dim]
    every = self.embed.whole("item_id")        # all rows of a fixed table: [rows, dim]
    """

    def __init__(self, fields: dict[str, Table] | None = None, **tables: Table):
        super().__init__()
        self.fields = {**(fields or {}), **tables}
        self.tables: dict[str, Table] = {}
        for table in self.fields.values():
            if self.tables.setdefault(table.name, table) != table:
                raise ValueError(f"two different tables are both named {table.name!r}")
        self._service: RowService | None = None
        self._numbers = {field: number for number, field in enumerate(self.fields)}
        self._outputs: dict[str, OutputTable] = {}  # fields that a softmax reads whole
        self.read_pooled: set[str] = set()  # fields whose lists were read as sums, so far
        self.read_singly: set[str] = set()  # fields that were read id by id
        self._vectors = nn.ModuleDict()  # by number of the table; see `read_vectors`
        self._vectors_of: dict[str, ProjectedVectors] = {}  # by table

    def disable_compile(self) -> None:
        """Lookups go to a service, which torch.compile must not look into."""
        # Here and not as decorators: naming torch.compiler at all takes seconds to import.
        for name in ("_look_up", "full_softmax"):
            setattr(self, name, torch.compiler.disable(getattr(self, name)))

    def attach(self, service: RowService, first: int = 0) -> int:
        """Read rows from a service. Fields are numbered from `first`; returns the next number."""
        self._service = service
        self._numbers = {field: first + k for k, field in enumerate(self.fields)}
        return first + len(self.fields)

    def read_vectors(self, name: str, vectors: ProjectedVectors) -> None:
        """Let a table's rows read as `vectors` makes them; before a strategy asks for tables.

        Fields keep their table, which says how wide it is, where it has no rows of its own.
        """
        self._vectors[str(list(self.tables).index(name))] = vectors
        self._vectors_of[name] = vectors

    @property
    def row_tables(self) -> dict[str, Table]:
        """The tables that have rows, by name."""
        return {name: table for name, table in self.tables.items() if self._has_rows(name)}

    def vectors_of(self, table: str) -> ProjectedVectors | None:
        """What a table's rows read as with vectors; None: it has none."""
        return self._vectors_of.get(table)

    @contextmanager
    def without_vectors(self) -> Iterator[None]:
        """Within this context rows are read from the service alone, those without rows, too."""
        kept, self._vectors_of = self._vectors_of, {}
        try:
            yield
        finally:
            self._vectors_of = kept

    def _has_rows(self, table: str) -> bool:
        vectors = self._vectors_of.get(table)
        return vectors is None or vectors.with_rows

    @property
    def attached(self) -> bool:
        """Whether rows can be read."""
        return self._service is not None

    @property
    def service(self) -> RowService:
        """The row service that reads and updates the rows."""
        if self._service is None:
            names = ", ".join(map(repr, self.tables))
            raise RuntimeError(
                f"table {names} has no rows yet; set the model up with a strategy first"
            )
        return self._service

    @property
    def learns(self) -> bool:
        """Whether a lookup now takes part in training."""
        return torch.is_grad_enabled() and self.training

    def forward(self, batch: Batch, fields: Iterable[str] | None = None) -> dict[str, Tensor]:
        """Rows of the batch's fields that this module has a table for (or of those named)."""
        names = [f for f in self.fields if f in batch.ids] if fields is None else list(fields)
        return dict(zip(names, self._look_up([(f, batch.tensor(f)) for f in names], batch)))

    def field(self, name: str, batch: Batch) -> Tensor:
        """Rows of one field of the batch: its ids' shape + [dim]."""
        return self._look_up([(name, batch.tensor(name))], batch)[0]

    def rows(self, field: str, ids: Tensor) -> Tensor:
        """Rows of explicit ids: ids.shape + [dim]."""
        return self._look_up([(field, ids)])[0]

    def whole(self, field: str) -> Tensor:
        """Every row of a fixed table, in order of id (for models that walk the whole graph)."""
        table = self.fields[field]
        if table.rows is None:
            raise ValueError(f"table {table.name!r} grows: it has no whole to read")
        return self._look_up([(field, EVERY)])[0]

    def pooled(self, field: str, batch: Batch, how: Pooling = "sum") -> Tensor:
        """Rows of a field, one for each place: ids [b, s] -> [b, s, dim]; lists -> [lists, dim].

        The rows of a list are summed (or their mean is taken), by their weights where it has any;
        an empty list reads as zeros.
        """
        return self.each_pooled(batch, {field: how})[field]

    def each_pooled(self, batch: Batch, how: Mapping[str, Pooling]) -> dict[str, Tensor]:
        """`pooled` of several fields, by name, their rows looked up together."""
        bags = {f: field_bags for f in how if (field_bags := _bags_of(batch, f)) is not None}
        for field in bags:  # ids that are no lists have nothing to pool
            check_pooling(how[field])
        sums = self._look_up([(field, batch.flat_ids(field)) for field in how], batch, bags)
        pooled = dict(zip(how, sums))
        for field, field_bags in bags.items():
            if how[field] == "mean":
                ids, padding = batch.flat_ids(field), self.fields[field].padding
                pooled[field] = pooled[field] * shares_of(ids, field_bags.offsets, padding)
        return pooled

    def listed(self, field: str, batch: Batch, length: int) -> Tensor:
        """Rows of the last `length` ids of every list, zeros after them: [lists, length, dim].

        Ids that are no lists are lists of one.
        """
        ids = batch.ids[field]
        rows = self._look_up([(field, batch.flat_ids(field))], batch)[0]
        if isinstance(ids, Tensor):
            return functional.pad(rows.unsqueeze(1), (0, 0, 0, length - 1))
        nothing = rows.new_zeros(1, rows.shape[1])  # stands last, where place -1 is
        places = ids.places(length) % (len(rows) + 1)
        return functional.embedding(places, torch.cat([rows, nothing]))

    def _look_up(
        self,
        requests: list[tuple[str, Ids]],
        batch: Batch | None = None,
        bags: Mapping[str, Bags] = MappingProxyType({}),
    ) -> list[Tensor]:
        service = self.service
        self.read_pooled.update(bags)
        self.read_singly.update(field for field, _ in requests if field not in bags)
        # The ids of a batch in training are known to the service by the number of their field.
        in_training = batch is not None and batch is service.batch
        lookups = [
            Lookup(
                self.fields[field].name,
                ids,
                self._numbers[field] if in_training else None,
                bags=None if self.fields[field].name in self._vectors_of else bags.get(field),
            )
            for field, ids in requests
            if self._has_rows(self.fields[field].name)
        ]
        rows = service.pull(lookups, self.learns) if lookups else []
        return self._with_vectors(requests, rows, bags) if self._vectors_of else rows

    def _with_vectors(
        self, requests: list[tuple[str, Ids]], rows: list[Tensor], bags: Mapping[str, Bags]
    ) -> list[Tensor]:
        """What requests read, with the vectors of their ids; rows: of those that have rows."""
        results, pulled = [], iter(rows)
        for field, ids in requests:
            table = self.fields[field]
            own = next(pulled) if self._has_rows(table.name) else None
            vectors = self._vectors_of.get(table.name)
            if vectors is None:
                assert own is not None
                results.append(own)
                continue
            if isinstance(ids, Every):
                ids = torch.arange(table.rows or 0, device=vectors.trained.device)
            both = vectors(ids.to(vectors.trained.device), own)
            field_bags = bags.get(field)
            if field_bags is not None:
                if field_bags.weights is not None:
                    both = both * field_bags.weights.to(both.device).unsqueeze(1)
                places = field_bags.to(both.device).bag_of(len(both))
                both = both.new_zeros(len(field_bags), table.dim).index_add(0, places, both)
            results.append(both)
        return results

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
        if self.fields[field].name in self._vectors_of:
            return self._softmax_over_vectors(field, hidden, targets, bias_field, stop)
        if field not in self._outputs:
            tables, bias = list(self.fields.values()), None
            if bias_field is not None:
                bias = self.fields[bias_field]
            alone = all(tables.count(one) == 1 for one in (self.fields[field], bias) if one)
            self._outputs[field] = self.service.output_table(self.fields[field], bias, alone)
        # Layers before it may be in bfloat16; sums of exponentials over a catalogue are not.
        with torch.autocast(hidden.device.type, enabled=False):
            return self._outputs[field].loss(hidden.float(), targets, stop, self.learns)

    def _softmax_over_vectors(
        self,
        field: str,
        hidden: Tensor,
        targets: Tensor,
        bias_field: str | None,
        stop: int | None,
    ) -> Tensor:
        """`full_softmax` of a table whose rows read vectors, which are made whole."""
        with torch.autocast(hidden.device.type, enabled=False):
            items = self.whole(field)
            bias = None if bias_field is None else self.whole(bias_field).squeeze(1)
            stop = len(items) if stop is None else stop
            candidates = self._vectors_of[self.fields[field].name].candidates()
            if candidates is not None:
                items, targets = among(candidates, items, targets)
                bias = None if bias is None else bias[candidates]
                stop = len(items)
            return full_softmax_loss(hidden.float(), items, targets, None, bias, stop)

    def among_candidates(
        self, field: str, vectors: Tensor, targets: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What a softmax over given vectors of all items [n, d] compares, and its targets [m].

        Items that nothing was learned of are left out where items have vectors; see `among`.
        """
        read = self._vectors_of.get(self.fields[field].name)
        candidates = None if read is None else read.candidates()
        return (vectors, targets) if candidates is None else among(candidates, vectors, targets)

    # ---- what a step needs ----------------------------------------------------------------------

    def lookups(self, batch: Batch) -> list[Lookup]:
        """Lookups of the batch's fields that are read by id; lists with their bags.

        Whether lists are pooled is known only when the model reads them.
        """
        batch_lookups = []
        for field, table in self.fields.items():
            if not self._has_rows(table.name):
                continue
            if field in batch.ids and field not in self._outputs:
                counted = table.name in self.service.counted
                clicks = _labels_of(batch, field) if counted else None
                bags, flat = _bags_of(batch, field), batch.flat_ids(field)
                batch_lookups.append(Lookup(table.name, flat, self._numbers[field], clicks, bags))
        return batch_lookups

    def extra_repr(self) -> str:
        return ", ".join(f"{t.name}: [{t.rows}, {t.dim}]" for t in self.tables.values())


def _bags_of(batch: Batch, field: str) -> Bags | None:
    """The lists of a field; None: it has none."""
    ids = batch.ids[field]
    return Bags(ids.offsets, ids.weights) if isinstance(ids, Jagged) else None


def _labels_of(batch: Batch, field: str) -> Tensor:
    """The label of the sample of each id of a field: [ids], 0 where samples have none."""
    ids, size = batch.ids[field], max(1, batch.size)
    flat = batch.flat_ids(field)
    if batch.labels is None:
        return torch.zeros(flat.numel())
    labels = batch.labels if batch.labels.dim() == 1 else batch.labels[:, 0]  # the first of several
    labels = labels.float().cpu()
    if isinstance(ids, Tensor):
        return labels.repeat_interleave(flat.numel() // size)
    return labels.repeat_interleave(len(ids) // size).repeat_interleave(ids.lengths.cpu())

"""Placement: which rank owns which rows, or which columns, of a table.

A fixed table's ids become codes 0 .. rows-1, and rank r owns the codes bounds[r] .. bounds[r+1]-1;
within them it counts from 0, so that its engine is dense and as large as its share. What differs
between placements is how an id becomes a code:

    row by range   code = id
    row by hash    code = id * factor mod rows, a bijection that scatters neighbours and strides
    table          code = id; one rank's bounds hold all
    column         code = id; every rank holds all rows, of some columns
    replicate      code = id; every rank holds everything

A table that grows has no codes: its ids stay as they are, and a mix of the bits names the owner.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from shoal.embedding.rows.table import Numbering, Table
from shoal.kernels.common.rules import INCREMENT, signed
from shoal.kernels.distinct_ids import codes_of

SCATTER = signed(INCREMENT)  # mixes the bits of an id


@dataclass(frozen=True)
class Placement:
    """The placement of a table; `by` applies to place=row, `rank` to place=table."""

    place: Literal["row", "table", "column", "replicate"] = "row"
    by: Literal["hash", "range"] = "hash"
    rank: int = 0


class Sharding:
    """A placement worked out for one table and one number of ranks: who holds which rows."""

    def __init__(self, table: Table, placement: Placement, size: int):
        self.table, self.placement, self.size = table, placement, size
        self.grows = table.rows is None
        if not 0 <= placement.rank < size:
            raise ValueError(
                f"table {table.name!r} is placed on rank {placement.rank}; there are ranks 0 to "
                f"{size - 1}: choose one of them in strategy.tables.{table.name}.rank"
            )
        if self.grows and placement.place == "row" and placement.by == "range":
            raise ValueError(
                f"table {table.name!r} grows, so its ids have no range to cut; place it by hash"
            )
        # Ids of these go to every rank, with the row's columns or for the gradient's sake.
        self.everyone = placement.place in ("column", "replicate")
        self.replicated = placement.place == "replicate"
        rows, holder = table.rows or 0, placement.rank
        if placement.place == "row":
            shares = [rows * (r + 1) // size - rows * r // size for r in range(size)]
        elif placement.place == "table":
            shares = [rows if r == holder else 0 for r in range(size)]
        else:
            shares = [rows] * size
        self.shares = shares  # rows that each rank holds
        self.bounds = [sum(shares[:r]) for r in range(size + 1)]
        cut = placement.place == "column"
        self.columns = [
            (table.dim * r // size, table.dim * (r + 1) // size) if cut else (0, table.dim)
            for r in range(size)
        ]
        hashed = placement.place == "row" and placement.by == "hash" and size > 1
        self.factor = _coprime(rows) if hashed else 1

    def __eq__(self, other: object) -> bool:
        """Whether two tables have the same ids in the same places."""
        if not isinstance(other, Sharding):
            return NotImplemented
        own_key, other_key = (self.placement, self.table.rows), (other.placement, other.table.rows)
        return own_key == other_key and self.size == other.size

    @property
    def cut_by_rows(self) -> bool:
        """Whether each row of a fixed table has one owner."""
        return not self.everyone and not self.grows

    @property
    def num_shares(self) -> int:
        """How many engines hold the rows of the table between them; replicas each hold all."""
        return self.size if self.placement.place == "row" else 1

    def share(self, rank: int) -> tuple[int, int]:
        """The index of a rank's engine among the engines that share the table, and their number."""
        return (rank, self.size) if self.num_shares > 1 else (0, 1)

    def width(self, rank: int) -> int:
        """Columns that a rank holds."""
        first, last = self.columns[rank]
        return last - first

    def holds(self, rank: int) -> bool:
        """Whether a rank has anything of this table."""
        if self.grows and self.placement.place == "table":
            return rank == self.placement.rank
        return self.width(rank) > 0 and (self.grows or self.shares[rank] > 0)

    def codes(self, ids: Tensor) -> Tensor:
        """Fixed tables: ids [n] -> codes [n]; the padding id is `rows`, after every other."""
        rows, padding = self.table.rows, self.table.padding
        assert rows is not None
        codes_in_core, wrong = codes_of(ids, rows, padding, self.factor)
        if wrong >= 0:
            raise self.table.outside(int(ids[wrong]))
        if codes_in_core is not None:
            return codes_in_core
        self.table.check_ids(ids)
        codes = ids if self.factor == 1 else ids * self.factor % rows
        if padding is not None:
            codes = codes.masked_fill(ids == padding, rows)
        return codes

    def owners(self, ids: Tensor) -> Tensor:
        """Growing tables: the owner of each id; the padding id has none, which is `size`."""
        if self.placement.place == "row":
            owner = (ids * SCATTER >> 33 & 0x7FFFFFFF) % self.size
        else:
            owner = torch.full_like(ids, self.placement.rank)
        if self.table.padding is not None:
            owner = owner.masked_fill(ids == self.table.padding, self.size)
        return owner

    def assigned(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The owner of each id, and its code; of growing tables the id.

        The padding id has the owner `size`. Where everyone holds all rows, the owner is 0.
        """
        if self.grows and not self.everyone:
            return self.owners(ids), ids
        codes = ids if self.grows else self.codes(ids)
        if self.everyone:
            padding = self.table.padding
            return torch.zeros_like(ids) if padding is None else (ids == padding) * self.size, codes
        bounds = torch.tensor(self.bounds[1:], device=ids.device)
        return torch.bucketize(codes, bounds, right=True), codes

    def numbering(self, rank: int) -> Numbering:
        """Fixed tables: which id each row of a rank's engine is."""
        rows = self.table.rows
        assert rows is not None
        low = 0 if self.everyone else self.bounds[rank]
        return Numbering(low, 1 if self.factor == 1 else pow(self.factor, -1, rows), rows)

    def ids(self, rank: int) -> Tensor:
        """Fixed tables: the ids a rank holds, in the order of its engine."""
        return self.numbering(rank).ids(torch.arange(self.shares[rank]))


def _coprime(rows: int) -> int:
    """A factor whose products modulo `rows` are a bijection that scatters neighbours."""
    if rows < 3 or rows >= 1 << 31:  # products must fit 63 bits; huge tables are cut by range
        return 1
    factor = int(rows * 0.6180339887498949)
    while math.gcd(factor, rows) != 1:
        factor -= 1
    return factor

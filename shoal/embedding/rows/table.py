"""Table: what a set of embedding rows is, never where it lives."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from torch import Tensor


@dataclass(frozen=True)
class Init:
    """Initial values of rows. Each value is a pure function of (seed, table name, id, column).

    uniform   in [-scale, scale)
    normal    mean 0, standard deviation scale
    xavier    uniform with scale = sqrt(6 / (rows + dim)); xavier_normal: normal with sqrt(2 / ...)
    constant  scale everywhere
    """

    kind: Literal["uniform", "normal", "xavier", "xavier_normal", "constant"] = "xavier_normal"
    scale: float = 0.01


@dataclass(frozen=True)
class Numbering:
    """The ids of a share of a table: its row k is id (first + k) * factor mod rows."""

    first: int
    factor: int
    rows: int

    def ids(self, places: Tensor) -> Tensor:
        """The ids of rows [n] of the share."""
        return (places + self.first) * self.factor % self.rows


@dataclass(frozen=True)
class Table:
    """Rows of `dim` floats under a name. `rows=None` grows: any 64-bit id has a row.

    `padding` names one id that always reads as zeros and never learns. `whole` means that every
    step reads and updates all rows (an output layer): an engine may then keep them side by side.
    `dtype` is how values are kept: bfloat16 halves their memory (not that of state), and updates
    round at random, by (seed, table name, step, id, column); `numbering` has the ids of a share.
    """

    name: str
    dim: int
    rows: int | None
    init: Init = field(default_factory=Init)
    padding: int | None = None
    whole: bool = False
    dtype: Literal["float32", "bfloat16"] = "float32"
    numbering: Numbering | None = None

    @property
    def half(self) -> bool:
        """Whether values take two bytes."""
        return self.dtype == "bfloat16"

    @property
    def resolved_init(self) -> tuple[Literal["uniform", "normal", "constant"], float]:
        """Kind and scale of initial values, computed for this number of rows."""
        fan = (self.rows or 0) + self.dim
        if self.init.kind == "xavier":
            return "uniform", math.sqrt(6.0 / fan)
        if self.init.kind == "xavier_normal":
            return "normal", math.sqrt(2.0 / fan)
        return self.init.kind, self.init.scale

    @property
    def grown(self) -> Table:
        """A growing table with the same initial values: its engine knows the values of any id."""
        return replace(self, rows=None, init=Init(*self.resolved_init))

    def outside(self, id_: int) -> ValueError:
        """The error for an id that a fixed table has no row for."""
        return ValueError(
            f"table {self.name!r} has no row {id_}: it has {self.rows} rows, ids 0 to "
            f"{(self.rows or 0) - 1}; give the table more rows, or rows=None so that it grows"
        )

    def check_ids(self, ids: Tensor) -> None:
        """Refuse ids that a fixed table has no row for."""
        if self.rows is not None and ids.numel():
            for bound in ids.aminmax():
                if not 0 <= int(bound) < self.rows:
                    raise self.outside(int(bound))

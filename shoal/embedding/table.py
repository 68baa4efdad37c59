"""Table: what a set of embedding rows is, never where it lives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Init:
    """How a row begins. The value is a pure function of (seed, table name, id, column).

    uniform   in [-scale, scale)
    normal    mean 0, standard deviation scale
    xavier    uniform with scale = sqrt(6 / (rows + dim)); xavier_normal likewise, sqrt(2 / ...)
    constant  scale everywhere
    """

    kind: Literal["uniform", "normal", "xavier", "xavier_normal", "constant"] = "xavier_normal"
    scale: float = 0.01


@dataclass(frozen=True)
class Table:
    """Rows of `dim` floats under a name. `rows=None` grows: any 64-bit id has a row.

    `padding` names one id that always reads as zeros and never learns. `whole` tells that every
    step reads and updates all rows (an output layer): a leaf may then keep them side by side.
    """

    name: str
    dim: int
    rows: int | None
    init: Init = field(default_factory=Init)
    padding: int | None = None
    whole: bool = False

"""Spec: what workers tell a server about the model, typed and strict, as JSON on the wire."""

from __future__ import annotations

import heapq
import json
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from shoal.config.row_rules import RowRules
from shoal.config.schema import OptimizerSection
from shoal.config.section import Section
from shoal.embedding.leaves.init import recipe
from shoal.embedding.optim.chosen import check_tables, problems, row_optimizer_of
from shoal.embedding.optim.rows import RowOptimizer
from shoal.embedding.table import Init, Table
from shoal.ps.wire import MOST_WORKERS, WireError

MOST_VALUES = 1 << 33  # dense values of one model
COPIES = 4  # of a dense parameter, at most: values, gradient, and two of an optimizer's state
Side = Annotated[int, Field(ge=0, le=MOST_VALUES)]


class TableSpec(Section):
    """A table. On a server all tables grow: it holds those rows that were ever taught."""

    name: str = Field(pattern=r"^[^/\x00-\x1f]{1,200}$", description="a part of files' names")
    dim: int = Field(ge=1, le=1 << 20)
    rows: int | None = Field(None, ge=1, lt=1 << 63)
    init: Literal["uniform", "normal", "constant"]
    scale: float = Field(allow_inf_nan=False)
    padding: int | None = Field(None, ge=-(1 << 63), lt=1 << 63)
    rules: RowRules | None = Field(None, description="of a table that grows for workers too")

    @classmethod
    def of(cls, table: Table, rules: RowRules | None = None) -> TableSpec:
        """What makes the same initial values as the table does, without its number of rows."""
        kind, scale = table.resolved_init
        spec = cls(
            name=table.name,
            dim=table.dim,
            rows=table.rows,
            init=kind,
            scale=scale,
            padding=table.padding,
            rules=rules,
        )
        assert recipe(spec.table(), 0) == recipe(table, 0)
        return spec

    def table(self) -> Table:
        """The table as a server keeps it."""
        return Table(self.name, self.dim, None, Init(self.init, self.scale), self.padding)


class Spec(Section):
    """A model, as far as a server must know it, and how it is trained."""

    seed: int
    workers: int = Field(ge=1, le=MOST_WORKERS)
    servers: int = Field(ge=1, le=1 << 16)
    mode: Literal["sync", "async", "geo"]
    staleness: int = Field(ge=1)
    elastic: bool = Field(False, description="workers come and go: `workers` is the most there are")
    tables: list[TableSpec] = Field(max_length=1 << 12)
    optimizer: OptimizerSection
    dense: list[Annotated[list[Side], Field(max_length=16)]] = Field(
        default_factory=list, max_length=1 << 16, description="shapes of the dense parameters"
    )

    def row_optimizer_of(self, table: str) -> RowOptimizer:
        """What updates the rows of a table: in geo the workers do, and a server only adds."""
        return (
            RowOptimizer("sgd") if self.mode == "geo" else row_optimizer_of(self.optimizer, table)
        )

    @property
    def counted(self) -> list[bool]:
        """Of each table: whether pushes tell how often its ids were shown and clicked."""
        return [one.rules is not None and one.rules.counted for one in self.tables]

    @property
    def sizes(self) -> list[int]:
        """Values of each dense parameter."""
        return [_product(shape) for shape in self.dense]

    def owners(self) -> list[int]:
        """The server of each dense parameter: the largest first, each to the least loaded."""
        sizes = self.sizes
        loads, owners = [(0, server) for server in range(self.servers)], [0] * len(sizes)
        for number in sorted(range(len(sizes)), key=lambda k: (-sizes[k], k)):
            load, owner = loads[0]
            owners[number] = owner
            heapq.heapreplace(loads, (load + sizes[number], owner))
        return owners

    def first_bytes(self, index: int) -> int:
        """Memory that a server takes for this model before any row has come, at most."""
        dense = sum(n for n, owner in zip(self.sizes, self.owners()) if owner == index)
        counters = sum(
            -(-one.rules.admission.bloom_counters // self.servers)
            for one in self.tables
            if one.rules is not None
        )
        return 4 * COPIES * dense + counters

    def json(self) -> bytes:  # type: ignore[override]
        """Canonical text: equal for equal models."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()


def parse_spec(values: dict) -> Spec:
    """A spec that came over the wire."""
    try:
        spec = Spec.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise WireError(f"the model is not described rightly: {place}: {first['msg']}") from None
    names = [table.name for table in spec.tables]
    if len(set(names)) < len(names):
        raise WireError("two tables have the same name")
    for one in spec.tables:
        if one.rules is not None and (one.rows is not None or spec.mode == "geo"):
            raise WireError(f"table {one.name!r} cannot count its ids: it is fixed, or mode is geo")
    if spec.elastic and spec.mode == "sync":
        raise WireError("workers come and go, and mode is sync, where all of them make each step")
    for _, text in problems(spec.optimizer):
        raise WireError(text)
    try:
        check_tables(spec.optimizer, names)
    except ValueError as error:
        raise WireError(str(error)) from None
    if sum(spec.sizes) > MOST_VALUES:
        raise WireError("the dense parameters have impossible shapes")
    return spec


def _product(shape: list[int]) -> int:
    total = 1
    for side in shape:
        total *= side
    return total

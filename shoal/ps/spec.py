"""Spec: messages of workers about the model and its saves: JSON, typed and strict."""

from __future__ import annotations

import heapq
import math
from typing import Annotated, Any, Literal

from pydantic import Field

from shoal.config.row_rules import RowRules
from shoal.config.schema import OptimizerSection
from shoal.config.section import Section
from shoal.embedding.engines.init import recipe
from shoal.embedding.rows.table import Init, Table
from shoal.optimizers.row_optimizer import RowOptimizer
from shoal.optimizers.selection import check_tables, problems, row_optimizer_of
from shoal.ps.wire import MOST_WORKERS, WireError, parse_json, validated

Side = Annotated[int, Field(ge=0, le=1 << 33)]


class TableSpec(Section):
    """A table. On a server all tables grow: it holds those rows that were ever taught."""

    name: str = Field(pattern=r"^[^/\x00-\x1f]{1,200}$", description="a part of files' names")
    dim: int = Field(ge=1, le=1 << 20)
    rows: int | None = Field(None, ge=1, lt=1 << 63)
    init: Literal["uniform", "normal", "constant"]
    scale: float = Field(allow_inf_nan=False)
    padding: int | None = Field(None, ge=-(1 << 63), lt=1 << 63)
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="of values in memory")
    rules: RowRules | None = Field(None, description="of a table that grows for workers too")

    @classmethod
    def of(cls, table: Table, rules: RowRules | None = None) -> TableSpec:
        """The spec of a table; it makes the same initial values without the number of rows."""
        kind, scale = table.resolved_init
        spec = cls(
            name=table.name,
            dim=table.dim,
            rows=table.rows,
            init=kind,
            scale=scale,
            padding=table.padding,
            dtype=table.dtype,
            rules=rules,
        )
        assert recipe(spec.table(), 0) == recipe(table, 0)
        return spec

    def table(self) -> Table:
        """The table as a server keeps it."""
        init = Init(self.init, self.scale)
        return Table(self.name, self.dim, None, init, self.padding, dtype=self.dtype)


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
        """The row optimizer of a table; in geo workers update rows, and servers only add."""
        return (
            RowOptimizer("sgd") if self.mode == "geo" else row_optimizer_of(self.optimizer, table)
        )

    @property
    def counted(self) -> list[bool]:
        """For each table, whether pushes contain shows and clicks of its ids."""
        return [one.rules is not None and one.rules.counted for one in self.tables]

    @property
    def sizes(self) -> list[int]:
        """Values of each dense parameter."""
        return [math.prod(shape) for shape in self.dense]

    def owners(self) -> list[int]:
        """The server of each dense parameter: the largest first, each to the least loaded."""
        sizes = self.sizes
        loads, owners = [(0, server) for server in range(self.servers)], [0] * len(sizes)
        for number in sorted(range(len(sizes)), key=lambda k: (-sizes[k], k)):
            load, owner = loads[0]
            owners[number] = owner
            heapq.heapreplace(loads, (load + sizes[number], owner))
        return owners

    def dense_size(self, index: int) -> int:
        """Values of all dense parameters of one server."""
        return sum(n for n, owner in zip(self.sizes, self.owners()) if owner == index)

    def first_bytes(self, index: int) -> int:
        """Memory that a server takes for this model before any row has come, at most."""
        dense = self.dense_size(index)
        counters = sum(
            -(-table.rules.admission.bloom_counters // self.servers)
            for table in self.tables
            if table.rules is not None
        )
        # Four floats of a dense parameter: value, gradient, and two of an optimizer's state.
        return 16 * dense + counters


class Save(Section):
    """A request to save."""

    name: str = Field(description="of a folder in the server's own")
    delta: bool = Field(False, description="only what changed since the save before")
    held: bool = Field(False, description="another server writes the same: only be ready to")


class Load(Section):
    """A request to restore rows of a checkpoint."""

    name: str = Field(description="of a folder in the server's own")
    files: dict[str, dict[str, Any]] = Field(description="file -> bytes and checksum")
    steps: dict[str, Annotated[int, Field(ge=0, lt=1 << 62)]] = Field(
        description="table -> steps that its rows have had"
    )
    fresh: bool = Field(False, description="rows that the checkpoint has not are forgotten")


def parse_spec(values: dict) -> Spec:
    """A spec that came over the wire."""
    spec = validated(Spec, values, "the model is not described rightly")
    names = [table.name for table in spec.tables]
    if len(set(names)) < len(names):
        raise WireError("two tables have the same name")
    for table_spec in spec.tables:
        if table_spec.rules is not None and (table_spec.rows is not None or spec.mode == "geo"):
            raise WireError(
                f"table {table_spec.name!r} cannot count its ids: it is fixed, or mode is geo"
            )
        if table_spec.dtype != "float32" and spec.mode == "geo":
            raise WireError(f"table {table_spec.name!r} is {table_spec.dtype}, and mode is geo")
    if spec.elastic and spec.mode == "sync":
        raise WireError("workers come and go, and mode is sync, where all of them make each step")
    for _, text in problems(spec.optimizer):
        raise WireError(text)
    try:
        check_tables(spec.optimizer, names)
    except ValueError as error:
        raise WireError(str(error)) from None
    if sum(spec.sizes) > 1 << 33:
        raise WireError("the dense parameters have impossible shapes")
    return spec


def read_hello(
    frame: memoryview, worker: int, index: int, known_spec: Spec | None
) -> tuple[Spec, str]:
    """The model and the worker's host from a hello; it must fit this server and `known_spec`."""
    values = parse_json(frame)
    host, server = str(values.pop("host", "?"))[:200], values.pop("server", None)
    if known_spec is not None and values != known_spec.model_dump(mode="json"):
        raise WireError(
            f"worker {worker} describes another model or run than the first worker did: give every "
            "host the same config and code"
        )
    spec = parse_spec(values) if known_spec is None else known_spec
    if server != index or index >= spec.servers:
        raise WireError(
            f"this is server {index}, and worker {worker} on host {host} takes it for server "
            f"{server} of {spec.servers}: give every host the same --servers"
        )
    return spec, host

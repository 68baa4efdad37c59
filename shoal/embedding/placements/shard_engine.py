"""The engines of one rank: its shares of tables whose rows are spread over the ranks."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from shoal.config.row_rules import TiersSection
from shoal.embedding.engines.local import make_engines, make_local
from shoal.embedding.engines.row_engine import RowEngine
from shoal.embedding.rows.admission import Admission
from shoal.embedding.rows.placement import Sharding
from shoal.embedding.rows.store import Rows
from shoal.embedding.rows.table import Init, Table
from shoal.optimizers.row_optimizer import RowOptimizer

SOME_ROWS = 1 << 16  # rows handled at a time, so that temporaries stay small


def make_shard_engines(
    shardings: Mapping[str, Sharding],
    rank: int,
    optimizers: Mapping[str, RowOptimizer],
    seed: int,
    *,
    admissions: Mapping[str, Admission | None],
    device: torch.device | str = "cpu",
    fused: bool = False,
    tiers: TiersSection | None = None,
) -> dict[str, RowEngine]:
    """The engines of one rank, each with the rank's share of a table, for all tables it holds.

    Each row begins at the table's initial values. tiers: memory budgets of this rank's rows.
    """
    own_tables = {name: _own_table(one, rank, optimizers[name]) for name, one in shardings.items()}
    engines = make_engines(
        {name: table for name, table in own_tables.items() if shardings[name].holds(rank)},
        optimizers,
        seed,
        admissions=admissions,
        device=device,
        fused=fused,
        tiers=tiers,
    )
    for name, engine in engines.items():
        if not shardings[name].grows:
            write_initial(engine, shardings[name], rank, seed)
    return engines


def _own_table(sharding: Sharding, rank: int, optimizer: RowOptimizer) -> Table:
    """A rank's share of a table, as a separate table."""
    table, by_column = sharding.table, sharding.placement.place == "column"
    by_row = "row" in optimizer.state_names().values() or optimizer.clip is not None
    if by_column and by_row:
        raise ValueError(
            f"table {table.name!r} is cut by columns, but {optimizer.name} looks at whole rows; "
            "place it by row"
        )
    if by_column and table.half:
        raise ValueError(
            f"table {table.name!r} is cut by columns, and such rows are float32: place it by row, "
            "or leave out rows.dtype=bfloat16"
        )
    if sharding.grows and sharding.width(rank) < table.dim:
        raise ValueError(
            f"table {table.name!r} grows, and a growing table cannot be cut by columns yet; "
            "place it by row"
        )
    if sharding.grows:
        return table
    # The padding id never travels; its row stays at the zeros that it begins with.
    return Table(
        table.name,
        sharding.width(rank),
        sharding.shares[rank],
        Init("constant", 0.0),
        whole=table.whole,
        dtype=table.dtype,
        numbering=sharding.numbering(rank) if table.half else None,
    )


def write_initial(engine: RowEngine, sharding: Sharding, rank: int, seed: int) -> None:
    """Write the table's initial values into a rank's engine.

    Initial values depend on ids, but an engine counts from 0. So they come from a growing table,
    which knows every id's initial value and holds no rows.
    """
    source = make_local(sharding.table.grown, RowOptimizer("sgd"), seed)
    first, last = sharding.columns[rank]
    start = 0
    for ids in sharding.ids(rank).split(SOME_ROWS):
        keys = torch.arange(start, start + len(ids))
        values = source.pull(ids)[:, first:last].contiguous()
        engine.restore(Rows(keys, values, engine.fresh_state(len(ids))))
        start += len(ids)

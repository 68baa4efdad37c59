"""The engines of one rank: its shares of tables whose rows are spread over the ranks."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from shoal.config.row_rules import TiersSection
from shoal.embedding.engines.local import make_engines, make_local
from shoal.embedding.engines.row_engine import RowEngine
from shoal.embedding.optim.rows import RowOptimizer
from shoal.embedding.rows.admission import Admission
from shoal.embedding.rows.placement import Sharding
from shoal.embedding.rows.store import Rows
from shoal.embedding.rows.table import Init, Table

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
    """The engines of one rank, for the tables that it has any of: its share of their rows.

    Each row begins at the table's own values. tiers: what this rank's rows may take.
    """
    own = {name: _own_table(one, rank, optimizers[name]) for name, one in shardings.items()}
    engines = make_engines(
        {name: table for name, table in own.items() if shardings[name].holds(rank)},
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
    """What a rank holds of a table, as a separate table."""
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
    """Let the rows of a rank's engine begin at the table's own values.

    These depend on ids, but an engine counts from 0: so they come from a growing table, which knows
    every id's initial value and holds nothing.
    """
    source = make_local(sharding.table.grown, RowOptimizer("sgd"), seed)
    first, last = sharding.columns[rank]
    start = 0
    for some in sharding.ids(rank).split(SOME_ROWS):
        keys = torch.arange(start, start + len(some))
        values = source.pull(some)[:, first:last].contiguous()
        engine.restore(Rows(keys, values, engine.begun_state(len(some))))
        start += len(some)

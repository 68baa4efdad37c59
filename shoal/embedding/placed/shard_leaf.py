"""The leaf of one rank: its share of a table whose rows are spread over the ranks."""

from __future__ import annotations

from dataclasses import replace

import torch

from shoal.config.tiers import TiersSection
from shoal.embedding.leaves.admission import Admission
from shoal.embedding.leaves.leaf import Leaf
from shoal.embedding.leaves.local import make_leaves, make_local
from shoal.embedding.optim.rows import RowOptimizer
from shoal.embedding.placed.placement import Layout
from shoal.embedding.store import Rows
from shoal.embedding.table import Init, Table

SOME_ROWS = 1 << 16  # rows handled at a time, so that temporaries stay small


def make_leaf(
    layout: Layout,
    rank: int,
    optimizer: RowOptimizer,
    seed: int,
    device: torch.device | str = "cpu",
    fused: bool = False,
    admission: Admission | None = None,
    tiers: TiersSection | None = None,
) -> Leaf:
    """The leaf of one rank: its share of the rows, each beginning at the table's own values.

    tiers: the table's share of what this rank's rows may take.

    A row's initial value hangs on its id, but a dense leaf counts from 0: so the values come from a
    growing table, which knows every id's initial value and holds nothing.
    """
    table, width = layout.table, layout.width(rank)
    first, last = layout.columns[rank]
    grown = replace(table, rows=None, init=Init(*table.resolved_init))
    if layout.grows:
        if width < table.dim:
            raise ValueError(
                f"table {table.name!r} grows, and a growing table cannot be cut by columns yet; "
                "place it by row"
            )
        return _make(table, optimizer, seed, device, False, admission, tiers)
    # The padding id never travels; its row stays at the zeros it is given here.
    own = Table(table.name, width, layout.shares[rank], Init("constant", 0.0), whole=table.whole)
    leaf = _make(own, optimizer, seed, device, fused, None, tiers)
    source = make_local(grown, RowOptimizer("sgd"), seed)
    ids = layout.ids(rank)
    begin = optimizer.initial_state()
    for start in range(0, len(ids), SOME_ROWS):
        some = ids[start : start + SOME_ROWS]
        keys = torch.arange(start, start + len(some))
        shapes = leaf.state_shapes(len(some))
        state = {name: torch.full(shape, begin[name]) for name, (shape, _) in shapes.items()}
        leaf.restore(Rows(keys, source.pull(some)[:, first:last].contiguous(), state))
    return leaf


def _make(
    table: Table,
    optimizer: RowOptimizer,
    seed: int,
    device: torch.device | str,
    fused: bool,
    admission: Admission | None,
    tiers: TiersSection | None,
) -> Leaf:
    name = table.name
    return make_leaves(
        {name: table},
        {name: optimizer},
        seed,
        admissions={name: admission},
        device=device,
        fused=fused,
        tiers=tiers,
    )[name]

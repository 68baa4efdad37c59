"""Fuzz: a chunk damaged in any of many ways is refused, and nothing has changed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.embedding.engines.local import make_local
from shoal.embedding.rows.admission import Admission
from shoal.embedding.rows.store import Rows
from shoal.embedding.rows.table import Table
from shoal.kernels.core import has_core
from shoal.optimizers.row_optimizer import DEFINITIONS, RowOptimizer

needs_core = pytest.mark.skipif(not has_core(), reason="the native core is not built")
ENGINES = ["reference", pytest.param("native", marks=needs_core)]
OTHER_TYPES = [torch.float16, torch.float64, torch.int32, torch.uint8]


def damage_tensor(draw, part: torch.Tensor) -> torch.Tensor:
    """The tensor with another length, width, rank or type."""
    kinds = ["short", "long", "flat", "deep", "type", "empty"]
    kind = draw(st.sampled_from(kinds + (["wide"] if part.dim() == 2 else [])))
    if kind == "short":
        return part[: draw(st.integers(1, len(part) - 1))]
    if kind == "long":
        return torch.cat([part, part[: draw(st.integers(1, len(part)))]])
    if kind == "flat":
        return part.reshape(-1).repeat(2)
    if kind == "deep":
        return part[None]
    if kind == "wide":
        return torch.cat([part, part[:, :1]], dim=1)
    if kind == "empty":
        return part[:0]
    return part.to(draw(st.sampled_from([t for t in OTHER_TYPES if t != part.dtype])))


def damage_ids(draw, ids: torch.Tensor, rows: int | None) -> torch.Tensor:
    """Ids out of order, doubled, or outside the table."""
    ids = ids.clone()
    at = draw(st.integers(1, len(ids) - 1))
    kind = draw(st.sampled_from(["swap", "double"] + ([] if rows is None else ["outside"])))
    if kind == "swap":
        ids[at], ids[at - 1] = ids[at - 1].clone(), ids[at].clone()
    elif kind == "double":
        ids[at] = ids[at - 1]
    elif draw(st.booleans()):
        ids[0] = draw(st.integers(-(2**63), -1))
    else:
        ids[-1] = draw(st.integers(rows, 2**63 - 1))
    return ids


@st.composite
def damaged(draw, good: Rows, rows: int | None) -> Rows:
    ids, values, state = good.ids, good.values + 1, {k: s + 1 for k, s in good.state.items()}
    kind = draw(st.sampled_from(["ids", "id tensor", "values"] + (["state"] * 2 if state else [])))
    if kind == "ids":
        ids = damage_ids(draw, ids, rows)
    elif kind == "id tensor":
        ids = damage_tensor(draw, ids)
    elif kind == "values":
        values = damage_tensor(draw, values)
    else:
        key = draw(st.sampled_from(sorted(state)))
        how = draw(st.sampled_from(["tensor", "lost", "renamed", "more"]))
        if how == "tensor":
            state[key] = damage_tensor(draw, state[key])
        elif how == "more":
            state["another"] = state[key]
        else:
            part = state.pop(key)
            if how == "renamed":
                state[key + "_"] = part
    return Rows(ids, values, state)


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=100, deadline=None)
@given(
    data=st.data(),
    name=st.sampled_from(list(DEFINITIONS)),
    rows=st.sampled_from([None, 40]),
    counted=st.booleans(),
)
def test_damaged_chunks_change_nothing(engine, data, name, rows, counted):
    admission = Admission() if counted and rows is None else None
    table = Table("t", 3, rows)
    store = make_local(table, RowOptimizer(name), 1, backend=engine, admission=admission)
    store.push(torch.arange(10), torch.randn(10, 3), 0.1)
    before = list(store.export())
    with pytest.raises(ValueError, match="table 't'"):
        store.restore(data.draw(damaged(before[0], rows)))
    for left, right in zip(before, store.export(), strict=True):
        assert torch.equal(left.ids, right.ids)
        assert torch.equal(left.values, right.values)
        assert all(torch.equal(left.state[key], right.state[key]) for key in left.state)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "wrote, reads, told",
    [
        (
            "sgd",
            "adagrad",
            "hold no state, and adagrad keeps sum: they come from servers in mode geo, which",
        ),
        (
            "adagrad",
            "sgd",
            "hold the state sum, and none is kept here: servers in mode geo keep no state",
        ),
        (
            "adagrad",
            "adam",
            "hold the state sum, and adam keeps exp_avg, exp_avg_sq: go on with the optimizer",
        ),
    ],
)
def test_state_of_another_optimizer_or_mode(engine: str, wrote: str, reads: str, told: str) -> None:
    """Servers in mode geo keep rows alone, whatever optimizer the workers have."""
    table = Table("t", 2, None)
    one, two = (make_local(table, RowOptimizer(name), 0, backend=engine) for name in (wrote, reads))
    one.push(torch.tensor([3]), torch.ones(1, 2), 0.1)
    with pytest.raises(ValueError, match=f"table 't': saved rows {told}"):
        two.restore(next(iter(one.export())))
    assert list(two.export()) == []

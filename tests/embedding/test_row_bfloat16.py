"""Rows stored in bfloat16: rounding, and that small steps are not lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from shoal.embedding.engines.init import initial_rows, round_bfloat16
from shoal.embedding.engines.local import make_local
from shoal.embedding.engines.native import Native
from shoal.embedding.engines.reference import Reference
from shoal.embedding.rows.table import Init, Table
from shoal.kernels.core import has_core
from shoal.optimizers.row_optimizer import DEFINITIONS, RowOptimizer

needs_core = pytest.mark.skipif(not has_core(), reason="the native core is not built")
ENGINES = ["reference", pytest.param("native", marks=needs_core)]


def make(engine, table, name="sgd"):
    return make_local(replace(table, dtype="bfloat16"), RowOptimizer(name), 5, backend=engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rows", [100, None])
def test_values_are_bfloat16_and_begin_at_the_nearest(engine, rows):
    table = Table("t", 5, rows, Init("normal", 1.0))
    store = make(engine, table)
    ids = torch.arange(100)
    exact = initial_rows(table, 5, ids)
    assert torch.equal(store.pull(ids), exact.to(torch.bfloat16).float())
    store.push(ids, torch.randn(100, 5), 0.1)
    after = store.pull(ids)
    assert torch.equal(after, after.to(torch.bfloat16).float())


@pytest.mark.parametrize("engine", ENGINES)
def test_steps_below_the_last_bit_add_up(engine):
    """From 1.0 a step of 0.0005 is an eighth of bfloat16's spacing: rounding to nearest never
    moves, stochastic rounding moves the mean by the right amount."""
    store = make(engine, Table("t", 32, 500, Init("constant", 1.0)))
    ids = torch.arange(500)
    for _ in range(60):
        store.push(ids, torch.full((500, 32), 0.0005), 1.0)
    values = store.pull(ids)
    # 16,000 values, each a walk with a deviation of at most sqrt(60) · spacing / 2
    assert values.mean().item() == pytest.approx(1.0 - 60 * 0.0005, abs=5 * 0.015 / 16_000**0.5)
    assert len(values.unique()) > 3


@needs_core
@pytest.mark.parametrize("rows", [300, None])
def test_native_rounds_as_the_reference_does(rows):
    """Plain SGD on distinct ids leaves no room for differences in the arithmetic."""
    table = Table("t", 7, rows, Init("normal", 1.0))
    stores = [
        kind(replace(table, dtype="bfloat16"), RowOptimizer("sgd"), 9)
        for kind in (Native, Reference)
    ]
    for _ in range(5):
        ids, grads = torch.randperm(300)[:200], torch.randn(200, 7)
        for store in stores:
            store.push(ids, grads, 0.1)
    every = torch.arange(300)
    assert torch.equal(stores[0].pull(every), stores[1].pull(every))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", DEFINITIONS)
def test_export_and_restore_keep_every_bit(engine, name):
    table = Table("t", 16, None)
    first, second = make(engine, table, name), make(engine, table, name)
    ids = torch.randint(0, 50, (80,))
    first.push(ids, torch.randn(80, 16), 0.1)
    for chunk in first.export():
        second.restore(chunk)
    assert torch.equal(first.pull(ids), second.pull(ids))


@needs_core
def test_memory_of_values_is_halved():
    table = Table("t", 64, 1000)
    plain = Native(table, RowOptimizer("rowwise_adagrad"), 0)
    half = Native(replace(table, dtype="bfloat16"), RowOptimizer("rowwise_adagrad"), 0)
    assert plain.memory == 1000 * (64 * 4 + 4)
    assert half.memory == 1000 * (64 * 2 + 4)


def test_rounding_by_hand():
    spacing = 2.0**-7  # of bfloat16 between 1 and 2
    value = torch.tensor([[1.0 + spacing / 4] * 4])
    quarter = 1 << 14  # of the 16 bits that are cut off
    noise = torch.tensor([[0, 3 * quarter - 1, 3 * quarter, 0xFFFF]])
    want = [[1.0, 1.0, 1.0 + spacing, 1.0 + spacing]]
    assert round_bfloat16(value, noise).tolist() == want
    special = torch.tensor([[float("inf"), float("-inf"), float("nan"), -0.0]])
    rounded = round_bfloat16(special, torch.full((1, 4), 0xFFFF))
    assert rounded[0, :2].tolist() == [float("inf"), float("-inf")]
    assert rounded[0, 2].isnan()


def test_other_types_are_refused():
    with pytest.raises(ValueError, match=r"rows of float16; known are float32 and bfloat16"):
        make_local(Table("t", 2, 3, dtype="float16"), RowOptimizer("sgd"), 0)

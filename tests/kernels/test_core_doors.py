"""Doors of the native core: what does not fit is refused before memory is touched."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from shoal.embedding.engines.native import Native
from shoal.embedding.rows.table import Init, Table
from shoal.kernels.core import load_core
from shoal.kernels.distinct_ids import add_rows, distinct
from shoal.kernels.pairs import pair_gradients, pair_loss
from shoal.kernels.products import products_of
from shoal.optimizers.row_optimizer import RowOptimizer

core = load_core()
pytestmark = pytest.mark.skipif(core is None, reason="there is no native core")


def native(rows: int | None = 10, dim: int = 4) -> Native:
    table = Table("item", dim, rows, Init("normal", 0.1))
    return Native(table, RowOptimizer("sgd"), seed=1)


@pytest.mark.parametrize("codes", [[0, 5, 9], [0, -1], [2**40]])
def test_codes_lie_below_their_limit(codes: list[int]) -> None:
    with pytest.raises(ValueError, match="limit"):
        distinct(torch.tensor(codes), 5)
    with pytest.raises(ValueError, match="int64"):
        distinct(torch.tensor([1.0, 2.0]), 5)


@pytest.mark.parametrize("places", [[0, 3], [-1, 0], [2**50, 1]])
def test_sums_have_places(places: list[int]) -> None:
    with pytest.raises(ValueError, match="places"):
        add_rows(None, torch.tensor(places), torch.ones(2, 4), 3)
    with pytest.raises(ValueError, match="do not fit"):
        add_rows(torch.zeros(2, 4), torch.tensor([0, 1]), torch.ones(2, 4), 3)


def test_shapes_of_products_and_pairs() -> None:
    with pytest.raises(ValueError, match="multiplied"):
        products_of(torch.ones(2, 3, 4), torch.ones(2, 5, 6))
    queries, short = torch.ones(6, 4), torch.ones(2, 4)
    with pytest.raises(ValueError, match="pairs"):
        pair_loss(queries, short, torch.ones(6, 1, 4))
    with pytest.raises(ValueError, match="slopes"):
        pair_gradients(queries, queries, torch.ones(6, 1, 4), torch.ones(2), 1.0)


def test_lines_lie_within_their_text() -> None:
    keys = core.SlotKeys(["1"], [], [], "click", False)
    text = np.frombuffer(b"click:1 1:5", np.uint8)
    labels, ids = np.zeros(1, np.float32), np.zeros(1, np.int64)

    def parse(start: int, stop: int, room: int = 1) -> object:
        starts, stops = np.array([start]), np.array([stop])
        lines = (starts.ctypes.data, stops.ctypes.data, 1, labels.ctypes.data, 0)
        return core.parse_slots(keys, text.ctypes.data, len(text), *lines, ids.ctypes.data, room, 0)

    assert parse(0, 11) == (-1, False, 1)
    for start, stop in ((0, 12), (-1, 5), (5, 3), (0, 2**62)):
        with pytest.raises(ValueError, match="outside"):
            parse(start, stop)
    with pytest.raises(ValueError, match="room"):
        parse(0, 11, 0)


def test_lists_are_as_long_as_the_tables() -> None:
    store = native()
    ids, out = torch.arange(3), torch.zeros(3, 4)
    with pytest.raises(ValueError, match="each table"):
        core.pull([store.core.core, store.core.core], [ids.data_ptr()], [3], [out.data_ptr()], 1)
    with pytest.raises(ValueError, match="no array"):
        core.pull([store.core.core], [0], [3], [out.data_ptr()], 1)
    with pytest.raises(ValueError, match="outside"):
        core_read(store, torch.tensor([99]))


def core_read(store: Native, ids: torch.Tensor) -> None:
    store.core.core.read(ids.data_ptr(), len(ids), torch.zeros(len(ids), 4).data_ptr(), [], [])

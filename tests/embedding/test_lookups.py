"""Lookups of several tables at once, and gradients of one table that came in several parts."""

from __future__ import annotations

import pytest
import torch
from services import attach, taken

from shoal.data.batch import Batch
from shoal.embedding.engines.local import make_local
from shoal.embedding.engines.row_engine import pull_all
from shoal.embedding.module import Embeddings
from shoal.embedding.rows.table import Table
from shoal.embedding.service import RowGradients, join
from shoal.kernels.core import has_core
from shoal.models.nn.losses import bpr_loss
from shoal.optimizers.row_optimizer import RowOptimizer

USERS, ITEMS = Table("user", 4, 9), Table("item", 4, 12)
BACKENDS = ["reference", *(["native"] if has_core() else [])]


def leaf(table: Table, backend: str):
    return make_local(table, RowOptimizer("sgd"), 1, backend=backend)  # type: ignore[arg-type]


def embeddings(backend: str) -> Embeddings:
    made = Embeddings(user_id=USERS, item_id=ITEMS, neg_item=ITEMS)
    attach(made, lambda table: leaf(table, backend))
    return made


def batch() -> Batch:
    users, items = torch.tensor([1, 8, 1]), torch.tensor([3, 3, 11])
    negatives = torch.tensor([[5], [3], [2]])
    return Batch(3, {"user_id": users, "item_id": items, "neg_item": negatives})


@pytest.mark.parametrize("first", BACKENDS)
@pytest.mark.parametrize("second", BACKENDS)
def test_rows_of_several_stores_are_those_of_each(first, second):
    stores = [leaf(USERS, first), leaf(ITEMS, second), leaf(ITEMS, first)]
    ids = [torch.tensor([4, 4, 0]), torch.tensor([11]), torch.tensor([1, 2])]
    for store, part, rows in zip(stores, ids, pull_all(stores, ids), strict=True):
        assert torch.equal(rows, store.pull(part))
    assert pull_all([], []) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_id_outside_is_named_with_its_table(backend):
    with pytest.raises(ValueError, match="table 'item' has no row 12: it has 12 rows"):
        pull_all(
            [leaf(USERS, backend), leaf(ITEMS, backend)], [torch.tensor([8]), torch.tensor([12])]
        )


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_batch_reads_rows_in_the_shape_of_its_ids(backend):
    embed = embeddings(backend)
    rows = embed(batch())
    assert {name: list(x.shape) for name, x in rows.items()} == {
        "user_id": [3, 4],
        "item_id": [3, 4],
        "neg_item": [3, 1, 4],
    }
    assert torch.equal(
        rows["neg_item"][1, 0], embed.service.stores["item"].pull(torch.tensor([3]))[0]
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_one_table_come_in_the_order_of_its_lookups(backend):
    embed = embeddings(backend)
    rows = embed(batch())
    weights = torch.arange(36.0).view(9, 4)
    parts = [rows["user_id"], rows["item_id"], rows["neg_item"].view(3, 4)]
    sum((x * w).sum() for x, w in zip(parts, weights.split(3))).backward()
    found = taken(embed.service)
    assert found["user"][0].tolist() == [1, 8, 1]
    assert found["item"][0].tolist() == [3, 3, 11, 5, 3, 2]
    assert torch.equal(found["user"][1], weights[:3])
    assert torch.equal(found["item"][1], weights[3:])
    assert found["item"][1].is_contiguous()


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_pairs_are_those_of_their_rows(backend):
    embed = embeddings(backend)
    rows = embed(batch())
    bpr_loss(*rows.values()).backward()
    copies = [rows[name].grad.reshape(3, 4).clone() for name in ("item_id", "neg_item")]
    _, grads = taken(embed.service)["item"]
    assert torch.equal(grads, torch.cat(copies))
    assert torch.equal(grads[3:], -grads[:3])


def test_pieces_that_lie_one_after_the_other_are_joined_without_a_copy():
    whole = torch.arange(24.0).view(6, 4)
    ids = torch.arange(6)

    def joined(*pieces: slice) -> torch.Tensor:
        parts = [RowGradients(ids[piece], whole[piece]) for piece in pieces]
        return join(parts, 4, counted=False).grads

    in_order = joined(slice(1, 3), slice(3, 4), slice(4, 6))
    assert torch.equal(in_order, whole[1:])
    assert in_order.data_ptr() == whole[1:].data_ptr()
    for pieces in ([slice(3, 6), slice(0, 3)], [slice(0, 2), slice(3, 6)], [slice(0, 3)] * 2):
        copied = joined(*pieces)
        assert torch.equal(copied, torch.cat([whole[piece] for piece in pieces]))
        assert copied.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr()

"""Jagged lookups against torch's own EmbeddingBag and autograd."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from shoal.embedding.leaves.local import make_local, native_is_built
from shoal.embedding.leaves.pooling import pull_pooled, push_pooled, weight_gradients
from shoal.embedding.optim.rows import RowOptimizer
from shoal.embedding.table import Init, Table

needs_core = pytest.mark.skipif(not native_is_built(), reason="the native core is not built")
ENGINES = ["reference", pytest.param("native", marks=needs_core)]
ROWS = 30


def by_torch(weight, ids, offsets, mode, weights, padding):
    """The definition in autograd: rows times weights, pooled bag by bag."""
    rows = functional.embedding(ids, weight)
    if weights is not None:
        rows = rows * weights[:, None]
    if mode == "none":
        return rows
    out = []
    for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist()):
        total = rows[begin:end].sum(dim=0)
        count = end - begin - int((ids[begin:end] == padding).sum() if padding is not None else 0)
        out.append(total / max(count, 1) if mode == "mean" else total)
    return torch.stack(out) if out else torch.empty(0, weight.shape[1])


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=40, deadline=None)
@given(
    mode=st.sampled_from(["sum", "mean", "none"]),
    lengths=st.lists(st.integers(0, 7), max_size=20),
    dim=st.sampled_from([1, 5, 16, 32, 40]),
    grows=st.booleans(),
    weighted=st.booleans(),
    padding=st.sampled_from([None, 0]),
    seed=st.integers(0, 2**32),
)
def test_forward_and_backward(engine, mode, lengths, dim, grows, weighted, padding, seed):
    generator = torch.Generator().manual_seed(seed)
    table = Table("t", dim, None if grows else ROWS, Init("normal", 1.0), padding)
    store = make_local(table, RowOptimizer("sgd"), 3, backend=engine)
    store.push(torch.tensor([2, 5]), torch.ones(2, dim), 0.5)  # some rows are held, some are not
    n = sum(lengths)
    ids = torch.randint(0, ROWS, (n,), generator=generator)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    weights = torch.randn(n, generator=generator) if weighted else None
    weight = store.pull(torch.arange(ROWS)).requires_grad_()
    factors = weights.clone().requires_grad_() if weighted else torch.ones(n, requires_grad=True)
    want = by_torch(weight, ids, offsets, mode, factors, padding)
    got = pull_pooled(store, ids, offsets, mode, weights)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)

    grads = torch.randn(want.shape, generator=generator)
    if want.requires_grad:  # not without any bag
        (want * grads).sum().backward()
    if n:
        found = weight_gradients(store, ids, offsets, grads, mode)
        torch.testing.assert_close(found, factors.grad, rtol=1e-4, atol=1e-4)
    push_pooled(store, ids, offsets, grads, 0.1, mode, weights)
    change = weight.grad if weight.grad is not None else torch.zeros_like(weight)
    if padding is not None:
        change[padding] = 0
    after = weight.detach() - 0.1 * change
    torch.testing.assert_close(store.pull(torch.arange(ROWS)), after, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_equals_embedding_bag_with_threads(engine, mode):
    store = make_local(Table("t", 16, 500), RowOptimizer("sgd"), 3, backend=engine, threads=3)
    lengths = torch.randint(0, 9, (12000,))
    offsets = torch.cat([torch.tensor([0]), lengths.cumsum(0)])
    ids = torch.randint(0, 500, (int(offsets[-1]),))
    whole = store.pull(torch.arange(500))
    want = functional.embedding_bag(ids, whole, offsets[:-1], mode=mode)
    torch.testing.assert_close(pull_pooled(store, ids, offsets, mode), want)


@pytest.mark.parametrize("engine", ENGINES)
def test_wrong_bags_are_refused(engine):
    store = make_local(Table("t", 2, 9), RowOptimizer("sgd"), 3, backend=engine)
    ids = torch.tensor([1, 2, 3])
    for offsets in ([0, 2], [1, 3], [0, 4], [0, 3, 2, 3]):
        with pytest.raises(ValueError, match="must ascend from 0 to 3"):
            pull_pooled(store, ids, torch.tensor(offsets))
    good = torch.tensor([0, 1, 3])
    with pytest.raises(ValueError, match="known are sum, mean and none"):
        pull_pooled(store, ids, good, "max")
    with pytest.raises(ValueError, match=r"must be torch\.float32 \[3\]"):
        pull_pooled(store, ids, good, "sum", torch.ones(2))
    with pytest.raises(ValueError, match=r"gradients are .* \[2, 2\]"):
        push_pooled(store, ids, good, torch.ones(3, 2), 0.1)
    with pytest.raises(ValueError, match="no row 9"):
        pull_pooled(store, torch.tensor([1, 2, 9]), good)

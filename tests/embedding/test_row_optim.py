"""Row optimizers against torch.optim, through the store that applies them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shoal.embedding.engines.local import make_local
from shoal.embedding.optim.rows import RowOptimizer
from shoal.embedding.table import Table
from shoal.kernels.core import has_core

needs_core = pytest.mark.skipif(not has_core(), reason="the native core is not built")
ENGINES = ["reference", pytest.param("native", marks=needs_core)]
ROWS, DIM, STEPS = 40, 6, 8


def run_both(engine, row_optimizer, make_torch, *, sparse, batch, lr=0.05):
    """Values after STEPS steps on the same gradients: (the store's, torch.optim's)."""
    torch.manual_seed(0)
    store = make_local(Table("t", DIM, ROWS), row_optimizer, 3, backend=engine)
    module = nn.Embedding(ROWS, DIM, sparse=sparse)
    with torch.no_grad():
        module.weight.copy_(store.pull(torch.arange(ROWS)))
    optimizer = make_torch(module.parameters(), lr)
    for _ in range(STEPS):
        ids = batch()
        grads = torch.randn(len(ids), DIM)
        optimizer.zero_grad()
        (module(ids) * grads).sum().backward()
        optimizer.step()
        store.push(ids, grads, lr)
    return store.pull(torch.arange(ROWS)), module.weight.detach()


def few():
    return torch.randint(0, ROWS, (9,))  # most rows untouched, some twice


def every():
    return torch.cat([torch.randperm(ROWS), torch.randint(0, ROWS, (25,))])


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (RowOptimizer("sgd"), lambda p, lr: torch.optim.SGD(p, lr)),
        (RowOptimizer("adagrad"), lambda p, lr: torch.optim.Adagrad(p, lr)),
        (
            RowOptimizer("adagrad", initial_accumulator_value=0.1, eps=1e-3),
            lambda p, lr: torch.optim.Adagrad(p, lr, initial_accumulator_value=0.1, eps=1e-3),
        ),
        (RowOptimizer("sparse_adam"), lambda p, lr: torch.optim.SparseAdam(p, lr)),
        (
            RowOptimizer("sparse_adam", betas=(0.7, 0.9), eps=1e-2),
            lambda p, lr: torch.optim.SparseAdam(p, lr, betas=(0.7, 0.9), eps=1e-2),
        ),
    ],
)
def test_equals_torch_on_sparse_gradients(engine, ours, theirs):
    got, want = run_both(engine, ours, theirs, sparse=True, batch=few)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (RowOptimizer("adam"), lambda p, lr: torch.optim.Adam(p, lr)),
        (
            RowOptimizer("adam", weight_decay=0.1, eps=1e-2),
            lambda p, lr: torch.optim.Adam(p, lr, weight_decay=0.1, eps=1e-2),
        ),
        (RowOptimizer("adamw"), lambda p, lr: torch.optim.AdamW(p, lr)),
        (
            RowOptimizer("adamw", weight_decay=0.2, eps=1e-2),
            lambda p, lr: torch.optim.AdamW(p, lr, weight_decay=0.2, eps=1e-2),
        ),
        (RowOptimizer("momentum"), lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9)),
        (
            RowOptimizer("momentum", momentum=0.5, weight_decay=0.1),
            lambda p, lr: torch.optim.SGD(p, lr, momentum=0.5, weight_decay=0.1),
        ),
        (
            RowOptimizer("sgd", weight_decay=0.1),
            lambda p, lr: torch.optim.SGD(p, lr, weight_decay=0.1),
        ),
        (
            RowOptimizer("adagrad", weight_decay=0.1),
            lambda p, lr: torch.optim.Adagrad(p, lr, weight_decay=0.1),
        ),
        (
            RowOptimizer("rmsprop", alpha=0.8, weight_decay=0.1),
            lambda p, lr: torch.optim.RMSprop(p, lr, alpha=0.8, weight_decay=0.1),
        ),
        # l1 = l2 = 0 makes FTRL-proximal adagrad
        (RowOptimizer("ftrl"), lambda p, lr: torch.optim.Adagrad(p, lr, eps=0.0)),
    ],
)
def test_equals_dense_torch_when_every_row_is_touched(engine, ours, theirs):
    got, want = run_both(engine, ours, theirs, sparse=False, batch=every)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def one_row(engine, optimizer, grads, lr, dim=2):
    store = make_local(Table("t", dim, 3), optimizer, 3, backend=engine)
    before = store.pull(torch.tensor([1]))[0].tolist()
    for grad in grads:
        store.push(torch.tensor([1]), torch.tensor([grad]), lr)
    return before, store.pull(torch.tensor([1]))[0].tolist()


@pytest.mark.parametrize("engine", ENGINES)
def test_rowwise_adagrad_by_hand(engine):
    before, after = one_row(engine, RowOptimizer("rowwise_adagrad"), [[3.0, 4.0]], 0.1)
    root = 12.5**0.5  # mean of 9 and 16
    assert after == pytest.approx([before[0] - 0.3 / root, before[1] - 0.4 / root], rel=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_clip_scales_the_summed_gradient(engine):
    store = make_local(Table("t", 2, 3), RowOptimizer("sgd", clip=1.0), 3, backend=engine)
    before = store.pull(torch.arange(3))
    ids = torch.tensor([1, 1, 2])
    store.push(ids, torch.tensor([[3.0, 0.0], [0.0, 4.0], [0.3, 0.4]]), 1.0)
    want = before - torch.tensor([[0.0, 0.0], [0.6, 0.8], [0.3, 0.4]])
    torch.testing.assert_close(store.pull(torch.arange(3)), want)


@pytest.mark.parametrize("engine", ENGINES)
def test_ftrl_by_hand(engine):
    """Two steps of FTRL-proximal (McMahan et al. 2013) in Python floats."""
    lr, l1, l2, beta = 0.1, 0.05, 0.2, 1.0
    optimizer = RowOptimizer("ftrl", l1=l1, l2=l2, beta=beta, initial_accumulator_value=0.1)
    grads = [[1.0, -0.01], [-0.5, 0.02]]
    before, after = one_row(engine, optimizer, grads, lr)
    for column in range(2):
        w, z, n = before[column], 0.0, 0.1
        for grad in (grads[0][column], grads[1][column]):
            sigma = ((n + grad * grad) ** 0.5 - n**0.5) / lr
            z += grad - sigma * w
            n += grad * grad
            sign = 1 if z > 0 else -1
            w = 0.0 if abs(z) <= l1 else -(z - sign * l1) / ((beta + n**0.5) / lr + l2)
        assert after[column] == pytest.approx(w, rel=1e-4, abs=1e-6)


def test_wrong_settings_say_what_is_right():
    with pytest.raises(ValueError, match=r"'adgrad' is not known.*did you mean adagrad"):
        RowOptimizer("adgrad")
    with pytest.raises(ValueError, match="clip is -1"):
        RowOptimizer("sgd", clip=-1.0)
    with pytest.raises(ValueError, match=r"betas is \(0\.9, 1\.0\)"):
        RowOptimizer("adam", betas=(0.9, 1.0))

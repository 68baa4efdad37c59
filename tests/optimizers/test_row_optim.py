"""Row optimizers against torch.optim, through the store that applies them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shoal.embedding.engines.local import make_local
from shoal.embedding.rows.table import Table
from shoal.kernels.core import has_core
from shoal.optimizers.row_optimizer import RowOptimizer

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


SPARSE = [  # row optimizer, its hyper-parameters; torch's class: it has the same ones
    ("sgd", {}, torch.optim.SGD),
    ("adagrad", {}, torch.optim.Adagrad),
    ("adagrad", {"initial_accumulator_value": 0.1, "eps": 1e-3}, torch.optim.Adagrad),
    ("sparse_adam", {}, torch.optim.SparseAdam),
    ("sparse_adam", {"betas": (0.7, 0.9), "eps": 1e-2}, torch.optim.SparseAdam),
]
DENSE = [
    ("adam", {}, torch.optim.Adam),
    ("adam", {"weight_decay": 0.1, "eps": 1e-2}, torch.optim.Adam),
    ("adamw", {}, torch.optim.AdamW),
    ("adamw", {"weight_decay": 0.2, "eps": 1e-2}, torch.optim.AdamW),
    ("momentum", {"momentum": 0.9}, torch.optim.SGD),
    ("momentum", {"momentum": 0.5, "weight_decay": 0.1}, torch.optim.SGD),
    ("sgd", {"weight_decay": 0.1}, torch.optim.SGD),
    ("adagrad", {"weight_decay": 0.1}, torch.optim.Adagrad),
    ("rmsprop", {"alpha": 0.8, "weight_decay": 0.1}, torch.optim.RMSprop),
    ("ftrl", {}, lambda p, lr: torch.optim.Adagrad(p, lr, eps=0.0)),  # l1 = l2 = 0
]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("name", "given", "theirs", "sparse"),
    [*((*case, True) for case in SPARSE), *((*case, False) for case in DENSE)],
)
def test_equals_torch(engine, name, given, theirs, sparse):
    """On sparse gradients, and on those of all rows."""
    got, want = run_both(
        engine,
        RowOptimizer(name, **given),
        lambda p, lr: theirs(p, lr, **given),
        sparse=sparse,
        batch=few if sparse else every,
    )
    near = 1e-6 if sparse else 1e-5
    torch.testing.assert_close(got, want, rtol=10 * near, atol=near)


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

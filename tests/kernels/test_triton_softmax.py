"""Triton kernels of rows against float64 arithmetic and torch.optim.

On a GPU where there is one, else by Triton's interpreter (see triton_there.py).
"""

from __future__ import annotations

import pytest
import torch
from services import attach
from triton_there import DEVICE, ask_for_interpreter, import_kernels

from shoal.embedding.engines.device import Device
from shoal.embedding.module import Embeddings
from shoal.embedding.rows.store import EVERY
from shoal.embedding.rows.table import Init, Table
from shoal.embedding.softmax.fused import fusable
from shoal.optimizers.row_optimizer import RowOptimizer

triton_softmax = import_kernels("shoal.kernels.gpu.softmax")
gpu_engine = import_kernels("shoal.embedding.engines.gpu_engine")
SHAPES = {"POSITIONS": 16, "ROWS": 16}


@pytest.fixture(autouse=True)
def run_there(monkeypatch):
    ask_for_interpreter(monkeypatch)
    with torch.device(DEVICE):
        yield


def exact_loss(hidden, rows, bias, targets, stop):
    """Summed cross entropy in float64, row 0 and rows from stop on left out."""
    logits = hidden @ rows.T + (0 if bias is None else bias)
    logits = logits[targets > 0, 1:stop]
    return torch.nn.functional.cross_entropy(logits, targets[targets > 0] - 1, reduction="sum")


def problem(positions, rows, dim, stop, with_bias, seed=0):
    torch.manual_seed(seed)
    hidden = torch.randn(positions, dim)
    values = torch.randn(rows, dim) * 0.5
    values[0] = 0.0
    bias = torch.randn(rows) if with_bias else None
    if bias is not None:
        bias[0] = 0.0
    targets = torch.randint(1, stop, (positions,))
    targets[::5] = 0  # these do not count
    return hidden, values, bias, targets


def test_parts_fill_the_last_round_and_are_few_where_each_costs_much():
    pooled = triton_softmax.AT_ONCE, triton_softmax.POOL_COST
    assert triton_softmax.count_parts(46, 40_982, *pooled) == 17  # 782 programs: of 792
    assert triton_softmax.count_parts(2, 500_002, *pooled) == 132
    assert triton_softmax.count_parts(1, 500_002, *pooled) == 264
    assert triton_softmax.count_parts(92, 3_417, *pooled) == 11
    written = triton_softmax.SMALL_AT_ONCE, triton_softmax.GRADIENT_COST
    assert triton_softmax.count_parts(641, 5_888, *written) == 3  # 1,923 programs: of 1,980
    assert triton_softmax.count_parts(3_907, 256, *written) == 1


@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(
    ("positions", "rows", "dim", "stop"),
    [(1, 2, 16, 2), (7, 33, 16, 33), (19, 130, 32, 100), (33, 70, 64, 70)],
)
def test_losses_and_gradients_of_states(positions, rows, dim, stop, with_bias, monkeypatch):
    monkeypatch.setattr(triton_softmax, "count_parts", lambda *given: max(1, rows // 16))
    hidden, values, bias, targets = problem(positions, rows, dim, stop, with_bias)
    losses, grads, _, _ = triton_softmax.pool(hidden, values, bias, targets, stop, shape=SHAPES)
    states = hidden.double().requires_grad_()
    exact = exact_loss(
        states, values.double(), None if bias is None else bias.double(), targets, stop
    )
    exact.backward()
    torch.testing.assert_close(losses.sum().double(), exact.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grads.double(), states.grad, rtol=1e-4, atol=1e-5)
    assert torch.equal(grads[targets == 0], torch.zeros_like(grads[targets == 0]))


@pytest.mark.parametrize("name", ["adam", "adamw", "sparse_adam"])
@pytest.mark.parametrize(("positions", "rows", "stop"), [(5, 40, 40), (19, 33, 30)])
def test_a_step_of_all_rows_is_adams(name, positions, rows, stop):
    hidden, values, bias, targets = problem(positions, rows, 16, stop, True)
    decay = 0.0 if name == "sparse_adam" else 0.1
    optimizer = RowOptimizer(name, weight_decay=decay, eps=1e-3)
    exact = [x.double().requires_grad_() for x in (values, bias)]
    kind = torch.optim.AdamW if name == "adamw" else torch.optim.Adam
    ours = [(x.clone(), torch.zeros_like(x), torch.zeros_like(x)) for x in (values, bias)]
    for step in (1, 2, 3):
        eps = 1e-3
        if name == "sparse_adam":  # adds eps before the second moment is corrected
            eps = eps / (1 - 0.999**step) ** 0.5
        if step == 1:
            theirs = kind(exact, lr=0.05, eps=eps, weight_decay=decay)
        theirs.param_groups[0]["eps"] = eps
        theirs.zero_grad()
        (exact_loss(hidden.double(), *exact, targets, stop) * 0.25).backward()
        for x in exact:
            x.grad[0] = 0.0
        theirs.step()
        _, _, normalizers, parts = triton_softmax.pool(
            hidden, ours[0][0], ours[1][0], targets, stop, shape=SHAPES
        )
        numbers = torch.tensor(optimizer.numbers(0.05, step)[:3])
        triton_softmax.update(
            parts, targets, normalizers, torch.tensor(0.25), *ours, numbers, stop, optimizer, SHAPES
        )
    for mine, right in zip(ours, exact):
        torch.testing.assert_close(mine[0][1:].double(), right[1:].detach(), rtol=1e-4, atol=1e-5)
    assert torch.equal(ours[0][0][0], values[0]) and ours[1][0][0] == 0.0


def on_gpu(table, optimizer, fused=True):
    """The engine of an output table on a GPU."""
    return gpu_engine.make_gpu_engines([table], optimizer, 5, DEVICE, fused=fused)[0]


@pytest.mark.parametrize("name", ["adam", "sparse_adam", "adamw"])
@pytest.mark.parametrize("dim", [1, 6, 16])
def test_touched_rows_learn_as_in_plain_torch(name, dim):
    table = Table("t", dim, 30, padding=0, whole=True)
    optimizer = RowOptimizer(name)
    plain, fused = Device(table, optimizer, 5, DEVICE), on_gpu(table, optimizer)
    torch.manual_seed(0)
    whole = torch.arange(30)
    for ids in [torch.tensor([4, 0, 4, 29, 7, 4]), torch.tensor([7]), whole[:0], whole]:
        grads = torch.randn(len(ids), dim)
        for store in (plain, fused):
            store.push(ids, grads.clone(), 0.05)
    for mine, right in zip(
        next(fused.export()).state.values(), next(plain.export()).state.values()
    ):
        torch.testing.assert_close(mine, right, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(fused.pull(EVERY), plain.values, rtol=1e-5, atol=1e-6)
    assert fused.step == plain.step == 4


def test_a_module_learns_as_without_kernels():
    tables = {
        "output": Table("output", 16, 21, Init("normal", 0.5), padding=0, whole=True),
        "bias": Table("bias", 1, 21, Init("constant", 0.0), padding=0, whole=True),
    }
    learned = []
    for fused in (False, True):
        torch.manual_seed(1)
        embed = Embeddings(tables)
        service = attach(
            embed, lambda table, fused=fused: on_gpu(table, RowOptimizer("adam"), fused)
        )
        assert fusable(service.engines["output"], service.engines["bias"]) == fused
        own = on_gpu(tables["bias"], RowOptimizer("adam", lr_factor=0.5), fused)
        assert not fusable(service.engines["output"], own)  # kernels have one set of numbers
        losses, states = [], []
        for _ in range(4):
            hidden = torch.randn(9, 16, requires_grad=True)
            targets = torch.randint(0, 20, (9,))
            loss = embed.full_softmax("output", hidden, targets, "bias", stop=20)
            loss.backward(torch.tensor(0.2))
            losses.append(loss.detach())
            states.append(hidden.grad)
            gradients = service.collect().rows
            assert all(len(one.grads) == (0 if fused else 21) for one in gradients.values())
            service.apply(gradients, 0.05)
        values = [service.engines[name].pull(EVERY) for name in tables]
        learned.append([torch.stack(losses), torch.stack(states), *values])
    for plain, fused in zip(*learned):
        torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-5)


def follow_both(embed, loss):
    (loss() + loss()).backward()


def follow_twice(embed, loss):
    one = loss()
    one.backward(retain_graph=True)
    one.backward()


def look_up_too(embed, loss):
    (loss() + embed.rows("output", torch.tensor([3, 5], device=DEVICE)).sum()).backward()


@pytest.mark.parametrize("two", [follow_both, follow_twice, look_up_too])
def test_two_gradients_of_a_row_before_a_step_are_refused(two):
    embed = Embeddings(output=Table("output", 16, 21, padding=0, whole=True))
    attach(embed, lambda table: on_gpu(table, RowOptimizer("adam")))
    embed.train().to(DEVICE)
    hidden = torch.randn(3, 16, requires_grad=True, device=DEVICE)
    targets = torch.tensor([1, 2, 3], device=DEVICE)
    with pytest.raises(RuntimeError, match=r"strategy\.fused=false"):
        two(embed, lambda: embed.full_softmax("output", hidden, targets))
        embed.service.collect()


@pytest.mark.parametrize(("positions", "rows", "stop"), [(70, 40, 40), (20, 300, 290)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_gradients_of_rows_that_are_written(positions, rows, stop, with_bias):
    hidden, values, bias, targets = problem(positions, rows, 16, stop, with_bias)
    exact = [None if x is None else x.double().requires_grad_() for x in (hidden, values, bias)]
    exact_loss(*exact, targets, stop).backward()
    _, back, normalizers, parts = triton_softmax.pool(hidden, values, bias, targets, stop)
    found = triton_softmax.row_gradients(parts, targets, normalizers, values, bias, stop)
    for got, one in zip((back, *found), exact):
        if one is not None:
            wanted = one.grad.float()
            if len(wanted) == rows:
                wanted[0] = 0.0
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_gradients_of_unlikely_rows_are_as_exact_as_those_of_likely_ones():
    """Adam divides by their size: where p is 1e-9, an error of 1e-12 would be a large one."""
    hidden, values, _, targets = problem(20, 300, 16, 300, False)
    bias = torch.linspace(-20.0, 0.0, 300)
    exact = [x.double().requires_grad_() for x in (hidden, values, bias)]
    exact_loss(*exact, targets, 300).backward()
    wanted = exact[1].grad
    unlikely = torch.ones(300, dtype=torch.bool)
    unlikely[0], unlikely[targets] = False, False
    assert wanted[unlikely].norm(dim=1).min() < 1e-8
    _, _, normalizers, parts = triton_softmax.pool(hidden, values, bias, targets, 300)
    found, _ = triton_softmax.row_gradients(parts, targets, normalizers, values, bias, 300)
    error = (found - wanted).norm(dim=1) / wanted.norm(dim=1)
    assert error[unlikely].max() < 5e-6


def test_a_value_too_large_for_the_products_gives_no_finite_loss():
    hidden, values, bias, targets = problem(5, 40, 16, 40, True)
    values[7, 3] = 5_000.0
    losses, *_ = triton_softmax.pool(hidden, values, bias, targets, 40)
    assert not torch.isfinite(losses[targets > 0]).any()

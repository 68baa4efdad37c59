"""Rows that learn in the native core's softmax, against torch's autograd and optimizers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from services import attach
from torch import Tensor

from shoal.distributed.world import World
from shoal.embedding.engines.device import Device
from shoal.embedding.module import Embeddings
from shoal.embedding.rows.table import Init, Table
from shoal.embedding.softmax.fused_cpu import CoreSoftmax, fusable_on_cpu
from shoal.embedding.softmax.parallel import parallel_softmax_loss
from shoal.kernels import machine, products, softmax
from shoal.kernels.core import load_core
from shoal.optimizers.row_optimizer import RowOptimizer

# Without a compiler there is no such step to compare: the plain softmax is used.
core = load_core()
pytestmark = pytest.mark.skipif(core is None, reason="the native core is not built")
LR = 0.05
TORCH = {
    "sgd": lambda p: torch.optim.SGD(p, lr=LR),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=LR),
    "adam": lambda p: torch.optim.Adam(p, lr=LR),
    "adam with decay": lambda p: torch.optim.Adam(p, lr=LR, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=LR, weight_decay=0.1),
}


SETS = core.instruction_sets() if core is not None else []


@pytest.fixture(autouse=True)
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arithmetic is the same where the core is not faster than torch."""
    monkeypatch.setattr(machine, "WIDE", (*machine.WIDE, "baseline"))


@pytest.fixture(params=SETS)
def instructions(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every build of the inner loops that this machine can run, the widest first."""
    core.use_instruction_set(request.param)
    yield request.param
    core.use_instruction_set(SETS[0])


def make(rows: int, dim: int, name: str, bias: bool = True, fused: bool = True) -> Embeddings:
    """An output layer of its own, on stores that may learn in the softmax."""
    given = 0.1 if name in ("adam with decay", "adamw") else None
    optimizer = RowOptimizer(name.split()[0], weight_decay=given)
    tables = {"output": Table("output", dim, rows, Init("normal", 0.5), padding=0, whole=True)}
    if bias:
        tables["bias"] = Table("bias", 1, rows, Init("normal", 0.3), padding=0, whole=True)
    embed = Embeddings(tables)
    attach(embed, lambda table: Device(table, optimizer, 3, "cpu", fused))
    return embed.train()


def step(embed: Embeddings, scale: float = 1.0) -> int:
    """What a strategy does after backward; how many gradients of rows it saw."""
    gradients = embed.service.collect().rows
    embed.service.apply(gradients, LR, scale)
    return sum(len(one.grads) for one in gradients.values())


def plain(hidden: Tensor, parts: list[Tensor], targets: Tensor, stop: int) -> Tensor:
    """Summed cross entropy by torch: rows 1 to stop - 1 are classes, target 0 does not count."""
    logits = hidden @ parts[0][1:stop].T
    if len(parts) > 1:
        logits = logits + parts[1][1:stop, 0]
    return F.cross_entropy(logits, targets - 1, ignore_index=-1, reduction="sum")


def reference(embed: Embeddings, name: str) -> tuple[list[Tensor], torch.optim.Optimizer]:
    parts = [store.values.clone().requires_grad_() for store in embed.service.stores.values()]
    return parts, TORCH[name](parts)


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize(
    ("rows", "dim", "n", "short", "bias"),
    [
        (2, 1, 1, 0, True),
        (9, 3, 5, 1, False),
        (64, 16, 4, 0, True),
        (65, 17, 9, 2, True),
        (130, 32, 27, 70, True),  # a block of rows without a candidate
        (203, 30, 8, 1, False),
        (4200, 20, 12, 1, True),  # more than one group of rows
    ],
)
def test_learning_in_the_softmax_equals_torch(
    instructions: str, name: str, rows: int, dim: int, n: int, short: int, bias: bool
) -> None:
    generator = torch.Generator().manual_seed(rows + n)
    embed, stop = make(rows, dim, name, bias), rows - short
    parts, optimizer = reference(embed, name)
    for number in range(4):
        hidden = torch.randn(n, dim, generator=generator)
        targets = torch.randint(1, stop, (n,), generator=generator)
        targets[1:] = targets[1:].where(torch.rand(n - 1, generator=generator) < 0.7, 0)
        targets[n // 2 :] = targets[0]  # repeated
        ours, theirs = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
        loss = embed.full_softmax("output", ours, targets, "bias" if bias else None, stop)
        loss.backward(torch.tensor(0.5))
        assert step(embed, scale=0.25 * (number + 1)) == 0
        expected = plain(theirs, parts, targets, stop)
        expected.backward(torch.tensor(0.5))
        for part in parts:
            part.grad.mul_(0.25 * (number + 1))  # type: ignore[union-attr]
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for part in parts:
                part[0] = 0.0
        torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)
        for store, part in zip(embed.service.stores.values(), parts):
            # Adam's first steps are signs of gradients, so tiny ones are allowed to differ more.
            close = torch.isclose(store.values, part, rtol=1e-4, atol=1e-5)
            assert close.float().mean() > 0.995
            torch.testing.assert_close(store.values, part, rtol=1e-2, atol=1e-3)
            part.data.copy_(store.values)  # so that the next step is compared by itself


def test_a_target_far_below_the_others(instructions: str) -> None:
    embed = make(70, 8, "sgd")
    values = embed.service.stores["output"].values
    values[3], values[69] = -30.0, 30.0  # whose blocks are exponentials apart
    parts, optimizer = reference(embed, "sgd")
    hidden, targets = torch.ones(2, 8), torch.tensor([3, 69])
    loss = embed.full_softmax("output", hidden, targets, "bias")
    loss.backward()
    step(embed)
    expected = plain(hidden, parts, targets, 70)
    expected.backward()
    optimizer.step()
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(values[1:], parts[0][1:], rtol=1e-5, atol=1e-5)


def test_gradients_of_two_softmaxes_and_of_rows_add_up() -> None:
    """Where one step has more than one gradient of a row, the core's are written down."""
    embed = make(150, 12, "adam")
    parts, optimizer = reference(embed, "adam")
    for _ in range(2):
        expected = torch.zeros(())
        for n in (5, 14):
            hidden, targets = torch.randn(n, 12), torch.randint(0, 149, (n,))
            loss = embed.full_softmax("output", hidden, targets, "bias", stop=149)
            (0.3 * loss).backward()
            expected = expected + 0.3 * plain(hidden, parts, targets, 149)
        assert step(embed) == 300
        expected.backward()
        optimizer.step()
        optimizer.zero_grad()
        hidden, targets, ids = torch.randn(6, 12), torch.full((6,), 7), torch.tensor([7, 9, 7])
        for field, part in zip(("output", "bias"), parts):
            loss = embed.full_softmax("output", hidden, targets, "bias", stop=149)
            (loss + embed.rows(field, ids).sum()).backward()
            assert step(embed) == 300
            (plain(hidden, parts, targets, 149) + part[ids].sum()).backward()
            optimizer.step()
            optimizer.zero_grad()
    for store, part in zip(embed.service.stores.values(), parts):
        torch.testing.assert_close(store.values[1:], part[1:], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("fused", [True, False])
def test_backward_through_a_softmax_runs_once(fused: bool) -> None:
    loss = make(9, 4, "sgd", fused=fused).full_softmax(
        "output", torch.randn(2, 4, requires_grad=True), torch.tensor([1, 2])
    )
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="once, not twice"):
        loss.backward()


def test_states_that_are_changed_before_the_step() -> None:
    """autograd does not know that they are read again."""
    embed, hidden = make(9, 4, "sgd"), torch.randn(2, 4)
    embed.full_softmax("output", hidden, torch.tensor([1, 2])).backward()
    hidden.zero_()
    with pytest.raises(RuntimeError, match="changed in place"):
        step(embed)


@pytest.mark.parametrize("padding", [None, 8])
def test_rows_without_padding_at_0_have_no_softmax(padding: int | None) -> None:
    embed = Embeddings(output=Table("output", 4, 9, padding=padding, whole=True))
    attach(embed, lambda table: Device(table, RowOptimizer("adam"), 3, "cpu"))
    with pytest.raises(ValueError, match=f"'output' has padding={padding}.*make it with padding=0"):
        embed.full_softmax("output", torch.randn(2, 4), torch.tensor([1, 2]))


def test_a_batch_without_positions_moves_rows_by_what_was_before() -> None:
    embed = make(70, 5, "adam")
    parts, optimizer = reference(embed, "adam")
    for n in (6, 0):
        hidden = torch.randn(n, 5, requires_grad=True)
        targets = torch.randint(1, 70, (n,))
        embed.full_softmax("output", hidden, targets, "bias").backward()
        assert step(embed) == 0
        if n:
            plain(hidden, parts, targets, 70).backward()
        else:
            for part in parts:
                part.grad = torch.zeros_like(part)
        optimizer.step()
        optimizer.zero_grad()
    for store, part in zip(embed.service.stores.values(), parts):
        torch.testing.assert_close(store.values[1:], part[1:], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("shape", [(3, 2, 5, 7, 9), (4, 2, 16, 16, 64), (1, 1, 1, 1, 1)])
def test_many_small_products(
    instructions: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "fits", lambda *_: True)
    *many, m, k, n = shape
    a, b = torch.randn(*many, m, k), torch.randn(*many, k, n)
    expected = torch.einsum("xyij,xyjk->xyik", a, b)
    torch.testing.assert_close(products.products_of(a, b), expected)
    turned = a.transpose(-1, -2).contiguous().transpose(-1, -2)
    torch.testing.assert_close(products.products_of(turned, b), expected)


def test_a_loss_without_backward_updates_nothing() -> None:
    embed = make(40, 4, "sgd")
    before = embed.service.stores["output"].values.clone()
    embed.full_softmax("output", torch.randn(3, 4), torch.tensor([1, 2, 3]), "bias")
    step(embed)
    torch.testing.assert_close(embed.service.stores["output"].values, before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("why", "given"),
    [
        ("another optimizer", {"name": "rmsprop"}),
        ("clipped rows", {"name": "sgd", "clip": 1.0}),
    ],
)
def test_what_the_core_cannot_do_is_left_to_torch(why: str, given: dict) -> None:
    table = Table("output", 4, 10, padding=0, whole=True)
    assert not fusable_on_cpu(Device(table, RowOptimizer(**given), 3, "cpu", True), None), why
    plain_store = Device(table, RowOptimizer("adam"), 3, "cpu", False)
    assert not fusable_on_cpu(plain_store, None)
    last = Device(Table("output", 4, 10, padding=9), RowOptimizer("adam"), 3, "cpu", True)
    assert not fusable_on_cpu(last, None)
    assert fusable_on_cpu(Device(table, RowOptimizer("adam"), 3, "cpu", True), None)


def test_more_positions_than_memory_holds_are_left_to_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(softmax, "HELD", 4 * 50)
    results = []
    for fused in (True, False):
        torch.manual_seed(1)
        embed = make(50, 6, "adam", fused=fused)
        seen = []
        for n in (4, 5, 3):  # four fit
            hidden, targets = torch.randn(n, 6), torch.randint(1, 50, (n,))
            embed.full_softmax("output", hidden, targets, "bias").backward()
            seen.append(step(embed))
        assert seen == ([0, 100, 0] if fused else [100, 100, 100])
        assert embed.service.stores["output"].step == 3
        results.append([store.values for store in embed.service.stores.values()])
    for ours, theirs in zip(*results):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_tied_rows_are_not_fused() -> None:
    table = Table("item", 4, 20, Init("normal", 0.5), padding=0, whole=True)
    embed = Embeddings(history=table, output=table)
    attach(embed, lambda one: Device(one, RowOptimizer("adam"), 3, "cpu", True))
    embed.train()
    states = embed.rows("history", torch.tensor([3, 4]))
    embed.full_softmax("output", states, torch.tensor([5, 6])).backward()
    assert step(embed) == 20


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    threads, results = torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(1)
            embed = make(9000, 8, "adam")
            torch.manual_seed(2)
            hidden = torch.randn(10, 8, requires_grad=True)
            targets = torch.randint(1, 9000, (10,))
            torch.set_num_threads(number)
            embed.full_softmax("output", hidden, targets, "bias").backward()
            step(embed)
            results.append(
                [hidden.grad, *(store.values for store in embed.service.stores.values())]
            )
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        for one, two in zip(results[0], other):
            assert torch.equal(one, two)


def test_rows_spread_over_ranks_may_have_no_candidate_here() -> None:
    """The rows of one rank of several: none is a candidate, and none moves but by its decay."""
    embed = make(8, 4, "sgd", bias=False)
    store = embed.service.stores["output"]
    others = torch.arange(8)
    fused = CoreSoftmax(store, None, others, lambda update: None)
    hidden = torch.randn(3, 4, requires_grad=True)
    rows = store.view_rows().detach().requires_grad_()
    place = torch.full((20,), -1)
    before = store.values.clone()
    parallel_softmax_loss(
        World(), hidden, rows, None, torch.tensor([12, 9, 9]), place, others, 8, fused
    )
    highest, totals = fused.begin(hidden)
    assert (totals == 0).all() and (highest < -1e20).all()
    fused.add(torch.zeros(3), torch.empty(0).long(), torch.empty(0).long())
    fused.scaled(torch.ones(()))
    assert fused.tables == ["output"]
    fused.step(LR, 1.0)
    assert torch.equal(store.values, before)
    assert (fused.hidden == 0).all()


@pytest.mark.parametrize(("n", "k"), [(0, 5), (1, 1), (3, 7), (2, 16), (5, 67), (4, 5003)])
def test_exponentials_of_every_instruction_set(instructions: str, n: int, k: int) -> None:
    x = torch.randn(n, k, generator=torch.Generator().manual_seed(k)) * 50
    x[:, k // 2 + 1 :: 3] = -torch.inf
    exact = (x.double() - x.double().amax(1, keepdim=True)).exp()
    highest, totals = torch.empty(2, n).unbind()
    made = x.clone()
    addresses = highest.data_ptr(), totals.data_ptr()
    for threads in (1, 3):
        made = x.clone()
        core.exponentials(made.data_ptr(), n, k, *addresses, threads)
        assert torch.equal(highest, x.amax(1))
        # Half a unit of a logit of -150 is 8e-6 of its exponential.
        torch.testing.assert_close(made.double(), exact, rtol=3e-5, atol=1e-37)
        torch.testing.assert_close(totals.double(), exact.sum(1), rtol=3e-6, atol=0)


def test_large_logits_and_no_candidates_in_double(instructions: str) -> None:
    """One pass against torch in double: logits of +-1e4, and rows that are no candidates."""
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(19, 24, generator=generator)
    embed = make(300, 24, "sgd")
    rows, bias = (store.values for store in embed.service.stores.values())
    rows[5], rows[200], bias[7] = 2e3, -2e3, -torch.inf
    targets = torch.randint(10, 190, (19,), generator=generator)
    parts = [x.double().requires_grad_() for x in (rows, bias)]
    exact = hidden.double().requires_grad_()
    expected = plain(exact, parts, targets, 290)
    expected.backward()
    ours = hidden.clone().requires_grad_()
    loss = embed.full_softmax("output", ours, targets, "bias", 290)
    loss.backward()
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.grad.double(), exact.grad, rtol=1e-4, atol=1e-4)
    step(embed)
    finite = [i for i in range(1, 300) if i != 7]
    right = (parts[0] - LR * parts[0].grad)[finite]
    torch.testing.assert_close(rows[finite].double(), right, rtol=1e-5, atol=1e-5)


def test_a_missing_instruction_set_is_refused() -> None:
    with pytest.raises(ValueError, match=f"for sse9 runs here; there are {', '.join(SETS)}"):
        core.use_instruction_set("sse9")


def test_many_positions_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert softmax.worth_it(512, 128, 49_079) and not softmax.worth_it(4096, 64, 3_700)
    assert not softmax.worth_it(512, 64, 100_000)
    monkeypatch.setattr(machine, "WIDE", ())
    assert not softmax.worth_it(26, 128, 49_079)

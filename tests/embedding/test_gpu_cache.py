"""Rows in GPU memory over rows in host memory: the numbers of a table that is in GPU memory whole.

On a GPU where there is one, else by Triton's interpreter (see triton_there.py).
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from click_batches import global_batch, make_model
from triton_there import DEVICE, ask_for_interpreter, import_kernels

from shoal.config.schema import OptimizerSection
from shoal.distributed.world import World
from shoal.embedding.rows.bags import Bags
from shoal.embedding.rows.store import EVERY
from shoal.embedding.rows.table import Init, Table
from shoal.optimizers.row_optimizer import RowOptimizer
from shoal.training.strategies.base import Single
from shoal.training.strategies.graphed import Graphed

gpu_engine = import_kernels("shoal.embedding.engines.gpu_engine")
CachedGpuTables = import_kernels("shoal.embedding.engines.gpu_cache").CachedGpuTables
slow = pytest.mark.slow
ROWS, SLOTS, IDS = 90, 24, 16


@pytest.fixture(autouse=True)
def interpret(monkeypatch):
    ask_for_interpreter(monkeypatch)


def make(optimizer, slots=SLOTS):
    table = Table("t", 5, ROWS, Init("uniform", 0.1), padding=0)
    chosen = RowOptimizer(optimizer)
    cache = CachedGpuTables(table, chosen, 3, DEVICE, slots)
    (whole,) = gpu_engine.make_gpu_engines([table], chosen, 3, DEVICE)
    return gpu_engine.GpuEngine(cache, 0), whole


def draw(step):
    generator = torch.Generator().manual_seed(step)
    return (torch.rand(IDS, generator=generator) ** 2 * ROWS).long()


def train(ours, whole, steps, first=0):
    for step in range(first, first + steps):
        ids = draw(step).to(DEVICE)
        if step % 3:  # not of every step it is known what comes next
            ours.prefetch([draw(step + 1)[:5], draw(step + 1)[5:]])
        got, want = ours.pull(ids), whole.pull(ids)
        assert torch.equal(got, want)
        grads = want * 0.1 + torch.sin(torch.arange(want.numel(), device=DEVICE) + step).view_as(
            want
        )
        for engine in (ours, whole):
            engine.push(ids, grads, 0.05)


def assert_same_rows(ours, whole, chunk=50):
    for one, other in zip(ours.export(chunk), whole.export(chunk), strict=True):
        assert torch.equal(one.ids, other.ids) and torch.equal(one.values, other.values)
        assert one.state.keys() == other.state.keys()
        for key, part in one.state.items():
            assert torch.equal(part, other.state[key])


KINDS = ["adagrad", *(pytest.param(k, marks=slow) for k in ("sgd", "rowwise_adagrad", "adam"))]


@pytest.mark.parametrize("optimizer", KINDS)
def test_rows_that_come_and_go_have_the_numbers_of_rows_that_stay(optimizer):
    ours, whole = make(optimizer)
    train(ours, whole, 7)
    seen = ours.group.traffic
    assert seen.hot and seen.cold and seen.ahead and seen.cold + seen.ahead > SLOTS
    assert_same_rows(ours, whole)


@pytest.mark.parametrize("optimizer", KINDS)
def test_bags_of_rows_that_come_and_go(optimizer):
    ours, whole = make(optimizer)
    for step in range(7):
        ids = draw(step).to(DEVICE)
        bags = Bags(torch.tensor([0, 5, 5, 9, IDS], device=DEVICE))
        if step % 3:
            ours.prefetch([draw(step + 1)])
        got, want = ours.pull_bags(ids, bags), whole.pull_bags(ids, bags)
        assert torch.equal(got, want)
        grads = want * 0.1 + torch.sin(torch.arange(20, device=DEVICE) + step).view(4, 5)
        for engine in (ours, whole):
            engine.push_bags(ids, grads, bags, 0.05)
    seen = ours.group.traffic
    assert seen.hot and seen.cold and seen.ahead
    assert_same_rows(ours, whole)


# Streams run beside each other on a GPU alone; the interpreter has one.
@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a CUDA GPU")
@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
def test_many_rows_come_while_others_are_updated(optimizer):
    table = Table("t", 64, 300_000, Init("uniform", 0.1))
    cache = CachedGpuTables(table, RowOptimizer(optimizer), 3, DEVICE, 40_000)
    ours = gpu_engine.GpuEngine(cache, 0)
    (whole,) = gpu_engine.make_gpu_engines([table], RowOptimizer(optimizer), 3, DEVICE)
    power = torch.rand(40, 30_000, generator=torch.Generator().manual_seed(1)) ** 6
    batches = (power * table.rows).long().pin_memory()
    for step in range(39):
        ids = batches[step].to(DEVICE, non_blocking=True)
        ours.prefetch([batches[step + 1]])
        rows = ours.pull(ids)
        for _ in range(4):  # something to do meanwhile
            torch.randn(2048, 2048, device=DEVICE) @ torch.randn(2048, 2048, device=DEVICE)
        grads = rows * 0.1 + 0.01
        for engine in (ours, whole):
            engine.push(ids, grads, 0.05)
    seen = ours.group.traffic
    assert seen.ahead > 40_000 and seen.cold < seen.ahead
    assert_same_rows(ours, whole, 100_000)


@slow
def test_rows_that_came_ahead_may_have_gone_again():
    ours, whole = make("adagrad")
    train(ours, whole, 3)  # the last one announces what comes next
    first = draw(3).to(DEVICE)
    for start in (30, 45, 60):
        others = torch.arange(start, start + 15, device=DEVICE)
        assert torch.equal(ours.pull(others), whole.pull(others))
    assert torch.equal(ours.pull(first), whole.pull(first))
    train(ours, whole, 3, first=3)
    assert_same_rows(ours, whole)


@slow
def test_all_rows_are_read_and_updated_in_parts():
    ours, whole = make("adam")
    train(ours, whole, 3)
    grads = torch.sin(torch.arange(ROWS * 5, device=DEVICE).float()).view(ROWS, 5)
    for engine in (ours, whole):
        engine.push(EVERY, grads, 0.05)
    assert torch.equal(ours.pull(EVERY), whole.pull(EVERY))
    train(ours, whole, 3, first=3)
    assert_same_rows(ours, whole)


@slow
def test_a_checkpoint_goes_through_it_both_ways():
    ours, whole = make("adam")
    train(ours, whole, 4)
    again, other = make("adam")
    train(again, other, 2)
    for chunk in ours.export(40):
        again.restore(chunk)
    again.step = ours.step
    assert_same_rows(again, whole)
    train(again, whole, 3, first=4)
    ids, values = torch.arange(3, 40), torch.randn(37, 5)
    for engine in (again, whole):
        engine.assign(ids, values)
    assert_same_rows(again, whole)


@slow
def test_what_cannot_be_is_refused():
    ours, whole = make("sgd", slots=8)
    ids = torch.arange(1, 21, device=DEVICE)
    assert torch.equal(ours.pull(ids), whole.pull(ids))  # some where they are
    ours.push(ids, torch.ones(20, 5, device=DEVICE), 0.1)
    with pytest.raises(ValueError, match=r"more rows than the 8 .* rows\.tiers\.gpu"):
        list(ours.export())
    ours.group.wrong.zero_()
    if DEVICE.type == "cuda":
        ours.pull(torch.tensor([3, ROWS], device=DEVICE))
        with pytest.raises(ValueError, match=str(ROWS)):
            list(ours.export())


class InTwo(Single):
    """Single, a part of whose rows are in slots."""

    def make_engines(self, tables, fused):
        engines = {}
        for name, table in tables.items():
            optimizer = self.row_optimizers[name]
            cache = CachedGpuTables(table, optimizer, self.seed, self.world.device, 240)
            engines[name] = gpu_engine.GpuEngine(cache, 0)
        return engines


class RecordedInTwo(InTwo, Graphed):
    """The same, recorded."""


# Graphs are recorded on a GPU alone.
@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs a CUDA GPU")
def test_recorded_steps_read_rows_that_come_and_go():
    curves = []
    for strategy in (Single(World(DEVICE)), RecordedInTwo(World(DEVICE))):
        strategy.setup(make_model("DLRM", "fixed"), OptimizerSection(name="adagrad", lr=0.05), 1)
        batches = [strategy.receive(global_batch(step % 7, "one", "fixed")) for step in range(30)]
        losses = []
        for batch, following in pairwise(batches):
            strategy.prefetch(following)
            losses.append(strategy.train_step(batch))
        curves.append(torch.stack(losses))
        for store in strategy.stores.values():
            list(store.export())  # which refuses what went wrong
    assert strategy.recorder._recorded
    torch.testing.assert_close(curves[1], curves[0], rtol=1e-4, atol=1e-5)


@slow
def test_a_model_learns_the_same():
    curves = []
    for strategy in (Single(World(DEVICE)), InTwo(World(DEVICE))):
        strategy.setup(make_model("DLRM", "fixed"), OptimizerSection(name="adagrad", lr=0.05), 1)
        losses = []
        for step in range(10):
            batch = strategy.receive(global_batch(step, "one", "fixed"))
            losses.append(float(strategy.train_step(batch)))
        curves.append(losses)
    assert curves[0] == pytest.approx(curves[1], rel=1e-4)

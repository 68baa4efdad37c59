"""Whole training steps on rows in GPU memory against rows in host memory.

On a GPU where there is one, else by Triton's interpreter (see triton_there.py).
"""

import pytest
import torch
from click_batches import global_batch, make_model
from triton_there import DEVICE, ask_for_interpreter, import_kernels

from shoal.config.schema import OptimizerSection
from shoal.distributed.world import World
from shoal.embedding.engines.local import lives_on_gpu, make_local
from shoal.embedding.engines.row_engine import pull_all, push_all
from shoal.embedding.engines.tiered import Tiered
from shoal.embedding.rows.admission import Admission
from shoal.embedding.rows.store import EVERY
from shoal.embedding.rows.table import Init, Table
from shoal.embedding.service import LocalRows, Lookup
from shoal.optimizers.row_optimizer import RowOptimizer
from shoal.training.strategies.base import Single

gpu_engine = import_kernels("shoal.embedding.engines.gpu_engine")
slow = pytest.mark.slow


@pytest.fixture(autouse=True)
def interpret(monkeypatch):
    ask_for_interpreter(monkeypatch)


class OnGpu(Single):
    """Single, whose rows are a GpuEngine's wherever it computes."""

    def make_engines(self, tables, fused):
        (optimizer,) = set(self.row_optimizers.values())
        some = list(tables.values())
        made = gpu_engine.make_gpu_engines(some, optimizer, self.seed, self.world.device)
        return dict(zip(tables, made))


def curve(strategy, model, kind, rows, optimizer, steps):
    section = OptimizerSection(name=optimizer, lr=0.05)
    strategy.setup(make_model(model, rows), section, 1)
    losses = []
    for step in range(1, steps + 1):
        batch = strategy.receive(global_batch(step, kind, rows))
        losses.append(float(strategy.train_step(batch)))
    return losses, strategy.stores


CASES = [  # model, ids, rows, optimizer, steps
    ("DLRM", "one", "fixed", "adagrad", 2),
    pytest.param("DeepFM", "lists", "grows", "adam", 4, marks=slow),
    *(
        pytest.param(model, kind, rows, optimizer, 8, marks=slow)
        for model in ("DLRM", "DeepFM")
        for kind in ("one", "weighted")
        for rows in ("fixed", "grows")
        for optimizer in ("sgd", "adagrad", "adam")
    ),
]


@pytest.mark.parametrize(("model", "kind", "rows", "optimizer", "steps"), CASES)
def test_training_steps_are_those_of_rows_in_host_memory(model, kind, rows, optimizer, steps):
    got, mine = curve(OnGpu(World(DEVICE)), model, kind, rows, optimizer, steps)
    want, theirs = curve(Single(World()), model, kind, rows, optimizer, steps)
    assert got == pytest.approx(want, rel=1e-5, abs=1e-6)
    for name, store in theirs.items():
        assert mine[name].step == store.step == steps
        assert len(mine[name]) == len(store)
        for one, other in zip(mine[name].export(), store.export(), strict=True):
            assert torch.equal(one.ids, other.ids)
            # Dense products round otherwise on a GPU, and Adam makes steps of small gradients too.
            near = 1e-5 if DEVICE.type == "cpu" else 2e-3
            torch.testing.assert_close(one.values, other.values, rtol=1e-4, atol=near)


def test_many_tables_step_together_and_every_row_at_once():
    tables = [
        Table(name, dim, 20, Init("uniform", 0.1), 0)
        for name, dim in (("a", 4), ("b", 4), ("c", 6))
    ]
    optimizer = RowOptimizer("adam")
    ours = gpu_engine.make_gpu_engines(tables, optimizer, 1, DEVICE)
    theirs = [make_local(table, optimizer, 1, backend="reference") for table in tables]
    assert ours[0].group is ours[1].group and ours[0].group is not ours[2].group
    torch.manual_seed(0)
    for ids in ([torch.tensor([3, 3, 0, 7])] * 3, [EVERY, torch.tensor([5, 1]), EVERY]):
        got, want = pull_all(ours, ids), pull_all(theirs, ids)
        for one, other in zip(got, want):
            torch.testing.assert_close(one.cpu(), other)
        grads = [torch.randn_like(rows) for rows in want]
        push_all(ours, [(i, g.to(DEVICE)) for i, g in zip(ids, grads)], 0.1)
        push_all(theirs, list(zip(ids, grads)), 0.1)
        assert [engine.step for engine in ours] == [engine.step for engine in theirs]
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one.pull(EVERY).cpu(), other.pull(EVERY))
    rows = LocalRows({engine.table.name: engine for engine in ours}, {}, DEVICE)
    assert rows.find_unrecordable() is None
    rows.begin_replay(0.1, {})
    assert [engine.step for engine in ours] == [3, 3, 3]
    ours[1].step = 9
    with pytest.raises(ValueError, match=r"strategy\.graph=false"):
        rows.begin_replay(0.1, {})


def leaves_of_both(rows=20):
    tables = [Table(name, 4, rows, Init("uniform", 0.1), 0) for name in "ab"]
    optimizer = RowOptimizer("adagrad")
    ours = gpu_engine.make_gpu_engines(tables, optimizer, 1, DEVICE)
    theirs = [make_local(table, optimizer, 1, backend="reference") for table in tables]
    services = [
        LocalRows({engine.table.name: engine for engine in leaves}, {}, device)
        for leaves, device in ((ours, DEVICE), (theirs, "cpu"))
    ]
    return services, ours[0].group


def learn(service, pulls, used=True):
    """A step of lookups, some of which may get no gradient; the rows it read."""
    read = [service.pull([Lookup(*one) for one in some], learn=True) for some in pulls]
    flat = [rows for some in read for rows in some]
    sum(
        (k + 1) * rows.square().sum() for k, rows in enumerate(flat if used else flat[1:])
    ).backward()
    service.apply(service.collect().rows, 0.1)
    return [rows.detach().cpu() for rows in flat]


@pytest.mark.parametrize("rows", [20, None])
def test_a_step_of_one_lookup_sorts_its_ids_before_gradients_come(rows, monkeypatch):
    (ours, theirs), group = leaves_of_both(rows)
    sorted_late = []
    sort = group.sort

    def note(lookup, rows=None):
        sorted_late.append(rows is None)  # else by _sort_on_side_stream
        return sort(lookup, rows)

    monkeypatch.setattr(group, "sort", note)
    ids = [torch.tensor([3, 3, 0, 7]), torch.tensor([[7, 1]]), torch.tensor([3, 5, 9])]
    both = [("a", ids[0]), ("b", ids[1]), ("a", ids[2])]
    steps = [  # what it looks up, whether all of it gets gradients; whether ids are sorted late
        ([both], True, [True]),  # nothing is known of a step before
        ([both], True, [False]),
        ([both], False, [False, True]),  # those of one lookup are missing
        ([both[:2], both[2:]], True, [False, True]),  # the first of two
        ([both[1:]], True, [True]),  # there were two
        ([both], True, [False]),
    ]
    for pulls, used, late in steps:
        sorted_late.clear()
        here = [[(name, part.to(DEVICE)) for name, part in some] for some in pulls]
        for got, want in zip(learn(ours, here, used), learn(theirs, pulls, used), strict=True):
            torch.testing.assert_close(got, want)
        assert sorted_late == late
    for name in "ab":
        mine, other = ours.stores[name].export(), theirs.stores[name].export()
        for one, two in zip(mine, other, strict=True):
            assert torch.equal(one.ids, two.ids)
            torch.testing.assert_close(one.values, two.values)


def test_which_tables_live_on_a_gpu():
    table = Table("t", 4, None)
    assert lives_on_gpu(table, None, "cuda") and not lives_on_gpu(table, Admission(2.0), "cuda")
    assert lives_on_gpu(Table("t", 4, 9, whole=True), None, "cuda")
    assert not lives_on_gpu(table, None, "cpu")


@pytest.mark.parametrize("rows", [200, pytest.param(None, marks=slow)])
def test_rows_in_gpu_memory_over_host_memory(rows):
    table = Table("t", 5, rows, Init("uniform", 0.1), 0)
    optimizer = RowOptimizer("adam")
    ours = Tiered(table, optimizer, 3, 50, None, device=DEVICE, segment_rows=16)
    theirs = make_local(table, optimizer, 3, backend="native")
    for step in range(6):
        torch.manual_seed(step)
        ids = torch.randint(0, 200, (40,))
        ours.prefetch([ids])
        rows_there = ours.pull(ids)
        assert rows_there.device.type == DEVICE.type
        torch.testing.assert_close(rows_there.cpu(), theirs.pull(ids), rtol=1e-5, atol=1e-6)
        grads = torch.randn(40, 5)
        ours.push(ids, grads.to(DEVICE), 0.05)
        theirs.push(ids, grads, 0.05)
    assert ours.traffic.evicted > 0 and ours.cold.folder is None and len(ours.cold)
    for one, other in zip(ours.export(64), theirs.export(64), strict=True):
        assert torch.equal(one.ids, other.ids)
        torch.testing.assert_close(one.values, other.values, rtol=1e-5, atol=1e-6)
        for key, part in one.state.items():
            torch.testing.assert_close(part, other.state[key], rtol=1e-5, atol=1e-6)

"""Triton kernels of rows in GPU memory against the reference engine.

On a GPU where there is one, else by Triton's interpreter (see triton_there.py).
"""

from __future__ import annotations

import pytest
import torch
from triton_there import DEVICE, ask_for_interpreter, import_kernels

from shoal.embedding.engines.reference import Reference
from shoal.embedding.rows.admission import Shrink
from shoal.embedding.rows.store import EVERY
from shoal.embedding.rows.table import Init, Numbering, Table
from shoal.optimizers.row_optimizer import DEFINITIONS, RowOptimizer

gpu_index = import_kernels("shoal.kernels.gpu.index")
gpu_growing, gpu_engine, gpu_tables = (
    import_kernels(f"shoal.embedding.engines.{name}")
    for name in ("gpu_growing", "gpu_engine", "gpu_tables")
)
DIM = 6  # not a power of two: lanes are left over
ROWS = 50
COUNTS = [40, 0, 110]  # ids of each table
BEGINS = [Init("uniform", 0.1), Init("normal", 0.1), Init("constant", 0.3)]
SPREAD = 0x5DEECE66D1234567  # times an id: 64 bits, of both signs


@pytest.fixture(autouse=True)
def run_there(monkeypatch):
    ask_for_interpreter(monkeypatch)
    # Index and arena are full after a few ids, so that places collide and both must grow.
    monkeypatch.setattr(gpu_growing, "FIRST_PLACES", gpu_index.BLOCK)
    monkeypatch.setattr(gpu_growing, "FIRST_ROWS", 4)


def begun(name, **given):
    """An optimizer whose state begins above 0, where it can."""
    if "initial_accumulator_value" in DEFINITIONS[name].defaults:
        given["initial_accumulator_value"] = 0.1
    return RowOptimizer(name, **given)


def wide(ids):
    """Ids of a growing table: any 64 bits."""
    product = ids * (SPREAD - (1 << 64) if SPREAD >= 1 << 63 else SPREAD)  # wraps
    return torch.where(ids == 5, 5, product)


class Both:
    """The same three tables twice, and steps of both."""

    def __init__(self, optimizer, grows=False, dtype="float32"):
        torch.manual_seed(0)
        rows = None if grows else ROWS
        self.grows, self.half = grows, dtype == "bfloat16"
        # The second is a share of a larger table, as far as rounding goes.
        shares = [None, None if grows else Numbering(7, 11, 3 * ROWS), None]
        tables = [
            Table(f"t{k}", DIM, rows, one, 5, dtype=dtype, numbering=share)
            for k, (one, share) in enumerate(zip(BEGINS, shares, strict=True))
        ]
        kind = gpu_growing.GrowingGpuTables if grows else gpu_tables.GpuTables
        self.ours = kind(tables, optimizer, 3, DEVICE)
        self.theirs = [Reference(table, optimizer, 3) for table in tables]

    def draw(self):
        """Ids of each table; one of the last has three windows of occurrences, one is padding."""
        ids = [torch.randint(0, ROWS, (n,)) for n in COUNTS]
        ids[2][20:100] = ids[2][0]
        ids[2][0] = 5
        return [wide(part) for part in ids] if self.grows else ids

    def close(self, got, want):
        bound = {"rtol": 1e-2, "atol": 1e-3} if self.half else {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(got.cpu(), want, **bound)

    def look_up(self, ids):
        return self.ours.look_up([part.to(DEVICE) for part in ids])

    def step(self):
        """Read, compare, and learn by gradients that hang on what was read."""
        ids = self.draw()
        lookup = self.look_up(ids)
        want = torch.cat([engine.pull(part) for engine, part in zip(self.theirs, ids)])
        self.ours.begin(0.05, lookup)
        got = self.ours.pull(lookup, learn=True)
        self.close(got, want)
        grads = want - torch.randn_like(want) * 0.1
        ahead = self.ours.take_sorted(lookup.counts)
        self.ours.apply(ahead.segments, grads.to(DEVICE))
        for engine, part, grad in zip(self.theirs, ids, grads.split(COUNTS)):
            engine.push(part, grad, 0.05)

    def compare_exports(self):
        for number, engine in enumerate(self.theirs):
            got = list(self.ours.export(number, chunk_rows=16))
            want = list(engine.export(chunk_rows=16))
            assert [len(part.ids) for part in got] == [len(part.ids) for part in want]
            for mine, other in zip(got, want):
                assert torch.equal(mine.ids, other.ids)
                self.close(mine.values, other.values)
                assert mine.state.keys() == other.state.keys()
                for key, part in mine.state.items():
                    assert part.dtype == other.state[key].dtype
                    self.close(part, other.state[key])


WAYS = [(name, False, "float32") for name in DEFINITIONS] + [
    ("sgd", True, "float32"),
    ("rowwise_adagrad", True, "bfloat16"),
    ("adam", True, "float32"),
    ("adam", False, "bfloat16"),
]


@pytest.mark.parametrize(("name", "grows", "dtype"), WAYS)
def test_steps_equal_the_reference(name, grows, dtype):
    both = Both(begun(name, weight_decay=0.01), grows, dtype)
    for _ in range(2):
        both.step()
    both.compare_exports()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "grows", "dtype"), WAYS)
def test_fifty_steps_equal_the_reference(name, grows, dtype):
    both = Both(begun(name, clip=2.0), grows, dtype)
    for _ in range(50):
        both.step()
    both.compare_exports()


def test_the_first_values_have_the_same_bits():
    for grows in (False, True):
        both = Both(RowOptimizer("sgd"), grows)
        ids = both.draw()
        got = both.ours.pull(both.look_up(ids)).cpu()
        want = torch.cat([engine.pull(part) for engine, part in zip(both.theirs, ids)])
        assert torch.equal(got, want)


def test_small_rows_are_dropped():
    both = Both(RowOptimizer("adam"), True)
    for _ in range(2):
        both.step()
    gone = [both.ours.shrink(number, 0.25) for number in range(3)]
    assert sum(gone) and gone == [engine.shrink(Shrink(min_norm=0.25)) for engine in both.theirs]
    both.step()  # the rows that went begin again, in memory that was used
    both.compare_exports()


def test_index_and_arena_grow():
    both = Both(RowOptimizer("adagrad"), True)
    both.step()
    before = len(both.ours.index.ids), len(both.ours.free)
    ids = [wide(torch.arange(300)), torch.tensor([], dtype=torch.int64), wide(torch.arange(9))]
    grads = torch.randn(309, DIM)
    both.ours.push(both.look_up(ids), grads.to(DEVICE), 0.1)
    for engine, part, grad in zip(both.theirs, ids, grads.split([300, 0, 9])):
        engine.push(part, grad, 0.1)
    assert len(both.ours.index.ids) > before[0]
    assert len(both.ours.free) > before[1]
    both.step()
    both.compare_exports()


@pytest.mark.parametrize("grows", [False, True])
def test_rows_that_were_exported_go_on_elsewhere(grows):
    both, other = (Both(RowOptimizer("adam"), grows) for _ in range(2))
    both.step()
    for number in range(3):
        for rows in both.ours.export(number, 16):
            other.ours.restore(number, rows)
    other.theirs, other.ours.step = both.theirs, both.ours.step
    other.step()
    other.compare_exports()


def test_an_id_outside_its_table_is_refused():
    both = Both(RowOptimizer("sgd"))
    ids = [torch.tensor([1]), torch.tensor([ROWS]), torch.tensor([2, 3])]
    assert both.ours.pull(both.look_up(ids))[1].abs().sum() == 0
    with pytest.raises(ValueError, match="table 't1' has no row 50: it has 50 rows, ids 0 to 49"):
        both.ours.check()
    both.ours.check()  # said once


# ---- as engines ---------------------------------------------------------------------------------


def make_engines():
    """Two fixed tables and a growing one, of two widths; and the reference of each."""
    tables = [
        Table("a", DIM, 20, BEGINS[0], 5),
        Table("b", 3, None, BEGINS[1], 5),
        Table("c", DIM, 30, BEGINS[1]),
    ]
    optimizer = RowOptimizer("adam")
    engines = gpu_engine.make_gpu_engines(tables, optimizer, 3, DEVICE)
    assert engines[0].group is engines[2].group
    return engines, [Reference(one, optimizer, 3) for one in tables]


def compare(engine, reference):
    assert len(engine) == len(reference)
    assert engine.step == reference.step
    for mine, other in zip(engine.export(7), reference.export(7), strict=True):
        assert torch.equal(mine.ids, other.ids)
        torch.testing.assert_close(mine.values, other.values)
        torch.testing.assert_close(mine.state, other.state)


def test_leaves_of_a_group_are_read_and_learn_together():
    torch.manual_seed(0)
    engines, references = make_engines()
    order = [2, 0, 1, 0]  # one is looked up twice
    ids = [torch.randint(0, 20, (n,)) for n in (9, 4, 7, 5)]
    got = gpu_engine.GpuEngine.pull_many([engines[k] for k in order], ids)
    for k, part, rows in zip(order, ids, got):
        assert torch.equal(rows.cpu(), references[k].pull(part))
    for _ in range(2):
        ids = [torch.randint(0, 20, (n,)) for n in (9, 0, 7)]
        grads = [torch.randn(len(part), engine.table.dim) for part, engine in zip(ids, engines)]
        gpu_engine.GpuEngine.push_many(engines, ids, grads, 0.1)
        for reference, part, grad in zip(references, ids, grads):
            reference.push(part, grad, 0.1)
        engines[0].step = references[0].step = 7  # the second time each has numbers of its own
    for engine, reference in zip(engines, references):
        compare(engine, reference)


def test_every_row_of_a_leaf():
    engines, references = make_engines()
    grads = torch.randn(20, DIM)
    for engine in (engines[0], references[0]):
        engine.push(EVERY, grads.to(DEVICE) if engine is engines[0] else grads, 0.1)
    compare(engines[0], references[0])
    want = references[0].pull(EVERY)
    torch.testing.assert_close(engines[0].pull(EVERY).cpu(), want)
    torch.testing.assert_close(engines[0].view_rows().cpu(), want)
    with pytest.raises(ValueError, match="grows: it has no last row"):
        engines[1].pull(EVERY)


def test_rows_that_are_assigned_keep_their_state_or_begin():
    engines, references = make_engines()
    for engine in (engines[1], references[1]):
        engine.push(torch.tensor([4, 8]), torch.ones(2, 3), 0.1)
        engine.assign(torch.tensor([4, 9]), torch.ones(2, 3))
    compare(engines[1], references[1])
    for engine in (engines[1], references[1]):
        engine.forget()
        engine.assign(torch.tensor([1, 2, 3]), torch.ones(3, 3))  # in memory that was used
    compare(engines[1], references[1])


def test_what_does_not_fit_a_leaf_is_refused():
    engines, _ = make_engines()
    fixed, growing, _ = engines
    with pytest.raises(ValueError, match=r"they must be torch.int64"):
        fixed.pull(torch.zeros(2))
    with pytest.raises(ValueError, match=r"must be torch.float32 \[2, 6\]"):
        fixed.push(torch.tensor([1, 2]), torch.zeros(2, 3), 0.1)
    with pytest.raises(ValueError, match="keeps no counters"):
        growing.push(torch.tensor([1]), torch.zeros(1, 3), 0.1, torch.ones(1, 2))
    with pytest.raises(ValueError, match="is fixed: only a table that grows shrinks"):
        fixed.shrink(Shrink(min_norm=1.0))
    with pytest.raises(ValueError, match="table 'a' has no row 20"):
        fixed.pull(torch.tensor([20]))
        fixed.group.check()

"""Admission, decay, eviction and marks: values by hand, and native against reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.embedding.engines.init import initial_rows
from shoal.embedding.engines.local import make_local
from shoal.embedding.engines.native import Native
from shoal.embedding.engines.reference import Reference
from shoal.embedding.rows.admission import Admission, Pending, Shrink
from shoal.embedding.rows.table import Init, Table
from shoal.kernels.core import has_core
from shoal.optimizers.row_optimizer import RowOptimizer

needs_core = pytest.mark.skipif(not has_core(), reason="the native core is not built")
ENGINES = ["reference", pytest.param("native", marks=needs_core)]
TABLE = Table("ads", 4, None, Init("uniform", 0.5))


def make(engine, **more):
    return make_local(TABLE, RowOptimizer("sgd"), 3, backend=engine, admission=Admission(**more))


def push(store, ids, clicks=None):
    ids = torch.tensor(ids)
    counts = None if clicks is None else shown_once(torch.tensor(clicks))
    store.push(ids, torch.ones(len(ids), 4), 0.5, counts)


def shown_once(clicks):
    return torch.stack([torch.ones_like(clicks), clicks], 1)


def held(store):
    return [i for chunk in store.export() for i in chunk.ids.tolist()]


def counters(store):
    rows = list(store.export())
    if not rows:
        return {}
    state = rows[0].state
    columns = (state[key].tolist() for key in ("show", "click", "last_step"))
    return dict(zip(rows[0].ids.tolist(), zip(*columns)))


@pytest.mark.parametrize("engine", ENGINES)
def test_an_id_has_its_row_from_the_threshold_on(engine):
    store = make(engine, threshold=3)
    ids = torch.tensor([7, 8])
    first = initial_rows(TABLE, 3, ids)
    push(store, [7, 7, 8])
    assert held(store) == []
    assert torch.equal(store.pull(ids), first)  # the gradients so far were dropped
    push(store, [7])
    assert held(store) == [7]
    torch.testing.assert_close(store.pull(ids), first - torch.tensor([[0.5], [0.0]]))
    push(store, [7, 8, 8])
    torch.testing.assert_close(store.pull(ids), first - torch.tensor([[1.0], [1.0]]))
    assert counters(store) == {7: (4.0, 0.0, 3), 8: (3.0, 0.0, 3)}


@pytest.mark.parametrize("engine", ENGINES)
def test_clicks_count_more_than_shows(engine):
    """score = 0.1 (show − click) + click: one click and one show earn 1.1, ten shows 1.0."""
    store = make(engine, threshold=1.05, show_coefficient=0.1, click_coefficient=1.0)
    push(store, [1] * 10)
    assert held(store) == []
    push(store, [2, 2], [1.0, 0.0])
    assert held(store) == [2]
    assert counters(store) == {2: (2.0, 1.0, 2)}
    push(store, [1])
    assert held(store) == [1, 2]


@pytest.mark.parametrize("engine", ENGINES)
def test_decay_and_shrink_by_score(engine):
    store = make(engine)
    push(store, [1] * 8 + [2] * 2)
    store.decay(0.5)
    assert counters(store) == {1: (4.0, 0.0, 1), 2: (1.0, 0.0, 1)}
    assert store.shrink(Shrink(min_score=2.0)) == 1
    assert held(store) == [1]
    assert torch.equal(store.pull(torch.tensor([2])), initial_rows(TABLE, 3, torch.tensor([2])))


@pytest.mark.parametrize("engine", ENGINES)
def test_shrink_by_age_norm_and_capacity(engine):
    store = make(engine)
    for ids in ([1, 2], [2, 3], [3, 4, 4], [4, 5]):
        push(store, ids)  # last steps: 1: 1, 2: 2, 3: 3, 4: 4, 5: 4; shows: 1 2 2 3 1
    assert store.shrink(Shrink(max_age=2)) == 1  # steps 2 to 4 stay
    assert held(store) == [2, 3, 4, 5]
    assert store.shrink(Shrink(capacity=3, order="lfu")) == 1
    assert held(store) == [2, 3, 4]
    assert store.shrink(Shrink(capacity=2, order="lru")) == 1
    assert held(store) == [3, 4]
    norms = store.pull(torch.tensor([3, 4])).norm(dim=1)
    between = float(norms.mean())
    assert store.shrink(Shrink(min_norm=between)) == 1
    assert held(store) == [3 if norms[0] > norms[1] else 4]
    push(store, list(range(100, 140)))  # freed rows are used again, from their initial values
    ids = torch.arange(100, 140)
    torch.testing.assert_close(store.pull(ids), initial_rows(TABLE, 3, ids) - 0.5)


@pytest.mark.parametrize("engine", ENGINES)
def test_counters_travel_with_export_and_restore(engine):
    first, second = make(engine, threshold=3), make(engine, threshold=3)
    push(first, [1, 1, 1, 2, 2, 3], [0.0, 1.0, 0.0, 0.0, 1.0, 0.0])
    for chunk in first.export():
        second.restore(chunk)
    pending = list(first.export_pending(chunk_rows=1))
    assert [p.ids.tolist() for p in pending] == [[2], [3]]
    assert [(p.show.item(), p.click.item(), p.last_step.item()) for p in pending] == [
        (2.0, 1.0, 1),
        (1.0, 0.0, 1),
    ]
    for part in pending:
        second.restore_pending(part)
    second.step = first.step
    for store in (first, second):
        push(store, [2, 3])
    assert held(first) == held(second) == [1, 2]
    assert counters(first) == counters(second)
    for part in pending:  # id 2 has a row by now: its old counters must not come back
        second.restore_pending(part)
    assert [p.ids.tolist() for p in second.export_pending()] == [[3]]
    third = make(engine, threshold=3)
    third.restore_pending(pending[0])
    for chunk in second.export():  # nor must counters stay beside a row
        third.restore(chunk)
    assert list(third.export_pending()) == []
    wrong = Pending(torch.tensor([2, 1]), torch.ones(2), torch.ones(2), torch.ones(2).long())
    with pytest.raises(ValueError, match="must ascend"):
        second.restore_pending(wrong)


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_from_a_later_step_are_not_old(engine):
    store = make(engine, threshold=0)
    for _ in range(5):
        push(store, [1, 2])
    store.step = 2  # as when rows come from a run that counted further
    assert store.shrink(Shrink(max_age=1)) == 0
    assert held(store) == [1, 2]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rows", [20, None])
def test_export_of_what_changed_since_a_mark(engine, rows):
    store = make_local(Table("t", 2, rows), RowOptimizer("sgd"), 3, backend=engine)

    def change(ids):
        store.push(torch.tensor(ids), torch.ones(len(ids), 2), 0.5)

    def changed(mark):
        return [i for chunk in store.export(2, since=mark) for i in chunk.ids.tolist()]

    change([1, 2])
    first = store.mark()
    assert changed(first) == []
    change([5, 2])
    second = store.mark()
    change([9])
    assert changed(first) == [2, 5, 9]
    assert changed(second) == [9]
    chunk = next(iter(store.export(since=second)))
    assert torch.equal(chunk.values, store.pull(torch.tensor([9])))
    for _ in range(400):  # more marks than a byte can count
        last = store.mark()
    assert changed(last) == []
    change([3])
    assert changed(last) == [3]
    with pytest.raises(ValueError, match=f"mark {last + 1} is not known"):
        next(iter(store.export(since=last + 1)))
    with pytest.raises(ValueError, match="mark 0 is not known"):
        next(iter(store.export(since=0)))


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_that_come_back_have_changed(engine):
    store = make(engine)
    push(store, [1, 2, 3, 3])
    mark = store.mark()
    store.shrink(Shrink(min_score=2.0))
    assert held(store) == [3]
    push(store, [2])
    assert [c.ids.tolist() for c in store.export(since=mark)] == [[2]]


@needs_core
def test_a_bloom_filter_admits_none_late_and_few_early():
    store = Native(TABLE, RowOptimizer("sgd"), 3, Admission(3, bloom_counters=1 << 16))
    rare, frequent = torch.arange(4000), torch.arange(10_000, 11_000)
    for _ in range(2):
        store.push(torch.cat([rare, frequent]), torch.zeros(5000, 4), 0.1)
    assert len(store) < 40  # a filter of 65,536 bytes for 5,000 ids: below 1 % come early
    store.push(frequent, torch.zeros(1000, 4), 0.1)
    assert set(frequent.tolist()) <= set(held(store))
    assert len(store) < 1040


@needs_core
@settings(max_examples=60, deadline=None)
@given(
    threshold=st.sampled_from([0.0, 2.0, 3.5]),
    coefficients=st.sampled_from([(1.0, 1.0), (0.5, 2.0)]),
    seed=st.integers(0, 2**32),
    actions=st.lists(
        st.sampled_from(["push", "push", "push", "click", "decay", "score", "age", "lfu", "lru"]),
        min_size=3,
        max_size=12,
    ),
)
def test_native_equals_reference(threshold, coefficients, seed, actions):
    rule = Admission(threshold, *coefficients)
    stores = [kind(TABLE, RowOptimizer("adagrad"), 1, rule) for kind in (Native, Reference)]
    generator = torch.Generator().manual_seed(seed)
    marks = [store.mark() for store in stores]
    for action in actions:
        ids = torch.randint(-15, 15, (20,), generator=generator)
        grads = torch.randn(20, 4, generator=generator)
        clicks = torch.randint(0, 2, (20,), generator=generator).float()
        gone = []
        for store in stores:
            if action in ("push", "click"):
                store.push(ids, grads, 0.1, shown_once(clicks) if action == "click" else None)
            elif action == "decay":
                store.decay(0.5)
            else:
                rules = {
                    "score": Shrink(min_score=1.5),
                    "age": Shrink(max_age=1),
                    "lfu": Shrink(capacity=5),
                    "lru": Shrink(capacity=5, order="lru"),
                }
                gone.append(store.shrink(rules[action]))
        assert len(set(gone)) <= 1
    native, reference = stores
    assert len(native) == len(reference)
    for since in (None, marks[0]):
        for left, right in zip(native.export(7, since), reference.export(7, since), strict=True):
            assert torch.equal(left.ids, right.ids)
            torch.testing.assert_close(left.values, right.values, rtol=1e-4, atol=1e-5)
            for key in right.state:
                torch.testing.assert_close(left.state[key], right.state[key])
    for left, right in zip(native.export_pending(), reference.export_pending(), strict=True):
        assert torch.equal(left.ids, right.ids)
        assert torch.equal(left.show, right.show)
        assert torch.equal(left.last_step, right.last_step)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_cannot_be_is_refused(engine):
    fixed = Table("t", 2, 5)
    with pytest.raises(ValueError, match="admission is for tables that grow"):
        make_local(fixed, RowOptimizer("sgd"), 0, backend=engine, admission=Admission())
    store = make_local(TABLE, RowOptimizer("sgd"), 0, backend=engine)
    with pytest.raises(ValueError, match="keeps no counters"):
        store.decay(0.5)
    with pytest.raises(ValueError, match="keeps no counters"):
        store.shrink(Shrink(max_age=1))
    with pytest.raises(ValueError, match="keeps no counters"):
        push(store, [1], [1.0])
    with pytest.raises(ValueError, match="is fixed"):
        make_local(fixed, RowOptimizer("sgd"), 0, backend=engine).shrink(Shrink(min_norm=1.0))
    with pytest.raises(ValueError, match="known are lfu and lru"):
        Shrink(order="fifo")
    with pytest.raises(ValueError, match="end at 255"):
        Admission(threshold=300, bloom_counters=100)

"""The native core against the reference, over random tables, optimizers and pushes."""

from __future__ import annotations

import multiprocessing
import threading
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.embedding.engines import local
from shoal.embedding.engines.init import initial_rows
from shoal.embedding.engines.local import make_local
from shoal.embedding.engines.native import Native
from shoal.embedding.engines.reference import Reference
from shoal.embedding.rows.table import Init, Table
from shoal.kernels.core import has_core
from shoal.optimizers.row_optimizer import DEFINITIONS, RowOptimizer

needs_core = pytest.mark.skipif(not has_core(), reason="the native core is not built")

tables = st.builds(
    Table,
    name=st.sampled_from(["a", "items"]),
    dim=st.sampled_from([1, 3, 4, 16, 17, 32, 64, 130]),
    rows=st.sampled_from([None, 1, 7, 300]),
    init=st.builds(
        Init,
        kind=st.sampled_from(["uniform", "normal", "xavier", "xavier_normal", "constant"]),
        scale=st.floats(0.01, 1.0),
    ),
    padding=st.sampled_from([None, 0]),
)


def some_optimizer(name: str, **given) -> RowOptimizer:
    """With those of the hyper-parameters given that it has."""
    own = DEFINITIONS[name].defaults
    return RowOptimizer(name, **{key: value for key, value in given.items() if key in own})


optimizers = st.builds(
    some_optimizer,
    name=st.sampled_from(list(DEFINITIONS)),
    weight_decay=st.sampled_from([None, 0.0, 0.1]),
    clip=st.sampled_from([None, 0.5]),
    initial_accumulator_value=st.sampled_from([0.0, 0.1]),
    l1=st.sampled_from([0.0, 0.01]),
    l2=st.sampled_from([0.0, 0.1]),
    beta=st.sampled_from([0.0, 1.0]),
)


def random_push(table: Table, n: int, generator: torch.Generator) -> tuple[torch.Tensor, ...]:
    bound = table.rows or 50
    ids = torch.randint(0, bound, (n,), generator=generator)
    if table.rows is None:
        ids = ids * 0x1234567890ABCDE - 77  # wraps: spreads over all 64-bit ids
    return ids, torch.randn(n, table.dim, generator=generator)


@needs_core
@settings(max_examples=150, deadline=None)
@given(
    table=tables,
    optimizer=optimizers,
    sizes=st.lists(st.sampled_from([0, 1, 5, 40, 200]), min_size=1, max_size=4),
    seed=st.integers(0, 2**32),
)
def test_native_equals_reference(table, optimizer, sizes, seed):
    generator = torch.Generator().manual_seed(seed)
    native = Native(table, optimizer, seed, threads=1)
    reference = Reference(table, optimizer, seed)
    for n in sizes:
        ids, grads = random_push(table, n, generator)
        assert torch.allclose(native.pull(ids), reference.pull(ids), rtol=1e-4, atol=1e-4)
        native.push(ids, grads, 0.05)
        reference.push(ids, grads, 0.05)
    assert native.step == reference.step == len(sizes)
    ours, theirs = list(native.export(50)), list(reference.export(50))
    assert len(ours) == len(theirs)
    for left, right in zip(ours, theirs):
        assert torch.equal(left.ids, right.ids)
        # rmsprop magnifies the rounding of sums that are almost 0.
        torch.testing.assert_close(left.values, right.values, rtol=1e-3, atol=1e-3)
        for key in right.state:
            torch.testing.assert_close(left.state[key], right.state[key], rtol=1e-3, atol=1e-4)


@needs_core
@settings(max_examples=60, deadline=None)
@given(table=tables, seed=st.integers(0, 2**63))
def test_initial_values_have_the_same_bits(table, seed):
    native = Native(table, RowOptimizer("adam"), seed)
    ids = torch.arange(table.rows or 40)
    if table.rows is None:
        ids = ids * 0x2345678901ABCDE - 10**15
    assert torch.equal(native.pull(ids), initial_rows(table, seed, ids))


@needs_core
@pytest.mark.parametrize("rows", [3000, None])
@pytest.mark.parametrize("name", ["adagrad", "adam", "rowwise_adagrad"])
def test_results_do_not_depend_on_the_number_of_threads(rows, name):
    table = Table("t", 16, rows)
    stores = [Native(table, RowOptimizer(name, clip=3.0), 1, threads=t) for t in (1, 2, 3, 5)]
    generator = torch.Generator().manual_seed(5)
    for _ in range(3):
        # skewed, so that some rows have long lists of gradients
        ids = (torch.rand(90000, generator=generator) ** 3 * 3000).long()
        grads = torch.randn(90000, 16, generator=generator)
        for store in stores:
            store.push(ids, grads, 0.1)
    first, *others = [next(iter(store.export())) for store in stores]
    for other in others:
        assert torch.equal(first.ids, other.ids)
        assert torch.equal(first.values, other.values)
        assert all(torch.equal(first.state[k], other.state[k]) for k in first.state)
    many = torch.randint(0, 3000, (90000,), generator=generator)
    assert all(torch.equal(stores[0].pull(many), store.pull(many)) for store in stores[1:])


@needs_core
def test_a_table_too_large_for_a_slot_per_row():
    """Above a few million rows duplicates are found by hashing instead."""
    table = Table("big", 1, 5_000_000, Init("constant", 1.0))
    native = Native(table, RowOptimizer("sgd"), 0)
    ids = torch.tensor([4_999_999, 0, 4_999_999, 123_456])
    native.push(ids, torch.tensor([[1.0], [2.0], [3.0], [4.0]]), 1.0)
    assert native.pull(ids).flatten().tolist() == [-3.0, -1.0, -3.0, -3.0]
    assert native.pull(torch.tensor([1])).item() == 1.0


@needs_core
def test_a_growing_table_keeps_every_id_while_it_grows():
    table = Table("t", 2, None, Init("constant", 0.0))
    native = Native(table, RowOptimizer("sgd"), 0)
    generator = torch.Generator().manual_seed(3)
    known = torch.empty(0, dtype=torch.int64)
    for _ in range(25):
        fresh = torch.randint(-(2**62), 2**62, (8000,), generator=generator).unique()
        native.push(fresh, fresh.remainder(1000).float()[:, None].expand(-1, 2) * -1, 1.0)
        known = torch.cat([known, fresh])
    known = known.unique()
    assert len(native) == len(known)
    assert torch.equal(native.pull(known)[:, 1], known.remainder(1000).float())
    chunks = list(native.export(30000))
    assert torch.equal(torch.cat([c.ids for c in chunks]), known)
    held = torch.cat([c.values for c in chunks])
    assert torch.equal(held[:, 0], known.remainder(1000).float())
    assert native.memory <= len(native) * (2 * 4 + 24)
    absent = torch.randint(-(2**62), 2**62, (1000,), generator=generator)
    absent = absent[~torch.isin(absent, known)]
    assert torch.equal(native.pull(absent), torch.zeros(len(absent), 2))


@needs_core
def test_many_tables_in_one_call_equal_one_by_one():
    make = [Table("a", 4, 10), Table("b", 16, None), Table("c", 64, 1000)]
    together = [Native(t, RowOptimizer("adagrad"), 3, threads=2) for t in make]
    alone = [Native(t, RowOptimizer("adagrad"), 3) for t in make]
    ids = [torch.randint(0, 10, (n,)) for n in (5, 0, 20000)]
    grads = [torch.randn(len(i), t.dim) for i, t in zip(ids, make)]
    Native.push_many(together, ids, grads, 0.1)
    for store, i, g in zip(alone, ids, grads):
        store.push(i, g, 0.1)
    every = [torch.arange(10)] * 3
    for left, store, i in zip(Native.pull_many(together, every), alone, every):
        assert torch.equal(left, store.pull(i))
    with pytest.raises(ValueError, match="'a' has no row 10"):
        Native.pull_many(together, [torch.tensor([10]), ids[1], ids[2]])


@needs_core
@pytest.mark.parametrize("rows", [200, None])
def test_readers_never_see_half_a_step(rows):
    """Every step adds 1 to every row: a pull that mixes two steps would show two values."""
    table = Table("t", 2048, rows, Init("constant", 0.0))  # wide: enough work for two threads
    store = Native(table, RowOptimizer("sgd"), 0, threads=2)
    ids = torch.arange(200)
    grads = torch.full((200, 2048), -1.0)
    failures: list[str] = []
    done = threading.Event()

    def read() -> None:
        last = 0.0
        while not done.is_set():
            seen = store.pull(ids)
            low, high = seen.min().item(), seen.max().item()
            if low != high or low < last:
                failures.append(f"{low} to {high} after {last}")
                return
            last = low

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(50):
        store.push(ids, grads, 1.0)
    done.set()
    for reader in readers:
        reader.join()
    assert failures == []
    assert store.pull(ids).unique().tolist() == [50.0]


def _push_in_child(store, ids, grads, results):
    store.push(ids, grads, 0.1)
    results.put(store.pull(ids[:10]).tolist())


@needs_core
def test_a_forked_child_can_use_its_copy():
    """Threads do not survive a fork; the child must make its own rather than wait for ever."""
    store = Native(Table("t", 32, 5000), RowOptimizer("adagrad"), 0, threads=2)
    ids, grads = torch.randint(0, 5000, (20000,)), torch.randn(20000, 32)
    store.push(ids, grads, 0.1)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_push_in_child, args=(store, ids, grads, results))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    from_child = results.get(timeout=20)
    child.join(timeout=20)
    store.push(ids, grads, 0.1)
    assert from_child == store.pull(ids[:10]).tolist()


def test_without_the_core_one_warning_says_what_it_costs(monkeypatch):
    monkeypatch.setattr("shoal.kernels.core.load_core", lambda: None)
    monkeypatch.setattr("shoal.kernels.tables._core", None)
    local._warn_once.cache_clear()
    with pytest.warns(RuntimeWarning, match="without its native core") as caught:
        stores = [make_local(Table("t", 2, 3), RowOptimizer("sgd"), 0) for _ in range(3)]
    assert len(caught) == 1
    assert all(isinstance(store, Reference) for store in stores)
    with pytest.raises(ValueError, match="the native core is not built"):
        make_local(Table("t", 2, 3), RowOptimizer("sgd"), 0, backend="native")

"""A push that follows a pull of the same ids knows their rows: never the wrong ones."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.embedding.engines.native import Native
from shoal.embedding.engines.reference import Reference
from shoal.embedding.rows.admission import Admission, Shrink
from shoal.embedding.rows.table import Init, Table
from shoal.kernels.core import has_core
from shoal.optimizers.row_optimizer import RowOptimizer

# Only the native core remembers rows; the reference in torch has nothing to test here.
pytestmark = pytest.mark.skipif(not has_core(), reason="the native core is not built")

ZEROS = Table("t", 2, None, Init("constant", 0.0))
IDS = torch.arange(100) * 0x123456789ABCDEF - 7  # more than the fewest that are remembered


def counting_store(admission: Admission | None = None) -> Native:
    """Every occurrence in a push adds 1 to its row."""
    return Native(ZEROS, RowOptimizer("sgd"), 0, admission, threads=1)


def push(store: Native, ids: torch.Tensor) -> None:
    store.push(ids, torch.full((len(ids), 2), -1.0), 1.0)


def pulled(store: Native, ids: torch.Tensor) -> list[float]:
    return store.pull(ids)[:, 1].tolist()


def test_rows_that_were_dropped_between_pull_and_push_begin_anew():
    store = counting_store(Admission())
    push(store, IDS)
    assert pulled(store, IDS) == [1.0] * 100
    assert store.shrink(Shrink(min_score=2.0)) == 100
    others = IDS + 1
    for _ in range(3):
        push(store, others)  # takes the dropped rows' places
    push(store, IDS)
    assert pulled(store, IDS) == [1.0] * 100
    assert pulled(store, others) == [3.0] * 100
    assert len(store) == 200


def test_rows_inserted_between_pull_and_push_are_found():
    store = counting_store()
    assert pulled(store, IDS) == [0.0] * 100
    push(store, IDS[40:60].flip(0))
    push(store, IDS)
    assert pulled(store, IDS) == [1.0] * 40 + [2.0] * 20 + [1.0] * 40
    assert len(store) == 100


@pytest.mark.parametrize("grown", [False, True])
def test_an_index_that_grows_after_the_pull(grown):
    store = counting_store()
    push(store, IDS)
    store.pull(IDS)
    if grown:
        push(store, torch.arange(20_000))
    push(store, IDS)
    assert pulled(store, IDS) == [2.0] * 100


def test_other_ids_between_the_same_ends():
    store = counting_store()
    push(store, IDS)
    mixed = torch.cat([IDS[:1], IDS[1:50].flip(0), IDS[50:98] + 3, IDS[98:]])
    store.pull(IDS)
    push(store, mixed)
    assert pulled(store, IDS) == [2.0] * 50 + [1.0] * 48 + [2.0] * 2
    assert pulled(store, IDS[50:98] + 3) == [1.0] * 48


actions = st.lists(
    st.tuples(st.sampled_from(["pull", "pull", "push", "push", "shrink"]), st.integers(0, 5)),
    min_size=5,
    max_size=20,
)


@settings(max_examples=80, deadline=None)
@given(actions=actions, counted=st.booleans(), seed=st.integers(0, 2**32))
def test_any_order_of_pulls_pushes_and_evictions_equals_reference(actions, counted, seed):
    generator = torch.Generator().manual_seed(seed)
    table = Table("t", 3, None, Init("uniform", 0.5), padding=4)
    admission = Admission(threshold=2) if counted else None
    rule = Shrink(capacity=30, order="lru") if counted else Shrink(min_norm=0.5)
    native = Native(table, RowOptimizer("adagrad"), 1, admission, threads=1)
    reference = Reference(table, RowOptimizer("adagrad"), 1, admission)
    batches = [torch.randint(0, 80, (n,), generator=generator) for n in (40, 50, 60, 70, 20)]
    batches.append(torch.cat(batches[:2]))
    for action, which in actions:
        ids = batches[which]
        if action == "pull":
            torch.testing.assert_close(native.pull(ids), reference.pull(ids), rtol=1e-4, atol=1e-4)
        elif action == "push":
            grads = torch.randn(len(ids), 3, generator=generator)
            native.push(ids, grads, 0.1)
            reference.push(ids, grads, 0.1)
        else:
            assert native.shrink(rule) == reference.shrink(rule)
    every = torch.arange(80)
    torch.testing.assert_close(native.pull(every), reference.pull(every), rtol=1e-4, atol=1e-4)
    assert len(native) == len(reference)


def test_pulls_by_several_threads_change_no_bits():
    """Each thread of a pull remembers its share; a push by any number joins them."""
    table = Table("t", 16, None)
    stores = [Native(table, RowOptimizer("adagrad"), 1, threads=t) for t in (1, 1, 2, 5)]
    generator = torch.Generator().manual_seed(5)
    for _ in range(3):
        ids = (torch.rand(90000, generator=generator) ** 3 * 60000).long()
        grads = torch.randn(90000, 16, generator=generator)
        for number, store in enumerate(stores):
            if number > 0:  # the first one has nothing to remember
                store.pull(ids)
            store.push(ids, grads, 0.1)
    first, *others = [next(iter(store.export())) for store in stores]
    for other in others:
        assert torch.equal(first.ids, other.ids)
        assert torch.equal(first.values, other.values)
        assert torch.equal(first.state["sum"], other.state["sum"])


def test_readers_at_once_do_not_disturb_a_writer():
    store = counting_store()
    done = threading.Event()

    def read(offset: int) -> None:
        while not done.is_set():
            store.pull(IDS.roll(offset))

    readers = [threading.Thread(target=read, args=(offset,)) for offset in (0, 0, 1, 50)]
    for reader in readers:
        reader.start()
    for _ in range(200):
        store.pull(IDS)
        push(store, IDS)
        push(store, IDS.roll(1))
    done.set()
    for reader in readers:
        reader.join()
    assert pulled(store, IDS) == [400.0] * 100

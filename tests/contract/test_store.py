"""The contract of a leaf store, run on every engine. A new engine joins by adding its name."""

import pytest
import torch

from shoal.embedding.engines.init import initial_rows
from shoal.embedding.engines.local import make_local
from shoal.embedding.rows.store import Rows, Store
from shoal.embedding.rows.table import Init, Table
from shoal.kernels.core import has_core
from shoal.optimizers.row_optimizer import DEFINITIONS, RowOptimizer

needs_core = pytest.mark.skipif(not has_core(), reason="the native core is not built")
ENGINES = ["reference", "device", pytest.param("native", marks=needs_core)]
SEED = 7
GROWING_IDS = [-(2**63), -5, 0, 3, 2**40, 2**63 - 1]


def make(engine: str, rows: int | None = 50, dim: int = 4, name: str = "sgd", **more) -> Store:
    if engine == "device" and rows is None:
        pytest.skip("tables on a device are fixed")
    table = Table("items", dim, rows, Init("uniform", 0.5), more.pop("padding", None))
    return make_local(table, RowOptimizer(name, **more), SEED, backend=engine)


def all_rows(store: Store, chunk_rows: int = 1 << 20) -> Rows:
    chunks = list(store.export(chunk_rows))
    keys = chunks[0].state
    return Rows(
        torch.cat([c.ids for c in chunks]),
        torch.cat([c.values for c in chunks]),
        {k: torch.cat([c.state[k] for c in chunks]) for k in keys},
    )


@pytest.mark.parametrize("engine", ENGINES)
class TestStore:
    @pytest.mark.parametrize("rows", [50, None])
    def test_pull_before_any_push_reads_initial_values(self, engine, rows):
        store = make(engine, rows)
        ids = torch.tensor([3, 49, 3, 0])
        assert torch.equal(store.pull(ids), initial_rows(store.table, SEED, ids))
        assert store.pull(torch.empty(0, dtype=torch.int64)).shape == (0, 4)

    @pytest.mark.parametrize("rows", [50, None])
    def test_pull_gives_a_fresh_leaf(self, engine, rows):
        store = make(engine, rows)
        ids = torch.tensor([1, 2])
        before = store.pull(ids)
        before.requires_grad_()
        with torch.no_grad():
            before.zero_()
        assert not store.pull(ids).requires_grad
        assert torch.equal(store.pull(ids), initial_rows(store.table, SEED, ids))

    @pytest.mark.parametrize("rows", [5, 50, None])
    def test_push_sums_duplicates_and_leaves_others(self, engine, rows):
        store = make(engine, rows)
        every = torch.arange(5)
        before = store.pull(every)
        grads = torch.tensor([[1.0] * 4, [2.0] * 4, [4.0] * 4])
        store.push(torch.tensor([2, 0, 2]), grads, lr=0.5)
        want = before.clone()
        want[0] -= 0.5 * 2.0
        want[2] -= 0.5 * 5.0
        torch.testing.assert_close(store.pull(every), want)
        assert torch.equal(store.pull(every)[[1, 3, 4]], before[[1, 3, 4]])

    @pytest.mark.parametrize("rows", [50, None])
    def test_an_empty_push_counts_a_step(self, engine, rows):
        first, second = make(engine, rows, name="adam"), make(engine, rows, name="adam")
        nothing = torch.empty(0, dtype=torch.int64), torch.empty(0, 4)
        assert first.step == 0
        first.push(*nothing, lr=0.1)
        assert first.step == 1
        second.step = 1
        for store in (first, second):
            store.push(torch.tensor([4]), torch.ones(1, 4), lr=0.1)
        assert torch.equal(first.pull(torch.tensor([4])), second.pull(torch.tensor([4])))
        # SparseAdam at step 2 with a first gradient of 1: m = 0.1, v = 0.001
        size = 0.1 * (1 - 0.999**2) ** 0.5 / (1 - 0.9**2)
        want = initial_rows(first.table, SEED, torch.tensor([4])) - size * 0.1 / 0.001**0.5
        torch.testing.assert_close(first.pull(torch.tensor([4])), want)

    @pytest.mark.parametrize("rows", [50, None])
    def test_padding_reads_zeros_and_never_learns(self, engine, rows):
        store = make(engine, rows, name="adagrad", padding=0)
        store.push(torch.tensor([0, 1, 0]), torch.ones(3, 4), lr=0.1)
        assert torch.equal(store.pull(torch.tensor([0])), torch.zeros(1, 4))
        assert store.pull(torch.tensor([1])).abs().sum() > 0
        held = all_rows(store)
        assert rows is None or torch.equal(held.values[0], torch.zeros(4))
        assert rows is not None or held.ids.tolist() == [1]
        damaged = Rows(held.ids, held.values + 1, held.state)
        store.restore(damaged)
        assert torch.equal(store.pull(torch.tensor([0])), torch.zeros(1, 4))

    def test_ids_outside_a_fixed_table_are_refused(self, engine):
        store = make(engine)
        for wrong in (-1, 50, 2**62):
            ids = torch.tensor([3, wrong])
            with pytest.raises(ValueError, match=rf"'items' has no row {wrong}: it has 50 rows"):
                store.pull(ids)
            before = store.pull(torch.arange(50))
            with pytest.raises(ValueError, match=rf"no row {wrong}"):
                store.push(ids, torch.ones(2, 4), lr=1.0)
            assert torch.equal(store.pull(torch.arange(50)), before)
            assert store.step == 0

    def test_what_is_not_ids_or_gradients_is_refused(self, engine):
        store = make(engine)
        with pytest.raises(ValueError, match=r"must be torch\.int64"):
            store.pull(torch.tensor([1], dtype=torch.int32))
        for grads in (torch.ones(1, 5), torch.ones(2, 4), torch.ones(1, 4, dtype=torch.float64)):
            with pytest.raises(ValueError, match=r"gradients are .* \[1, 4\]"):
                store.push(torch.tensor([1]), grads, lr=1.0)

    def test_a_growing_table_takes_any_id(self, engine):
        store = make(engine, rows=None)
        ids = torch.tensor(GROWING_IDS)
        before = store.pull(ids)
        assert list(store.export()) == []  # reading stores nothing
        assert bool(store)
        store.push(ids.flip(0), torch.ones(len(ids), 4), lr=0.25)
        torch.testing.assert_close(store.pull(ids), before - 0.25)
        assert all_rows(store).ids.tolist() == GROWING_IDS

    @pytest.mark.parametrize("rows", [50, None])
    @pytest.mark.parametrize("name", DEFINITIONS)
    def test_export_and_restore_continue_bit_for_bit(self, engine, rows, name):
        generator = torch.Generator().manual_seed(1)
        first, second = make(engine, rows, name=name), make(engine, rows, name=name)

        def push(store, seed):
            generator.manual_seed(seed)
            ids = torch.randint(0, 50, (30,), generator=generator)
            store.push(ids, torch.randn(30, 4, generator=generator), lr=0.1)

        push(first, 1)
        push(first, 2)
        chunks = list(first.export(chunk_rows=7))
        assert all(len(c.ids) <= 7 for c in chunks)
        ids = torch.cat([c.ids for c in chunks])
        assert bool((ids[1:] > ids[:-1]).all())
        assert rows is None or ids.tolist() == list(range(50))
        for chunk in reversed(chunks):
            second.restore(chunk)
        second.step = first.step
        for store in (first, second):
            push(store, 3)
        left, right = all_rows(first), all_rows(second)
        assert torch.equal(left.values, right.values)
        assert left.state.keys() == right.state.keys() == DEFINITIONS[name].state.keys()
        assert all(torch.equal(left.state[k], right.state[k]) for k in left.state)

    @pytest.mark.parametrize("rows", [50, None])
    def test_a_chunk_that_does_not_fit_changes_nothing(self, engine, rows):
        store = make(engine, rows, name="adagrad")
        store.push(torch.arange(6), torch.ones(6, 4), lr=0.1)
        good = all_rows(store)
        ids, values, state = good.ids[:4], good.values[:4] + 1, {"sum": good.state["sum"][:4] + 1}
        damaged = [
            Rows(ids[:3], values, state),
            Rows(ids.flip(0), values, state),
            Rows(ids.int(), values, state),
            Rows(torch.tensor([0, 1, 1, 2]), values, state),
            Rows(ids, values[:, :3], state),
            Rows(ids, values.double(), state),
            Rows(ids, values, {}),
            Rows(ids, values, {"sum": state["sum"][:, 0]}),
            Rows(ids, values, {**state, "extra": state["sum"]}),
        ]
        if rows is not None:
            damaged.append(Rows(torch.tensor([0, 1, 2, 50]), values, state))
        for chunk in damaged:
            with pytest.raises(ValueError, match="'items'"):
                store.restore(chunk)
        after = all_rows(store)
        assert torch.equal(after.values, good.values)
        assert torch.equal(after.state["sum"], good.state["sum"])

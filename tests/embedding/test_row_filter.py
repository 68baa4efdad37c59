"""Bloom filters of growing tables: known bytes, out of a table and back, and in checkpoints."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from captured_warnings import listening
from click_batches import global_batch, make_model
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import run_ranks
from safetensors.torch import load as parse_tensors

from shoal.config.row_rules import RowsSection
from shoal.config.schema import OptimizerSection, StrategySection
from shoal.distributed.world import World
from shoal.embedding.engines.native import Native
from shoal.embedding.engines.reference import Reference
from shoal.embedding.engines.row_files import RowFilesRead, chunks, take_over, warn_lost
from shoal.embedding.rows.admission import Admission, Filter, Pending
from shoal.embedding.rows.table import Init, Table
from shoal.kernels.core import has_core
from shoal.optimizers.row_optimizer import RowOptimizer
from shoal.training.checkpoint.writing import Checkpoints, Snapshot, restore_into, take_snapshot
from shoal.training.strategies import make_strategy

# Without the core there are no Bloom filters: ids are counted exactly (see Admission).
pytestmark = pytest.mark.skipif(not has_core(), reason="the native core is not built")
TABLE = Table("ads", 4, None, Init("uniform", 0.5))
SIZE = 32 * 20
MASK = (1 << 64) - 1


def make(size: int = SIZE, threshold: float = 3.0, kind: Any = Native) -> Any:
    return kind(TABLE, RowOptimizer("adagrad"), 3, Admission(threshold, bloom_counters=size))


def teach(store: Any, begin: int, end: int) -> None:
    """Steps of some 60 of 400 ids, few of them often; counts fade every fifth step."""
    for step in range(begin, end):
        random = torch.Generator().manual_seed(step)
        ids = (torch.rand(60, generator=random) ** 2 * 400).long() * 7919 - 1000
        store.push(ids, torch.randn(60, 4, generator=random), 0.1)
        if step % 5 == 4:
            store.decay(0.75)


def everything(store: Any) -> dict[str, list[Any]]:
    """What a checkpoint would hold, in one piece."""
    found: dict[str, list[Any]] = {}
    for part in chunks(store):
        for key, value in part.items():
            found.setdefault(key, []).append(value.tolist())
    return found


def filter_of(store: Any) -> torch.Tensor:
    return torch.cat([part.counters for part in store.export_filter()])


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    with listening() as said:
        yield said


# ---- a table's filter ---------------------------------------------------------------------------


def mix(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def places(id_: int, size: int) -> list[int]:
    """The four bytes that an id counts in, of a filter of 32 equal parts."""
    step = 0x9E3779B97F4A7C15
    hashed, share = mix(id_ + step & MASK), size // 32
    spread = mix(hashed + step & MASK)
    first, stride = spread & 0xFFFFFFFF, spread >> 32 | 1
    inside = [(first + k * stride & 0xFFFFFFFF) * share >> 32 for k in range(4)]
    return [(hashed & 31) * share + place for place in inside]


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 1000])
@pytest.mark.parametrize("threshold", [0.0, 3.0])
def test_the_size_is_known_without_a_table(size: int, threshold: float) -> None:
    """To ranks that hold nothing of one, too."""
    store = make(size, threshold)
    assert store.filter_facts[0] == store.core.core.bloom_bytes


def test_the_bytes_are_those_of_a_counting_filter() -> None:
    """Only the lowest of an id's counters rise, at most to 255. Whoever changes what is expected
    here changes the layout: kBloomLayout must be raised, or old filters are misread."""
    store, counters, admitted = make(threshold=255), [0] * SIZE, set()
    for step in range(12):
        random = torch.Generator().manual_seed(step)
        ids = torch.randint(-150, 150, (100,), generator=random)
        if step == 5:
            ids = torch.tensor([7] * 90 + [8] * 300)
        store.push(ids, torch.zeros(len(ids), 4), 0.1)
        for id_ in dict.fromkeys(ids.tolist()):  # in order of arrival
            if id_ in admitted:
                continue
            at = places(id_, SIZE)
            count = min(255, min(counters[place] for place in at) + ids.tolist().count(id_))
            for place in at:
                counters[place] = max(counters[place], count)
            admitted |= {id_} if count == 255 else set()
    assert filter_of(store).tolist() == counters and admitted == {8}
    (part,) = store.export_filter()
    assert (part.start, part.size, part.layout) == (0, SIZE, 1)
    assert [(p.start, len(p.counters)) for p in store.export_filter(300)] == [
        (0, 300),
        (300, 300),
        (600, 40),
    ]
    assert list(store.export_pending()) == []


@pytest.mark.parametrize("chunk_bytes", [1, 7, SIZE])
def test_a_table_goes_on_where_its_filter_came_from(chunk_bytes: int) -> None:
    first, second = make(), make()
    teach(first, 0, 9)
    for rows in first.export():
        second.restore(rows)
    for part in first.export_filter(chunk_bytes):
        second.restore_filter(part)
    second.step, held = first.step, len(first)
    for store in (first, second):
        teach(store, 9, 20)
    assert everything(first) == everything(second) and len(first) > held > 0


def test_exact_counts_go_on_in_a_filter() -> None:
    store, ids = make(1 << 16), torch.tensor([1, 2, 3])
    shows = torch.tensor([2.0, 1.9, 0.5])
    store.restore_pending(Pending(ids, shows, torch.zeros(3), torch.ones(3).long()))
    store.push(ids, torch.zeros(3, 4), 0.1)  # counts 3, 2 and 1
    assert [rows.ids.tolist() for rows in store.export()] == [[1]]
    assert [int(filter_of(store)[places(i, 1 << 16)].min()) for i in (1, 2, 3)] == [3, 2, 1]


@pytest.mark.parametrize("threshold, kind", [(0.0, Native), (3.0, Reference)])
def test_who_has_no_filter(threshold: float, kind: Any) -> None:
    """Every id has its row at once; or it is counted exactly, in plain torch."""
    store = make(threshold=threshold, kind=kind)
    teach(store, 0, 3)
    assert list(store.export_filter()) == [] and "bloom.counters" not in everything(store)
    (part,) = make().export_filter()
    before = everything(store)
    with pytest.raises(ValueError, match=r"table 'ads': a Bloom filter .* the table has none"):
        store.restore_filter(part)
    assert everything(store) == before


# ---- what does not fit --------------------------------------------------------------------------


@st.composite
def damaged(draw: Any, good: Filter) -> Filter:
    """A part with another size, layout, place, length, rank or type."""
    counters, any_int = good.counters, st.integers(-(2**63), 2**63 - 1)
    changes: dict[str, Any] = {
        "type": {"counters": counters.to(draw(st.sampled_from([torch.int8, torch.int64])))},
        "deep": {"counters": counters[None]},
        "scalar": {"counters": counters[0]},
        "empty": {"counters": counters[:0]},
        "long": {"counters": torch.cat([counters, counters[: draw(st.integers(1, SIZE))]])},
        "start": {"start": draw(any_int.filter(lambda x: x != 0))},
        "size": {"size": draw(any_int.filter(lambda x: x != SIZE))},
        "layout": {"layout": draw(any_int.filter(lambda x: x != good.layout))},
    }
    return dataclasses.replace(good, **changes[draw(st.sampled_from(sorted(changes)))])


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_damaged_filters_change_nothing(data: Any) -> None:
    store = make()
    teach(store, 0, 5)
    before = everything(store)
    good = Filter(filter_of(store) + 1, 0, SIZE, 1)
    with pytest.raises(ValueError, match="table 'ads'"):
        store.restore_filter(data.draw(damaged(good)))
    assert everything(store) == before


@pytest.mark.parametrize(
    "facts, said",
    [
        (torch.tensor([0, SIZE, 1, 0]), r"facts are torch.int64 \[4\]"),
        (torch.tensor([0.0, SIZE, 1, 0, 1]), "facts are torch.float32"),
        (torch.tensor([[0, SIZE, 1, 0, 1]]), "facts are"),
        (torch.tensor([0, SIZE, 1, 1, 1]), "part 1 of 1"),
        (torch.tensor([0, SIZE, 1, -1, 1]), "part -1 of 1"),
        (torch.tensor([0, SIZE, 1, 0, 0]), "part 0 of 0"),
        (torch.tensor([1, SIZE, 1, 0, 1]), f"bytes 1 to {SIZE + 1} of a Bloom filter of {SIZE}"),
        (torch.tensor([-1, SIZE, 1, 0, 1]), "bytes -1 to"),
        (torch.tensor([0, 5, 1, 0, 1]), "of a Bloom filter of 5"),
        (None, "bloom.counters and bloom.facts belong together"),
    ],
)
def test_damaged_files_change_nothing(facts: torch.Tensor | None, said: str) -> None:
    """Nor do the rows of such a file come in."""
    store, other = make(), make()
    teach(store, 0, 5)
    teach(other, 5, 12)
    before, *rest = everything(store), *chunks(other)
    file = rest[0] | {"bloom.counters": filter_of(other)}
    file |= {} if facts is None else {"bloom.facts": facts}
    with pytest.raises(ValueError, match=said):
        take_over(store, file, RowFilesRead())
    assert everything(store) == before


# ---- checkpoints --------------------------------------------------------------------------------


def rules(**admission: Any) -> RowsSection:
    """Ids that come four times have a row; a filter so small that it often errs."""
    return RowsSection.model_validate(
        {
            "admission": {"threshold": 4.0, "bloom_counters": 1000, **admission},
            "counter_decay": {"every": 3, "rate": 0.75},
            "shrink": {"every": 4, "max_age": 3, "min_score": 0.5},
        }
    )


def strategy_of(section: RowsSection, name: Any = "single", world: World | None = None) -> Any:
    strategy = make_strategy(StrategySection(name=name), world or World())
    strategy.setup(
        make_model("DNN", "grows"), OptimizerSection(name="adagrad", lr=0.5), seed=1, rows=section
    )
    return strategy


def train(strategy: Any, begin: int, end: int) -> list[torch.Tensor]:
    return [strategy.train_step(global_batch(k, "one", "grows")) for k in range(begin, end)]


def without_filter(snapshot: Snapshot) -> Snapshot:
    """As it was written before filters were in checkpoints."""
    kept = {
        name: data
        for name, data in snapshot.files.items()
        if "bloom.counters" not in parse_tensors(data)  # type: ignore[arg-type]
    }
    assert len(kept) == len(snapshot.files) - 1
    return Snapshot(snapshot.state, kept)


def test_a_snapshot_goes_on_bit_for_bit(warnings: list[str]) -> None:
    strategy, other, anew = strategy_of(rules()), strategy_of(rules()), strategy_of(rules())
    train(strategy, 1, 7)
    saved = take_snapshot(strategy, {})
    restore_into(other, saved)
    assert warnings == []
    assert train(strategy, 7, 14) == train(other, 7, 14)
    files = [take_snapshot(one, {}).files for one in (strategy, other)]
    assert files[0] == files[1]
    restore_into(anew, without_filter(saved))
    assert len(warnings) == 1
    train(anew, 7, 14)
    assert take_snapshot(anew, {}).files != files[0], "the case shows nothing"


def test_going_back_forgets_later_counts() -> None:
    strategy = strategy_of(rules())
    train(strategy, 1, 4)
    saved = take_snapshot(strategy, {})
    train(strategy, 4, 9)
    restore_into(strategy, saved)
    assert take_snapshot(strategy, {}).files == saved.files
    restore_into(strategy, without_filter(saved))
    assert not filter_of(strategy.stores["slots"]).any()


@pytest.mark.parametrize(
    "now, why",
    [
        ({"bloom_counters": 2000}, r"is 1 × 1024 bytes \(parts × bytes\), here it is 1 × 2016"),
        ({"bloom_counters": 0}, "is 1 × 1024 bytes .*, here ids are counted exactly"),
        ({"bloom_counters": 1020}, None),  # rounded up to the same
        ({"threshold": 2.0}, None),
        ({"threshold": 0.0}, None),  # nobody is without a row
    ],
)
def test_other_rules_of_a_resumed_run(
    now: dict[str, Any], why: str | None, warnings: list[str]
) -> None:
    """Said once, by the table's name; what has a row goes on."""
    strategy, other = strategy_of(rules()), strategy_of(rules(**now))
    train(strategy, 1, 7)
    restore_into(other, take_snapshot(strategy, {}))
    assert len(warnings) == (why is not None)
    if why is not None:
        assert warnings[0].startswith("table slots: ids without a row are counted from nothing ag")
        assert re.search(why, warnings[0])
    ids = global_batch(3, "one", "grows").flat_ids("slots").reshape(-1)
    assert torch.equal(other.stores["slots"].pull(ids), strategy.stores["slots"].pull(ids))
    train(other, 7, 9)


def test_a_checkpoint_of_exact_counts_begins_a_filter(warnings: list[str]) -> None:
    """Nothing is lost: an id needs no more shows than it would have."""
    strategy, other = (
        strategy_of(rules(bloom_counters=0)),
        strategy_of(rules(bloom_counters=1 << 16)),
    )
    train(strategy, 1, 3)
    saved = take_snapshot(strategy, {})
    (pending,) = strategy.stores["slots"].export_pending()
    restore_into(other, saved)
    assert warnings == [] and len(pending.ids) > 50
    found = filter_of(other.stores["slots"])
    for id_, show in zip(pending.ids.tolist(), pending.show.tolist()):
        assert int(found[places(id_, 1 << 16)].min()) >= int(show)


def test_a_filter_of_another_layout_is_told(warnings: list[str]) -> None:
    """A core that counts elsewhere in as many bytes."""
    store = make()
    taken, nothing = RowFilesRead(), next(iter(chunks(make())))
    file = nothing | {"bloom.facts": torch.tensor([0, SIZE, 2, 0, 1])}
    take_over(store, file | {"bloom.counters": torch.ones(SIZE).byte()}, taken)
    warn_lost(store, taken)
    assert len(warnings) == 1 and f"1 × {SIZE} bytes in another order" in warnings[0]
    assert not filter_of(store).any()


def on_ranks(world: World, folder: str) -> dict[str, Any]:
    """Two ranks that are saved and go on; then, from the same checkpoint, with a larger filter."""
    first, second, larger = (
        strategy_of(rules(bloom_counters=size), "ddp", world) for size in (1000, 1000, 2000)
    )

    def teach_slice(strategy: Any, begin: int, end: int) -> None:
        for step in range(begin, end):
            batch = global_batch(step, "one", "grows")
            strategy.train_step(batch.rows(*world.slice(batch.size)))

    teach_slice(first, 1, 7)
    checkpoints = Checkpoints(Path(folder), world)
    checkpoints.save(first, {"step": 7, "best_step": None})
    checkpoints.wait()
    world.barrier()
    with listening() as said:
        snapshot = checkpoints.load_step(7)
        restore_into(second, snapshot)
        before = len(said)
        restore_into(larger, snapshot)
    for strategy in (first, second):
        teach_slice(strategy, 7, 14)
    held = [everything(strategy.stores["slots"]) for strategy in (first, second)]
    return {"same": held[0] == held[1], "filter": held[1]["bloom.counters"], "said": said[before:]}


@pytest.mark.slow
def test_ranks_go_on_and_the_first_speaks_for_all(tmp_path: Path) -> None:
    main, other = run_ranks(on_ranks, 2, tmp_path, str(tmp_path / "checkpoints"))
    assert main["same"] and other["same"]
    assert main["filter"] == other["filter"] and any(main["filter"][0])
    assert len(main["said"]) == 1 and "here it is 1 × 2016" in main["said"][0]
    assert other["said"] == []

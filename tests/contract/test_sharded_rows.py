"""Growing tables with admission, decay and eviction, spread over ranks: as one process does it.

Losses, which ids have a row, rows, their counters and those of ids without a row. (That one process
counts rightly is shown in test_ps_admission, from the batches alone.)
"""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click_batches import global_batch, make_model, walk
from ps_cluster import serving
from ranks import run_ranks
from safetensors.torch import load_file
from torch import Tensor, nn

from shoal.config.row_rules import RowsSection
from shoal.config.schema import OptimizerSection, StrategySection
from shoal.data.batch import Batch
from shoal.distributed.world import World
from shoal.embedding.module import Embeddings
from shoal.embedding.rows.table import Init, Table
from shoal.models.base import ClickModel, Facts
from shoal.training.checkpoint import snapshot
from shoal.training.checkpoint.writing import Checkpoints, restore_into
from shoal.training.strategies import Strategy, make_strategy

STEPS, SAVED = 50, 23
# Coefficients and the decay are exact in binary, so that no count hangs on rounding.
ADMISSION = {"threshold": 7.0, "show_coefficient": 0.25, "click_coefficient": 1.0}
DECAY = {"every": 5, "rate": 0.5}
ALL: dict[str, Any] = {
    "admission": ADMISSION,
    "counter_decay": DECAY,
    "shrink": {"every": 7, "min_score": 2.0, "max_age": 4, "min_norm": 0.18},
}
OWN: dict[str, Any] = {
    **ALL,
    "tables": {"slots_linear": {"threshold": 0.0, "min_norm": 0.02, "min_score": 0.0}},
}
NORM: dict[str, Any] = {"shrink": {"every": 7, "min_norm": 0.25}}  # for which nothing is counted
# name -> model, ids, rules, what the strategy is told; clipping at this norm
Case = tuple[str, str, dict[str, Any], dict[str, Any], float | None]
CASES: dict[str, Case] = {
    "by row": ("DNN", "lists", ALL, {}, None),
    "no prefetch": ("DNN", "one", ALL, {"prefetch": False}, None),
    "two tables": ("WideDeep", "one", OWN, {"tables": {"slots": {"place": "table"}}}, None),
    "whole tables": ("WideDeep", "one", OWN, {"place": "table"}, None),
    "replicas": ("DNN", "lists", ALL, {"place": "replicate"}, None),
    "by norm": ("DNN", "one", NORM, {}, None),
    "clipped": ("DNN", "lists", ALL, {}, 0.3),
    "in vain": ("Wavering", "one", ALL, {}, None),
}
QUICK = ["by row", "two tables", "in vain", "to row"]
RELAY = "by row"  # the case whose checkpoints are looked at
SECTIONS: dict[str, dict[str, Any]] = {
    "row": {"name": "sharded", "place": "row"},
    "table": {"name": "sharded", "place": "table"},
    "replicas": {"name": "sharded", "place": "replicate"},
    "ddp": {"name": "ddp"},
}


class Wavering(ClickModel):
    """Sums of weights, of ids that are looked up in several ways; of some, in vain."""

    def __init__(self) -> None:
        super().__init__(None, Facts())
        table = Table("slots", 2, None, Init("uniform", 0.5))
        fixed = Table("fixed", 2, 50, Init("uniform", 0.5))
        self.embed = Embeddings(slots=table, other=table, fixed=fixed)
        self.linear = nn.Linear(3, 1)
        nn.init.constant_(self.linear.weight, 0.1)
        nn.init.constant_(self.linear.bias, 0.0)
        self.calls = 0

    def logits(self, batch: Batch) -> Tensor:
        self.calls += 1
        slots = batch.flat_ids("slots")
        scores = self.linear(batch.dense["dense"])[:, 0]
        if self.calls % 3 or self.calls < 30:  # later, now and then nothing is looked up at all
            scores = scores + self.embed.field("slots", batch).sum((1, 2))
        if self.calls % 4 == 1:  # ids that the model makes itself: shown, and clicked by nobody
            scores = scores - self.embed.rows("slots", slots[:, :2] + 0).sum((1, 2)) / 2
        if self.calls % 5 == 0:
            scores = scores + self.embed.field("other", batch).sum((1, 2))
        elif self.calls % 2:  # read, and no gradient comes back
            scores = scores + self.embed.field("other", batch).sum((1, 2)).detach()
        fixed = batch.flat_ids("fixed")
        if self.calls % 3 == 1:
            scores = scores + self.embed.field("fixed", batch).sum(1)
        elif self.calls % 3 == 2:  # some of its rows came in vain
            even = (fixed % 2 == 0).nonzero().squeeze(1)
            scores = scores.index_add(0, even, self.embed.rows("fixed", fixed[even]).sum(1))
        return scores


def batch_of(case: Case, step: int) -> Batch:
    batch = global_batch(step, case[1], "grows")
    if case[0] == "Wavering":
        ids = batch.ids["slots"]
        assert isinstance(ids, Tensor)
        batch.ids["other"] = ids.flip(0)[:, 1:3] + 7
        batch.ids["fixed"] = ids[:, 0] % 50
    return batch


def set_up(world: World, case: Case, section: dict[str, Any] | None = None) -> Strategy:
    given = {"name": "sharded", "place": "row", **case[3]} if section is None else section
    strategy = make_strategy(StrategySection.model_validate(given), world)
    model = Wavering() if case[0] == "Wavering" else make_model(case[0], "grows")
    optimizer = OptimizerSection(name="adagrad", lr=0.05)
    if case[0] == "Wavering":  # Adam also moves rows whose gradient is zero
        optimizer = OptimizerSection(name="adam", lr=0.02)
    strategy.setup(
        model, optimizer, seed=1, clip_grad_norm=case[4], rows=RowsSection.model_validate(case[2])
    )
    return strategy


def train(strategy: Strategy, case: Case, begin: int, end: int) -> list[float]:
    return walk(strategy, [batch_of(case, step) for step in range(begin, end)])


def held(strategy: Strategy) -> dict[str, Any]:
    """Table -> of rows: ids, counters, values; of ids without a row: ids, counters. At rank 0."""
    found: dict[str, Any] = {}
    for name, store in strategy.stores.items():
        ids, counters, values, pending = [], [], [], []
        for chunk in store.export(100):
            ids += chunk.ids.tolist()
            names = [one for one in ("show", "click", "last_step") if one in chunk.state]
            counters += list(zip(*(chunk.state[one].tolist() for one in names)))
            values += chunk.values.reshape(-1).tolist()
        if name in strategy.rows.counted:
            for part in store.export_pending(100):  # type: ignore[attr-defined]
                columns = (part.ids, part.show, part.click, part.last_step)
                pending += list(zip(*(column.tolist() for column in columns)))
        found[name] = {"ids": ids, "counters": counters, "pending": pending, "values": values}
    return found


def outcome(strategy: Strategy, case: Case, begin: int = 0, end: int = STEPS) -> dict[str, Any]:
    curve = train(strategy, case, begin, end)
    return {"losses": curve, "held": held(strategy)}


@cache
def alone(name: str) -> dict[str, Any]:
    return outcome(set_up(World(), CASES[name], {"name": "single"}), CASES[name])


@cache
def saved(folder: Path) -> Path:
    """A checkpoint of one process."""
    strategy = set_up(World(), CASES[RELAY], {"name": "single"})
    train(strategy, CASES[RELAY], 0, SAVED)
    return save(strategy, folder / "single")


def save(strategy: Strategy, folder: Path) -> Path:
    """Several files of few rows each."""
    chunk_bytes, snapshot.CHUNK_BYTES = snapshot.CHUNK_BYTES, 2_000
    checkpoints = Checkpoints(folder, strategy.world)
    checkpoints.save(strategy, {"step": SAVED})
    checkpoints.wait()
    strategy.world.barrier()
    snapshot.CHUNK_BYTES = chunk_bytes
    return folder / f"step-{SAVED:09d}"


def go_on(world: World, path: Path, section: dict[str, Any]) -> dict[str, Any]:
    """What comes after a checkpoint."""
    strategy = set_up(world, CASES[RELAY], section)
    restore_into(strategy, Checkpoints(path.parent, world).load_step(SAVED))
    return outcome(strategy, CASES[RELAY], SAVED)


def on_ranks(world: World, names: list[str], path: str, folder: str) -> dict[str, Any]:
    """Everything that ranks are asked for, in one go: processes are slow to start."""
    found: dict[str, Any] = {}
    for name in names:
        if name in CASES:
            strategy = set_up(world, CASES[name])
            found[name] = outcome(strategy, CASES[name])
        if name == "replicas":
            engine = strategy.stores["slots"].engine  # type: ignore[attr-defined]
            chunks = *engine.export(), *engine.export_pending()
            found["replica"] = [str(chunk) for chunk in chunks]
        if name.startswith("to "):
            found[name] = go_on(world, Path(path), SECTIONS[name[3:]])
    strategy = set_up(world, CASES[RELAY])
    train(strategy, CASES[RELAY], 0, SAVED)
    mine = save(strategy, Path(folder))
    found["after a save"] = outcome(strategy, CASES[RELAY], SAVED)
    found["from sharded"] = go_on(world, mine, SECTIONS["row"])
    return found


def check(found: dict[str, Any], expected: dict[str, Any], begin: int = 0) -> None:
    """At rank 0."""
    assert found["losses"] == pytest.approx(expected["losses"][begin:], rel=1e-5)
    for table, one in expected["held"].items():
        mine = found["held"][table]
        for what in ("ids", "counters", "pending"):
            assert [*map(_plain, mine[what])] == [*map(_plain, one[what])], (table, what)
        assert mine["values"] == pytest.approx(one["values"], rel=1e-4, abs=1e-6)


def _plain(one: Any) -> Any:
    return tuple(one) if isinstance(one, list | tuple) else one


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sharded rows")


@cache
def run(size: int, every: bool, folder: Path) -> list[dict[str, Any]]:
    where = folder / f"{size} {every}"
    names = [*CASES, *(f"to {name}" for name in SECTIONS)] if every else QUICK
    return run_ranks(on_ranks, size, where, names, str(saved(folder)), str(where / "saved"))


# Size, and whether every case is run: that takes longer.
RUNS = [
    pytest.param(2, True, marks=pytest.mark.slow),
    pytest.param(3, True, marks=pytest.mark.slow),
]
ranks = pytest.mark.parametrize("size, every", RUNS)
quick = pytest.mark.parametrize("size, every", [(2, False), *RUNS])


def check_ranks(name: str, size: int, every: bool, folder: Path) -> None:
    first, *others = run(size, every, folder)
    check(first[name], alone(name))
    for rank in others:
        assert rank[name]["losses"] == first[name]["losses"]


@pytest.mark.parametrize("name", QUICK[:-1])
def test_two_ranks_equal_single(name: str, folder: Path) -> None:
    check_ranks(name, 2, False, folder)


@ranks
@pytest.mark.parametrize("name", CASES)
def test_equals_single(name: str, size: int, every: bool, folder: Path) -> None:
    check_ranks(name, size, every, folder)


@pytest.mark.parametrize("name", CASES)
def test_one_rank_equals_single(name: str) -> None:
    check(outcome(set_up(World(), CASES[name]), CASES[name]), alone(name))


@pytest.mark.parametrize("name", CASES)
def test_rows_are_admitted_and_evicted_in_the_comparison(name: str) -> None:
    """Rows came and went, and ids wait for theirs."""
    model, kind, _, *rest = CASES[name]
    plain = set_up(World(), (model, kind, {}, *rest), {"name": "single"})  # type: ignore[arg-type]
    without = train(plain, CASES[name], 0, STEPS)
    curve, found = alone(name)["losses"], alone(name)["held"]["slots"]
    assert abs(curve[-1] - without[-1]) > 1e-3 * curve[-1]
    assert 10 < len(found["ids"]) < len(held(plain)["slots"]["ids"])
    if name != "by norm":
        assert len(found["pending"]) > 10
        assert len({click for _, _, click, _ in found["pending"]}) > 2


@ranks
def test_replicas_stay_the_same(size: int, every: bool, folder: Path) -> None:
    assert len({tuple(rank["replica"]) for rank in run(size, every, folder)}) == 1


@quick
@pytest.mark.parametrize("name", ["after a save", "from sharded", QUICK[-1]])
def test_a_checkpoint_continues_on_ranks(name: str, size: int, every: bool, folder: Path) -> None:
    check(run(size, every, folder)[0][name], alone(RELAY), SAVED)


@ranks
@pytest.mark.parametrize("name", SECTIONS)
def test_a_checkpoint_of_one_process_continues_on_ranks(
    name: str, size: int, every: bool, folder: Path
) -> None:
    check(run(size, every, folder)[0][f"to {name}"], alone(RELAY), SAVED)


@quick
@pytest.mark.parametrize("strategy", ["single", "sharded"])
def test_a_checkpoint_of_ranks_continues_on_one_process(
    strategy: str, size: int, every: bool, folder: Path
) -> None:
    """With what several have saved."""
    run(size, every, folder)
    path = folder / f"{size} {every}" / "saved" / f"step-{SAVED:09d}"
    files = [load_file(file) for file in path.glob("rows-slots-*")]
    assert len(files) > 5 and sum("pending.ids" in file for file in files) > 2
    check(go_on(World(), path, {"name": strategy}), alone(RELAY), SAVED)


def test_a_checkpoint_of_ranks_continues_on_servers(folder: Path) -> None:
    """With what several ranks have saved."""
    run(2, False, folder)
    checkpoints = Checkpoints(folder / "2 False" / "saved", World(), rows_apart=True)
    with serving(2, folder=checkpoints.folder) as running:
        servers = {"addresses": running.addresses}
        strategy = set_up(World(), CASES[RELAY], {"name": "ps", "ps": servers})
        restore_into(strategy, checkpoints.load_step(SAVED))
        curve = train(strategy, CASES[RELAY], SAVED, STEPS)
        strategy.close()
    assert curve == pytest.approx(alone(RELAY)["losses"][SAVED:], rel=1e-5)

"""The section rows: what a config may say, who can do it, and runs that are stopped and go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click_batches import global_batch, make_model
from click_model import tiny_clicks

import shoal
from shoal.config.errors import ConfigError
from shoal.config.row_rules import RowsSection
from shoal.config.schema import OptimizerSection, ServersSection, StrategySection
from shoal.data.batch import Batch
from shoal.distributed.world import World
from shoal.embedding.engines.local import make_local
from shoal.embedding.engines.row_engine import push_all
from shoal.embedding.module import Embeddings
from shoal.embedding.rows.admission import Admission, admission_of, shrink_of
from shoal.embedding.rows.table import Init, Table
from shoal.kernels.core import has_core
from shoal.models.base import Facts, Model, Output
from shoal.optimizers.row_optimizer import RowOptimizer
from shoal.runs.run import resolve
from shoal.runs.trained_run import Trained
from shoal.training.checkpoint.writing import Checkpoints, restore_into, take_snapshot
from shoal.training.strategies import make_strategy
from shoal.training.strategies.geo import Geo
from shoal.training.trainer import Trainer

__all__ = ["tiny_clicks"]  # used by being there
SGD = OptimizerSection(name="sgd", lr=0.5)


def rules(**values: Any) -> RowsSection:
    return RowsSection.model_validate(values)


def single(section: RowsSection, model: str = "DNN", rows: str = "grows") -> Any:
    strategy = make_strategy(StrategySection(name="single"), World())
    strategy.setup(make_model(model, rows), SGD, seed=1, rows=section)
    return strategy


# ---- what a config says -------------------------------------------------------------------------


def test_nothing_is_asked_by_default() -> None:
    assert not RowsSection().enabled
    assert admission_of(RowsSection()) is None
    assert single(RowsSection()).stores["slots"].admission is None


def test_a_table_may_have_rules_of_its_own() -> None:
    section = rules(
        admission={"threshold": 5.0},
        shrink={"every": 10, "max_age": 7},
        tables={"slots_linear": {"threshold": 0.0, "max_age": None, "capacity": 9, "order": "lru"}},
    )
    deep, linear = section.rules_of("slots"), section.rules_of("slots_linear")
    assert deep.admission.threshold == 5.0 and linear.admission.threshold == 0.0
    assert (deep.shrink.max_age, deep.shrink.capacity) == (7, None)
    assert (linear.shrink.max_age, linear.shrink.capacity, linear.shrink.order) == (None, 9, "lru")
    stores = single(section, "WideDeep").stores
    assert [stores[name].admission.threshold for name in ("slots", "slots_linear")] == [5.0, 0.0]


def test_several_servers_share_what_a_table_may_have() -> None:
    section = rules(
        admission={"threshold": 2.0, "bloom_counters": 100}, shrink={"every": 1, "capacity": 10}
    )
    admission = admission_of(section.rules_of("slots"), (1, 3))
    assert admission is not None and (admission.bloom_counters, admission.share) == (34, (1, 3))
    assert shrink_of(section.rules_of("slots"), shares=3).capacity == 4


@pytest.mark.parametrize(
    "values, said",
    [
        ({"rows.shrink.every": 10}, "nothing says which go; set rows.shrink.max_age"),
        ({"rows.shrink.max_age": 10}, "given 0, so nothing is ever dropped"),
        ({"rows.tables": {"slots": {"capacity": 3}}}, "given 0, so nothing is ever dropped"),
        (
            {"rows.admission.threshold": 300, "rows.admission.bloom_counters": 1000},
            "given 300, but the counters of a Bloom filter end at 255",
        ),
        ({"rows.counter_decay.rate": 1.5}, "rows.counter_decay.rate: given 1.5"),
        ({"rows.admission.treshold": 5}, "did you mean rows.admission.threshold"),
        ({"rows.tables": {"slots": {"threshold": -1}}}, "rows.tables.slots.threshold: given -1"),
    ],
)
def test_what_a_config_may_not_say(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve((), (), {"model": "DNN", "data.format": "synthetic_clicks", **values})
    assert said in str(error.value)


# ---- who can do it ------------------------------------------------------------------------------


def test_tables_that_cannot() -> None:
    section = rules(admission={"threshold": 2.0})
    with pytest.raises(ValueError, match=r"no table of this model grows; .*data.clicks.rows=null"):
        single(section, rows="fixed")
    named = rules(tables={"slot": {"threshold": 2.0}})
    with pytest.raises(ValueError, match=r"a table 'slot' .* did you mean slots\?"):
        single(named)


def test_strategies_that_cannot() -> None:
    geo = Geo(World(), StrategySection(name="ps", ps=ServersSection(mode="geo", addresses=["x:1"])))
    with pytest.raises(ValueError, match=f"strategy {geo.name} cannot do .* copies of their"):
        geo.setup(make_model("DNN", "grows"), SGD, seed=1, rows=rules(counter_decay={"every": 1}))


# ---- counts of a push ---------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_an_id_counts_as_often_as_it_was_shown(engine: Any) -> None:
    """And learns its gradient once."""
    if engine == "native" and not has_core():
        # Without a compiler there is the reference alone, the other value of `engine`.
        pytest.skip("the native core is not built")
    table, ids = Table("ads", 2, None, Init("constant", 0.0)), torch.tensor([1, 2, 3])
    leaf: Any = make_local(
        table, RowOptimizer("sgd"), 0, backend=engine, admission=Admission(threshold=3)
    )
    grads = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    counts = torch.tensor([[3.0, 1.0], [2.0, 2.0], [1.0, 0.0]])
    push_all([leaf], [(ids, grads)], 0.5, [counts])
    assert leaf.pull(ids).tolist() == [[-0.5, -1.0], [0.0, 0.0], [0.0, 0.0]]
    push_all([leaf], [(ids[1:], grads[1:])], 0.5, [torch.tensor([[1.0, 0.0], [1.0, 1.0]])])
    assert leaf.pull(ids).tolist() == [[-0.5, -1.0], [-1.5, -2.0], [0.0, 0.0]]
    (rows,), (pending,) = list(leaf.export()), list(leaf.export_pending())
    assert (rows.state["show"].tolist(), rows.state["click"].tolist()) == ([3.0, 3.0], [1.0, 2.0])
    assert (rows.state["last_step"].tolist(), leaf.step) == ([1, 2], 2)
    assert (pending.ids.tolist(), pending.show.tolist(), pending.click.tolist()) == (
        [3],
        [2.0],
        [1.0],
    )


class Slots(Model):
    """Eight growing tables, read at the ids of the batch."""

    def __init__(self) -> None:
        super().__init__(self.Options(), Facts())
        tables = {f"slot_{k}": Table(f"slot_{k}", 2, None) for k in range(8)}
        self.embed = Embeddings(tables)

    def forward(self, batch: Batch) -> Output:
        return Output(sum(rows.sum() for rows in self.embed(batch).values()), batch.size)  # type: ignore[arg-type]


def test_counts_have_an_order_that_all_processes_share() -> None:
    """That of the tables: ranks of ddp send them one after the other. A set's is its process's."""
    strategy = make_strategy(StrategySection(name="single"), World())
    strategy.setup(Slots(), SGD, seed=1, rows=rules(admission={"threshold": 3.0}))
    batch = Batch(1, {f"slot_{k}": torch.arange(k + 2).view(1, -1) for k in range(8)})
    strategy.forward_backward([batch])
    found = strategy.rows.collect().rows.values()
    assert [len(one.ids) for one in found] == list(range(2, 10))  # type: ignore[arg-type]
    assert [len(one.counts) for one in found] == list(range(2, 10))  # type: ignore[arg-type]


# ---- training -----------------------------------------------------------------------------------


def test_clipping_counts_occurrences_all_the_same() -> None:
    """The gradients of an id are summed before they are clipped; its shows stay as many."""
    counts = []
    for clip in (None, 1e9):
        strategy = make_strategy(StrategySection(name="single"), World())
        strategy.setup(
            make_model("DNN", "grows"),
            SGD,
            seed=1,
            clip_grad_norm=clip,
            rows=rules(admission={"threshold": 3.0}),
        )
        for step in range(1, 6):
            strategy.train_step(global_batch(step, "lists", "grows"))
        (chunk,) = strategy.stores["slots"].export()
        counts.append([chunk.ids.tolist(), chunk.state["show"].tolist()])
        assert len(chunk.ids) > 50 and max(counts[-1][1]) >= 5
    assert counts[0] == counts[1]


# ---- checkpoints --------------------------------------------------------------------------------

ALL = rules(
    admission={"threshold": 4.0, "show_coefficient": 0.5},
    counter_decay={"every": 3, "rate": 0.75},
    shrink={"every": 4, "max_age": 3, "min_score": 0.5},
)


def test_going_back_forgets_later_rows() -> None:
    """A row that came after the checkpoint reads as its initial value again."""
    for section in (ALL, RowsSection()):
        strategy = single(section)
        for step in range(1, 4):
            strategy.train_step(global_batch(step, "one", "grows"))
        saved = take_snapshot(strategy, {})
        for step in range(4, 9):
            strategy.train_step(global_batch(step, "one", "grows"))
        restore_into(strategy, saved)
        assert take_snapshot(strategy, {}).files == saved.files


def test_a_store_without_counters_takes_the_rows_alone() -> None:
    strategy, plain = single(ALL), single(RowsSection())
    for step in range(1, 7):
        strategy.train_step(global_batch(step, "one", "grows"))
    restore_into(plain, take_snapshot(strategy, {}))
    ids = global_batch(3, "one", "grows").flat_ids("slots").reshape(-1)
    assert torch.equal(plain.stores["slots"].pull(ids), strategy.stores["slots"].pull(ids))
    (chunk,) = plain.stores["slots"].export()
    assert chunk.state == {}


def write_log(folder: Path) -> dict[str, Any]:
    """A log whose ids are any numbers, some of them rare; the keys of a run on it."""
    random = np.random.default_rng(1)
    ids = (1e12 * random.power(0.3, (1500, 3)).round(3)).astype(int)
    labels = (random.random(1500) < 0.2 + 0.6 * (ids[:, 0] % 7 < 3)).astype(int)
    for name, said in (("log.txt", labels), ("wrong.txt", 1 - labels)):
        lines = [f"click:{y} 1:{a} 2:{b} 3:{c}\n" for y, (a, b, c) in zip(said, ids.tolist())]
        (folder / name).write_text("".join(lines))
    return {"data.path": str(folder), "data.clicks.train": "log.txt"}


RUN = {
    "model": "TinyClicks",
    "data.format": "slots",
    "data.clicks.valid": "wrong.txt",  # the more is learnt the worse: the first epoch is the best
    "data.clicks.test": "log.txt",
    "data.clicks.slots": 3,
    "data.clicks.dense": 0,
    "train.batch_size": 100,
    "train.epochs": 3,
    "train.optimizer.lr": 0.1,
    "checkpoint.every_steps": 4,
    "rows.admission.threshold": 5,
    "rows.counter_decay.every": 6,
    "rows.shrink.every": 7,
    "rows.shrink.capacity": 60,
    "run.progress": False,
    "run.trackers": [],
}


class Stop(Exception):
    pass


@pytest.mark.parametrize("bloom_counters", [0, 2000])
def test_a_run_that_is_stopped_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bloom_counters: int
) -> None:
    given = {**RUN, **write_log(tmp_path), "rows.admission.bloom_counters": bloom_counters}
    whole = shoal.run(config_dict={**given, "run.output": str(tmp_path / "whole")})
    save = Trainer._save

    def stop(trainer: Trainer) -> None:
        save(trainer)
        if trainer.cursor.step == 20:
            trainer.checkpoints.wait()
            raise Stop

    monkeypatch.setattr(Trainer, "_save", stop)
    stopped = {**given, "run.output": str(tmp_path / "stopped")}
    with pytest.raises(Stop):
        shoal.run(config_dict=stopped)
    monkeypatch.setattr(Trainer, "_save", save)
    resumed = shoal.run(config_dict=stopped, resume=True)
    assert resumed["test"] == whole["test"]
    last = [Checkpoints(tmp_path / name / "checkpoints", World()) for name in ("whole", "stopped")]
    found = [json.loads((one.committed()[0] / "manifest.json").read_text()) for one in last]
    assert found[0]["files"] == found[1]["files"]
    lines = [
        [json.loads(line)["loss"] for line in (tmp_path / name / "metrics.jsonl").open()]
        for name in ("whole", "stopped")
    ]
    assert lines[0] == lines[1]
    # The best is not the last: the run itself went back to it, and so does an evaluation.
    assert whole["best_epoch"] == 0
    again = shoal.evaluate(tmp_path / "whole")
    assert again["test"] == whole["test"] and again["best_valid"] == whole["best_valid"]
    trained = Trained(tmp_path / "whole")
    assert 0 < len(trained.parts.strategy.stores["weights"]) < 1000


def test_rules_cannot_begin_with_rows_that_were_never_counted(tmp_path: Path) -> None:
    given = {**RUN, **write_log(tmp_path)}
    plain = {key: v for key, v in given.items() if not key.startswith("rows.")}
    values = {**plain, "train.epochs": 1, "run.output": str(tmp_path / "run")}
    shoal.run(config_dict=values)
    with pytest.raises(ValueError, match="belong to another run: counters was None, is now True"):
        shoal.run(config_dict={**given, "run.output": str(tmp_path / "run")}, resume=True)

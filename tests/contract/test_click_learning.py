"""Click models learn a synthetic log: the best possible AUC is known, and each comes near it.

Three generated data sets: a log with one label; the same with purchases that follow clicks; and
histories, where a click depends on whether an item that goes with the candidate is among them.
"""

from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from synthetic_actions import LABELS as ACTED
from synthetic_actions import acts_config, write_actions
from zoo_clicks import HISTORIES, LABELS, TREES

from shoal.clicks.synthetic import synthetic_clicks
from shoal.config.schema import OptimizerSection, SyntheticClicksSection
from shoal.data.batch import Batch, Jagged
from shoal.data.features import Feature, Label
from shoal.distributed.world import World
from shoal.models import MODELS, find
from shoal.models.base import Facts
from shoal.runs.build import build
from shoal.runs.run import resolve
from shoal.training.strategies.base import Single

pytestmark = pytest.mark.slow
SECTION = SyntheticClicksSection(samples=150_000, slots=6, ids_per_slot=10, dense=3)
NEAR = 0.005
ALONE = [
    name
    for name in MODELS
    if find(name).kind == "clicks" and name not in (*LABELS, *HISTORIES, *TREES, "LR")
]
# Smaller than the defaults: this log needs no more, and a machine without GPU is enough.
OPTIONS: dict[str, Any] = {
    "dim": 4,
    "layers": [32],
    "second_layers": [32],
    "expert_layers": [32],
    "tower_layers": [32],
    "top_layers": [32],
    "bottom_layers": [16],
    "blocks": [32, 32],
    "attention_size": 8,
    "inner": 32,
    "initial_range": 0.1,
}
OWN: dict[str, dict[str, Any]] = {
    "xDeepFM": {"cross_layers": [8]},
    "FNN": {"dropout": 0.0, "dim": 8, "layers": [64, 64]},
    "EulerNet": {"drop_ex": 0.0, "drop_im": 0.0, "dim": 8},
    "FiGNN": {"hidden_dropout_prob": 0.0, "attn_dropout_prob": 0.0},
    "KD_DAGFM": {"t_depth": 2, "depth": 2},
}
# Stacks of normed layers, and of tanh, have not found all pairs after these few epochs: 0.7394 and
# 0.7400 of 0.7497, where weights alone reach 0.7326.
BEHIND = {"Wukong": 0.012, "FNN": 0.0115, "MaskNet": 0.006, "FinalMLP": 0.006, "RankMixer": 0.006}


@dataclass
class Task:
    """Training and test samples, and the best AUC of each label there."""

    facts: Facts
    train: Batch
    test: Batch
    best: list[float]


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Equal scores share their ranks."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    positives = int(labels.sum())
    above = ranks[labels == 1].sum() - positives * (positives + 1) / 2
    return float(above / (positives * (len(labels) - positives)))


@cache
def one_label() -> Task:
    batches = []
    for split in ("train", "test"):
        samples = synthetic_clicks(SECTION, split).samples  # type: ignore[arg-type]
        ids, dense = torch.from_numpy(samples.ids), torch.from_numpy(samples.dense)
        batches.append(
            Batch(len(ids), {"slots": ids}, {"dense": dense}, torch.from_numpy(samples.labels))
        )
    facts = Facts(num_slots=6, num_dense=3, rows=61)
    return Task(facts, *batches, [synthetic_clicks(SECTION, "test").best_auc()])


@cache
def two_labels() -> Task:
    """Purchases: only after a click, by ids of two slots, a dense value and the odds of a click."""
    random = np.random.default_rng(4)
    weights, task, batches = random.normal(0, 1, 61), one_label(), []
    for split, batch in (("train", task.train), ("test", task.test)):
        clicks = synthetic_clicks(SECTION, split).probabilities  # type: ignore[arg-type]
        ids, dense = batch.tensor("slots").numpy(), batch.dense["dense"].numpy()
        odds = 0.5 * np.log(clicks / (1 - clicks)) + weights[ids[:, :2]].sum(1) - dense[:, 0]
        bought = random.random(len(odds)) < 1 / (1 + np.exp(-odds))
        assert batch.labels is not None
        second = batch.labels * torch.from_numpy(bought)
        both = torch.stack([batch.labels, second], 1)
        batches.append(Batch(batch.size, batch.ids, batch.dense, both))
        best = auc(clicks / (1 + np.exp(-odds)), second.numpy())
    labels = Label("click"), Label("purchase")
    facts = Facts(num_slots=6, num_dense=3, rows=61, labels=labels)
    return Task(facts, *batches, [task.best[0], best])


@cache
def histories(same: bool = False, size: int = 60_000, items: int = 80, length: int = 8) -> Task:
    """Every item goes with one (itself, or another); clicks are likely where that one was seen."""
    random = np.random.default_rng(6)
    partner = 1 + (np.arange(items) if same else random.permutation(items))
    candidates = random.integers(1, items + 1, size)
    seen = random.integers(1, items + 1, (size, length))
    lengths = random.integers(length // 2, length + 1, size)
    there = np.arange(length) < lengths[:, None]
    wanted = partner[candidates - 1]
    put = random.random(size) < 0.5  # in half of the samples it is there, at any place
    seen[put, (random.random(size) * lengths).astype(int)[put]] = wanted[put]
    found = ((seen == wanted[:, None]) & there).any(1)
    chances = np.where(found, 0.8, 0.2)
    labels = (random.random(size) < chances).astype(np.float32)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ids: dict[str, Any] = {
        "item_id": torch.from_numpy(candidates),
        "seen": Jagged(torch.from_numpy(seen[there]), torch.from_numpy(offsets)),
    }
    every, cut = Batch(size, ids, {}, torch.from_numpy(labels)), size * 5 // 6
    features = (
        Feature("item_id", "id", "item", rows=items + 1),
        Feature("seen", "sequence", "user", rows=items + 1, table="item_id", length=length),
    )
    facts = Facts(features=features, per_feature=True, num_slots=2)
    return Task(
        facts, every.rows(0, cut), every.rows(cut, size), [auc(chances[cut:], labels[cut:])]
    )


def learned(name: str, task: Task, epochs: int, lr: float = 0.01, **options: Any) -> list[float]:
    """The AUC of each label on the test samples, after some epochs at a falling rate."""
    kind = find(name.split()[0])
    known = {one.name for one in fields(kind.Options)}
    given = {key: value for key, value in OPTIONS.items() if key in known}
    torch.manual_seed(3)
    model = kind(kind.Options(**{**given, **OWN.get(name, {}), **options}), task.facts)
    strategy = Single()
    strategy.setup(model, OptimizerSection(name="adam", lr=lr), seed=1)
    model.train()
    for epoch in range(epochs):
        order = torch.randperm(task.train.size, generator=torch.Generator().manual_seed(epoch))
        shuffled = taken(task.train, order)
        for start in range(0, shuffled.size, 512):
            batch = shuffled.rows(start, min(start + 512, shuffled.size))
            strategy.train_step(batch, lr * (1 - epoch / epochs))
    model.eval()
    with torch.no_grad():
        scores = model(task.test).scores
    assert scores is not None and task.test.labels is not None
    columns = scores.view(task.test.size, -1).T, task.test.labels.view(task.test.size, -1).T
    found = [auc(some.numpy(), labels.numpy()) for some, labels in zip(*columns)]
    print(name, [round(one, 4) for one in found], "best", [round(one, 4) for one in task.best])
    return found


def taken(batch: Batch, order: torch.Tensor) -> Batch:
    """The samples in another order."""
    ids: dict[str, Any] = {}
    for name, one in batch.ids.items():
        if isinstance(one, Jagged):
            places = one.places(8)[order]
            lengths = (places >= 0).sum(1)
            offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
            ids[name] = Jagged(one.values[places[places >= 0]], offsets)
        else:
            ids[name] = one[order]
    assert batch.labels is not None
    dense = {name: one[order] for name, one in batch.dense.items()}
    return Batch(batch.size, ids, dense, batch.labels[order])


@pytest.mark.parametrize("name", ALONE)
def test_comes_near_the_best_auc(name: str) -> None:
    task = one_label()
    assert learned(name, task, 4)[0] > task.best[0] - BEHIND.get(name, NEAR)


def test_what_weights_alone_reach() -> None:
    """LR knows no pairs, and the log depends on pairs: it must stay behind."""
    task = one_label()
    assert task.best[0] - 0.03 < learned("LR", task, 2)[0] < task.best[0] - 2 * NEAR


@pytest.mark.parametrize("name", [*LABELS, "DNN"])
def test_learns_two_labels(name: str) -> None:
    """Measured: 0.7450 and 0.8189 of 0.7497 and 0.8222; PLE 0.7408 and 0.8163."""
    task = two_labels()
    for found, best in zip(learned(name, task, 4), task.best):
        assert found > best - 2 * NEAR


# --- histories: DeepFM sums the vectors of a history before it meets the candidate


@cache
def summed(same: bool, dim: int) -> float:
    return learned("DeepFM", histories(same), 4, dim=dim)[0]


def test_attention_finds_related_items_of_a_history() -> None:
    """A sum of 8 numbers cannot hold which of 80 items were there. Measured: 0.80 and 0.69."""
    task = histories()
    found = learned("DIN", task, 6, dim=8)[0]
    assert found > task.best[0] - 2 * NEAR
    assert found > summed(False, 8) + 0.05


@pytest.mark.parametrize("name", HISTORIES)
def test_reads_histories_better_than_a_sum(name: str) -> None:
    """Here the candidate itself is what to look for: attention by likeness finds it too.

    Of 0.8084: DeepFM 0.705, DIEN 0.768 and DIN 0.809 by 8 numbers, BST 0.795 and DSIN 0.801 by 16.
    """
    own = {"BST": (0.003, {"dim": 16}), "DSIN": (0.005, {"dim": 16, "sessions": 8})}
    own["HSTURanker"] = own["HSTURanker interleaved"] = (0.003, {"hidden_size": 16})
    rate, options = own.get(name, (0.01, {"dim": 8}))
    assert learned(name, histories(True), 4, rate, **options)[0] > summed(True, 8) + 0.03


# --- actions: what a user clicks next depends on what the user clicked before, and on nothing else


@pytest.fixture(scope="module")
def acts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    """A folder, and the best AUC of each label among its test users."""
    folder = tmp_path_factory.mktemp("acts")
    columns = write_actions(folder, users=1500, events=12)
    test = slice(len(columns["user"]) * 4 // 5, None)
    best = {one: auc(columns[f"best_{one}"][test], columns[one][test]) for one in ACTED}
    return folder, best


def aucs_of(folder: Path, model: str, **more: Any) -> dict[str, float]:
    given = acts_config(folder, model, train__optimizer={"name": "adam", "lr": 0.005}, **more)
    parts = build(resolve(values=given).config, World(torch.device("cpu")))
    epochs = 5
    for epoch in range(epochs):
        parts.model.train()
        for batch in parts.reader.batches(epoch):
            parts.strategy.train_step(batch, 0.005 * (1 - epoch / epochs))
    parts.model.eval()
    found = parts.evaluator.evaluate(parts.model, "test")
    print(model, found)
    return found


def test_actions_in_the_history_predict_the_labels(acts: tuple[Path, dict[str, float]]) -> None:
    """Measured: 0.815 and 0.808 of 0.815 and 0.814."""
    folder, best = acts
    plain = {"model__hidden_dropout_prob": 0.0, "model__linear_dropout_prob": 0.0}
    found = aucs_of(folder, "HSTURanker", model__hidden_size=16, model__layers=[32], **plain)
    for label, most in best.items():
        assert most - 0.02 < found[f"auc_{label}"] < most + 0.01


def test_features_without_the_history_predict_nothing(acts: tuple[Path, dict[str, float]]) -> None:
    features = {"item_id": {"kind": "id", "side": "item"}}
    found = aucs_of(acts[0], "DNN", data__features=features, model__layers=[32])
    assert all(abs(found[f"auc_{label}"] - 0.5) < 0.04 for label in ACTED)

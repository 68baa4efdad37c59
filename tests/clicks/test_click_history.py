"""Histories for click models, made of interactions: what the user took before each of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from shoal.clicks.encoder import encoder_of
from shoal.config.schema import DataSection
from shoal.data.batch import Jagged
from shoal.data.dataset import Dataset
from shoal.distributed.world import World
from shoal.runs.build import build
from shoal.runs.run import resolve

LENGTH = 3
CONFIG = {
    "data.name": "some",
    "data.threshold": {"rating": 4},
    "data.max_len": LENGTH,
    "data.cache": False,
    "train.negatives": None,
    "train.batch_size": 64,
    "run.device": "cpu",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(3)
    lines = ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]
    for _ in range(400):  # few times: many interactions of a user at once
        user, item, rating, time = random.integers([12, 20, 1, 0], [20, 60, 6, 25])
        lines.append(f"u{user}\ti{item}\t{rating}\t{time}")
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "some.inter").write_text("\n".join(lines))
    return tmp_path


def expected(data: Dataset, row: int) -> list[int]:
    """By the definition: positive items of the user with an earlier time, the last of them."""
    columns = [np.asarray(data.inter[n]) for n in ("user_id", "item_id", "label", "timestamp")]
    user, _, _, time = (column[row] for column in columns)
    before = sorted(
        (float(when), number, int(item))
        for number, (whose, item, label, when) in enumerate(zip(*columns))
        if whose == user and label == 1 and when < time
    )
    return [item for _, _, item in before][-LENGTH:]


@pytest.mark.parametrize("model", ["DIN", "DIEN", "BST", "DSIN"])
def test_a_model_with_a_history_reads_interactions_alone(folder: Path, model: str) -> None:
    config = resolve(values={**CONFIG, "data.path": str(folder), "model.name": model}).config
    parts = build(config, World(torch.device("cpu")))
    data = parts.dataset
    assert isinstance(data, Dataset)
    parts.reader.shuffle = False
    lists = []
    for batch in parts.reader.batches(0):
        history = batch.ids["history"]
        assert isinstance(history, Jagged) and parts.model(batch).loss.isfinite()
        lists += [history.lists(k, k + 1).values.tolist() for k in range(batch.size)]
    assert lists == [expected(data, row) for row in data.splits["train"]]
    assert max(map(len, lists)) == LENGTH and [] in lists


def test_a_history_can_be_described(folder: Path) -> None:
    features = {
        "user_id": {"kind": "id"},
        "item_id": {"kind": "id"},
        "taken": {"kind": "sequence", "column": "item_id", "table": "item_id", "length": 2},
    }
    given = {**CONFIG, "data.path": str(folder), "model.name": "DIN", "data.features": features}
    parts = build(resolve(values=given).config, World(torch.device("cpu")))
    table, data = parts.model.facts.table, parts.dataset
    assert table is not None and isinstance(data, Dataset)
    rows = np.arange(50)
    taken = table.take_side("context", rows)[0]["taken"]
    assert isinstance(taken, Jagged)
    for row in rows:
        assert taken.lists(row, row + 1).values.tolist() == expected(data, row)[-2:]
    # Of what has not happened: all that the user took.
    ahead = table.join(None, np.array([1]), np.array([1]))[0]["taken"]
    assert isinstance(ahead, Jagged) and ahead.values.numel() == 2
    # So it is for rows that are given, of a user who is known or not.
    encoder = encoder_of(data, table, DataSection(), False, ())
    rows_ = [{"user_id": user, "item_id": "i30"} for user in (data.vocab["user_id"][1], "nobody")]
    given = encoder.batch(encoder.frame(rows_)).ids["taken"]
    assert isinstance(given, Jagged) and given.lengths.tolist() == [2, 0]
    assert given.values.tolist() == ahead.values.tolist()


def did(data: Dataset, row: int, length: int) -> list[tuple[int, int, int]]:
    """By the definition: item, time and label of all that the user did at an earlier time."""
    columns = [np.asarray(data.inter[n]) for n in ("user_id", "timestamp", "item_id", "label")]
    before = sorted(
        (float(when), number, int(item), int(label))
        for number, (whose, when, item, label) in enumerate(zip(*columns))
        if whose == columns[0][row] and when < columns[1][row]
    )
    return [(item, int(when), label) for when, _, item, label in before][-length:]


def test_a_history_with_its_actions(folder: Path) -> None:
    """All that was done, positive or not, with labels and times; behind the last the row's own."""
    config = resolve(values={**CONFIG, "data.path": str(folder), "model.name": "HSTURanker"}).config
    parts = build(config, World(torch.device("cpu")))
    data, table = parts.dataset, parts.model.facts.table
    assert isinstance(data, Dataset) and table is not None
    rows = np.arange(120)
    fields = table.take_side("context", rows)[0]
    lists = [fields[name] for name in ("history", "history_time", "history_label")]
    for row in rows:
        items, times, labels = (
            one.lists(row, row + 1).values.tolist() for one in lists if isinstance(one, Jagged)
        )
        done = did(data, row, LENGTH)
        assert items == [item for item, _, _ in done]
        assert labels == [1 + label for _, _, label in done]
        assert times == [when for _, when, _ in done] + [int(data.flat("timestamp")[row])]
    # Of what has not happened: now, which is as late as the last.
    ids = table.join(None, np.array([0, 3]), np.array([1, 1]))[0]
    ahead = ids["history_time"]
    assert isinstance(ahead, Jagged) and ahead.lengths.tolist() == [1, LENGTH + 1]
    assert ahead.values[0] == 0 and ahead.values[-1] == ahead.values[-2] > 0
    assert "history" not in table.join(None, np.array([3]), np.array([1]), histories=False)[0]


def test_feature_names_that_a_history_uses_are_refused(folder: Path) -> None:
    features = {
        "item_id": {"kind": "id"},
        "past": {"kind": "sequence", "column": "item_id", "table": "item_id"},
        "past_time": {"kind": "number", "column": "timestamp"},
    }
    given = {**CONFIG, "data.path": str(folder), "model.name": "HSTURanker"}
    with pytest.raises(ValueError, match=r"data\.features\.past_time: a history has its labels"):
        build(resolve(values={**given, "data.features": features}).config, World())

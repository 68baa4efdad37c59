"""Histories for click models, made of interactions: what the user took before each of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from shoal.config.schema import DataSection
from shoal.data.batch import Jagged
from shoal.data.clicks.encoder import encoder_of
from shoal.data.dataset import Dataset
from shoal.runs.build import build
from shoal.runs.run import resolve
from shoal.world.world import World

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
    taken = table.of("context", rows)[0]["taken"]
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

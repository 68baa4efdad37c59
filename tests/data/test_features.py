"""Features: what is guessed, what a config says, how columns become ids and numbers."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click_model import tiny_clicks
from feature_data import FEATURES, config, write

import shoal
from shoal.data.batch import Jagged
from shoal.data.encode import encode
from shoal.data.features import features_of, guess, options
from shoal.data.joined import JoinedSamples, pack
from shoal.data.loading.load import load_dataset
from shoal.distributed.world import World
from shoal.models.base import Facts
from shoal.runs.build import build

__all__ = ["tiny_clicks"]  # used by being there


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("features"))


def table(folder: Path, **features: Any):
    made = config(folder, data__features=features or FEATURES).data
    dataset = load_dataset(made, 1)
    return dataset, encode(dataset, features_of(dataset, made))


def test_columns_suggest_features(folder: Path) -> None:
    made = config(folder, data__sample_weight="weight").data
    found = {f.name: (f.kind, f.side) for f in guess(load_dataset(made, 1), made)}
    assert found == {
        "user_id": ("id", "user"),
        "item_id": ("id", "item"),
        "age": ("number", "user"),
        "liked": ("ids", "user"),
        "genre": ("ids", "item"),
        "size": ("numbers", "item"),
        "title": ("id", "item"),
        "spent": ("number", "context"),
        "device": ("id", "context"),
    }


def test_what_is_written_reads_the_same(folder: Path) -> None:
    """The yaml of `shoal data describe` gives the features that were guessed."""
    made = config(folder).data
    dataset = load_dataset(made, 1)
    guessed = guess(dataset, made)
    said = {feature.name: options(feature) for feature in guessed}
    again = config(folder, data__features=said).data
    assert features_of(dataset, again) == guessed


def test_ids_numbers_lists_and_crosses(folder: Path) -> None:
    dataset, made = table(folder)
    features = {f.name: f for f in made.features}
    assert [f.name for f in made.features] == [*FEATURES]
    side = made.side("item", torch.tensor([[1, 0], [2, 3]]))
    assert side.size == 4 and side.tensor("item_id").tolist() == [1, 0, 2, 3]
    genre = side.ids["genre"]
    assert isinstance(genre, Jagged)
    words = [dataset.vocab["genre"][i] for i in genre.lists(0, 1).values.tolist()]
    row = np.flatnonzero(dataset.vocab["item_id"] == dataset.vocab["item_id"][1])[0]
    lists = dataset.items["genre"]
    expected = lists.values[lists.offsets[row] : lists.offsets[row + 1]]  # type: ignore[union-attr]
    assert words == [dataset.vocab["genre"][i] for i in expected] and genre.lengths[1] == 0
    assert side.dense["size"].shape == (4, 2) and side.dense["size"][1].tolist() == [0, 0]
    # The words of a shared table are those of items, each with the row of the item.
    liked = made.side("user", torch.tensor([5])).ids["liked"]
    assert isinstance(liked, Jagged)
    names = dataset.vocab["item_id"][liked.values.numpy()].tolist()
    told = dataset.users["liked"]
    own = told.values[told.offsets[5] : told.offsets[6]]  # type: ignore[union-attr]
    assert names == dataset.vocab["liked"][own].tolist()[-3:]
    assert features["liked"].rows == features["item_id"].rows == dataset.num_items
    every = np.arange(1, dataset.num_users)
    ages = made.columns["age"].take(every).numpy()
    assert ages.mean() == pytest.approx(0, abs=1e-6) and ages.std() == pytest.approx(1, rel=1e-5)
    assert features["old"].rows == 4 and set(made.columns["old"].take(every).tolist()) <= {1, 2, 3}
    assert features["device"].rows is None and features["title"].rows == 50


def test_a_missing_value_is_the_padding_or_the_default(folder: Path) -> None:
    _, plain = table(folder, device={"kind": "id"})
    dataset, told = table(folder, device={"kind": "id", "default": "phone"})
    missing = np.flatnonzero(np.asarray(dataset.inter["device"]) == 0)
    assert len(missing) == 400 and (plain.columns["device"].take(missing) == 0).all()
    phone = list(dataset.vocab["device"]).index("phone")
    assert (told.columns["device"].take(missing) == phone).all()
    dataset, ages = table(folder, age={"kind": "number", "default": 7.5})
    assert (
        ages.columns["age"].take(np.arange(41)) == 7.5
    ).sum() == 6  # every seventh of 40 users has none


def test_packed_ids_lie_one_feature_after_the_other(folder: Path) -> None:
    said = {k: {**v} for k, v in FEATURES.items() if k in ("user_id", "genre", "age", "old")}
    del said["genre"]["dim"]
    dataset, made = table(folder, **said)
    rows = dataset.splits["train"][:5]
    users, items = (np.asarray(dataset.inter[f])[rows] for f in ("user_id", "item_id"))
    ids, dense = made.join(rows, users, items)
    packed, numbers = pack(made.features, ids, dense, 5)
    slots = packed["slots"]
    assert isinstance(slots, Jagged) and len(slots) == 15 and numbers["dense"].shape == (5, 1)
    first = dict(zip(said, [0, dataset.num_users, 0, dataset.num_users + 6]))
    for n in range(5):
        assert slots.lists(3 * n, 3 * n + 1).values.tolist() == [users[n]]
        genre = ids["genre"].lists(n, n + 1).values + first["genre"]
        assert slots.lists(3 * n + 1, 3 * n + 2).values.tolist() == genre.tolist()
        assert slots.lists(3 * n + 1, 3 * n + 2).weights.sum() == (1 if len(genre) else 0)
        assert slots.lists(3 * n + 2, 3 * n + 3).values.tolist() == [
            int(ids["old"][n]) + first["old"]  # type: ignore[index]
        ]


def test_packed_ids_of_tables_that_grow_do_not_meet(folder: Path) -> None:
    said = {"user_id": {"kind": "id"}, "item_id": {"kind": "id", "vocabulary": "growing"}}
    dataset, made = table(folder, **said)
    rows = np.arange(200)
    users, items = (np.asarray(dataset.inter[f])[rows] for f in ("user_id", "item_id"))
    slots = pack(made.features, *made.join(rows, users, items), 200)[0]["slots"]
    assert isinstance(slots, torch.Tensor) and slots.shape == (200, 2)
    assert not set(slots[:, 0].tolist()) & set(slots[:, 1].tolist())
    assert len(slots[:, 0].unique()) == len(set(users.tolist()))


def test_a_batch_holds_what_was_joined(folder: Path) -> None:
    made = config(folder, data__features=FEATURES, data__sample_weight="weight")
    parts = build(made, World())
    batch = next(parts.reader.batches(0, 1, 2))
    assert {"user_id", "genre", "both"} <= set(batch.ids) and batch.first == 30
    assert set(batch.dense) == {"age", "size"}
    assert batch.labels is not None and batch.weights is not None
    assert batch.labels.shape == batch.weights.shape == (31,)
    assert isinstance(parts.reader.samples, JoinedSamples)  # type: ignore[attr-defined]
    facts: Facts = parts.model.facts
    assert [f.name for f in facts.sparse][:2] == ["user_id", "item_id"] and facts.num_dense == 3


def test_weights_and_labels_count(folder: Path) -> None:
    """The loss is the sum over labels of weight * loss, times the weight of the sample."""
    labels = {"click": {"weight": 0.5}, "spent": {"loss": "squared", "weight": 2.0}}
    given = {"data__labels": labels, "data__sample_weight": "weight", "data__features": FEATURES}
    parts = build(config(folder, **given), World())
    batch = next(parts.reader.batches(0))
    parts.model.eval()
    with torch.no_grad():
        logits = parts.model.logits(batch)  # type: ignore[operator]
        output = parts.model(batch)
    click = torch.nn.functional.softplus(logits[:, 0]) - logits[:, 0] * batch.labels[:, 0]
    spent = (logits[:, 1] - batch.labels[:, 1]) ** 2
    expected = (batch.weights * (0.5 * click + 2 * spent)).sum()
    assert output.count == 61 and float(output.loss) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("model", ["LR", "FM", "DeepFM", "WideDeep", "DCNV2", "DLRM"])
def test_click_models_read_features(folder: Path, model: str) -> None:
    said = {name: {k: v for k, v in one.items() if k != "dim"} for name, one in FEATURES.items()}
    parts = build(config(folder, model, data__features=said), World())
    losses = [float(parts.strategy.train_step(batch)) for batch in parts.reader.batches(0)]
    assert len(losses) == 16 and all(np.isfinite(losses))
    assert "item_id" in parts.strategy.tables or model == "LR"


def test_a_model_of_slots_reads_packed_features(folder: Path) -> None:
    """As models do that know nothing of features: one table, ids one feature after the other."""
    said = {k: v for k, v in FEATURES.items() if k in ("user_id", "genre", "age")}
    said = {name: {k: v for k, v in one.items() if k != "dim"} for name, one in said.items()}
    parts = build(config(folder, "TinyClicks", data__features=said), World())
    assert parts.strategy.tables["weights"].rows == 41 + 6
    losses = [float(parts.strategy.train_step(batch)) for batch in parts.reader.batches(0)]
    assert sum(losses[-5:]) < sum(losses[:5])
    with pytest.raises(ValueError, match="TinyClicks reads all features from one table"):
        build(config(folder, "TinyClicks", data__features=FEATURES), World())


def test_candidates_are_scored_as_samples_are(folder: Path) -> None:
    """Without features of single interactions a candidate is what a sample with it is."""
    said = {k: v for k, v in FEATURES.items() if k not in ("device", "both")}
    parts = build(config(folder, data__features=said), World())
    batch = next(parts.reader.batches(0))
    model, items = parts.model.eval(), torch.from_numpy(parts.reader.samples.items)  # type: ignore
    rows = parts.reader.samples.rows[:5]  # type: ignore[attr-defined]
    samples = parts.reader.samples.batch_of(slice(0, 5))  # type: ignore[attr-defined]
    with torch.no_grad():
        expected = model.logits(samples)  # type: ignore[operator]
        found = model.score(samples, items[rows][:, None])
        assert torch.allclose(found[:, 0], expected, atol=1e-6)
        every = model.score(samples, items[rows])
        assert every.shape == (5, 5) and torch.allclose(every.diagonal(), expected, atol=1e-6)
    assert batch.size == 61


def test_prepared_columns_are_kept(folder: Path) -> None:
    curves = []
    for _ in range(2):  # the second time from the cache, whose columns are read-only
        parts = build(config(folder, data__cache=True, data__features=FEATURES), World())
        curves.append([float(parts.strategy.train_step(b)) for b in parts.reader.batches(0)])
    assert curves[0] == curves[1] and (folder / "shop" / ".shoal").is_dir()


def test_labels_that_nobody_reads(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.sample_weight is for click models on tables"):
        build(config(folder, "BPR", data__sample_weight="weight"), World())


@pytest.mark.parametrize(
    ("model", "given", "said"),
    [
        ("DNN", {"age": {"side": "user"}}, "data.features.age has no kind"),
        ("DNN", {"agee": {"kind": "number"}}, "has no column 'agee'.*did you mean age"),
        ("DNN", {"age": {"kind": "id"}}, "kind id does not fit the column 'age', which is float"),
        ("DNN", {"genre": {"kind": "id"}}, "'genre' holds lists; choose the kind ids"),
        ("DNN", {"user_id": {"kind": "id", "pooling": "mean"}}, "pooling does not belong to kind"),
        ("DNN", {"x": {"cross": ["age", "genre"]}, "age": {"kind": "number"}}, "not a feature of"),
        ("DNN", {"age": {"kind": "number", "buckets": [5.0, 5.0]}}, "limits rise"),
        ("DNN", {"title": {"kind": "text", "vocabulary": "exact"}}, "hashed, or growing"),
        ("FM", FEATURES, "FM adds or multiplies the vectors of features, so all are 9 wide"),
        (
            "DNN",
            {"item_id": {"kind": "id"}, "liked": {"kind": "ids", "table": "item_id", "dim": 3}},
            "item_id, liked share the table 'item_id', so they need the same",
        ),
        ("LightFM", {"user_id": {"kind": "id"}}, "LightFM makes a item of the item's features"),
    ],
)
def test_what_does_not_fit_is_told(folder: Path, model: str, given: dict, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        build(config(folder, model, data__features=given), World())
    assert re.search(said, str(caught.value))


def test_labels_that_are_not_there_or_not_binary(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"has no label 'rating'.*data.threshold"):
        build(config(folder, data__fields__label="rating"), World())
    with pytest.raises(ValueError, match="the label 'spent' of 'shop' is not 0 or 1"):
        build(config(folder, data__fields__label="spent"), World())
    with pytest.raises(ValueError, match=r"LR predicts one label, and data.labels names click"):
        build(config(folder, "LR", data__labels={"click": {}, "spent": {}}), World())


@pytest.mark.slow
def test_a_context_aware_model_on_real_data(tmp_path: Path) -> None:
    """`--model=DeepFM --dataset=ml-100k`, as RecBole's quick start has it."""
    root = os.environ.get("SHOAL_TEST_DATA")
    if root is None or not (Path(root) / "ml-100k" / "ml-100k.user").is_file():
        pytest.skip("SHOAL_TEST_DATA names no folder with ml-100k")
    given = {"data.cache": False, "run.output": str(tmp_path / "run"), "run.trackers": []}
    result = shoal.run("DeepFM", "ml-100k", data_path=root, epochs=3, show_progress=False, **given)
    assert result["test"]["auc"] > 0.765 and result["test"]["logloss"] < 0.58

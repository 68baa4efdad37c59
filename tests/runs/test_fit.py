"""shoal.fit: frames of every kind in, figures, vectors and answers with their own ids out."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import shoal
from shoal.data.sources.frames import to_polars
from shoal.runs.fit import Fitted

random = np.random.default_rng(2)
ROWS = 1500
FRAME = pl.DataFrame(
    {
        "uid": [f"u{u}" for u in random.integers(0, 50, ROWS)],
        "iid": random.integers(1000, 1040, ROWS),
        "ts": np.arange(ROWS) * 60,
    }
).unique(["uid", "iid"], maintain_order=True)
SMALL: dict[str, Any] = {
    "train.batch_size": 256,
    "train.epochs": 2,
    "train.eval_every": 1,
    "run.progress": False,
    "eval.topk": [5],
    "eval.valid_metric": "MRR@5",
}


class Stream:
    """What Arrow's C interface asks for, and nothing else."""

    def __arrow_c_stream__(self, schema: Any = None) -> Any:
        return FRAME.__arrow_c_stream__(schema)


class Rows:
    """As Hugging Face datasets look."""

    features = ()
    column_names = FRAME.columns

    def __getitem__(self, name: str) -> list[Any]:
        return FRAME[name].to_list()


def pandas_frame() -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({name: FRAME[name].to_numpy() for name in FRAME.columns})


def arrow_table() -> Any:
    arrow = pytest.importorskip("pyarrow")
    return arrow.table({name: FRAME[name].to_list() for name in FRAME.columns})


FRAMES: dict[str, Callable[[], Any]] = {
    "polars": lambda: FRAME,
    "lazy": FRAME.lazy,
    "stream": Stream,
    "datasets": Rows,
    "dict of arrays": lambda: {name: FRAME[name].to_numpy() for name in FRAME.columns},
    "rows": lambda: FRAME.iter_rows(named=True),
    "pandas": pandas_frame,
    "arrow": arrow_table,
}


@pytest.mark.parametrize("kind", FRAMES)
def test_frames_of_every_kind_are_the_same(kind: str) -> None:
    assert to_polars(FRAMES[kind]()).equals(FRAME)


def test_what_is_no_frame() -> None:
    with pytest.raises(ValueError, match="the frame is a int; give a frame of pandas, Polars"):
        to_polars(5)
    with pytest.raises(ValueError, match="the frame has no rows"):
        to_polars(FRAME[:0])
    with pytest.raises(ValueError, match=r"cannot be read: .*a column holds values of one type"):
        to_polars({"a": np.array([1, "x", [2]], dtype=object)})
    gaps = to_polars({"a": np.array(["x", None, float("nan")], dtype=object)})
    assert gaps["a"].to_list() == ["x", None, None]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fitted]:
    folder = tmp_path_factory.mktemp("fit") / "run"
    more = {**SMALL, "run.output": str(folder), "model.embedding_size": 8}
    yield shoal.fit("BPR", FRAME, user="uid", item="iid", time="ts", **more)


def test_figures(fitted: Fitted) -> None:
    assert fitted.metrics["recall@5"] == fitted.trained.evaluate()["test"]["recall@5"]
    assert list(fitted.curves)[:3] == ["epoch", "loss", "valid recall@5"]
    assert len(fitted.curves["loss"]) == 2 and None not in fitted.curves["valid mrr@5"]
    assert "recall@5" in repr(fitted)
    page = fitted._repr_html_()
    assert "<table>" in page and page.count("<tr>") == 1 + len(fitted.metrics)


def test_answers_have_the_ids_of_the_frame(fitted: Fitted) -> None:
    seen = set(FRAME.filter(pl.col("uid") == "u3")["iid"])
    found = fitted.recommend("u3", 4)
    assert len(found) == 4 and all(type(item) is int and item not in seen for item, _ in found)
    assert dict(fitted.recommend(["u3", "u4"], 4)["u3"]) == pytest.approx(dict(found))
    users, items = fitted.user_vectors(), fitted.item_vectors()
    assert users.vectors.shape == (50, 8) and items.vectors.shape == (40, 8)
    assert items.ids.dtype == np.int64 and set(users.ids) == set(FRAME["uid"])
    scores = dict(zip(items.ids.tolist(), items.vectors @ users.vectors[users.ids == "u3"][0]))
    assert found[0][1] == pytest.approx(scores[found[0][0]], rel=1e-5)
    assert found[0][1] == pytest.approx(max(scores[i] for i in scores if i not in seen), rel=1e-5)
    like = fitted.similar_items(1007, 3)
    assert len(like) == 3 and like[0][1] >= like[1][1] and 1007 not in dict(like)
    with pytest.raises(ValueError, match="item '5' is not known to this model; it knows 40"):
        fitted.similar_items(5)


@pytest.mark.parametrize("kind", [int, float, str])
def test_ids_come_back_in_the_type_they_came_in(kind: type, tmp_path: Path) -> None:
    frame = {
        "uid": [kind(k % 20 + 1) for k in range(300)],
        "iid": [kind(k % 17) for k in range(300)],
    }
    more = {**SMALL, "run.output": str(tmp_path / "run"), "train.epochs": 1}
    fitted = shoal.fit("Pop", frame, user="uid", item="iid", **more, **{"eval.repeatable": True})
    best = fitted.recommend(kind(3), 2)
    assert best.by == "model" and all(type(item) is kind for item, _ in best)
    for spelled in (3, 3.0, np.float64(3), np.int32(3), "3"):
        assert fitted.recommend(spelled, 2) == best
    assert fitted.recommend(3.5, 2).by == "popularity"
    assert list(fitted.recommend([3.0, np.int64(4)], 2)) == [3.0, 4]


HISTORIES: dict[str, dict[str, Any]] = {
    "SASRec": {"model.hidden_size": 8, "model.inner_size": 8, "data.max_len": 8},
    "EASE": {},
    "IALS": {"model.embedding_size": 4, "model.epochs": 2},
    "MultiVAE": {"model.mlp_hidden_dimension": [8], "model.latent_dimension": 4},
    "RecVAE": {"model.hidden_dimension": 8, "model.latent_dimension": 4},
}


@pytest.mark.parametrize("model", HISTORIES)
def test_a_history_is_answered_by_models_that_read_it(model: str, tmp_path: Path) -> None:
    """The history of a known user is answered as the user is."""
    more = {**SMALL, **HISTORIES[model], "run.output": str(tmp_path / "run"), "train.epochs": 1}
    more |= {"data.split.ratio": [1.0, 0.0, 0.0], "data.split.by": "ratio", "train.eval_every": 0}
    more["eval.repeatable"] = False
    fitted = shoal.fit(model, FRAME, user="uid", item="iid", time="ts", **more)
    own = FRAME.filter(pl.col("uid") == "u3")["iid"].to_list()
    best = fitted.recommend("u3", 3)
    found = fitted.recommend(history=own, topk=3)
    assert [item for item, _ in found] == [item for item, _ in best] and found.by == "model"
    assert [score for _, score in found] == pytest.approx([score for _, score in best], rel=1e-4)
    some = fitted.recommend(history=[*own, 5, float(own[0])], topk=3)
    assert (some.by, some.unknown) == ("model", (5,)) and not {i for i, _ in some} & set(own)
    none = fitted.recommend(history=[5, "x"], topk=3)
    assert (none.by, none.unknown, len(none)) == ("popularity", (5, "x"), 3)


def test_other_interactions(fitted: Fitted, caplog: pytest.LogCaptureFixture) -> None:
    best = fitted.recommend("u3", 2)
    frame = {"uid": ["u3", "u3", "nobody"], "iid": [best[0][0], best[1][0], 1001]}
    with caplog.at_level("WARNING", logger="shoal"):
        found = fitted.evaluate(frame)
    assert found["recall@5"] == found["mrr@5"] == 1.0
    assert "1 of 3 rows name unknown users or items" in caplog.text
    with pytest.raises(ValueError, match="no user and item that are known"):
        fitted.evaluate({"uid": ["x"], "iid": [1001]})


def test_click_models_recommend(tmp_path: Path) -> None:
    frame = FRAME.with_columns(label=(pl.col("iid") % 2).cast(pl.Float64), day=pl.col("ts") % 7)
    more = {"train.epochs": 8, "train.batch_size": 64, "run.progress": False, "model.dim": 4}
    more["run.output"] = str(tmp_path / "clicks")
    fitted = shoal.fit("DeepFM", frame, "uid", "iid", "ts", label="label", **more)
    assert fitted.metrics["auc"] > 0.9
    best = fitted.recommend("u3", 3)
    assert all(item % 2 == 1 for item, _ in best)  # items with odd numbers are clicked
    assert fitted.evaluate(frame)["auc"] > 0.9
    with pytest.raises(ValueError, match="scores pairs"):
        fitted.item_vectors()


def test_saved_and_opened(fitted: Fitted, tmp_path: Path) -> None:
    copy = fitted.save(tmp_path / "copy")
    again = Fitted(copy)
    assert again.recommend("u3") == fitted.recommend("u3")
    assert again.trained.config.data.path == str(copy / "data")
    with pytest.raises(ValueError, match="is there already"):
        fitted.save(copy)


def test_errors_name_the_frame(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"iid": None}, {}, "the frame of interactions, row 7 (counted from 1): 'iid' is empty"),
        ({"ts": float("nan")}, {}, "the frame of interactions, row 7 (counted from 1): 'ts'"),
        ({}, {"users": {"id": ["u1"]}}, "the frame of users has no column 'uid'"),
    ]
    for number, (spoilt, given, error) in enumerate(cases):
        rows = [dict(row) for row in FRAME.iter_rows(named=True)]
        rows[6] |= spoilt
        more = {**SMALL, "run.output": str(tmp_path / str(number))}
        with pytest.raises(ValueError, match=re.escape(error)) as caught:
            shoal.fit("BPR", rows, user="uid", item="iid", time="ts", **given, **more)
        assert "parquet" not in str(caught.value)


def test_columns_that_are_not_there() -> None:
    with pytest.raises(ValueError, match="user='user_id': the frame has only uid, iid, ts"):
        shoal.fit("BPR", FRAME, user="user_id", item="iid")
    words = 'the frame: no column looks like the user; it has a, iid, ts. Name it: user="NAME"'
    with pytest.raises(ValueError, match=re.escape(words)):
        shoal.fit("BPR", FRAME.rename({"uid": "a"}))


def test_columns_are_guessed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fitted = shoal.fit("Pop", FRAME, **{**SMALL, "run.output": str(tmp_path / "a")})
    assert 'user = uid, item = iid, time = ts; change with user="NAME", item=' in caplog.text
    fields = fitted.trained.config.data.fields
    assert (fields.user, fields.item, fields.time) == ("uid", "iid", "ts")


def test_a_sequential_model_and_one_of_features(tmp_path: Path) -> None:
    more = {**SMALL, "run.output": str(tmp_path / "a"), "train.epochs": 1}
    more |= {"model.hidden_size": 8, "model.inner_size": 8, "data.max_len": 8}
    sequential = shoal.fit("SASRec", FRAME, user="uid", item="iid", time="ts", **more)
    assert sequential.user_vectors().vectors.shape == (50, 8)
    items = {"iid": np.arange(1000, 1040), "genre": [["a", "b"][k % 2] for k in range(40)]}
    more = {**SMALL, "run.output": str(tmp_path / "b"), "train.epochs": 1}
    told = shoal.fit("LightFM", FRAME, "uid", "iid", "ts", items=items, **more)
    assert [f.name for f in told.trained.model.facts.features] == ["uid", "iid", "genre"]
    assert told.recommend("u3")
    more["run.output"] = str(tmp_path / "c")
    genre = shoal.Feature("genre", "id", "item", vocabulary="hashed", rows=7)
    chosen = [shoal.Feature("uid", "id", "user"), genre]
    told = shoal.fit("LightFM", FRAME, "uid", "iid", items=items, features=chosen, **more)
    assert {t.name: t.rows for t in told.trained.model.embed.tables.values()} == {
        "uid": 51,
        "genre": 7,
    }

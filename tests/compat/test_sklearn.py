"""shoal.fit as an estimator: scikit-learn's own tools take it."""

import importlib
import sys
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from shoal.compat.sklearn import FrameEstimator

QUIET: dict[str, Any] = {"run.progress": False, "train.batch_size": 128}
random = np.random.default_rng(5)
PAIRS = [
    (f"u{user}", item)
    for user in range(30)
    for item in range(24)
    if random.random() < (0.8 if user % 3 == item % 3 else 0.05)
]
FRAME = pl.DataFrame(PAIRS, schema=["uid", "iid"], orient="row")


def estimator(**more: Any) -> FrameEstimator:
    given = {"user": "uid", "item": "iid", "metric": "recall@5", **QUIET, **more}
    return FrameEstimator("ItemKNN", **given)


def test_frame_estimator_works_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)  # an import of it fails from here on
    room = importlib.reload(importlib.import_module("shoal.compat.sklearn"))
    assert room.FrameEstimator(user="uid", item="iid", **QUIET, epochs=1).fit(FRAME).fitted_


def test_parameters() -> None:
    one = estimator(**{"model.k": 5})
    assert one.get_params()["model.k"] == 5 and one.get_params()["user"] == "uid"
    assert one.set_params(metric="mrr@3", **{"model.k": 7}) is one
    assert (one.metric, one.keys["model.k"]) == ("mrr@3", 7)
    assert "metric='mrr@3'" in repr(one) and "\n" not in repr(one)


def test_fit_score_and_recommend() -> None:
    one = estimator(**{"run.seed": 3})
    with pytest.raises(ValueError, match="not fitted yet; call fit"):
        one.score(FRAME)
    with pytest.raises(ValueError, match="not fitted yet"):
        one.recommend("u1")
    assert one.fit(FRAME[::2]) is one
    assert one.score(FRAME[1::2]) > 0.4
    assert one.recommend("u1", topk=3)[0][0] % 3 == 1
    with pytest.raises(ValueError, match=r"metric='recall@50' is not among .*did you mean"):
        one.set_params(metric="recall@50").score(FRAME[1::2])
    with pytest.raises(ValueError, match="ranks items"):
        one.predict(FRAME)
    with pytest.raises(ValueError, match="the frame has only other"):
        one.fit(FRAME.rename({FRAME.columns[0]: "other"}))
    assert one.recommend("u1", topk=3)[0][0] % 3 == 1, "a fit that failed leaves the one before"
    with pytest.raises(ValueError, match=r"model\.kk"):
        estimator(**{"model.kk": 5}).fit(FRAME)


def test_score_is_negative_for_metrics_where_less_is_better() -> None:
    clicks = FRAME.with_columns(liked=pl.Series(random.integers(0, 2, len(FRAME))))
    one = FrameEstimator("LR", user="uid", item="iid", label="liked", metric="logloss", **QUIET)
    assert one.set_params(epochs=1).fit(clicks).score(clicks) < 0.0
    assert one.predict(clicks).shape == (len(clicks),)


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
def test_clone_and_cross_validation(kind: Any) -> None:
    base = pytest.importorskip("sklearn.base", reason="scikit-learn is not installed")
    selection = pytest.importorskip("sklearn.model_selection")
    frame = kind(FRAME.to_dict(as_series=False))
    one = estimator(**{"model.k": 5})
    copy = base.clone(one)
    assert copy is not one and copy.get_params() == one.get_params()
    scores = selection.cross_val_score(
        one, frame, cv=selection.KFold(3, shuffle=True, random_state=1)
    )
    assert scores.shape == (3,) and (scores > 0.3).all()
    if kind is pd.DataFrame:  # every user in every part
        users = selection.StratifiedKFold(2, shuffle=True, random_state=1)
        assert (selection.cross_val_score(one, frame, frame["uid"], cv=users) > 0.3).all()
        search = selection.GridSearchCV(one, {"model.k": [1, 8]}, cv=users)
        search.fit(frame, frame["uid"])
        assert search.best_params_ == {"model.k": 8}
        assert len(search.best_estimator_.recommend("u1", topk=2)) == 2

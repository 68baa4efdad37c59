"""Raw rows in, probabilities out: a fitted model, its artifact, the service and `shoal predict`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from exported import check_here, rewrite
from feature_data import FEATURES, values, write

import shoal
from shoal.runs.fit import Fitted
from shoal.runs.trained_run import Trained
from shoal.serving.artifact import export
from shoal.serving.artifact.files import ArtifactError
from shoal.serving.bulk import predict_file
from shoal.serving.service.questions import Predict, answer_predict
from shoal.training.evaluation import predicted

random = np.random.default_rng(7)
ROWS = 900
FRAME = pl.DataFrame(
    {
        "User-ID": random.integers(100, 130, ROWS),
        "ISBN": [f"034{k}X" for k in random.integers(0, 25, ROWS)],
        "price $": random.normal(20, 5, ROWS).round(2),
        "day of week": [["mon", "tue", None][k] for k in random.integers(0, 3, ROWS)],
        "seen before": [[f"034{k}X" for k in random.integers(0, 25, n % 4)] for n in range(ROWS)],
    }
).with_columns(
    liked=((pl.col("User-ID") + pl.col("ISBN").str.len_chars()) % 2).cast(pl.Float64),
)
FRAME = FRAME.with_columns(
    pl.when(pl.int_range(pl.len()) % 11 > 0).then("price $").alias("price $")
)
USERS = {
    "User-ID": np.arange(100, 130),
    "Age": [None if k % 7 == 3 else 20.5 + k for k in range(30)],
}
BOOKS = {"ISBN": [f"034{k}X" for k in range(25)], "Author": [f"A. {k % 6}" for k in range(25)]}
DIN = [
    shoal.Feature("User-ID", "id", "user"),
    shoal.Feature("ISBN", "id", "item"),
    shoal.Feature("seen before", "sequence", table="ISBN", length=3),
    shoal.Feature("Author", "id", "item", vocabulary="hashed", rows=50),
    shoal.Feature("Age", "number", "user", buckets=4),
]
MODELS: dict[str, dict[str, Any]] = {
    "LR": {},
    "DeepFM": {"model.dim": 4, "model.layers": [8]},
    "DLRM": {"model.dim": 4, "model.bottom_layers": [8], "model.top_layers": [8]},
    "DNN": {"model.dim": 4, "model.layers": [8], "features": DIN},
}


@pytest.fixture(scope="module", params=MODELS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A fitted model, and the folder of its artifact."""
    folder = tmp_path_factory.mktemp("clicks")
    more = {"train.epochs": 2, "train.batch_size": 64, "run.progress": False}
    more |= {"run.output": str(folder / "run"), **MODELS[request.param]}
    fitted = shoal.fit(
        request.param, FRAME, "User-ID", "ISBN", label="liked", users=USERS, items=BOOKS, **more
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "check_apart", check_here)
        shoal.export(folder / "run", folder / "artifact")
    return fitted, folder / "artifact"


def of_split(trained: Trained) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the test split, and what an evaluation predicts for them."""
    reader = trained.parts.evaluator.readers["test"]  # type: ignore[union-attr]
    logits = [trained.model.logits(batch).detach() for batch in reader.batches(0)]  # type: ignore[operator]
    return trained.parts.dataset.splits["test"], predicted(logits[0]).numpy()  # type: ignore[union-attr]


def test_raw_rows_are_predicted_as_an_evaluation_predicts_them(made: Any, tmp_path: Path) -> None:
    fitted, folder = made
    rows, expected = of_split(fitted.trained)
    raw = FRAME.drop("liked")[rows]
    np.testing.assert_array_equal(fitted.predict(raw), expected)
    columns = {name: raw[name].to_list() for name in raw.columns}
    np.testing.assert_array_equal(fitted.predict(columns), expected)
    metrics = fitted.evaluate(FRAME[rows])
    assert metrics == {name: fitted.metrics[name] for name in metrics}
    model = shoal.load(folder)
    np.testing.assert_allclose(model.predict(raw), expected, rtol=1e-6)
    np.testing.assert_allclose(model.predict(columns), expected, rtol=1e-6)
    known = [name for name in raw.columns if name in model.encoder.columns]
    asked = Predict(samples=list(raw[known].iter_rows(named=True)))
    (answer, again) = answer_predict(model, [asked, asked])
    np.testing.assert_allclose(answer["clicks"], expected, rtol=1e-6)
    np.testing.assert_allclose(again["clicks"], expected, rtol=1e-6)
    for suffix, write_file in ((".parquet", raw.write_parquet), (".jsonl", raw.write_ndjson)):
        write_file(tmp_path / f"rows{suffix}")
        assert predict_file(folder, tmp_path / f"rows{suffix}", tmp_path / "out.csv") == len(rows)
        np.testing.assert_allclose(pl.read_csv(tmp_path / "out.csv")["click"], expected, rtol=1e-6)


def test_unseen_values_are_what_the_features_say(
    made: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fitted, folder = made
    row = {name: [FRAME[name][0]] for name in FRAME.columns if name != "liked"}
    known = fitted.predict(row)
    for spelled in (float(row["User-ID"][0]), str(row["User-ID"][0]), f"{row['User-ID'][0]}.0"):
        np.testing.assert_array_equal(fitted.predict({**row, "User-ID": [spelled]}), known)
    nobody = {**row, "User-ID": [7], "ISBN": ["0-new"], "day of week": ["x"]}
    with caplog.at_level("WARNING", logger="shoal"):
        new = fitted.predict(nobody)
    assert 0 < new[0] < 1 and "1 of 1 rows have an unknown User-ID" in caplog.text
    features = fitted.trained.predictor.encoder.table.features
    exact = [one.column for one in features if one.vocabulary == "exact" and not one.cross]
    assert ("unknown day of week" in caplog.text) == ("day of week" in exact)
    np.testing.assert_allclose(shoal.load(folder).predict(nobody), new, rtol=1e-6)
    # Somebody new may be described; an empty cell of a known user is what training had for them.
    told = fitted.predict({**row, "User-ID": [7], "Age": [21.0]})
    other = fitted.predict({**row, "User-ID": [7], "Age": [48.0]})
    assert told != other
    np.testing.assert_array_equal(fitted.predict({**row, "Age": [None]}), known)


def test_what_rows_lack(made: Any) -> None:
    fitted, folder = made
    row = {name: [FRAME[name][0]] for name in FRAME.columns if name not in ("liked", "ISBN")}
    for use in (fitted.predict, shoal.load(folder).predict):
        with pytest.raises(ValueError, match="the rows have no column 'ISBN', which the model"):
            use(row)
    wrong = Predict(samples=[{"User-ID": 1, "isbn": "x"}])
    (refused,) = answer_predict(shoal.load(folder), [wrong])
    assert "no column is named 'isbn'; there are User-ID, ISBN" in str(refused)
    with pytest.raises(ValueError, match="the rows have no label 'liked'"):
        fitted.evaluate({**row, "ISBN": ["x"]})
    with pytest.raises(ValueError, match="ranks items: it predicts no clicks"):
        ranks = shoal.fit(
            "Pop", FRAME, "User-ID", "ISBN", **{"run.output": str(folder.parent / "pop")}
        )
        ranks.predict(row)


def test_features_of_every_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists, text, weights, shared tables, buckets, crosses, empty cells: of atomic files."""
    write(tmp_path)
    more = {"data.features": FEATURES, "run.output": str(tmp_path / "run"), "train.epochs": 1}
    shoal.run(config_dict={**values(tmp_path), **more})
    trained = Trained(tmp_path / "run")
    rows, expected = of_split(trained)
    lines = (tmp_path / "shop" / "shop.inter").read_text().splitlines()
    chosen = [lines[0], *(lines[1 + row] for row in rows)]
    names = [name.partition(":")[0] for name in lines[0].split("\t")]
    cells = zip(*(line.split("\t") for line in chosen[1:]))
    raw = {name: list(column) for name, column in zip(names, cells) if name != "click"}
    np.testing.assert_array_equal(trained.predict(raw), expected)
    monkeypatch.setattr(export, "check_apart", check_here)
    shoal.export(tmp_path / "run", tmp_path / "artifact")
    (tmp_path / "test.inter").write_text("\n".join(chosen) + "\n")
    predict_file(tmp_path / "artifact", tmp_path / "test.inter", tmp_path / "out.parquet")
    np.testing.assert_allclose(
        pl.read_parquet(tmp_path / "out.parquet")["click"], expected, rtol=1e-6
    )


@pytest.mark.parametrize("made", ["LR"], indirect=True)
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda d: d["features"][0].update(kind="code"), r"features\.0\.kind"),
        (lambda d: d["features"][0].update(rows=5), "not as many as its rows"),
        (lambda d: d["features"][0].update(length=1 << 60, kind="numbers"), "the sizes of"),
        (lambda d: d["features"].pop(0), "values of|no type|the words"),
        (lambda d: d["types"].clear(), "has no type"),
        (lambda d: d["words"].update({"User-ID": "../x"}), "damaged"),
        (lambda d: d["spelling"].update(separator=[]), "error for DataSection"),
        (lambda d: d.pop("numbers"), "numbers"),
    ],
)
def test_an_author_cannot_do_harm(change: Any, why: str, made: Any, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(made[1], folder)
    rewrite(folder, "features.json", change)
    with pytest.raises(ArtifactError, match=why):
        shoal.load(folder).predict({"User-ID": [1], "ISBN": ["x"]})


def test_a_fitted_click_model_is_opened_again(made: Any) -> None:
    fitted, _ = made
    row = {name: [FRAME[name][0]] for name in FRAME.columns}
    np.testing.assert_array_equal(Fitted(fitted.folder).predict(row), fitted.predict(row))

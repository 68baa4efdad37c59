"""RecBole's property files of models: recbole_models.yaml has their keys and values.

Each file resolves and trains as it stands.
"""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import shoal
from shoal.config import ConfigError
from shoal.config.yaml_io import read_file
from shoal.models import MODELS, find
from shoal.runs.run import resolve

FILES: dict[str, dict[str, Any]] = read_file(Path(__file__).parent / "recbole_models.yaml")[0]
HERE = {name.lower() for name in MODELS}
TREES = ("lightgbm", "xgboost")  # packages of an extra
KNOWLEDGE = (
    "CFKG",
    "CKE",
    "GRU4RecKG",
    "KGAT",
    "KGCN",
    "KGIN",
    "KGNNLS",
    "KSR",
    "KTUP",
    "MCCLK",
    "MKR",
    "RippleNet",
)
FEATURED = ("FDSA", "GRU4RecF", "SASRecF", "S3Rec")
HISTORIES = ("DIEN", "DIN")
# Each way in which a key is read, and each family; the others train where there is time.
SAMPLE = (*TREES, "AFM", "BERT4Rec", "FDSA", "KGIN", "MultiVAE", "PNN")
SMALL: dict[str, Any] = {
    "data.synthetic": {"users": 60, "items": 50, "interactions": 900},
    "data.max_len": 10,
    "train.epochs": 1,
    "train.batch_size": 256,
    "run.progress": False,
    "run.log_level": "warning",
    "run.trackers": [],
}
CLICKS = {"data.name": "synthetic_clicks", "data.clicks.synthetic": {"samples": 600}}


def values_of(name: str) -> dict[str, Any]:
    """The file of a model with small data that has what the model reads."""
    values = {"model": name, "data.name": "synthetic", **SMALL, **FILES[name]}
    if name in KNOWLEDGE or name in FEATURED:
        values["data.synthetic"] = {**SMALL["data.synthetic"], "item_features": 2}
    for key in ("selected_features", "item_attribute"):  # of other names here
        if key in values:
            values[key] = ["feature_0"] if isinstance(values[key], list) else "feature_0"
    if find(name).kind == "clicks":
        del values["data.synthetic"], values["data.max_len"]
        values |= CLICKS
    return values


def test_every_file_is_of_a_model_that_is_here() -> None:
    assert len(FILES) == 93 and [name for name in FILES if name.lower() not in HERE] == []


@pytest.mark.parametrize("name", FILES)
def test_file_resolves(name: str) -> None:
    resolved = resolve(values={"model": name, "data.name": "synthetic", **FILES[name]})
    assert resolved.config.model.name.lower() == name.lower()


def test_a_key_becomes_the_option_that_it_is() -> None:
    config = resolve(values={"model": "DIEN", "data.name": "synthetic", **FILES["DIEN"]}).config
    assert config.model.options["dim"] == 10 and config.model.options["aux_weight"] == 1.0
    assert config.model.options["layers"] == [256, 256, 256]


def test_a_switch_of_two_words() -> None:
    data = {"data.name": "synthetic"}
    assert option("lightgbm", "ids", **FILES["lightgbm"], **data) == "numbers"
    assert option("xgboost", "ids", convert_token_to_onehot=True, **data) == "one_hot"
    with pytest.raises(ConfigError, match=r"convert_token_to_onehot.*allowed: true or false"):
        option("xgboost", "ids", convert_token_to_onehot=3, **data)


def test_parameters_of_a_library_keep_their_names() -> None:
    data = {"data.name": "synthetic"}
    assert option("xgboost", "params", **FILES["xgboost"], **data)["eta"] == 1
    assert option("lightgbm", "rounds", **FILES["lightgbm"], **data) == 300
    for name, key in (("xgboost", "xgb_params"), ("lightgbm", "lgb_params")):
        with pytest.raises(ConfigError, match="forcedsplits_filename"):
            option(name, "params", **{key: {"forcedsplits_filename": "/etc/passwd"}}, **data)
    with pytest.raises(ConfigError, match="a booster is trained anew"):
        option("xgboost", "params", xgb_model="file", **data)


def option(model: str, name: str, **values: Any) -> Any:
    """An option of a model, as a config of RecBole's keys sets it."""
    return resolve(values={"model": model, **values}).config.model.options[name]


def test_a_key_without_effect_says_why() -> None:
    resolved = resolve(values={"model": "MKR", "data.name": "synthetic", **FILES["MKR"]})
    assert any("kge_interval has no effect: both tasks" in note for note in resolved.notes)


@pytest.mark.parametrize(
    ("model", "key", "value", "reason"),
    [
        ("ItemKNN", "knn_method", "user", "neighbours of users are the model UserKNN"),
        ("BERT4Rec", "transform", "inverse_itemseq", "items are hidden by the model"),
        ("BPR", "mlp_hidden_size", [8], "unknown key mlp_hidden_size"),
        ("SASRec", "knn_method", "item", "unknown key knn_method"),
        ("DeepFM", "dropout_probs", [0.1], "unknown key dropout_probs"),
    ],
)
def test_what_a_model_cannot_honour_is_refused(
    model: str, key: str, value: Any, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        resolve(values={"model": model, "data.name": "synthetic", key: value})


@pytest.mark.parametrize(
    "name",
    [
        name if name in SAMPLE else pytest.param(name, marks=pytest.mark.slow)
        for name in FILES
        if name not in HISTORIES
    ],
)
def test_file_trains(name: str, tmp_path: Path) -> None:
    if name in TREES:
        pytest.importorskip(name, reason="the extra trees is not installed")
    result = shoal.run(config_dict=values_of(name) | {"run.output": str(tmp_path / "run")})
    assert result["test"]


@pytest.mark.slow
@pytest.mark.parametrize("name", HISTORIES)
def test_file_of_a_model_that_reads_histories_trains(name: str, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    items = [f"i{k}" for k in random.integers(0, 20, 600)]
    seen = [[f"i{k}" for k in random.integers(0, 20, number % 4)] for number in range(600)]
    frame = pl.DataFrame({"user": random.integers(0, 30, 600), "item": items, "seen": seen})
    frame = frame.with_columns(liked=pl.Series(random.integers(0, 2, 600).astype(float)))
    features = [
        shoal.Feature("item", "id", "item"),
        shoal.Feature("seen", "sequence", table="item", length=3),
    ]
    keys: dict[str, Any] = {**FILES[name], "features": features, "train.epochs": 1}
    keys |= {"run.progress": False, "run.output": str(tmp_path / "run")}
    assert shoal.fit(name, frame, "user", "item", label="liked", **keys)

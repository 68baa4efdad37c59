"""`shoal codes`: made of data and of models, taken by TIGER, and what is refused."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner
from zoo_models import DATA, zoo_config

from shoal.cli.main import app
from shoal.data.ids import Ids
from shoal.data.item_codes import read_codes
from shoal.distributed.world import World
from shoal.models.sequential.tiger import TIGER
from shoal.runs.build import build
from shoal.runs.run import run
from shoal.runs.semantic_ids import make_codes, vectors_of_data


def shoal(*given: str) -> str:
    done = CliRunner().invoke(app, ["codes", *given])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def words() -> list[str]:
    return [f"--{key}={value}" for key, value in DATA.items() if key.startswith("data.")]


@pytest.mark.parametrize("method", [pytest.param("rqvae", marks=pytest.mark.slow), "kmeans"])
def test_made_codes_are_good_and_tiger_takes_them(method: str, tmp_path: Path) -> None:
    file = str(tmp_path / "codes.json")
    options = ("--levels", "2", "--size", "16", "--steps", "30", "--method", method)
    text = shoal("make", *words(), "--to", file, *options)
    assert "items: 47" in text and f"--data.codes={file}" in text and "reconstruction: " in text
    text = shoal("check", file, *words())
    assert "unique: 100.0% of items" in text and "all 47 items of the data have codes" in text
    parts = build(zoo_config("TIGER", data__codes=file), World())
    model, given = parts.model, read_codes(file)
    assert isinstance(model, TIGER)
    names = parts.dataset.vocab[parts.dataset.item_field]
    assert model.codes[1:].tolist() == [given[str(name)] for name in names[1:]]
    assert parts.fingerprint["codes"]
    with pytest.raises(ValueError, match="BPR reads no codes of items"):
        build(zoo_config("BPR", data__codes=file), World())


def test_a_column_of_vectors_is_taken_as_it_is(tmp_path: Path) -> None:
    vectors = {"a": [0.0, 1.0], "<b>": [0.0, 1.01], "c": [5.0, 5.0], "d e": [-3.0, 2.0]}
    rows = [{"item_id": item, "vector": own, "color": "red"} for item, own in vectors.items()]
    (tmp_path / "items.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pairs = [f"{user},{item},{time}" for user in "123" for time, item in enumerate(vectors)]
    (tmp_path / "inter.csv").write_text("\n".join(["user_id,item_id,timestamp", *pairs]))
    files = [
        f"--data.files.inter={tmp_path}/inter.csv",
        f"--data.files.item={tmp_path}/items.jsonl",
    ]
    file = str(tmp_path / "codes.json")
    options = ("--to", file, "--levels", "1", "--size", "3", "--method", "kmeans")
    assert "reconstruction: 100.0%" in shoal("make", *files, "--of", "vector", *options)
    codes = read_codes(file)
    assert codes["a"][0] == codes["<b>"][0] and len({own[0] for own in codes.values()}) == 3
    assert "color is read as id, not as vectors" in shoal("make", *files, "--of", "color", *options)


def test_of_a_trained_model_and_of_features(tmp_path: Path) -> None:
    folder, file = tmp_path / "run", tmp_path / "codes.json"
    values = {"model.embedding_size": 8, **DATA, "train.epochs": 1, "run.output": str(folder)}
    run("BPR", config_dict=values)
    text = shoal("make", str(folder), "--to", str(file), "--levels", "2", "--method", "kmeans")
    assert "items: 47" in text and len(read_codes(file)) == 47
    with pytest.raises(ValueError, match="values that are no numbers"):
        make_codes(Ids(["[PAD]", "a"]), torch.full((2, 4), torch.nan), file)
    with pytest.raises(ValueError, match=r"of the item vectors of .*leave the rest out"):
        shoal("make", str(folder), "--of", "features", "--to", str(file))
    told = zoo_config("TIGER features")
    assert vectors_of_data(told, "feature_0")[1].shape == (48, 64)
    with pytest.raises(ValueError, match=r"no feature 'color'; .*or of one: feature_0, feature_1"):
        vectors_of_data(told, "color")

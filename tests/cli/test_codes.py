"""`shoal codes`: made of data and of models, taken by TIGER, and what is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported import check_here, exported, rewrite
from typer.testing import CliRunner
from zoo_models import DATA, MODELS, zoo_config

from shoal.cli.main import app
from shoal.data.ids import Ids
from shoal.data.item_codes import read_codes
from shoal.distributed.world import World
from shoal.models.sequential.tiger import TIGER
from shoal.runs.build import build
from shoal.runs.run import run
from shoal.runs.semantic_ids import make_codes, vectors_of_data
from shoal.runs.trained_run import Trained
from shoal.serving.artifact import export
from shoal.serving.artifact.artifact import load
from shoal.serving.artifact.files import ArtifactError
from shoal.serving.artifact.write_new_items import add_items


def shoal(*given: str) -> str:
    done = CliRunner().invoke(app, ["codes", *given])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def words() -> list[str]:
    return [f"--{key}={value}" for key, value in DATA.items() if key.startswith("data.")]


@pytest.mark.parametrize(
    "method", [pytest.param("rqvae", marks=pytest.mark.slow), "kmeans", "balanced"]
)
def test_made_codes_are_good_and_tiger_takes_them(method: str, tmp_path: Path) -> None:
    file = str(tmp_path / "codes.json")
    options = ("--levels", "2", "--size", "16", "--steps", "30", "--method", method)
    text = shoal("make", *words(), "--to", file, *options)
    assert "items: 47" in text and f"--data.codes={file}" in text and "reconstruction: " in text
    text = shoal("check", file, *words())
    assert "collisions: " in text and f"made by {method} of interactions" in text
    assert "all 47 items of the data have codes" in text
    parts = build(zoo_config("TIGER", data__codes=file), World())
    model, given = parts.model, read_codes(file).codes
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
    codes = read_codes(file).codes
    assert codes["a"][0] == codes["<b>"][0] and len({own[0] for own in codes.values()}) == 3
    assert "color is read as id, not as vectors" in shoal("make", *files, "--of", "color", *options)


def test_of_a_trained_model_and_of_features(tmp_path: Path) -> None:
    folder, file = tmp_path / "run", tmp_path / "codes.json"
    values = {"model.embedding_size": 8, **DATA, "train.epochs": 1, "run.output": str(folder)}
    run("BPR", config_dict=values)
    text = shoal("make", str(folder), "--to", str(file), "--levels", "2", "--method", "kmeans")
    assert "items: 47" in text and len(read_codes(file).codes) == 47
    with pytest.raises(ValueError, match="values that are no numbers"):
        make_codes(Ids(["[PAD]", "a"]), torch.full((2, 4), torch.nan), file)
    with pytest.raises(ValueError, match=r"of the item vectors of .*leave the rest out"):
        shoal("make", str(folder), "--of", "features", "--to", str(file))
    told = zoo_config("TIGER features")
    assert vectors_of_data(told, "feature_0")[1].shape == (48, 64)
    with pytest.raises(ValueError, match=r"no feature 'color'; .*or of one: feature_0, feature_1"):
        vectors_of_data(told, "color")


def vectors_file(folder: Path, name: str, ids: list[str], values: np.ndarray) -> str:
    np.save(folder / f"{name}.npy", values.astype(np.float32))
    (folder / f"{name}.txt").write_text("\n".join(ids))
    return str(folder / f"{name}.npy")


def test_codes_of_a_file_of_vectors_and_of_new_items(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    values = draw.normal(size=(60, 6))
    old = vectors_file(tmp_path, "old", [f"i{k}" for k in range(60)], values)
    file, more = str(tmp_path / "codes.json"), str(tmp_path / "more.json")
    options = ("--levels", "2", "--size", "8", "--method", "kmeans")
    text = shoal("make", old, "--to", file, *options)
    assert "items: 60" in text and "neighbours kept" in text and "8 of 8 (100%)" in text
    shoal("make", old, "--to", more, *options)
    assert Path(file).read_bytes() == Path(more).read_bytes()
    shoal("make", old, "--to", more, *options, "--run.seed=7")
    assert Path(file).read_bytes() != Path(more).read_bytes()
    twins = vectors_file(tmp_path, "new", ["i3", "twin"], values[[3, 5]])
    text = shoal("append", file, twins, "--to", more)
    assert "1 items added, 61 in all; 1 of the vectors are of items that have codes" in text
    codes = read_codes(more).codes
    assert codes["twin"][:2] == codes["i5"][:2] and codes["twin"] != codes["i5"]
    assert {item: codes[item] for item in read_codes(file).codes} == read_codes(file).codes
    version = read_codes(file).version()[:12]
    assert f"version {read_codes(more).version()[:12]}, before {version}" in text
    with pytest.raises(ValueError, match=r"all 2 items of .* have codes in .* already"):
        shoal("append", more, twins, "--to", more)
    wide = vectors_file(tmp_path, "wide", ["x"], np.ones((1, 7)))
    with pytest.raises(ValueError, match=r"vectors of 7 numbers, and the codes of .* made of 6"):
        shoal("append", file, wide, "--to", more)
    odd = vectors_file(tmp_path, "odd", ["x"], np.full((1, 6), np.nan))
    with pytest.raises(ValueError, match="values that are no numbers"):
        shoal("append", file, odd, "--to", more)
    with pytest.raises(ValueError, match="alone: leave the rest out"):
        shoal("make", old, "--to", file, "--of", "features")
    with pytest.raises(ValueError, match="are of a file of vectors"):
        shoal("make", *words(), "--to", file, "--ids", "x.txt")


def test_only_codes_of_vectors_with_codebooks_take_new_items(tmp_path: Path) -> None:
    new = vectors_file(tmp_path, "new", ["x"], np.ones((1, 6)))
    file = tmp_path / "codes.json"
    file.write_text('{"a": [1, 0]}')
    with pytest.raises(ValueError, match=r"written by hand .*it has no codebooks"):
        shoal("append", str(file), new, "--to", str(file))
    shoal("make", *words(), "--to", str(file), "--size", "8", "--method", "kmeans")
    with pytest.raises(ValueError, match="made of interactions, of which a new item has no vector"):
        shoal("append", str(file), new, "--to", str(file))


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """TIGER trained with codes of vectors, exported; the same codes with new items, and others."""
    root = tmp_path_factory.mktemp("life")
    config = zoo_config("TIGER")
    parts = build(config, World())
    items = [str(one) for one in parts.dataset.vocab[parts.dataset.item_field][1:]]
    values = np.random.default_rng(0).normal(size=(len(items), 6))
    old = vectors_file(root, "old", items, values)
    options = ("--levels", "2", "--size", "16", "--method", "kmeans")
    shoal("make", old, "--to", str(root / "codes.json"), *options)
    shoal("make", old, "--to", str(root / "other.json"), *options, "--run.seed=5")
    new = vectors_file(root, "new", ["twin", "far"], np.stack([values[3], values[3] * -4]))
    shoal("append", str(root / "codes.json"), new, "--to", str(root / "more.json"))
    train = {**trained_keys(root), "data.codes": str(root / "codes.json")}
    run("TIGER", config_dict={**train, "run.output": str(root / "run")})
    export_run(root / "run", root / "art")
    return root


def export_run(folder: Path, to: Path) -> None:
    """Export in this process: to start another takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "check_apart", check_here)
        export.export(folder, to)


def trained_keys(root: Path) -> dict[str, Any]:
    return {**DATA, **MODELS["TIGER"], "train.epochs": 1}


def test_a_resumed_run_or_an_export_with_other_codes_is_one_clear_error(life: Path) -> None:
    versions = [read_codes(life / f"{name}.json").version() for name in ("codes", "other")]
    values = {**trained_keys(life), "train.epochs": 2, "run.output": str(life / "run")}
    with pytest.raises(ValueError, match=r"items have other codes \(data.codes\); the codes") as e:
        other = {**values, "data.codes": str(life / "other.json")}
        run("TIGER", config_dict=other, resume=True)
    assert f"were version {versions[0][:12]}, and are {versions[1][:12]}" in str(e.value)
    codes, kept = life / "codes.json", (life / "codes.json").read_bytes()
    try:
        codes.write_bytes((life / "other.json").read_bytes())
        with pytest.raises(ValueError, match="items have other codes"):
            export_run(life / "run", life / "wrong")
    finally:
        codes.write_bytes(kept)
    assert not (life / "wrong").exists()
    more = {**values, "data.codes": str(life / "more.json")}  # the same codes, and further items
    assert run("TIGER", config_dict=more, resume=True)["epochs"] == 2


def test_new_items_of_an_artifact_are_recommended_by_their_codes(life: Path) -> None:
    done = add_items(life / "art", life / "more.json", life / "art-2")
    assert (done.added, done.items) == (2, 49)
    before, after = load(life / "art"), load(life / "art-2")
    signatures = [one.signature["item_codes"]["version"] for one in (before, after)]
    assert signatures == [read_codes(life / f"{n}.json").version() for n in ("codes", "more")]
    history = [str(one) for one in before.items.words[5:9]]
    old = dict(before.recommend(history=history, topk=47))
    new = dict(after.recommend(history=history, topk=49))
    both = [item for item in old if min(old[item], new[item]) > -500]
    assert len(both) > 3 and {"twin", "far"} <= new.keys()
    assert [old[item] for item in both] == [new[item] for item in both]
    twin = str(before.items.words[4])
    codes = read_codes(life / "more.json").codes
    assert codes["twin"][:2] == codes[twin][:2]
    assert after.recommend(history=["twin", *history], topk=5) != after.recommend(
        history=history, topk=5
    )


def test_items_that_an_artifact_cannot_take_are_refused(life: Path, tmp_path: Path) -> None:
    cases = {
        "other.json": r"other.json has other codes than those that .*art was trained with",
        "codes.json": r"all 47 items of .*codes.json are in .*art already",
        "new.npy": r"TIGER knows items by their codes, not by vectors: .*shoal codes append",
    }
    for file, why in cases.items():
        with pytest.raises(ValueError, match=why):
            add_items(life / "art", life / file, tmp_path / "more")
    run("TIGER", config_dict={**trained_keys(life), "run.output": str(tmp_path / "own")})
    export_run(tmp_path / "own", tmp_path / "own-art")
    with pytest.raises(ValueError, match=r"TIGER made its codes itself, .*data\.codes"):
        add_items(tmp_path / "own-art", life / "more.json", tmp_path / "more")
    with pytest.raises(ValueError, match="SASRec reads no codes of items"):
        add_items(exported()["SASRec"], life / "more.json", tmp_path / "more")
    assert not (tmp_path / "more").exists()


@pytest.mark.parametrize(
    "entry", [{}, {"version": "x", "size": "many"}, {"version": "x", "size": 0}]
)
def test_an_artifact_with_a_damaged_entry_of_codes_is_named(
    entry: dict[str, Any], life: Path, tmp_path: Path
) -> None:
    shutil.copytree(life / "art", tmp_path / "art")

    def damage(signature: dict[str, Any]) -> None:
        signature["item_codes"] = entry

    rewrite(tmp_path / "art", "signature.json", damage)
    with pytest.raises(ArtifactError, match="item_codes is damaged"):
        add_items(tmp_path / "art", life / "more.json", tmp_path / "more")


def test_a_run_goes_on_from_another_with_appended_codes(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for day, most in (("first", 40), ("second", 43)):
        rows = [
            f"{u},i{k},{t}" for u in range(30) for t, k in enumerate(draw.permutation(most)[:9])
        ]
        rows += [f"last,i{most - 1 - t},{t}" for t in range(6)]
        (tmp_path / f"{day}.csv").write_text("\n".join(["user_id,item_id,timestamp", *rows]))
    values = draw.normal(size=(43, 6))
    first = vectors_file(tmp_path, "first", [f"i{k}" for k in range(40)], values[:40])
    every = vectors_file(tmp_path, "all", [f"i{k}" for k in range(43)], values)
    codes, more, other = (str(tmp_path / f"{name}.json") for name in ("codes", "more", "other"))
    options = ("--levels", "2", "--size", "8", "--method", "kmeans")
    shoal("make", first, "--to", codes, *options)
    shoal("append", codes, every, "--to", more)
    shoal("make", every, "--to", other, *options)
    quiet = {key: value for key, value in trained_keys(tmp_path).items() if "data" not in key}

    def train(day: str, file: str, **keys: str) -> Any:
        given = {"data.files": {"inter": str(tmp_path / f"{day}.csv")}, "data.codes": file}
        return run("TIGER", config_dict={**quiet, **given, **keys})

    before = str(tmp_path / "run")
    train("first", codes, **{"run.output": before})
    begin = {"start.run": before, "start.vocabulary": before}
    after = str(tmp_path / "next")
    train("second", more, **begin, **{"run.output": after})
    new, old = (Trained(folder).model for folder in (after, before))
    assert isinstance(new, TIGER) and isinstance(old, TIGER)
    assert (len(old.codes), len(new.codes)) == (41, 44) and new.size == old.size
    assert torch.equal(new.codes[:41], old.codes)
    with pytest.raises(ValueError, match="other codes than those that the model was trained with"):
        train("second", other, **begin, **{"run.output": str(tmp_path / "wrong")})

"""Items that came after training: a model with vectors ranks them at once, others say why not."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported import export_here, exported, rewrite, trained
from safetensors.torch import load_file
from small import FIXTURES, VECTORS, small_config
from typer.testing import CliRunner

import shoal
from shoal.cli.main import app
from shoal.distributed.world import World
from shoal.models.base import Retrieval
from shoal.runs.build import build
from shoal.serving.artifact.artifact import Artifact
from shoal.serving.artifact.projection import write_projection
from shoal.serving.artifact.write_new_items import add_items

OLD = (FIXTURES / "item_vectors.txt").read_text().split()
VALUES = np.load(FIXTURES / "item_vectors.npy")


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    """Exported in this process: what the trained model answers was compared."""
    root, cases = (
        tmp_path_factory.mktemp("artifacts"),
        {
            "SASRec": ("SASRec", VECTORS, 30),
            "SASRec cosine": (
                "SASRec",
                {**VECTORS, "model__cosine": True, "data__item_vectors__rows": "none"},
                3,
            ),
            "BPR": ("BPR", {**VECTORS, "data__item_vectors__normalise": "unit"}, 3),
        },
    )
    return {
        name: export_here(trained(small_config(model, **keys), steps=steps), root / name)
        for name, (model, keys, steps) in cases.items()
    }


def new_file(folder: Path, ids: list[str], values: Any) -> Path:
    np.savez(folder / "new.npz", ids=np.array(ids), vectors=values)
    return folder / "new.npz"


@pytest.mark.parametrize("name", ["SASRec", "SASRec cosine", "BPR"])
def test_a_twin_of_an_item_without_training_has_its_scores(
    name: str, artifacts: dict[str, Artifact], tmp_path: Path
) -> None:
    """With `rows: none` an item is its vector, so a twin ranks beside it; with rows it is W v."""
    before = artifacts[name]
    some = [one for one in OLD if before.items.find([one])[0]][:5]
    values = VALUES[[OLD.index(one) for one in some]]
    file = new_file(tmp_path, [f"new-{one}" for one in some], values)
    done = add_items(before.folder, file, tmp_path / "more")
    assert (done.added, done.items) == (5, len(before.items) + 4)
    after = shoal.load(tmp_path / "more")
    old, new = after.items.find(some), after.items.find([f"new-{one}" for one in some])
    torch.testing.assert_close(after.item_vectors[: len(before.items)], before.item_vectors)
    if name == "SASRec cosine":
        torch.testing.assert_close(after.item_vectors[new], after.item_vectors[old])
    else:
        assert not torch.equal(after.item_vectors[new], after.item_vectors[old])
    assert after.item_vectors[new[values.any(1)]].abs().sum(1).min() > 0
    user = str(after.users.words[1])
    everything = [item for item, _ in after.recommend(user, topk=len(after.items))]
    assert {f"new-{one}" for one in some} <= set(everything)
    if name != "BPR":  # histories read them
        read = after.recommend(history=["new-" + some[0], some[1]], topk=5)
        assert read != after.recommend(history=[some[2], some[1]], topk=5)
    assert after.popularity[new].sum() == 0 and len(after.popularity) == len(after.items)


def test_a_new_item_is_projected_by_what_was_learned(
    artifacts: dict[str, Artifact], tmp_path: Path
) -> None:
    """By the formula: W ((v - mean) * factor), in the table of histories and in what is ranked."""
    before = artifacts["SASRec"]
    kept = load_file(before.folder / "vectors.safetensors")
    value = np.array([[1, -2, 3, 0, 0.5, 4]], np.float32)
    add_items(before.folder, new_file(tmp_path, ["new"], value), tmp_path / "more")
    after = Artifact(tmp_path / "more")
    shifted = (torch.from_numpy(value) - kept["mean"]) * kept["factor"]
    expected = shifted @ kept["weight.item"].T
    torch.testing.assert_close(after.item_vectors[-1:], expected)
    assert after.tables["item"].size == len(after.items)
    torch.testing.assert_close(after.tables["item"].rows(torch.tensor([97 + 1])), expected)


REFUSED = {
    "LightGCN": "along its graph",
    "BERT4Rec": "behind its last item stands the row of a mask",
    "NeuMF": "scores pairs by a network",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_says_why(
    name: str, artifacts: dict[str, Artifact], tmp_path: Path
) -> None:
    parts = build(small_config(name, **VECTORS), World())
    kind = "retrieval" if isinstance(parts.model, Retrieval) else "scorer"
    section = parts.config.data.item_vectors
    entry = write_projection(tmp_path, parts.model, section, None, kind)
    assert list(tmp_path.iterdir()) == []
    shutil.copytree(artifacts["BPR"].folder, tmp_path / "one")
    rewrite(
        tmp_path / "one",
        "signature.json",
        lambda signature: signature.update(item_vectors=entry, model=name),
    )
    file = new_file(tmp_path, ["new"], np.ones((1, 6), np.float32))
    with pytest.raises(ValueError, match=f"{name} takes no new items: .*{REFUSED[name]}.*anew"):
        add_items(tmp_path / "one", file, tmp_path / "more")


def test_files_that_do_not_fit_are_refused(artifacts: dict[str, Artifact], tmp_path: Path) -> None:
    folder = artifacts["SASRec"].folder
    for ids, values, match in (
        (["new"], np.ones((1, 5)), "vectors of 5 numbers, and SASRec was trained with 6"),
        (["new", "7"], np.ones((2, 6)), r"1 of its items are in .* already, such as '7'"),
        (["new"], np.full((1, 6), np.nan), "'new' has numbers that are NaN"),
        (["new", "new"], np.ones((2, 6)), "'new' more than once"),
    ):
        with pytest.raises(ValueError, match=match):
            add_items(folder, new_file(tmp_path, ids, values), tmp_path / "more")
    file = new_file(tmp_path, ["new"], np.ones((1, 6)))
    with pytest.raises(ValueError, match="SASRec was trained without vectors of items"):
        add_items(exported()["SASRec"], file, tmp_path / "more")
    assert not (tmp_path / "more").exists()
    file = new_file(tmp_path, ["new"], np.zeros((1, 6)))
    words = ["artifact", "add-items", str(folder), str(file), "--to", str(tmp_path / "more")]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0 and "1 items added, 98 in all" in done.output
    assert "1 of the new items have a vector of zeros" in done.output

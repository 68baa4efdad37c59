"""Histories of people that a model never saw: an exported artifact answers them as its run does."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exported import check_here, rewrite

import shoal
from shoal.data.batch import Jagged
from shoal.models.folding import EquationsFolding
from shoal.runs.trained_run import Trained
from shoal.serving.artifact import export, files
from shoal.serving.artifact.files import ArtifactError

DATA: dict[str, Any] = {
    "data.name": "synthetic",
    "data.synthetic.users": 61,
    "data.synthetic.items": 47,
    "data.synthetic.interactions": 1000,
    "run.progress": False,
    "run.trackers": [],
    "run.log_level": "warning",
}
CLOSED = ("EASE", "ItemKNN", "SLIM", "IALS")
NETWORKS = {
    "MultiVAE": {"train.epochs": 3, "model.mlp_hidden_dimension": [16], "train.batch_size": 32},
    "MultiDAE": {"train.epochs": 3, "model.mlp_hidden_size": [16, 8], "train.batch_size": 32},
}
LEARNED = {"BPR": {"train.epochs": 8}, "LightGCN": {"train.epochs": 8}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs and artifacts of all models, NAME and NAME-artifact."""
    root = tmp_path_factory.mktemp("folded")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "check_apart", check_here)
        for model in (*CLOSED, *NETWORKS, *LEARNED):
            keys = {**DATA, **NETWORKS.get(model, {}), **LEARNED.get(model, {})}
            keys["run.output"] = str(root / model)
            shoal.run(model=model, config_dict={**keys, "train.optimizer.lr": 0.03})
            shoal.export(root / model, root / f"{model}-artifact")
    return root


def learned_from(run: Trained, user: int) -> list[str]:
    """What a user of the training data took there."""
    dataset = run.parts.dataset
    items = dataset.item_ids("train")[dataset.user_ids("train") == user]
    return [str(dataset.vocab[dataset.item_field][item]) for item in np.unique(items)]


@pytest.mark.parametrize("model", [*CLOSED, *NETWORKS, *LEARNED])
def test_an_artifact_folds_a_history_in_as_its_run_does(folder: Path, model: str) -> None:
    artifact, run = shoal.load(folder / f"{model}-artifact"), Trained(folder / model)
    for history in (["5"], ["7", "9", "11", "nothing"], learned_from(run, 9)):
        mine, theirs = artifact.recommend(history=history), run.recommend(history=history)
        assert [item for item, _ in mine] == [item for item, _ in theirs]
        expected = [score for _, score in theirs]
        assert [score for _, score in mine] == pytest.approx(expected, rel=1e-4, abs=1e-6)
        assert not {item for item, _ in mine} & {*history} and mine.by == "model"
    assert artifact.recommend(history=["nothing"]).by == "popularity"
    if model in NETWORKS:  # an artifact of these explains nothing
        return
    explained = artifact.explain(history=["7", "9"], item="11")
    # Shares and rest add up to the score of the history.
    score = dict(artifact.recommend(history=["7", "9"], topk=46))["11"]
    assert explained.score == pytest.approx(score, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("model", [*CLOSED, *NETWORKS])
def test_a_user_has_the_scores_of_its_own_history(folder: Path, model: str) -> None:
    artifact, run = shoal.load(folder / f"{model}-artifact"), Trained(folder / model)
    for user in (1, 9, 30):
        name = artifact.users.words[user]
        by_user = artifact.recommend(name, topk=46, seen=True)
        history = learned_from(run, user)
        by_history = dict(artifact.recommend(history=history, topk=46, seen=True))
        assert by_history == pytest.approx(dict(by_user), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("model", LEARNED)
def test_a_folded_user_is_near_the_learned_one(folder: Path, model: str) -> None:
    """Half of the ten best are the same, where four of 46 items were by chance."""
    artifact, run = shoal.load(folder / f"{model}-artifact"), Trained(folder / model)
    common = []
    for user in range(1, 40):
        by_user = artifact.recommend(artifact.users.words[user], seen=True)
        by_history = artifact.recommend(history=learned_from(run, user), seen=True)
        common.append(len({item for item, _ in by_user} & {item for item, _ in by_history}))
    assert np.mean(common) > 5


def test_equations_by_hand() -> None:
    """Of one dimension and items 1, 2: x = 2 / (4 + 0.1 × (1 + 4) + reg) for the item 2."""
    vectors = torch.tensor([[0.0], [1.0], [2.0]])
    lists = Jagged(torch.tensor([2, 1, 2]), torch.tensor([0, 1, 3]))
    folding = EquationsFolding(alpha=0.1, reg_weight=0.5, nu=0.0)
    expected = [[2 / (4 + 0.5 + 0.5)], [3 / (5 + 0.5 + 0.5)]]
    assert folding.queries(lists, vectors).numpy() == pytest.approx(np.array(expected))
    others = EquationsFolding(alpha=0.1, reg_weight=0.5, nu=1.0, alpha_others=True)
    reg = 0.5 * (1 + 0.1 * 3)
    assert float(others.queries(lists, vectors)[0]) == pytest.approx(2 / (4 + 0.1 * 1 + reg))


@pytest.mark.parametrize(
    ("model", "folding"),
    [
        ("IALS", {"way": "eqations"}),
        ("IALS", {"way": "equations", "alpha": 0.1}),
        ("IALS", {"way": "equations", "alpha": "x", "reg_weight": 1, "nu": 1}),
        ("IALS", {"way": "equations", "alpha": 0.1, "reg_weight": -1, "nu": 1}),
        ("BPR", {"way": "sums", "power": 0.5}),
        ("BPR", {"way": "items"}),
        ("MultiVAE", {"way": "layers", "power": 0.5, "tanh": [True] * 9}),
        ("BPR", [1]),
    ],
)
def test_a_damaged_folding_is_refused(
    folder: Path, tmp_path: Path, model: str, folding: Any
) -> None:
    copy = shutil.copytree(folder / f"{model}-artifact", tmp_path / "copy")
    rewrite(copy, files.SIGNATURE, lambda document: document.update(folding=folding))
    with pytest.raises(ArtifactError, match="damaged"):
        shoal.load(copy).recommend(history=["5"])

"""Shares of a score: they add up to it, for every model that has such, and name the cause."""

import shutil
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from exported import check_here, exported, rewrite
from safetensors.torch import save_file
from zoo_models import MODELS, zoo_config

import shoal
from shoal.distributed.world import World
from shoal.recommender.catalogue import RunCatalogue
from shoal.recommender.explanation import Explanation, shapley
from shoal.recommender.recommender import RankingQuestion, Recommender
from shoal.runs.build import build
from shoal.runs.trained_run import Trained
from shoal.serving.artifact import export, files
from shoal.serving.artifact.files import ArtifactError, write_words

WITHOUT = (
    *("NeuMF", "CFKG", "KGCN", "KGCN concat", "KGNNLS", "KTUP", "KTUP soft", "RippleNet"),
    *("MacridVAE", "MacridVAE plain", "NAIS", "NAIS concat"),
    *("ConvNCF", "NNCF", "NNCF knn"),
)
IALS = {"alpha": 0.1, "reg_weight": 0.01, "nu": 1.0}
ONE_OF_EACH = ("BPR", "EASE", "UserKNN", "IALS", "MultiVAE", "LightGCN", "SASRec", "FPMC", "MIND")


def zoo(name: str) -> Recommender:
    """An untrained model, ready to rank: sums do not need one that has learned."""
    config = zoo_config(name)
    parts = build(config, World())
    parts.model.solve()
    evaluator = parts.ranking()
    assert evaluator is not None
    return Recommender(RunCatalogue(parts.model.eval(), evaluator))


def adds_up(recommender: Recommender, user: str) -> Explanation:
    """The explanation of a user's best item, whose sum is the score."""
    item, score = recommender.recommend(user, topk=1)[0]  # type: ignore[index]
    found = recommender.explain(RankingQuestion(user), item)
    assert found.score == pytest.approx(score, rel=1e-4, abs=1e-5)
    assert found.score == pytest.approx(sum(share for _, share in found) + found.rest)
    return found


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_shares_add_up_to_the_score(name: str) -> None:
    recommender = zoo(name)
    catalogue = recommender.catalogue
    found = adds_up(recommender, str(recommender.users.words[9]))
    taken = set(recommender.items.values[catalogue.seen(np.array([9]))[1]].tolist())
    assert len(found) and {what for what, _ in found} <= taken


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if name not in WITHOUT])
def test_shares_of_every_model_add_up(name: str) -> None:
    recommender = zoo(name)
    for user in (1, 9, 60):
        adds_up(recommender, str(recommender.users.words[user]))


@pytest.mark.parametrize("name", WITHOUT)
def test_models_without_shares_are_refused(name: str) -> None:
    recommender = zoo(name)
    with pytest.raises(ValueError, match=r"no item .* has a share .* EASE, BPR or SASRec on the"):
        recommender.explain(RankingQuestion(recommender.users.words[9]), recommender.items.words[1])


def test_popularity_is_a_rest_alone() -> None:
    found = adds_up(zoo("Pop"), "9")
    assert list(found) == [] and found.rest == found.score > 0 and "everybody" in found.rest_is


def test_linear_models_give_their_weights() -> None:
    """A share of EASE is the weight from the item taken to the item asked for, nothing else."""
    recommender = zoo("EASE")
    found = recommender.explain(RankingQuestion(history=["5", "43"]), "7")
    numbers = recommender.items.find(["5", "43", "7"]).tolist()
    weights = recommender.catalogue.model.weights[numbers[2]]  # type: ignore[attr-defined]
    expected = {"5": weights[numbers[0]].item(), "43": weights[numbers[1]].item()}
    assert dict(found) == pytest.approx(expected) and found.rest == found.error == 0.0


def test_shapley_is_the_mean_over_all_orders() -> None:
    tied = torch.rand(4, 4, generator=torch.Generator().manual_seed(1)).double().numpy()

    def values(kept: np.ndarray) -> np.ndarray:
        return 1.0 + ((kept @ tied) * kept).sum(1) + kept.all(1)  # parts depend on each other

    def added(order: tuple[int, ...], part: int) -> float:
        before = np.isin(np.arange(4), order[: order.index(part)])
        both = values(np.stack([before, before | (np.arange(4) == part)]))
        return float(both[1] - both[0])

    orders = list(permutations(range(4)))
    expected = [np.mean([added(order, part) for order in orders]) for part in range(4)]
    shares, none, error = shapley(4, values)
    assert shares == pytest.approx(expected) and (none, error) == (1.0, 0.0)


def test_sampled_shares_add_up_and_state_their_error() -> None:
    """Of many parts some orders are drawn: the sum is exact, shares are as near as they say."""
    count = 30
    pull = np.linspace(-1, 2, count)

    def values(kept: np.ndarray) -> np.ndarray:
        return kept @ pull + 5.0 * kept[:, :5].all(1)  # five of them are worth 5 more together

    shares, none, error = shapley(count, values)
    whole = float(values(np.ones((1, count), bool))[0])
    assert shares.sum() + none == pytest.approx(whole)
    exact = pull + (np.arange(count) < 5)
    assert 0 < error < 1 and np.abs(shares - exact).max() < 4 * error
    square = shapley(count, lambda kept: (kept @ pull) ** 2)
    assert square[0] == pytest.approx(pull * pull.sum()) and square[2] == 0.0


def test_the_cause_has_the_largest_share(tmp_path: Path) -> None:
    """Whoever takes `cause` takes `effect` too; other items come at random."""
    random = np.random.default_rng(3)
    rows = []
    for user in range(120):
        others = random.choice(40, 6, replace=False)
        both = ["cause", "effect"] if user % 2 else []
        rows += [(f"u{user}", one) for one in [*both, *map(str, others)]]
    rows += [("asked", "cause")] + [("asked", str(k)) for k in range(5)]
    frame = pl.DataFrame(rows, schema=["uid", "iid"], orient="row")
    how: dict[str, Any] = {"user": "uid", "item": "iid", "run.progress": False}
    how["data.split.order"] = "file"  # of each user the first 8 of 10 train
    for model in ("EASE", "ItemKNN", "UserKNN", "IALS"):
        fitted = shoal.fit(model, frame, **how, **{"run.output": str(tmp_path / model)})
        found = fitted.explain("asked", "effect")
        assert found[0][0] == "cause", f"{model}: {found}"


def test_features_of_click_models_add_up(tmp_path: Path) -> None:
    rows = [(f"u{n % 40}", n * 7 % 97, n % 3, float(n % 11), n % 2) for n in range(1200)]
    frame = pl.DataFrame(rows, schema=["uid", "iid", "hour", "price", "liked"], orient="row")
    users = pl.DataFrame({"uid": [f"u{k}" for k in range(40)], "town": ["a", "b"] * 20})
    how = {"run.output": str(tmp_path / "run"), "run.progress": False, "epochs": 1}
    names = {"user": "uid", "item": "iid", "label": "liked", "users": users}
    fitted = shoal.fit("DNN", frame, **names, **how)
    found = fitted.explain("u7", 14)
    assert found.of == "features" and {what for what, _ in found} >= {"uid", "iid", "town"}
    score = fitted.trained.recommender.score(RankingQuestion("u7"), [14])[0]
    assert found.score == pytest.approx(score, abs=1e-5)
    row = {"uid": "u7", "iid": "14", "hour": "1", "price": 3.0}
    of_row = fitted.trained.predictor.explain(row)
    chance = fitted.predict({name: [value] for name, value in row.items()})[0]
    assert 1 / (1 + np.exp(-of_row.score)) == pytest.approx(chance, abs=1e-6)


def test_an_artifact_explains_as_its_run_does() -> None:
    for model in ("BPR", "SASRec"):
        artifact = shoal.load(exported()[model])
        run = Trained(exported()[model].parent / f"{model}-run")
        item = run.recommend("9", topk=1)[0][0]  # type: ignore[index]
        mine, theirs = artifact.explain("9", item), run.explain("9", item)
        assert dict(mine) == pytest.approx(dict(theirs), abs=1e-4)
        assert (mine.rest, mine.rest_is) == (pytest.approx(theirs.rest, abs=1e-4), theirs.rest_is)
    of_log = shoal.load(exported()["DNN"])
    slots = of_log.signature["layout"]["slots"]
    found = of_log.predictor.explain(dict.fromkeys(slots, 3))
    assert {what for what, _ in found} == {*slots, *of_log.signature["layout"]["dense"]}
    chance = of_log.predict({name: [3] for name in of_log.encoder.columns})
    given = of_log.predictor.explain(dict.fromkeys(of_log.encoder.columns, 3)).score
    assert 1 / (1 + np.exp(-given)) == pytest.approx(chance[0], abs=1e-6)


def test_artifacts_of_closed_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of EASE have a number for each item, those of IALS solve equations that the artifact
    has, and an item of Pop has one score: the artifact has their terms too. Of UserKNN it lacks
    what makes a list, and says so.
    """
    monkeypatch.setattr(export, "check_apart", check_here)
    data: dict[str, Any] = {"data.name": "synthetic", "data.synthetic.users": 61}
    data |= {"data.synthetic.items": 47, "data.synthetic.interactions": 1000}
    quiet = {"run.progress": False, "run.trackers": [], "run.log_level": "warning"}
    for model in ("EASE", "IALS", "Pop", "UserKNN"):
        folder = tmp_path / model
        shoal.run(model=model, config_dict={**data, **quiet, "run.output": str(folder)})
        shoal.export(folder, tmp_path / f"{model}-artifact")
    for model in ("EASE", "IALS", "Pop"):
        artifact, run = shoal.load(tmp_path / f"{model}-artifact"), Trained(tmp_path / model)
        item = run.recommend("9", topk=1)[0][0]  # type: ignore[index]
        mine, theirs = artifact.explain("9", item), run.explain("9", item)
        assert dict(mine) == pytest.approx(dict(theirs), abs=1e-5)
        assert (mine.rest, mine.rest_is) == (theirs.rest, theirs.rest_is)
        assert mine.score == pytest.approx(artifact.score("9", [item])[0], rel=1e-4)
    with pytest.raises(ValueError, match="ask the run"):
        shoal.load(tmp_path / "UserKNN-artifact").explain("9", item)
    with pytest.raises(ValueError, match="learned a vector for each user"):
        shoal.load(tmp_path / "UserKNN-artifact").recommend(history=[item])
    for change in ({"equations": {"alpha": 9.0}}, {"equations": {**IALS, "alpha": 9.0}}):
        folder = shutil.copytree(tmp_path / "IALS-artifact", tmp_path / f"{len(str(change))}")
        rewrite(folder, files.SIGNATURE, lambda d, change=change: d.update(change))
        with pytest.raises(ArtifactError, match="damaged"):
            shoal.load(folder).explain("9", item)


def test_what_is_not_known_is_refused() -> None:
    recommender = zoo("SASRec")
    for who in (RankingQuestion("nobody"), RankingQuestion(history=["5", "nothing"])):
        with pytest.raises(ValueError, match="is not known to this model"):
            recommender.explain(who, "7")
    with pytest.raises(ValueError, match="item 'nothing' is not known"):
        recommender.explain(RankingQuestion(recommender.users.words[9]), "nothing")
    with pytest.raises(ValueError, match="a user or a history, one of them"):
        recommender.explain(RankingQuestion(), "7")
    with pytest.raises(ValueError, match="learned a vector for each user"):
        zoo("NeuMF").explain(RankingQuestion(history=["5"]), "7")


def test_a_long_history_is_cut_as_the_model_reads_it() -> None:
    """Only what the model reads has a share, wherever the rest of the history is."""
    recommender = zoo("SASRec")  # reads 8 items
    items = recommender.items.words[1:21].tolist()
    long, short = (
        recommender.explain(RankingQuestion(history=h), "7") for h in (items, items[-8:])
    )
    assert dict(long) == pytest.approx(dict(short)) and long.rest == pytest.approx(short.rest)


def test_an_explanation_is_shown_as_a_table() -> None:
    shares = [(f"i{k}", 1.0 / (k + 1)) for k in range(30)] + [("<b>\x1b[2J", -2.0)]
    found = Explanation(shares, 0.5, "an empty history", titles={"i0": "<i>First</i>"})
    text = repr(found)
    assert text.splitlines()[1].split() == ["i0", "<i>First</i>", "+1.0000"]
    assert "11 more" in text and "\x1b" not in text and "an empty history" in text
    page = found._repr_html_()
    assert "<b>" not in page and "<i>" not in page and "&lt;i&gt;First" in page


def test_captions_of_a_stranger_are_checked(tmp_path: Path) -> None:
    for number, words in enumerate([["a"], ["[PAD]", "\u00e9"]]):
        folder = shutil.copytree(exported()["SASRec"], tmp_path / str(number))
        write_words(folder, "title", words)
        if number:  # as many as there are items, and the last of them is no UTF-8
            count = len(shoal.load(exported()["SASRec"]).items)
            packed = {"bytes": torch.tensor([0xC3], dtype=torch.uint8)}
            packed["offsets"] = torch.tensor([0] * count + [1])
            save_file(packed, folder / "words-title.safetensors")
        files.write_manifest(folder)
        with pytest.raises(ArtifactError, match="title"):
            _ = shoal.load(folder).captions


def test_an_artifact_of_a_stranger_cannot_claim_terms(tmp_path: Path) -> None:
    for model, way in (
        ("BPR", "solved"),
        ("BPR", "terms"),
        ("SASRec", "terms"),
        ("BPR", "what"),
        ("BPR", [1]),
    ):
        folder = shutil.copytree(exported()[model], tmp_path / f"{model}-{way}")
        rewrite(folder, files.SIGNATURE, lambda d, way=way: d.update(explained_by=way))
        with pytest.raises(ValueError, match=r"damaged|ask the run"):
            shoal.load(folder).explain("9", "7")

"""Evaluators: what is ranked, and what is refused before a run trains on it."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click_model import tiny_clicks
from small import DATA, small_config

import shoal
from shoal.distributed.world import World
from shoal.kernels.topk import ProductTopK
from shoal.models.base import Facts, Model
from shoal.recommender.catalogue import RunCatalogue
from shoal.recommender.recommender import Recommender
from shoal.runs.build import build
from shoal.runs.run import resolve
from shoal.training.evaluation import Evaluator
from shoal.training.evaluation.clicks import base_line, base_of
from shoal.training.evaluation.popular import PopularLists, remedy
from shoal.training.evaluation.splits import UserLists
from shoal.training.losses import LogInterval, Losses
from shoal.training.steps import solve
from shoal.training.trainer import Trainer

__all__ = ["tiny_clicks"]  # used by being there
QUIET = {"run.progress": False, "run.trackers": [], "train.epochs": 1}


class Falling(Model):
    """Scores that fall with the id: the padding would be the best of all."""

    def score(self, batch: Any, items: torch.Tensor) -> torch.Tensor:
        return -items.double().expand(batch.size, -1)


@pytest.mark.parametrize("repeatable", [False, True])
def test_recommend_never_counts_the_padding(repeatable: bool) -> None:
    parts = build(small_config("BPR", eval__repeatable=repeatable), World())
    evaluator, dataset = parts.evaluator, parts.dataset
    assert isinstance(evaluator, Evaluator)
    user = 7
    own = np.asarray(dataset.inter["user_id"]) == user  # type: ignore[union-attr]
    seen = set(np.asarray(dataset.inter["item_id"])[own].tolist())  # type: ignore[union-attr]
    assert seen
    wanted = [item for item in range(1, 98) if repeatable or item not in seen][:20]
    recommender = Recommender(RunCatalogue(Falling(None, Facts()), evaluator))
    items, scores = recommender.rank_users(np.array([user]), 20)
    assert items[0].tolist() == wanted and scores[0].tolist() == [-item for item in wanted]


@pytest.mark.parametrize("mode", ["full", "uni20"])
def test_metrics_of_popular_items_are_reported_with_a_model(mode: str, tmp_path: Path) -> None:
    """What a run of Pop finds; and the log says where the model is worse."""
    values = {**QUIET, "eval.mode": mode, "eval.metrics": ["Recall", "NDCG", "GAUC"]}
    values |= {"eval.valid_metric": "NDCG@10", "train.optimizer.lr": 1e-9}
    found, told = {}, {}
    for name in ("BPR", "Pop"):
        output = tmp_path / name
        found[name] = shoal.run(name, "synthetic", None, {**values, "run.output": str(output)})
        told[name] = (output / "train.log").read_text()
    popular = found["Pop"]["test"]
    assert found["BPR"]["base"] == popular == found["Pop"]["base"]
    assert found["BPR"]["test"]["ndcg@10"] < popular["ndcg@10"]
    line = f"the most popular items for everyone: ndcg@10 {popular['ndcg@10']:.4f}"
    assert f"{line}\n" in told["Pop"] and f"{line}. The model has " in told["BPR"]


@pytest.mark.parametrize("num_items", [7, 60])
def test_popular_lists_are_those_of_scoring_every_item(num_items: int) -> None:
    """Counts with many ties; users who have seen nothing, most items, and everything."""
    random = np.random.default_rng(num_items)
    counts = random.integers(0, 4, num_items)
    shares = np.array([0.0, 0.1, 0.9, 1.0, 0.3])
    has_seen = random.random((len(shares), num_items)) < shares[:, None]
    users, items = np.nonzero(has_seen[:, 1:])
    seen = UserLists.of(users, items + 1, np.arange(len(shares)), len(shares))
    found = PopularLists(counts, seen, keep=6).best(0, len(shares))
    for user, shown in enumerate(found.tolist()):
        unseen = [item for item in range(1, num_items) if not has_seen[user, item]]
        expected = sorted(unseen, key=lambda item: -counts[item])[:6]
        assert shown == expected + [0] * (6 - len(expected))


def test_a_process_without_users_has_no_lists() -> None:
    """Fewer users validate than there are processes."""
    best = ProductTopK(torch.empty(0, 4), 3, (np.empty(0, np.int64), np.empty(0, np.int64)))
    best.add([torch.randn(5, 4)], 0)
    assert best.items().shape == (0, 3) and best.items().dtype == torch.int64


def test_sparse_queries_have_the_lists_of_dense_ones() -> None:
    """Of 1,300 items in two blocks; a query of zeros alone is among them."""
    random = np.random.default_rng(2)
    queries = torch.from_numpy(random.random((9, 40)) * (random.random((9, 40)) < 0.1)).float()
    queries[4] = 0.0
    vectors = torch.from_numpy(random.normal(size=(1300, 40))).float()
    masked = random.integers(0, 9, 300), random.integers(0, 1300, 300)
    lists = []
    for sparse in (False, True):
        best = ProductTopK(queries, 7, masked, sparse)
        for start in (0, 1024):
            block = vectors[start : start + 1024]
            best.add(ProductTopK.pieces(block, sparse), start)
        lists.append(best.items())
    some = torch.arange(9) != 4  # of equal scores either may stay
    assert torch.equal(lists[0][some], lists[1][some]) and (lists[1][some] > 0).all()


def test_the_remedy_suits_the_model() -> None:
    """No epochs for a closed form, no EASE for items whose matrix has no room."""
    trained = remedy(trainable=True, num_items=9000, num_users=9000)
    assert "train.epochs" in trained and "EASE" in trained and "chance" not in trained
    solved = remedy(trainable=False, num_items=9000, num_users=60)
    assert "train." not in solved and "EASE" not in solved and "only 60 users were tested" in solved
    assert "EASE" not in remedy(trainable=True, num_items=300_000, num_users=9000)


def test_a_closed_form_gets_no_advice_to_train_longer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parts = build(resolve(values={"model": "EASE", **DATA}).config, World())
    solve(parts.model, 0, World().device)
    evaluator = parts.evaluator
    assert isinstance(evaluator, Evaluator)
    evaluator.values = dict.fromkeys(evaluator.evaluate(parts.model, "test"), 0.0)
    with caplog.at_level(logging.INFO, "shoal"):
        evaluator.leave(tmp_path, parts.config.data)
    (line,) = [line for line in caplog.messages if "the most popular items" in line]
    assert "which is worse: search its options (shoal tune)" in line and "train." not in line


@pytest.mark.parametrize(
    ("auc", "logloss", "samples", "words"),
    [
        (0.5205, 0.6218, 4000, "on 4,000 samples chance alone gives up to 0.5296"),
        (0.4781, 2.3180, 132, "it is not shown to know anything about clicks"),
        (0.5205, 0.6100, 400_000, None),
        (0.7000, 0.6900, 4000, "its order is of use, its probabilities are not"),
        (0.7000, 0.5500, 4000, None),
    ],
)
def test_the_auc_of_chance_is_reported_with_a_click_model(
    auc: float, logloss: float, samples: int, words: str | None
) -> None:
    base = base_of(0.3115, ["auc", "logloss"])
    line = base_line(base, {"auc": auc, "logloss": logloss}, samples)
    begins = "0.3115 of the test samples are clicks; always predicting that: auc 0.5000, logloss "
    assert line.startswith(f"{begins}0.6203")
    if words is None:
        assert line == f"{begins}0.6203"
    else:
        assert words in line


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that gets as far as an epoch fails."""

    def epoch(trainer: Trainer, epochs: int) -> None:
        raise AssertionError("an epoch began")

    monkeypatch.setattr(Trainer, "_epoch", epoch)


def write_interactions(folder: Path, each: int) -> None:
    """Ten users with `each` interactions."""
    (folder / "few").mkdir()
    rows = [f"u{user}\ti{(user + k) % 5}\t{k}" for user in range(10) for k in range(each)]
    head = "user_id:token\titem_id:token\ttimestamp:float"
    (folder / "few" / "few.inter").write_text("\n".join([head, *rows]) + "\n")


@pytest.mark.parametrize("each, split", [(1, "valid"), (2, "valid")])
def test_an_empty_split_is_an_error_before_training(
    each: int, split: str, tmp_path: Path, untrained: None
) -> None:
    write_interactions(tmp_path, each)
    values = {**QUIET, "data.path": str(tmp_path), "run.output": str(tmp_path / "run")}
    with pytest.raises(ValueError, match=f"the {split} split of 'few' is empty.*eval_every=0"):
        shoal.run("BPR", "few", None, values)


def test_only_splits_that_are_evaluated_must_be_there(tmp_path: Path) -> None:
    """Users with two interactions have a test and no validation; those with one have neither."""
    write_interactions(tmp_path, 2)
    values = {**QUIET, "data.path": str(tmp_path), "train.eval_every": 2}
    late = shoal.run("BPR", "few", None, {**values, "run.output": str(tmp_path / "late")})
    assert late["best_valid"] == {} and late["test"]
    (tmp_path / "alone").mkdir()
    write_interactions(tmp_path / "alone", 1)
    values |= {"data.path": str(tmp_path / "alone"), "train.eval_every": 0}
    never = shoal.run("BPR", "few", None, {**values, "run.output": str(tmp_path / "never")})
    assert never["test"] == {} and never["epochs"] == 1


def clicks(folder: Path, valid: str, test: str | None, **more: Any) -> dict[str, Any]:
    """A config of a log whose training file has four samples."""
    (folder / "train.txt").write_text("".join(f"click:{k % 2} 1:{k + 1}\n" for k in range(4)))
    (folder / "valid.txt").write_text(valid)
    values = {
        "model": "TinyClicks",
        "data.format": "slots",
        "data.path": str(folder),
        "data.clicks.train": "train.txt",
        "data.clicks.valid": "valid.txt",
        "data.clicks.slots": 1,
        "data.clicks.dense": 0,
        "train.batch_size": 2,
        **QUIET,
        "run.output": str(folder / "run"),
        **more,
    }
    if test is not None:
        (folder / "test.txt").write_text(test)
        values["data.clicks.test"] = "test.txt"
    return values


SAMPLES = "click:1 1:1\nclick:0 1:2\n"


@pytest.mark.parametrize("reader", ["memory", "stream"])
@pytest.mark.parametrize(
    "valid, test, told",
    [
        (SAMPLES, "", r"in split test: data.clicks.test \(.*test.txt\) gives none"),
        ("\n\n", SAMPLES, r"in split valid: data.clicks.valid \(.*valid.txt\) gives none"),
        ("", None, r"in split valid: data.clicks.valid \(.*valid.txt\) gives none"),
    ],
)
def test_an_empty_log_is_an_error_before_training(
    reader: str, valid: str, test: str | None, told: str, tmp_path: Path, untrained: None
) -> None:
    values = clicks(tmp_path, valid, test, **{"data.clicks.reader": reader})
    with pytest.raises(ValueError, match=f"{told}; name files .*eval_every=0"):
        shoal.run(config_dict=values)


def test_the_error_of_a_missing_log_names_its_key(tmp_path: Path) -> None:
    """Also where the split that is looked at first has none of its own."""
    values = clicks(tmp_path, SAMPLES, None)
    del values["data.clicks.valid"]
    values["data.clicks.test"] = "nowhere"
    with pytest.raises(ValueError, match=r"data\.clicks\.test: .*nowhere is neither"):
        shoal.run(config_dict=values)


def test_an_empty_log_trains_where_it_is_not_evaluated(tmp_path: Path) -> None:
    values = clicks(tmp_path, "", "", **{"train.eval_every": 0})
    assert shoal.run(config_dict=values)["epochs"] == 1


def test_the_error_of_a_program_without_output_names_its_files(tmp_path: Path) -> None:
    """What a program writes is known only when it has run."""
    (tmp_path / "only.py").write_text(
        "import sys\nsys.stdout.writelines(l for l in sys.stdin if 'test' not in l)\n"
    )
    program = {
        "data.clicks.reader": "stream",
        "data.clicks.pipe_command": f"python3 {tmp_path}/only.py",
    }
    values = clicks(tmp_path, SAMPLES, "test\n", **program)
    with pytest.raises(ValueError, match=r"in split test: data.clicks.test \(.*test.txt\) gives"):
        shoal.run(config_dict=values)


def test_a_line_of_steps_shows_no_minus_zero(caplog: pytest.LogCaptureFixture) -> None:
    parts = build(small_config("BPR"), World())
    interval = LogInterval(parts.model, World(), Losses(parts.strategy, 5), every=1)
    log = logging.getLogger("shoal")
    log.addHandler(caplog.handler)
    with caplog.at_level(logging.INFO, "shoal"):
        interval.step(0, 1, 5, torch.tensor(-1e-9))
    log.removeHandler(caplog.handler)
    assert "[loss: 0.0000," in caplog.text

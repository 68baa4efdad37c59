"""Settings that follow the size of the data: batches, patience, users of a validation."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.distributed.world import World
from shoal.planning import starter_files as quickstart
from shoal.runs.build import build
from shoal.runs.data_size import DataSize, settings_for
from shoal.runs.run import resolve
from shoal.training import estimate
from shoal.training.evaluation import Evaluator, evaluator
from shoal.training.evaluation.splits import sampled_users

SYNTHETIC = {"data.name": "synthetic", "run.progress": False, "run.trackers": []}
SMALL = {
    "data.synthetic.users": 150,
    "data.synthetic.items": 80,
    "data.synthetic.interactions": 3000,
    "model.hidden_size": 8,
    "model.inner_size": 8,
    "model.n_layers": 1,
}


def config_of(model: str = "BPR", **values: Any) -> Any:
    given = {key.replace("__", "."): value for key, value in values.items()}
    sizes = {key: value for key, value in SMALL.items() if key.startswith("data.")}
    return resolve(values={"model.name": model, **SYNTHETIC, **sizes, **given}).config


def run(folder: Path, model: str = "SASRec", **values: Any) -> dict[str, Any]:
    given = {key.replace("__", "."): value for key, value in values.items()}
    sizes = {key: v for key, v in SMALL.items() if model == "SASRec" or key.startswith("data.")}
    given = {**SYNTHETIC, **sizes, "run.output": str(folder), "train.epochs": 2, **given}
    return shoal.run(model=model, config_dict=given)


@pytest.mark.parametrize(
    "samples,batch_size,patience",
    [(1_090, 64, 18), (5_000, 128, 10), (22_363, 512, 10), (80_000, 2048, 10), (10**9, 2048, 10)],
)
def test_an_epoch_of_few_samples_has_smaller_batches_and_more_patience(
    samples: int, batch_size: int, patience: int
) -> None:
    settings = settings_for(DataSize(samples=samples, rows=samples, users=900, items=1000))
    assert (settings.batch_size, settings.patience) == (batch_size, patience)


def test_a_batch_in_items_has_the_samples_with_so_many(tmp_path: Path) -> None:
    """Of windows it has few; of interactions one for each item. It is decided once for a run."""
    windows = DataSize(samples=1_900, rows=95_000, users=943, items=1_682)
    assert settings_for(windows, batch_size="2048 items").batch_size == 41
    pairs = DataSize(samples=95_000, rows=95_000, users=943, items=1_682)
    assert settings_for(pairs, batch_size="2048 items").batch_size == 2048
    result = run(tmp_path / "run", train__batch_size="300 items", train__epochs=1)
    kept = resolve([tmp_path / "run" / "config.yaml"]).config.train.batch_size
    assert isinstance(kept, int) and kept < 30 and result["epochs"] == 1
    values = {"train.batch_size": "300 items", "train.epochs": 2}
    resumed = shoal.run(
        config_file_list=[tmp_path / "run" / "config.yaml"],
        config_dict={"run.output": str(tmp_path / "run"), **values},
        resume=True,
    )
    assert resumed["epochs"] == 2


def test_patience_counts_steps_of_the_batch_size_that_was_given() -> None:
    size = DataSize(samples=1_090, rows=50_000, users=1_090, items=3_646)
    assert settings_for(size, batch_size=2048).patience == 320
    assert settings_for(size, batch_size=16).patience == 10


@pytest.mark.parametrize(
    "rows,users,items,valid_users",
    [
        (860_000, 105_283, 340_556, 2585),
        (1_000_000, 6_040, 3_706, None),
        (16_000_000, 138_493, 26_744, None),
        (10_000, 100_000, 1_000_000, 2048),
    ],
)
def test_validation_takes_a_sample_where_all_users_would_take_longer_than_an_epoch(
    rows: int, users: int, items: int, valid_users: int | None
) -> None:
    settings = settings_for(DataSize(samples=rows, rows=rows, users=users, items=items))
    assert settings.valid_users == valid_users


def test_a_run_says_and_keeps_what_the_size_decided_and_resumes_with_it(
    tmp_path: Path,
) -> None:
    run(tmp_path / "run")
    log = (tmp_path / "run" / "train.log").read_text()
    assert "by the size of the data: train.batch_size=64 (150 samples, 3 steps an epoch)" in log
    assert "train.patience=107 evaluations" in log
    text = (tmp_path / "run" / "config.yaml").read_text()
    assert "batch_size: 64\n" in text and "patience: 107\n" in text and "valid_users: all\n" in text
    again = shoal.run(
        config_file_list=[tmp_path / "run" / "config.yaml"],
        config_dict={"run.output": str(tmp_path / "run"), "train.epochs": 3},
        resume=True,
    )
    assert again["epochs"] == 3


def test_values_that_are_given_stay_and_nothing_is_said_about_them(tmp_path: Path) -> None:
    run(tmp_path / "run", train__batch_size=50, train__patience=3, eval__valid_users=20)
    text = (tmp_path / "run" / "config.yaml").read_text()
    assert "batch_size: 50\n" in text and "patience: 3\n" in text and "valid_users: 20\n" in text
    assert "by the size of the data" not in (tmp_path / "run" / "train.log").read_text()


def test_recboles_word_for_the_data_keeps_recboles_batches() -> None:
    config = resolve(values={"model": "SASRec", "dataset": "synthetic"}).config
    assert (config.train.batch_size, config.train.patience) == ("2048 items", 10)
    assert config.eval.valid_users == "all"
    assert resolve(values={"model": "BPR", "dataset": "synthetic"}).config.train.batch_size == 2048


@pytest.mark.slow
def test_batches_by_size_are_the_same_on_two_processes(tmp_path: Path) -> None:
    for processes in (1, 2):
        run(tmp_path / str(processes), launch__nproc=processes, model__hidden_dropout_prob=0.0)
    one, two = (
        [json.loads(line)["loss"] for line in (tmp_path / n / "metrics.jsonl").open()]
        for n in ("1", "2")
    )
    np.testing.assert_allclose(one, two, rtol=1e-5)


def test_a_sample_of_users_is_a_function_of_the_seed_and_the_users() -> None:
    users = np.arange(5, 1000)
    chosen = sampled_users(users, 100, seed=7)
    assert len(chosen) == 100 and (np.diff(chosen) > 0).all() and np.isin(chosen, users).all()
    assert (chosen == sampled_users(users[::-1], 100, seed=7)).all()
    assert (chosen != sampled_users(users, 100, seed=8)).any()
    assert (sampled_users(users, 2000, seed=7) == users).all()


def test_models_validate_on_the_same_users_and_test_on_all() -> None:
    taken = []
    for model in ("BPR", "EASE", "SASRec"):
        parts = build(config_of(model, eval__valid_users=30), World())
        assert isinstance(parts.evaluator, Evaluator)
        taken.append(parts.evaluator._prepared("valid")[0].users.tolist())
        assert len(parts.evaluator._prepared("test")[0].users) > 100
    assert len(taken[0]) == 30 and taken[0] == taken[1] == taken[2]


@pytest.mark.parametrize("mode", ["full", "uni20", "labeled"])
def test_a_sample_has_the_metrics_of_its_users_alone(mode: str) -> None:
    labels = {"data__threshold": {"rating": 3.0}} if mode == "labeled" else {}
    parts = build(config_of(eval__mode=mode, eval__valid_users=30, **labels), World())
    ranking = parts.evaluator
    assert isinstance(ranking, Evaluator)
    sampled = ranking.evaluate(parts.model, "valid", keep=True)
    users = ranking._prepared("valid")[0].users
    dataset = ranking.dataset
    rows = dataset.splits["valid"]
    own = rows[np.isin(np.asarray(dataset.inter[dataset.user_field])[rows], users)]
    alone = replace(dataset, splits={**dataset.splits, "valid": own})
    section = parts.config.eval.model_copy(update={"valid_users": "all"})
    other = Evaluator(alone, section, World(), parts.config.run.seed, 50)
    assert other.evaluate(parts.model, "valid") == sampled


def test_click_models_refuse_a_sample_of_users() -> None:
    config = config_of("DeepFM", eval__valid_users=10)
    with pytest.raises(ValueError, match=r"eval\.valid_users=10: DeepFM predicts clicks"):
        build(config, World())


def test_products_in_the_core_rank_as_blocks_of_scores_do(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = build(config_of(), World())
    assert isinstance(parts.evaluator, Evaluator)
    with monkeypatch.context() as patched:
        patched.setattr(evaluator, "BLOCK_ITEMS", 32)
        patched.setattr("shoal.kernels.topk.COLUMNS", 16)
        products = parts.evaluator.evaluate(parts.model, "test")
    monkeypatch.setattr(evaluator, "takes_scores", lambda scores: False)
    monkeypatch.setattr("shoal.kernels.topk.takes_scores", lambda scores: False)
    assert parts.evaluator.evaluate(parts.model, "test") == products


def test_a_long_run_logs_how_long_it_will_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimate, "WORTH_A_LINE", 0.0)
    monkeypatch.setattr(evaluator, "MEASURED_PAIRS", 0)
    monkeypatch.setattr(evaluator, "TILE_USERS", 8)
    run(tmp_path, "BPR", train__batch_size=256)
    log = (tmp_path / "train.log").read_text()
    assert "estimate: an epoch about 0." in log and ", its validation about 0." in log
    assert log.index("estimate: ") < log.index("epoch 0 training")


def test_quickstart_takes_models_and_epochs_by_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [f"u{n % 40},i{n * 7 % 31},{n}" for n in range(600)]
    file = tmp_path / "rows.csv"
    file.write_text("\n".join(["user,item,time", *rows]) + "\n")
    monkeypatch.setattr(quickstart, "MOST_ITEMS", 5)
    monkeypatch.setattr(quickstart, "MOST_SCORES", 5)
    monkeypatch.setattr(quickstart, "TRAINED_ROWS", 5000)
    for task, model in (("recommend", "BPR"), ("next", "FPMC")):
        asked = quickstart.QuickstartAnswers(str(file), task, "here")
        text = quickstart.write(asked, tmp_path / task).config.read_text()
        assert f"name: {model}  #" in text and "batch_size: auto  #" in text
        section = resolve([tmp_path / task / f"rows-{task}.yaml"]).config.train
        assert 5 <= section.epochs < 100
        assert isinstance(section.patience, int) and section.patience < section.epochs / 2

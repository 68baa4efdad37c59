"""Sweeps: grids of flags and files, and the comparison of what came of them."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from shoal import config as config_room
from shoal.config import ConfigError
from shoal.experiments.tuning.sweep import check_names, plan_run
from shoal.experiments.tuning.sweep_comparison import Result, compare
from shoal.experiments.tuning.sweep_grid import Grid, make_grid, plan_cells, read_grid
from shoal.runs.run import resolve
from shoal.runs.run_record import RunRecord

SYNTHETIC = ["--data.synthetic.users=60", "--data.synthetic.items=40"]


def test_grids_of_flags_and_of_files(tmp_path: Path) -> None:
    assert make_grid("BPR, EASE", "synthetic", "2") == Grid(
        ["BPR", "EASE"], ["synthetic"], [2020, 2021]
    )
    assert make_grid(["BPR"], None, "5,7").seeds == [5, 7]
    file = tmp_path / "grid.yaml"
    file.write_text("models: [BPR, EASE]\nseeds: 3\n")
    assert make_grid(**read_grid(file)).seeds == [2020, 2021, 2022]
    file.write_text("model: BPR\n")
    with pytest.raises(ConfigError, match="unknown key model; allowed: models, data, seeds"):
        read_grid(file)
    with pytest.raises(ValueError, match="models names one of BPR, BPR twice"):
        make_grid("BPR,BPR")
    for wrong in ("three", "0", [1.5], [], {"a": 1}):
        with pytest.raises(ValueError, match=r"seeds: given .*; write how many \(3\)"):
            make_grid("BPR", seeds=wrong)


def test_cells_have_one_split_and_models_may_be_files(tmp_path: Path) -> None:
    tuned = tmp_path / "tuned.yaml"
    tuned.write_text("model: {name: BPR, embedding_size: 8}\n")
    found = plan_cells(make_grid(["BPR", str(tuned)], "synthetic", 2), (), SYNTHETIC)
    assert [(one.model, one.seed) for one in found] == [
        ("BPR", 2020),
        ("BPR", 2021),
        ("tuned", 2020),
        ("tuned", 2021),
    ]
    assert {one.resolved.config.data.split.seed for one in found} == {2020}
    assert found[2].resolved.config.model.options["embedding_size"] == 8
    with pytest.raises(ValueError, match=r"no model is named 'BRP'.*did you mean BPR"):
        plan_cells(make_grid("BRP"), (), SYNTHETIC)
    same = tmp_path / "tuned.yml"
    same.write_text(tuned.read_text())
    with pytest.raises(ValueError, match="have the same name"):
        check_names(plan_cells(make_grid([str(tuned), str(same)], seeds=1), (), SYNTHETIC))


def studies(folder: Path, **data: str) -> list[str]:
    """Config files as searches write them, best.yaml each: model -> its data."""
    found = []
    for model, name in data.items():
        file = folder / "studies" / model.lower() / "best.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        words = [
            *SYNTHETIC,
            "--eval.topk=[5]",
            "--eval.valid_metric=MRR@5",
            "--run.seed=7",
            f"--data.name={name}",
        ]
        file.write_text(config_room.dump(resolve([], [f"--model={model}", *words]).config))
        found.append(str(file))
    return found


def test_files_of_one_name_are_called_by_their_folders(tmp_path: Path) -> None:
    files = studies(tmp_path, BPR="synthetic", LightGCN="synthetic")
    found = plan_cells(make_grid(files, seeds=1), (), ())
    assert [one.model for one in found] == ["bpr/best", "lightgcn/best"]
    runs = [plan_run(tmp_path, cell).folder.name for cell in found]
    assert runs == ["bpr_best-synthetic-2020", "lightgcn_best-synthetic-2020"]
    found = plan_cells(make_grid([files[0]], seeds=1), (), ())
    assert [one.model for one in found] == ["best"]


def test_a_model_given_by_name_takes_the_data_of_the_config_files(tmp_path: Path) -> None:
    files = studies(tmp_path, BPR="synthetic", LightGCN="synthetic")
    *_, last = plan_cells(make_grid([*files, "Pop"], seeds=1), (), ())
    config = last.resolved.config
    assert (last.model, last.data, config.data.synthetic.users) == ("Pop", "synthetic", 60)
    assert list(config.eval.topk) == [5] and config.data.split.seed == 7  # that of the files
    # What is named is not replaced.
    *_, last = plan_cells(make_grid([*files, "Pop"], seeds=1), (), ["--data.name=ml-100k"])
    assert last.data == "ml-100k"
    *_, last = plan_cells(make_grid([*files, "Pop"], "ml-100k", 1), (), ())
    assert last.data == "ml-100k"
    other = studies(tmp_path, LightGCN="ml-100k")
    with pytest.raises(ValueError, match=r"Pop names no data, .*: synthetic.*add --data"):
        plan_cells(make_grid(["Pop", files[0], *other], seeds=1), (), ())


def runs(users: bool, **config: dict[str, Any]) -> dict[str, list[Result]]:
    """Two models that are alike and one that is worse, of three seeds each; config: by model."""
    draw = np.random.default_rng(0)
    base = draw.uniform(0, 1, 400)
    found = []
    for model, lower in (("a", 0.0), ("b", 0.0), ("worse", 0.1)):
        for seed in range(3):
            values = base - lower + draw.normal(0, 0.05, 400)
            order = draw.permutation(400)
            names = [f"<u{k}>" for k in order]
            table = pl.DataFrame({"user": names, "ndcg@10": values[order]}) if users else None
            test = {"ndcg@10": float(values.mean()), "auc": 0.5}
            valid = {"ndcg@10": 0.6 - lower + 0.01 * (model == "b")}
            digest = str(config.get(model, {}))
            result = {"test": test, "best_valid": valid}
            result["data"] = {"interactions": "same", "splits": digest}
            record = RunRecord(Path(model), model, {"protocol": digest}, users=table)
            record.config, record.result = config.get(model, {}), result
            found.append(Result(model, seed, "ndcg@10", record))
    return {"synthetic": found, "empty": []}


def test_models_are_compared_user_by_user() -> None:
    table, empty = compare(runs(users=True))
    assert empty["best"] is None and table["best"] == "b"  # by validation
    rows = table["metrics"]["ndcg@10"]
    assert rows["worse"]["over"] == "users" and rows["worse"]["seeds"] == 3
    assert rows["worse"]["difference"] == pytest.approx(-0.1, abs=0.01)
    assert rows["worse"]["p"] < 0.001 < 0.05 < rows["a"]["p"]
    assert rows["a"]["low"] < rows["a"]["mean"] < rows["a"]["high"]
    assert "p" not in rows["b"]
    assert table["metrics"]["auc"]["a"]["over"] == "seeds"  # no user has an AUC
    assert table["no_test"] is None


def test_models_of_different_protocols_have_means_and_no_test() -> None:
    other = {"data.split.by": "ratio"}
    by_time = {"data.split.by": "leave_one_out"}
    table, _ = compare(runs(users=True, a=by_time, b=by_time, worse=other))
    assert table["no_test"] == "data.split.by is leave_one_out in a, ratio in worse"
    assert table["best"] is None
    for row in table["metrics"]["ndcg@10"].values():
        assert row["mean"] > 0 and row["low"] < row["high"]
        assert "p" not in row and "difference" not in row
    # The candidates count as well, where the split is one.
    seen = {"eval.repeatable": True}
    found = runs(users=True, a=seen)
    for one in found["synthetic"]:
        one.record.result["data"]["splits"] = "same"
    assert compare(found)[0]["no_test"] == "eval.repeatable is true in a, null in b"


def test_seeds_where_runs_keep_no_users() -> None:
    found = runs(users=False)
    rows = compare(found)[0]["metrics"]["ndcg@10"]
    assert rows["worse"]["over"] == "seeds" and rows["worse"]["p"] > 0.2  # three seeds say little
    # One run failed: what is left cannot be paired, and is not.
    rest = {"synthetic": [one for one in found["synthetic"] if (one.model, one.seed) != ("a", 1)]}
    rows = compare(rest)[0]["metrics"]["ndcg@10"]
    assert rows["a"]["seeds"] == 2 and "p" not in rows["a"] and "p" in rows["worse"]

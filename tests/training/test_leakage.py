"""A feature that predicts the label too well alone is named: in the log and on the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import shoal
from shoal.data.batch import Batch, Jagged
from shoal.data.features import Feature
from shoal.experiments.report.run_page import run_page
from shoal.runs.run_record import read_runs
from shoal.training.evaluation.leakage import rows_to_check, single_features

ROWS = 6000
SHORT: dict[str, Any] = {"run.progress": False, "run.trackers": [], "train.epochs": 1}
SHORT |= {"model": "LR", "data.cache": False}


def noise(seed: int = 0) -> dict[str, np.ndarray]:
    """Users, items and clicks that have nothing to do with each other, and what came of clicks."""
    random = np.random.default_rng(seed)
    clicked = random.random(ROWS) < 0.3
    return {
        "user": random.integers(0, 60, ROWS),
        "item": random.integers(0, 30, ROWS),
        "clicked": clicked.astype(int),
        "x": (clicked & (random.random(ROWS) < 0.7)).astype(int),
        "price": random.random(ROWS).round(3),
    }


def write_table(folder: Path, columns: dict[str, np.ndarray]) -> None:
    rows = zip(*columns.values())
    lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
    (folder / "log.csv").write_text("\n".join(lines) + "\n")


def trained(folder: Path, **more: Any) -> tuple[dict[str, Any], str]:
    """The result of a run on the table, and its log."""
    values = {**SHORT, "run.output": str(folder / "run"), "data.path": str(folder)}
    values |= {"data.files": {"inter": "log.csv"}}
    values |= {"data.fields": {"user": "user", "item": "item", "label": "clicked"}}
    result = shoal.run(config_dict={**values, **more})
    return result, (folder / "run" / "train.log").read_text()


def warnings_of(log: str) -> list[str]:
    return [line.partition("WARNING")[2].strip() for line in log.splitlines() if "WARNING" in line]


def test_an_outcome_is_named_before_training_and_on_the_page(tmp_path: Path) -> None:
    write_table(tmp_path, noise())
    result, log = trained(tmp_path)
    (line,) = warnings_of(log)
    assert line.startswith("the feature x alone has AUC 0.9") and "600 validation rows" in line
    assert "data.unload" in line and log.index(line) < log.index("epoch 0 training")
    figures = result["single_features"]
    assert list(figures) == ["x", "price"] and figures["x"]["warned"]
    assert not figures["price"]["warned"] and 0.4 < figures["price"]["auc"] < 0.6
    page = report_page(tmp_path / "run")
    assert "Features alone" in page and "x alone predicts suspiciously well" in page
    assert "price alone predicts" not in page


def test_noise_without_an_outcome_gives_no_warning(tmp_path: Path) -> None:
    columns = noise()
    del columns["x"]
    write_table(tmp_path, columns)
    result, log = trained(tmp_path)
    assert warnings_of(log) == [] and list(result["single_features"]) == ["price"]


def test_a_feature_that_is_as_good_as_the_model_is_named_after_it(tmp_path: Path) -> None:
    """A weaker outcome: not suspicious by itself, but the model has nothing else."""
    columns, random = noise(), np.random.default_rng(1)
    columns["x"] = np.where(random.random(ROWS) < 0.6, random.integers(0, 2, ROWS), columns["x"])
    write_table(tmp_path, columns)
    result, log = trained(tmp_path, **{"train.epochs": 8, "train.optimizer.lr": 0.05})
    (line,) = warnings_of(log)
    assert line.startswith("the feature x alone has AUC 0.6") and ", and the model 0.6" in line
    assert log.index(line) > log.index("test result") and result["single_features"]["x"]["warned"]


@pytest.mark.parametrize("reader", ["memory", "stream"])
def test_a_slot_of_a_click_log_is_named(reader: str, tmp_path: Path) -> None:
    columns = noise()
    lines = [
        f"click:{c} dense_feature:{p} 1:{u} 2:{i} 3:{x}\n"
        for u, i, c, x, p in zip(*columns.values())
    ]
    (tmp_path / "log.txt").write_text("".join(lines[:4000]))
    (tmp_path / "valid.txt").write_text("".join(lines[4000:]))
    keys = {"data.path": str(tmp_path), "data.format": "slots", "data.clicks.slots": 3}
    keys |= {"data.clicks.dense": 1, "data.clicks.train": "log.txt", "data.clicks.reader": reader}
    keys |= {"data.clicks.valid": "valid.txt", "run.output": str(tmp_path / "run")}
    result = shoal.run(config_dict={**SHORT, **keys})
    assert next(iter(result["single_features"])) == "3"
    assert set(result["single_features"]) == {"1", "2", "3", "dense_feature"}
    told = warnings_of((tmp_path / "run" / "train.log").read_text())
    assert any(line.startswith("the feature 3 alone has AUC 0.8") for line in told)
    assert not any(line.startswith("the feature 1 ") for line in told)


def test_lists_numbers_and_ids_are_tried_alike() -> None:
    random = np.random.default_rng(0)
    labels = torch.from_numpy((random.random(ROWS) < 0.5).astype(np.float32))
    hits = labels.bool()
    lengths = torch.where(hits, 2, 1)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    tags = Jagged(torch.where(torch.arange(int(offsets[-1])) < 0, 0, 5), offsets)
    own = tags.values.clone()
    own[offsets[1:][hits] - 1] = 7  # the last of a clicked row
    width = torch.rand(ROWS, 2)
    width[:, 1] = torch.where(hits, 2.0, width[:, 1])
    batch = Batch(
        ROWS,
        {"tags": Jagged(own, offsets), "id": torch.arange(ROWS)},
        {"numbers": width, "spread": (torch.rand(ROWS) - 0.5) * torch.where(hits, 9, 1)},
        labels,
    )
    features = [
        Feature("tags", "ids"),
        Feature("id", "id"),
        Feature("numbers", "numbers", length=2),
        Feature("spread", "number"),
    ]
    found = {one.name: one for one in single_features(batch, features, [f.name for f in features])}
    assert found["tags"].auc == 1.0 and found["numbers"].auc == 1.0
    assert found["id"].auc == 0.5  # every value is new
    assert found["spread"].auc > 0.85  # no line separates these: both ends are clicks
    one_class = Batch(ROWS, batch.ids, batch.dense, torch.ones(ROWS))
    assert single_features(one_class, features, ["id"]) == []


def test_the_cost_is_bounded() -> None:
    assert rows_to_check(1) == 20_000 and rows_to_check(39) * 39 < 4_000_000
    assert rows_to_check(10_000) == 1000


def report_page(folder: Path) -> str:
    return run_page(read_runs([folder])[0])

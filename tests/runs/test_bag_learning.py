"""A synthetic log with bags: the best possible AUC is known, and a model reaches it."""

from __future__ import annotations

from pathlib import Path

import pytest

import shoal
from shoal.clicks.make_days import make_days
from shoal.config.schema import SyntheticClicksSection

IDS, BAGS = [20, 50, 100, 200, 50, 100], [1, 2, 3, 5, 8, 20]


@pytest.mark.slow
def test_the_best_possible_auc_is_reached(tmp_path: Path) -> None:
    """By DCNV2 with crosses of low rank, from files of MLPerf's layout; minutes on one core."""
    section = SyntheticClicksSection(samples=1_000_000, slots=6, ids_per_slot=IDS, bags=BAGS)
    best = make_days(section, tmp_path / "days", days=4)
    keys = {
        "data.format": "multi_hot",
        "data.path": str(tmp_path / "days"),
        "data.clicks": {"slots": 6, "dense": 4, "rows": IDS}
        | {split: f"{split}/*.npz" for split in ("train", "valid", "test")},
        "model": {"dim": 8, "bottom_layers": [16, 8], "low_rank": 24, "layers": [64, 32]},
        "train": {"epochs": 5, "batch_size": 1024},
        "train.optimizer": {"name": "adam", "lr": 0.003, "schedule": "cosine"},
        "run.output": str(tmp_path / "run"),
        "run.progress": False,
    }
    result = shoal.run(model="DCNV2", config_dict=keys)
    assert best["test"] - 0.003 < result["test"]["auc"] < best["test"] + 0.001

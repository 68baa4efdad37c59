"""async and geo with two workers reach the AUC that one process reaches, within 0.005."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import finish, result

from shoal.clicks.synthetic import synthetic_clicks
from shoal.config.schema import SyntheticClicksSection

QUIET = ["--run.progress=false", "--run.trackers=[]", "--run.threads=1"]
SYNTHETIC = [
    "--model=DNN",
    "--model.dim=8",
    "--model.layers=[64,32]",
    "--data.format=synthetic_clicks",
    "--train.epochs=3",
    "--train.batch_size=256",
    "--train.optimizer.lr=0.001",
]


def auc(folder: Path, *words: str) -> float:
    """The test AUC of a run."""
    finish(*words, *QUIET, "--output", folder, cwd=folder.parent)
    return result(folder)["test"]["auc"]


def launch(mode: str) -> list[str]:
    servers = ["--worker_num=2", "--server_num=2"]
    return ["launch", *servers, f"--strategy.ps.mode={mode}", "--strategy.ps.geo_step=5"]


@pytest.mark.slow
def test_synthetic_clicks(tmp_path: Path) -> None:
    best = synthetic_clicks(SyntheticClicksSection(), "test").best_auc()
    alone = auc(tmp_path / "single", "train", *SYNTHETIC)
    assert 0.72 < alone < best, "the model did not learn, or learned what cannot be known"
    for mode in ("async", "geo"):
        assert auc(tmp_path / mode, *launch(mode), *SYNTHETIC) > alone - 0.005

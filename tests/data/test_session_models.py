"""Models of sequences on sessions without users, from the command that a person types."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli.main import app

MODELS = ["SRGNN", "NARM", "STAMP", "GRU4Rec", "CORE", "SASRec"]
SHORT = ["--epochs=1", "--train.batch_size=256", "--run.progress=false", "--quiet"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sessions of a shop with 12 items, as Yoochoose has them, on the days around its split."""
    root = tmp_path_factory.mktemp("sessions")
    (root / "yoochoose").mkdir()
    draw, lines = random.Random(1), []
    for session in range(120):
        day = 27 if session < 90 else 28 if session < 105 else 29
        first = draw.randrange(12)
        for place in range(draw.randrange(2, 5)):
            time = f"2014-09-{day}T04:{place:02d}:00.000Z"
            lines.append(f"{session},{time},{(first + place) % 12},0\n")
    (root / "yoochoose" / "yoochoose-clicks.dat").write_text("".join(lines))
    return root


def trained(folder: Path, model: str) -> Path:
    """The folder of a model's run, which is trained once."""
    output = folder / "runs" / model
    if not (output / "result.json").is_file():
        args = ["train", "--dataset=yoochoose", f"--model={model}", f"--data.path={folder}"]
        result = CliRunner().invoke(app, [*args, f"--output={output}", *SHORT])
        assert result.exit_code == 0, result.output
    return output


@pytest.mark.parametrize("model", MODELS)
def test_train_by_name(folder: Path, model: str) -> None:
    values = json.loads((trained(folder, model) / "result.json").read_text())
    assert values["protocol"].startswith(
        "every item but the first of sessions that end from 2014-09-29T03:00:00 on tested"
    )
    assert 0 < values["test"]["recall@10"] <= 1
    assert "cold" not in values  # every item is known, and sessions are new by design


def test_a_trained_run_recommends_to_a_tested_session(folder: Path) -> None:
    output = trained(folder, "SASRec")
    assert len(shoal.recommend(output, user="110", topk=3)) == 3
    assert len(shoal.recommend(output, history=["1", "2"], topk=3)) == 3

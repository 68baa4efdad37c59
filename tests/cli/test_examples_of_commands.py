"""The example that the page of commands has of each command, run as it stands."""

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

import numpy
import polars
import pytest
from recbole_classes import SIDE_LOSS
from typer.testing import CliRunner

import shoal
from shoal.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "docs"))
import generate  # noqa: E402

QUICK = (
    *("models", "config keys", "config schema", "config show", "new model", "import recbole"),
    *("keys make", "plan"),
)
SERVICES = ("serve", "pipeline serve", "board")
ARENA = "models: [Pop, BPR]\ndata: [ratings.csv]\nseeds: 2\nkeys: {train.epochs: 1}\n"


def run(name: str) -> None:
    words = shlex.split(generate.EXAMPLES[name])[1:]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, f"{name}: {done.output}"


@pytest.fixture()
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that examples read."""
    monkeypatch.chdir(tmp_path)
    rows = [(n % 40, n * 7 % 97, 1 + n % 5, 60 * n, n % 2) for n in range(1600)]
    columns = ["user_id", "item_id", "rating", "timestamp", "label"]
    frame = polars.DataFrame(rows, schema=columns, orient="row")
    frame.drop("label").write_csv("ratings.csv")
    frame.select("user_id", "item_id", "label").write_csv("day_1.csv")
    frame.tail(60).select("user_id", "item_id").write_csv("later.csv")
    Path("my_model.py").write_text(SIDE_LOSS)
    Path("arena.yaml").write_text(ARENA)
    Path("pipeline.yaml").write_text("retrieve: [{artifact: model, number: 50}]\n")
    write_requests()
    return tmp_path


def write_requests() -> None:
    """A request log in the folder `requests`, and outcomes.csv."""
    Path("requests").mkdir()
    entry = {"time": 1.0, "items": [7, 14], "propensity": [0.5, 0.5], "place_propensity": [0.5] * 2}
    lines = [json.dumps({"request": f"r{n}", "user": n, **entry}) for n in range(20)]
    Path("requests/requests-20261119-120000-1.jsonl").write_text("\n".join(lines) + "\n")
    polars.DataFrame({"request": ["r1"], "item": [7], "label": [1]}).write_csv("outcomes.csv")


@pytest.mark.parametrize("name", QUICK)
def test_quick_ones(name: str, folder: Path) -> None:
    run(name)


@pytest.mark.slow
def test_the_others_one_after_the_other(folder: Path) -> None:
    frame = polars.read_csv("day_1.csv")
    keys = {"run.output": "runs/clicks", "run.progress": False, "epochs": 1}
    shoal.fit("LR", frame, label="label", **keys)
    shoal.export("runs/clicks", to="clicks")
    items = numpy.arange(97)
    numpy.savez("texts.npz", ids=items, vectors=numpy.eye(97, 8))
    numpy.savez("new.npz", ids=items + 97, vectors=numpy.eye(97, 8))
    vectors = {"run.output": "runs/shop", "data.item_vectors.file": "texts.npz"}
    shoal.fit("SASRec", polars.read_csv("ratings.csv"), **keys | vectors)
    shoal.export("runs/shop", to="shop")
    for name in generate.EXAMPLES:
        if name in SERVICES:
            serve(name)
        elif name not in QUICK and name != "data fetch":  # which asks the network
            run(name)


def serve(name: str) -> None:
    """Until it announces its address."""
    words = [*shlex.split(generate.EXAMPLES[name])[1:], "--port=0", "--announce=address"]
    with subprocess.Popen([sys.executable, "-m", "shoal", *words]) as process:
        deadline = time.monotonic() + 120
        while not Path("address").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        process.terminate()
    Path("address").unlink()

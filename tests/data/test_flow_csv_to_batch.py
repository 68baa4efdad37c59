"""From a csv to the first batch: the files that run are those of docs/understand/csv_to_batch.md.

`shoal train FILE.csv` is traced from the moment at which its config is resolved until the first
batch reaches the model. What counts: every file of `shoal/data/` in which a function runs, and
those files of `runs/` and `training/` that call down to the loading of the data and to the making
of the batch. Callers that import nothing of `shoal/data/` hand batches on unseen (the progress bar,
the watch over slow steps) and do not count. A run's folder, model, strategy and metrics are other
flows.
"""

from __future__ import annotations

import random
import re
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli.main import app

PACKAGE = Path(shoal.__file__).parent
PAGE = PACKAGE.parent / "docs" / "understand" / "csv_to_batch.md"
PREFIX = f"{PACKAGE}/"
MOST_FILES = 25
CALLERS = ("runs/", "training/")  # rooms whose files count where they call down to the data
DATA_CALLS = {("data/loading/load.py", "load_dataset"), ("data/reader.py", "Interactions.make")}
QUESTIONS = ("named_data", "interactions_of")


class FileTrace:
    """Which files of the package run between a resolved config and the first batch."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.questions: Counter[str] = Counter()  # which data a config names
        self.state = "before"

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call" or self.state == "after":
            return
        file, function = place_of(frame), frame.f_code.co_qualname
        if file is None or function == "<module>":
            return
        if (file, function) == ("runs/run.py", "train"):
            self.state = "within"
        if self.state != "within":
            return
        if file.startswith("models/") and function.endswith(".forward"):
            self.state = "after"
            sys.setprofile(None)  # what follows runs at full speed
        elif file.startswith("data/"):
            self.files.add(file)
            if function in QUESTIONS:
                self.questions[function] += 1
            if (file, function) in DATA_CALLS:
                self.files |= callers_of(frame)


def place_of(frame: FrameType) -> str | None:
    """The file of a call within the package; None: it is another's."""
    name = frame.f_code.co_filename
    return name.removeprefix(PREFIX) if name.startswith(PREFIX) else None


def callers_of(frame: FrameType) -> set[str]:
    """Files of runs and training that have called down to here, and know what data is."""
    files = set()
    caller = frame.f_back
    while caller is not None:
        file = place_of(caller)
        is_counted = file is not None and file.startswith(CALLERS)
        if is_counted and "from shoal.data" in (PACKAGE / str(file)).read_text():
            files.add(str(file))
        caller = caller.f_back
    return files


def write_ratings(path: Path) -> None:
    """A csv of users, items, ratings and times."""
    draw = random.Random(1)
    lines = ["user,item,rating,timestamp"]
    for user in range(60):
        for item in draw.sample(range(200), 12):
            time = 1_600_000_000 + draw.randint(0, 10**6)
            lines.append(f"u{user},i{item},{draw.randint(1, 5)},{time}")
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> FileTrace:
    folder = tmp_path_factory.mktemp("flow")
    write_ratings(folder / "ratings.csv")
    words = ["train", "ratings.csv", "--train.epochs=1", "--run.progress=false"]
    file_trace, before = FileTrace(), sys.getprofile()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        threading.setprofile(file_trace)
        sys.setprofile(file_trace)
        try:
            result = CliRunner().invoke(app, words, catch_exceptions=False)
        finally:
            sys.setprofile(before)
            threading.setprofile(None)
    assert result.exit_code == 0, result.output
    assert file_trace.state == "after"
    return file_trace


def test_the_page_names_the_files_that_run(trace: FileTrace) -> None:
    listed = re.findall(r"^\d+\. `shoal/([^`]+\.py)`", PAGE.read_text(), re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == trace.files


def test_the_flow_is_short(trace: FileTrace) -> None:
    assert len(trace.files) <= MOST_FILES


def test_a_config_is_asked_once_which_data_it_names(trace: FileTrace) -> None:
    assert trace.questions == dict.fromkeys(QUESTIONS, 1)

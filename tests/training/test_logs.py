"""What a run prints: for machines, for people in a hurry, and where nobody looks."""

import fcntl
import json
import os
import pty
import re
import struct
import sys
import termios
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from commands import finish

from shoal.cli import exit
from shoal.runs.run import resolve
from shoal.training import progress
from shoal.training.progress import bar, is_watched
from shoal.training.run_folder import json_line

WORDS = (
    *("train", "--model=BPR", "--dataset=synthetic", "--data.synthetic.users=90"),
    *("--data.synthetic.items=60", "--data.synthetic.interactions=2000", "--train.epochs=2"),
    *("--run.trackers=[]", "--output=run"),
)


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.slow
def test_a_log_for_machines_is_one_object_per_line(tmp_path: Path) -> None:
    words = ("--run.log=json", "--nproc=2", "--learner=adam")  # launched, and with a note
    lines = objects(finish(*WORDS, *words, cwd=tmp_path))
    for one in lines:
        assert datetime.fromisoformat(one["time"]).tzinfo is not None
        assert one["level"] in ("info", "warning") and isinstance(one["message"], str)
    saved = objects((tmp_path / "run" / "metrics.jsonl").read_text())
    trained = [one for one in lines if " training [" in one["message"]]
    assert [one["loss"] for one in trained] == [one["loss"] for one in saved]
    assert [one["epoch"] for one in trained] == [0, 1]
    valid = [one["valid"] for one in lines if " evaluating [" in one["message"]]
    assert valid == [one["valid"] for one in saved]
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert lines[-1]["message"] == "result" and lines[-1]["test"] == result["test"]
    kept = objects((tmp_path / "run" / "train.log").read_text())
    assert [one["loss"] for one in kept if " training [" in one["message"]] == [
        one["loss"] for one in saved
    ]


def test_a_figure_that_is_no_number_is_null() -> None:
    line = json.loads(json_line("INFO", "x\ny", {"valid": {"auc": float("nan")}, "loss": 0.5}))
    assert line["valid"] == {"auc": None} and line["loss"] == 0.5 and line["message"] == "x\ny"


def test_quiet_prints_the_result_in_one_line(tmp_path: Path) -> None:
    said = finish(*WORDS, "--quiet", cwd=tmp_path)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    (line,) = said.splitlines()
    assert line.startswith("BPR on synthetic: ") and line.endswith("; run: run")
    assert f"ndcg@10 {result['test']['ndcg@10']:.4f}" in line


class Terminal:
    """Standard error as a terminal of some width; what was drawn on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, columns: int, **environment: str):
        self.read, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        monkeypatch.setattr(sys, "stderr", os.fdopen(theirs, "w"))
        for name in ("CI", "TERM"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.delitem(sys.modules, "ipykernel", raising=False)  # other tests run notebooks
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    def drawn(self) -> str:
        import torch

        for _ in bar(range(3), 3, "Train     0", torch.device("cpu"), True):
            pass
        print("the end", file=sys.stderr, flush=True)
        text = ""
        while "the end" not in text:
            text += os.read(self.read, 1 << 16).decode()
        return text


@pytest.mark.parametrize(
    "environment, watched",
    [({}, True), ({"CI": "true"}, False), ({"CI": "false"}, True), ({"TERM": "dumb"}, False)],
)
def test_bars_are_for_terminals_that_somebody_looks_at(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], watched: bool
) -> None:
    terminal = Terminal(monkeypatch, 80, **environment)
    assert is_watched() == watched
    assert ("100%" in terminal.drawn()) == watched


@pytest.mark.parametrize("columns", [40, 100, 300])
def test_bars_fit_the_terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    drawn = Terminal(monkeypatch, columns).drawn()
    lines = [line for line in drawn.replace("\r", "\n").splitlines() if "100%" in line]
    assert lines and max(map(len, lines)) <= min(columns, 100)


@pytest.mark.parametrize("no_color", ["", "1"])
def test_no_color_is_heeded(monkeypatch: pytest.MonkeyPatch, no_color: str) -> None:
    terminal = Terminal(monkeypatch, 80, NO_COLOR=no_color)
    monkeypatch.setattr(exit, "leave", lambda status: None)
    exit.fail(ValueError("what to do"))
    said = os.read(terminal.read, 1 << 16).decode()
    assert "error: what to do" in said and ("\x1b" in said) == (not no_color)


def test_the_old_name_of_the_key_for_curves_is_understood() -> None:
    assert resolve(values={"run.trackers": []}).config.run.trackers == []
    assert resolve(overrides=["--run.tensorboard"]).config.run.trackers == ["tensorboard"]
    with pytest.raises(ValueError, match="a list of texts"):
        resolve(values={"run.tensorboard": 3})


def test_a_notebook_keeps_no_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ipywidgets they are drawn as text, and gone when they are done."""
    terminal = Terminal(monkeypatch, 80, CI="true")
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    drawn = terminal.drawn()
    assert "Train     0" in drawn and re.search(r"\r +\rthe end", drawn)  # wiped

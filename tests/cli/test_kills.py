"""Commands that are killed (SIGKILL) while they write: nothing half-written is taken for whole.

What a killed command leaves has a hidden name, none of its processes stays, and the same command
does its work afterwards.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from commands import finish, processes, run_here
from commands import shoal as start

import shoal
from shoal.daily.follow import TrainedFiles
from shoal.data.prepared.folder import check

PATIENCE = 60.0  # seconds until the processes of a killed command are gone
ROWS = 3000


def check_page(folder: Path) -> None:
    assert (folder / "page.html").read_text().rstrip().endswith("</html>")


def check_artifact(folder: Path) -> None:
    assert shoal.load(folder / "art").recommend("1")


def check_prepared(folder: Path) -> None:
    assert check(folder / "prep") > 0


def check_followed(folder: Path) -> None:
    """What a service would take is whole; the ledger can be read."""
    for entry in TrainedFiles(folder / "followed").entries:
        if entry.export is not None:
            assert (folder / "served" / entry.export).is_dir()
    for path in folder.glob("served/[!.]*"):
        assert shoal.load(path).recommend("1")


@dataclass(frozen=True)
class Killed:
    """A command, what it writes into its working folder, and a check that this is whole."""

    words: tuple[str, ...]
    outputs: tuple[str, ...]
    check: Callable[[Path], None]


FOLLOW = ("--from=run", "--follow=days", "--output=followed")
COMMANDS = {
    "report": Killed(("report", "run", "--output", "page.html"), ("page.html",), check_page),
    "export": Killed(("export", "run", "--to", "art"), ("art",), check_artifact),
    "prepare": Killed(("prepare", "days/day.csv", "--to", "prep"), ("prep",), check_prepared),
    "follow": Killed(
        ("train", *FOLLOW, "--once", "--export=served"),
        ("followed", "served"),
        check_followed,
    ),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, and with a day of new rows."""
    folder = tmp_path_factory.mktemp("kills")
    rows = [
        f"{n % 60},{(n * 7 + n // 60) % 149},{n % 5 + 1},{1_700_000_000 + n}\n" for n in range(ROWS)
    ]
    (folder / "days").mkdir()
    text = "user_id,item_id,rating,timestamp\n" + "".join(rows)
    (folder / "rows.csv").write_text(text)
    (folder / "days" / "day.csv").write_text(text)
    words = ("train", "rows.csv", "--model=BPR", "--train.epochs=2", "--output=run", "--quiet")
    run_here(*words, "--run.threads=1", cwd=folder)
    return folder


def remove_outputs(folder: Path, killed: Killed) -> None:
    for name in killed.outputs:
        if (folder / name).is_dir():
            shutil.rmtree(folder / name)
        (folder / name).unlink(missing_ok=True)


def kill(folder: Path, killed: Killed, seconds: float) -> None:
    """Start a command, kill its first process alone after so long, and look at what is left."""
    command = start(*killed.words, cwd=folder)
    try:
        time.sleep(seconds)
        if command.process.poll() is None:
            os.kill(command.process.pid, signal.SIGKILL)
        status = command.wait()
        assert status in (0, -signal.SIGKILL), command.output
        deadline = time.monotonic() + PATIENCE
        while (left := processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not left, "a process stays"
        assert "Traceback" not in command.output
    finally:
        command.kill()
    if any((folder / name).exists() for name in killed.outputs):
        killed.check(folder)


def kill_and_repeat(folder: Path, name: str, parts: list[float]) -> None:
    """Kill a command at parts of its time, and do its work after each kill."""
    if name == "report" and find_spec("matplotlib") is None:
        pytest.skip("the extra `report` is not installed")
    killed = COMMANDS[name]
    remove_outputs(folder, killed)
    begun = time.monotonic()
    finish(*killed.words, cwd=folder)
    seconds = time.monotonic() - begun
    for part in parts:
        remove_outputs(folder, killed)
        kill(folder, killed, part * seconds)
        if name == "export":  # one that came before the kill is not replaced
            remove_outputs(folder, killed)
        finish(*killed.words, cwd=folder)
        killed.check(folder)
        for output in killed.outputs:
            parent = (folder / output).parent
            hidden = {path.name for path in parent.glob(f".{output}*")}
            hidden |= {path.name for path in (folder / output).glob(".*") if path.name != ".lock"}
            assert not hidden, "what the killed one left is still there"


@pytest.mark.parametrize("name", ["export"])
def test_a_killed_command_is_repeated(trained: Path, name: str) -> None:
    kill_and_repeat(trained, name, [0.8])


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_commands_killed_at_any_moment_are_repeated(trained: Path, name: str) -> None:
    moments = random.Random(name)
    kill_and_repeat(trained, name, [moments.uniform(0.3, 1.0) for _ in range(10)])

"""Real `shoal` commands for tests: started, watched, killed, and never left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import chdir, suppress
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

ROOT = Path(__file__).resolve().parents[2]
MARK = f"SHOAL_TEST_MARK=of-{os.getpid()}"  # in the environment of everything that we start
TIMEOUT = 600.0  # for a whole command on a busy machine: it only ends what hangs
SHOAL = (sys.executable, "-m", "shoal")


class Command:
    """One command in a process group of its own; output goes to a file."""

    def __init__(self, words: tuple[str, ...], cwd: Path, **env: str):
        cwd.mkdir(parents=True, exist_ok=True)
        self.file = cwd / f"output-{time.monotonic_ns()}.txt"
        names = (
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
            "LOCAL_WORLD_SIZE",
            "MASTER_ADDR",
            "MASTER_PORT",
        )
        clean = {key: value for key, value in os.environ.items() if key not in names}
        with open(self.file, "w") as out:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env={**clean, **dict([MARK.split("=")]), "PYTHONPATH": str(ROOT), **env},
                start_new_session=True,
            )

    def wait(self, timeout: float = TIMEOUT) -> int:
        """The exit status; a command that hangs is ended and fails the test."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still running after {timeout} s:\n{self.output}") from None

    def kill(self) -> None:
        """SIGKILL to the whole group, as a power cut would."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    def interrupt(self) -> None:
        """What Ctrl-C does: SIGINT to everybody in the group."""
        os.killpg(self.process.pid, signal.SIGINT)

    @property
    def output(self) -> str:
        return self.file.read_text()

    def until(self, what: str, happened: Callable[[], Any], timeout: float = TIMEOUT) -> Any:
        """Wait until something that the command does has happened."""
        deadline, asked = time.monotonic() + timeout, time.thread_time()
        while not (found := happened()):
            if self.process.poll() is not None and not (found := happened()):
                raise AssertionError(f"ended before {what}:\n{self.output}")
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"no {what} after {timeout} s:\n{self.output}")
            # Asking takes at most a fifth of a core, which the command itself may need.
            time.sleep(max(0.005, 4 * (time.thread_time() - asked)))
            asked = time.thread_time()
        return found

    def ranks(self) -> dict[int, int]:
        """Rank -> process id of the ranks that this command started."""
        found = {}
        for pid, environment, parent in processes():
            if parent == self.process.pid and "RANK" in environment:
                found[int(environment["RANK"])] = pid
        return found

    def servers(self) -> dict[tuple[int, int], int]:
        """(number, replica) -> process id of the servers that this command started."""
        found = {}
        for pid, _, parent in processes():
            with suppress(OSError):  # it has ended just now
                words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                if parent == self.process.pid and "server" in words:
                    said = dict(word[2:].split("=", 1) for word in words if "=" in word)
                    found[int(said["index"]), int(said.get("replica", 0))] = pid
        return found


def processes() -> list[tuple[int, dict[str, str], int]]:
    """(pid, environment, parent) of the living processes that tests of this session started."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            environment = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if MARK in environment and fields[0] != "Z":
            pairs = dict(entry.split("=", 1) for entry in environment if "=" in entry)
            found.append((int(folder.name), pairs, int(fields[1])))
    return found


def is_alive(pid: int) -> bool:
    return any(pid == found for found, _, _ in processes())


def shoal(*words: str | Path, cwd: Path, **env: str) -> Command:
    """Start `shoal WORDS`."""
    return Command((*SHOAL, *map(str, words)), cwd, **env)


def finish(*words: str | Path, cwd: Path, status: int = 0) -> str:
    """Run `shoal WORDS` to its end; its output."""
    command = shoal(*words, cwd=cwd)
    assert command.wait() == status, command.output
    return command.output


def run_here(*words: str | Path, cwd: Path) -> None:
    """Run `shoal WORDS` in this process: for what a test needs, and is not about."""
    from shoal.cli.main import app

    with chdir(cwd):
        done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exit_code == 0, f"{done.output}\n{done.exception}"


def errors(output: str) -> list[str]:
    """The lines that tell a user of an error."""
    return [line for line in output.splitlines() if line.startswith("error: ")]


def newest_step(folder: Path) -> int:
    """Step of the newest committed checkpoint of a run; 0 if there is none."""
    names = [p.name for p in (folder / "checkpoints").glob("step-*")]
    return max((int(name[5:]) for name in names), default=0)


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "result.json").read_text())


def metrics(folder: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without the times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if not is_time(key)} for line in lines]


def is_time(key: str) -> bool:
    """Whether a key of metrics.jsonl holds seconds."""
    return key == "phases" or key.endswith("_seconds")

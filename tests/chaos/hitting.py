"""Hitting: one trial carried out, and what was wrong with what came of it."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
from cluster_configs import LONG, MODELS, write_config
from commands import ROOT, Command, errors, newest_step, processes, shoal
from safetensors.numpy import load_file

from chaos.trials import Shape, Trial

HANG_SECONDS = 5.0
LEAVING_SECONDS = 60.0  # for processes to follow their launcher; those at their start come to it
START_SECONDS = 8.0  # what is called the start of a run
PATIENCE = 600.0  # for anything that must happen at all, on a busy machine
TOLERANCE = 1e-4  # of weights that another number of processes made
Counts = dict[int, Counter[tuple[int, int]]]  # epoch -> (user, item) -> how often
Problems = list[str] | None  # what was wrong; None where the run was over before the blow fell
EPOCHS = 6
MORE = {
    "launch.hang_timeout": HANG_SECONDS,
    # Two runs begin at once on a few cores, and who starves is not to be called silent.
    "launch.join_timeout": 120.0,
    "strategy.ps.timeout": 30.0,
    "train.epochs": EPOCHS,
    "train.eval_every": 2,
}


class Reference:
    """The run that nobody hits: what all others must equal."""

    def __init__(self, place: Path):
        self.config = write_config(place / "chaos.yaml", MODELS["BPR"], LONG, MORE)
        self.folder = place / "reference"
        command = start(Shape("single", 1, 0), self.config, self.folder, place)
        if command.wait() != 0:
            raise SystemExit(f"the reference failed:\n{command.output}")
        self.steps = newest_step(self.folder)
        self.counts = read_counts(place / "counts-0", 0, self.steps)
        self.weights = weights_of(self.folder)


def environment_of(place: Path, counts: str) -> dict[str, str]:
    """Of processes that write down their samples and have a place for temporary files."""
    own = place / "tmp"
    for made in (place / counts, own):
        made.mkdir(parents=True, exist_ok=True)
    path = f"{ROOT / 'tests' / 'chaos' / 'counting'}:{ROOT}"
    return {
        "SHOAL_CHAOS_COUNTS": str(place / counts),
        "SHOAL_CHAOS_CLOCK": str(place / "clock"),
        "TMPDIR": str(own),
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
    }


def start(
    shape: Shape, config: Path, folder: Path, place: Path, *more: str, resume: int = 0
) -> Command:
    """A command of a run; resume: how often it was begun before."""
    words = [*shape.words, config, "--output", folder, *more, *["--resume"] * bool(resume)]
    return shoal(*words, cwd=place, **environment_of(place, f"counts-{resume}"))


def send(trials: list[Trial], place: Path, reference: Reference) -> Iterator[Problems]:
    """Signals, each to what goes on after the one before; of each what was wrong.

    None where the run was over before the blow fell.
    """
    folder, outputs = place / "run", []
    for number, trial in enumerate(trials):
        command = start(trial.shape, reference.config, folder, place, resume=number)
        pid = hit(trial, command, folder, reference.steps)
        status = ended(command)
        if status is None:
            yield [f"it did not end; see {command.file}"]
            return
        outputs.append(command.output)
        problems = leftovers(place) + tracebacks(command)
        if status == 0:
            yield problems + check_end(trial, folder, place, outputs, reference) or None
            return
        if pid is None:
            problems.append(f"it ended with status {status}, unhit; see {command.file}")
        else:
            problems += check_message(trial, pid, status, command.output)
        if trial is trials[-1]:
            problems += finish(trial, folder, place, outputs, reference)
        yield problems


def finish(
    trial: Trial, folder: Path, place: Path, outputs: list[str], reference: Reference
) -> list[str]:
    """Go on in another shape, to the end; what was wrong with that.

    outputs: of the commands that were hit.
    """
    again = start(trial.after, reference.config, folder, place, resume=len(outputs))
    status = ended(again)
    if status is None:
        return [f"resumed, it did not end; see {again.file}"]
    if status or "Traceback" in again.output:
        return [f"resumed, it ended with status {status}; see {again.file}"]
    found = leftovers(place)
    return found + check_end(trial, folder, place, [*outputs, again.output], reference)


def ended(command: Command) -> int | None:
    """The status of a command; None where it does not end."""
    try:
        return command.wait(PATIENCE)
    except AssertionError:
        return None


# ---- the blow -----------------------------------------------------------------------------------


def hit(trial: Trial, command: Command, folder: Path, steps: int) -> int | None:
    """Send the signal when its moment has come; the process hit, None if it was over before."""
    if not wait_for_moment(trial, command, folder, steps):
        return None
    deadline = time.monotonic() + PATIENCE
    while command.process.poll() is None and time.monotonic() < deadline:
        pid = find(trial.victim, command)
        if pid is not None:
            with suppress(ProcessLookupError):  # it has ended just now
                os.kill(pid, trial.signal)
                return pid
        time.sleep(0.01)
    return None


def wait_for_moment(trial: Trial, command: Command, folder: Path, steps: int) -> bool:
    """Until the blow is to fall; False where the run is over before."""
    begun = time.monotonic()
    step = max(trial.part * steps, newest_step(folder))  # what goes on gets on before it is hit
    epochs = max(EPOCHS * trial.part, epochs_of(folder))

    def writes() -> bool:
        return any((folder / "checkpoints").glob(".step-*.new"))

    moments: dict[str, Callable[[], bool]] = {
        "start": lambda: time.monotonic() - begun > START_SECONDS * trial.part,
        "step": lambda: newest_step(folder) > step,
        "save": lambda: newest_step(folder) > step and writes(),
        "epoch": lambda: epochs_of(folder) > epochs,
    }
    while command.process.poll() is None and time.monotonic() - begun < PATIENCE:
        if moments[trial.moment]():
            return True
        # Looking takes time from those who are looked at.
        soon = trial.moment == "save" and newest_step(folder) > step
        time.sleep(0.002 if soon else 0.02)
    return False


def epochs_of(folder: Path) -> int:
    """Epochs whose evaluation may be under way."""
    file = folder / "train.log"
    return file.read_text().count(" training [") if file.exists() else 0


def find(victim: str, command: Command) -> int | None:
    """The process number of whoever is to be hit, once it is there."""
    if victim == "launcher":
        return command.process.pid
    kind, number = victim.split()
    if kind == "rank":
        return command.ranks().get(int(number))
    return command.servers().get((int(number), 0))


# ---- what must be so ----------------------------------------------------------------------------


def leftovers(place: Path) -> list[str]:
    """Processes and files of a trial that outlive the command."""

    def still_there() -> list[int]:
        own = str(place / "tmp")
        return [pid for pid, environment, _ in processes() if environment.get("TMPDIR") == own]

    deadline = time.monotonic() + LEAVING_SECONDS
    while (left := still_there()) and time.monotonic() < deadline:
        time.sleep(0.05)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    found = [f"process {pid} was left behind" for pid in left]
    return found + [f"{path} was left behind" for path in (place / "tmp").glob("shoal-*")]


def tracebacks(command: Command) -> list[str]:
    """What a user must never see."""
    return [f"a traceback; see {command.file}"] if "Traceback" in command.output else []


def check_message(trial: Trial, pid: int, status: int, output: str) -> list[str]:
    """Whether the one who was hit is named."""
    if trial.victim == "launcher":
        expected = -9 if trial.signal == signal.SIGKILL else 128 + trial.signal
        wrong = [] if status == expected else [f"status {status}, not {expected}"]
        if trial.signal == signal.SIGKILL or trial.moment == "start" or "stopped by" in output:
            return wrong
        return [*wrong, "nobody says that it was stopped"]
    said = errors(output)
    if len(said) != 1:
        return [f"{len(said)} errors: {said}"]
    if f"{trial.victim} on host" not in said[0] or f"pid {pid}" not in said[0]:
        return [f"the wrong culprit: {said[0][:200]}"]
    return []


def read_counts(folder: Path, after: int, until: int) -> Counts:
    """The samples of the steps after + 1 to `until`."""
    found: Counts = {}
    for file in folder.iterdir() if folder.is_dir() else ():
        data = np.frombuffer(file.read_bytes()[: file.stat().st_size // 8 * 8], "<i8")
        place = 0
        while place + 3 <= len(data):
            epoch, step, size = data[place : place + 3].tolist()
            pairs = data[place + 3 : place + 3 + 2 * size]
            place += 3 + 2 * size
            if after < step <= until and len(pairs) == 2 * size:
                users, items = pairs[:size].tolist(), pairs[size:].tolist()
                found.setdefault(epoch, Counter()).update(zip(users, items))
    return found


def check_end(
    trial: Trial, folder: Path, place: Path, outputs: list[str], reference: Reference
) -> list[str]:
    """Whether a run that came to its end did what one does that nobody hits."""
    problems = check_counts(place, outputs, reference)
    return problems + (check_weights(folder, reference) if trial.shape.is_exact else [])


def check_counts(place: Path, outputs: list[str], reference: Reference) -> list[str]:
    """Whether every sample of every epoch counted once.

    outputs: of the commands of the run, one after the other. What one of them did after the step
    from which the next went on counts for nothing.
    """
    whole: Counts = {}
    until = 1 << 60
    for number in reversed(range(len(outputs))):
        said = re.findall(r"resuming .* \(step (\d+)\)", outputs[number])
        begun, folder = int(said[0]) if said else 0, place / f"counts-{number}"
        for epoch, more in read_counts(folder, begun, until).items():
            whole.setdefault(epoch, Counter()).update(more)
        if said or any(file.stat().st_size for file in folder.iterdir()):  # else it did nothing
            until = min(until, begun)
    if whole.keys() != reference.counts.keys():
        return [f"epochs {sorted(whole)} instead of {sorted(reference.counts)}"]
    problems = []
    for epoch, expected in reference.counts.items():
        lost, twice = (expected - whole[epoch]).total(), (whole[epoch] - expected).total()
        if lost or twice:
            problems.append(f"epoch {epoch}: {lost} samples lost, {twice} taken twice")
    return problems


def weights_of(folder: Path) -> dict[str, np.ndarray]:
    """All numbers of the newest checkpoint: rows as TABLE ID, dense parameters by name."""
    newest = folder / "checkpoints" / f"step-{newest_step(folder):09d}"
    found = load_file(newest / "dense.safetensors")
    for file in newest.glob("rows-*"):
        tensors, table = load_file(file), file.name.rsplit("-", 1)[0]
        found |= {f"{table} {n}": row for n, row in zip(tensors["ids"], tensors["values"])}
    return found


def check_weights(folder: Path, reference: Reference) -> list[str]:
    """Whether the run ended with the numbers of the one that nobody hit."""
    mine, theirs = weights_of(folder), reference.weights
    other = {name for name in mine.keys() ^ theirs.keys() if not name.endswith(" 0")}  # padding
    if other:
        return [f"weights that only one of the runs has: {sorted(other)[:5]}"]
    off = {name: float(np.abs(mine[name] - theirs[name]).max()) for name in mine.keys() & theirs}
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    epochs = [json.loads(line)["epoch"] for line in lines]
    far = max(off, key=lambda name: off[name])
    problems = [] if off[far] <= TOLERANCE else [f"{far} is off by {off[far]:g}"]  # NaN is off
    if epochs != list(range(len(reference.counts))):
        problems.append(f"metrics.jsonl has epochs {epochs}")
    return problems

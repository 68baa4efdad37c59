"""A run killed at a random step and resumed ends as one that was never killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
from pathlib import Path

import pytest
from cluster_configs import LONG, MODELS, write_config
from commands import errors, finish, metrics, newest_step, result, run_here, shoal

SEED = int(os.environ.get("SHOAL_TEST_SEED", random.randrange(10**6)))


def pick_step(folder: Path, name: str) -> int:
    """A step in the first half of a run, to kill it at."""
    last = metrics(folder)[-1]["step"]
    step = random.Random(f"{SEED} {name}").randrange(last // 20, last // 2)
    print(f"kill {name} at step {step} of {last} (SHOAL_TEST_SEED={SEED})")
    return step


def kill_at(step: int, config: Path, folder: Path, *words: str, rank: int | None = None) -> None:
    """Start a run and SIGKILL it (or one rank of it) as soon as that step is saved."""
    command = shoal("train", config, "--output", folder, *words, cwd=folder.parent)
    command.until(f"step {step}", lambda: newest_step(folder) >= step)
    if rank is None:
        command.kill()
    else:
        os.kill(command.ranks()[rank], signal.SIGKILL)
        assert command.wait() == 2
        assert f"rank {rank} on host" in errors(command.output)[0]
    assert not (folder / "result.json").exists(), "it ended before it was killed"


def assert_same(folder: Path, reference: Path, tolerance: float | None) -> None:
    """Equal losses and metrics: bit for bit, or within a tolerance."""
    lines, expected = metrics(folder), metrics(reference)
    assert [line["epoch"] for line in lines] == list(range(len(expected)))  # each epoch once
    mine, theirs = result(folder), result(reference)
    if tolerance is None:
        assert lines == expected
        assert mine["test"] == theirs["test"] and mine["best_valid"] == theirs["best_valid"]
    else:
        for line, other in zip(lines, expected):
            assert line["loss"] == pytest.approx(other["loss"], rel=tolerance)
            assert line["valid"] == pytest.approx(other["valid"], rel=0, abs=tolerance)
        assert mine["test"] == pytest.approx(theirs["test"], rel=0, abs=tolerance)
    assert mine["best_epoch"] == theirs["best_epoch"] and mine["epochs"] == theirs["epochs"]


def long_run(place: Path, model: str) -> tuple[Path, Path]:
    """A config that saves often, and the folder of its run without any kill or extra save."""
    few = {"train.batch_size": 13} if model == "SASRec" else {}  # it has one sample per history
    config = write_config(place / f"{model}.yaml", MODELS[model], LONG, few)
    reference = place / f"{model}-reference"
    run_here("train", config, "--checkpoint.every_steps=0", "--output", reference, cwd=place)
    return config, reference


@pytest.mark.parametrize(
    "model",
    [
        pytest.param("NeuMF", marks=pytest.mark.slow),
        pytest.param("BPR", marks=pytest.mark.slow),
        pytest.param("SASRec", marks=pytest.mark.slow),
    ],
)
def test_one_process_bit_for_bit(tmp_path: Path, model: str) -> None:
    config, reference = long_run(tmp_path, model)
    folder = tmp_path / "killed"
    first = pick_step(reference, model)
    kill_at(first, config, folder)
    # And again, as soon as it has gone on: epochs that were done twice stand in no file twice.
    command = shoal("train", "--resume", "--output", folder, cwd=tmp_path)
    command.until("going on", lambda: newest_step(folder) > first + 30)
    command.kill()
    finish("train", "--resume", folder, cwd=tmp_path)
    assert_same(folder, reference, None)
    assert not list((folder / "checkpoints").glob(".*"))


@pytest.mark.slow
def test_killed_at_the_boundary_of_an_epoch(tmp_path: Path) -> None:
    config, reference = long_run(tmp_path, "NeuMF")
    folder = tmp_path / "killed"
    command = shoal("train", config, "--checkpoint.every_steps=0", "--output", folder, cwd=tmp_path)
    command.until("an epoch", lambda: newest_step(folder) > 0)
    command.kill()
    assert newest_step(folder) in [line["step"] for line in metrics(reference)]
    finish("train", "--resume", folder, cwd=tmp_path)
    assert_same(folder, reference, None)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run on two processes of which one was killed, and its reference on one process."""
    place = tmp_path_factory.mktemp("broken")
    config, reference = long_run(place, "BPR")
    kill_at(pick_step(reference, "two ranks"), config, place / "run", "--nproc=2", rank=1)
    return place / "run", reference


@pytest.mark.parametrize(
    "processes, tolerance",
    [
        pytest.param(1, 1e-5),
        pytest.param(2, 1e-6, marks=pytest.mark.slow),
        pytest.param(3, 1e-5, marks=pytest.mark.slow),
    ],
)
def test_killed_on_two_processes(
    broken: tuple[Path, Path], tmp_path: Path, processes: int, tolerance: float
) -> None:
    run, reference = broken
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    output = finish("train", "--resume", folder, f"--nproc={processes}", cwd=tmp_path)
    assert "resuming" in output
    assert_same(folder, reference, tolerance)
    assert result(folder)["world_size"] == processes


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_ctrl_c_and_resume(tmp_path: Path, processes: int) -> None:
    config, reference = long_run(tmp_path, "BPR")
    folder = tmp_path / "run"
    words = ("--output", folder, f"--nproc={processes}")
    command = shoal("train", config, *words, cwd=tmp_path)
    step = pick_step(reference, f"Ctrl-C of {processes}")
    command.until(f"step {step}", lambda: newest_step(folder) >= step)
    command.interrupt()
    assert command.wait() == 130
    finish("train", config, *words, "--resume", cwd=tmp_path)
    assert_same(folder, reference, None if processes == 1 else 1e-6)

"""A rank that dies, a signal, a full disk, hosts that do not meet: one clear error, nobody left."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from cluster_configs import LONG, MODELS, write_config
from commands import ROOT, TIMEOUT, Command, errors, finish, is_alive, newest_step, processes, shoal
from ranks import free_port

from shoal.distributed.meeting import MeetingPlace
from shoal.distributed.rendezvous import Rendezvous
from shoal.launch.hosts import LaunchError
from shoal.runs.run import resolve, run, train


def start_two(config: Path, folder: Path, *more: str) -> tuple[Command, dict[int, int]]:
    """Two ranks in the midst of training, and their process ids."""
    command = shoal("train", config, "--nproc=2", "--output", folder, *more, cwd=folder.parent)
    command.until("the first checkpoints", lambda: newest_step(folder) > 10)
    ranks = command.ranks()
    assert sorted(ranks) == [0, 1]
    return command, ranks


def assert_ended(command: Command, ranks: dict[int, int], status: int = 2) -> str:
    """The command has ended, with its ranks; its one error."""
    assert command.wait() == status, command.output
    assert not any(is_alive(pid) for pid in ranks.values())
    assert "Traceback" not in command.output
    (message,) = errors(command.output)
    return message


@pytest.mark.parametrize(
    "rank, number",
    [
        pytest.param(1, signal.SIGKILL),
        pytest.param(0, signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param(0, signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_is_killed_ends_the_run(
    endless: Path, tmp_path: Path, rank: int, number: signal.Signals
) -> None:
    command, ranks = start_two(endless, tmp_path / "run")
    os.kill(ranks[rank], number)
    message = assert_ended(command, ranks)
    for part in (
        f"rank {rank} ",
        socket.gethostname(),
        number.name,
        f"pid {ranks[rank]}",
        "--resume",
    ):
        assert part in message
    assert newest_step(tmp_path / "run") > 0


@pytest.mark.slow
def test_a_rank_without_room_for_files(endless: Path, tmp_path: Path) -> None:
    command, ranks = start_two(endless, tmp_path / "run")
    before = newest_step(tmp_path / "run")
    resource.prlimit(ranks[0], resource.RLIMIT_FSIZE, (2048, 2048))  # bytes that a file may have
    message = assert_ended(command, ranks)
    assert "rank 0 " in message and socket.gethostname() in message
    assert "File too large" in message
    # What was saved is whole, nothing half-written is taken for a checkpoint, and it goes on.
    saved = newest_step(tmp_path / "run")
    assert saved >= before
    output = finish("train", "--resume", tmp_path / "run", "--nproc=1", "--epochs=1", cwd=tmp_path)
    assert f"(step {saved})" in output and "damaged" not in output


@pytest.mark.slow
def test_checkpoints_that_cannot_be_written(endless: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = shoal("train", endless, "--output", folder, cwd=tmp_path)
    command.until("the first checkpoints", lambda: newest_step(folder) > 10)
    os.rename(folder / "checkpoints", folder / "kept")
    # The writer may make the folder again at once; a file in its place it cannot.
    while True:
        try:
            (folder / "checkpoints").symlink_to("/proc/version")
            break
        except FileExistsError:
            os.rename(folder / "checkpoints", folder / f"moved-{time.monotonic_ns()}")
    message = assert_ended(command, {})
    assert "could not write a checkpoint" in message and "--resume" in message
    (folder / "checkpoints").unlink()
    os.rename(folder / "kept", folder / "checkpoints")
    finish("train", "--resume", folder, "--epochs=1", cwd=tmp_path)


@pytest.mark.slow
def test_ctrl_c_of_several_processes(endless: Path, tmp_path: Path) -> None:
    command, ranks = start_two(endless, tmp_path / "run")
    command.interrupt()
    assert command.wait() == 130, command.output
    assert not any(is_alive(pid) for pid in ranks.values())
    assert command.output.count("stopped by SIGINT; what was saved can be continued") == 1
    assert "Traceback" not in command.output and not errors(command.output)
    assert newest_step(tmp_path / "run") > 0


def test_ctrl_c_of_one_process(endless: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = shoal("train", endless, "--output", folder, cwd=tmp_path)
    command.until("the first checkpoints", lambda: newest_step(folder) > 10)
    os.killpg(command.process.pid, signal.SIGINT)
    assert command.wait() == 130, command.output
    assert command.output.count("stopped by SIGINT; what was saved can be continued") == 1
    assert "Traceback" not in command.output
    # The checkpoint that was being written was finished, not left half done.
    assert not list((folder / "checkpoints").glob(".*"))


def test_ctrl_c_before_anything_was_saved(endless: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = ("--checkpoint.every_steps=0", "--checkpoint.every_epochs=1000000")
    words += ("--train.eval_every=0",)  # a better validation is saved, too
    command = shoal("train", endless, *words, "--output", folder, cwd=tmp_path)
    command.until("the first epoch", (folder / "metrics.jsonl").exists)
    os.killpg(command.process.pid, signal.SIGINT)
    assert command.wait() == 130, command.output
    assert command.output.count("stopped by SIGINT; nothing was saved yet") == 1


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_other_host_too(endless: Path, tmp_path: Path) -> None:
    port, folder = free_port(), tmp_path / "run"
    words = ("--nproc=1", "--world_size=2", "--ip=127.0.0.1", f"--port={port}")
    first, second = (
        shoal(
            *("train", endless, *words, f"--group_offset={offset}", "--output", folder),
            cwd=tmp_path / str(offset),
        )
        for offset in (0, 1)
    )
    first.until("the first checkpoints", lambda: newest_step(folder) > 10)
    ranks = {**first.ranks(), **second.ranks()}
    os.kill(ranks[1], signal.SIGKILL)
    assert "rank 1 on host" in assert_ended(second, second.ranks())
    assert "SIGKILL" in second.output
    message = assert_ended(first, ranks)
    assert "rank 0 on host" in message and "lost its peers" in message
    assert "the rank that failed first is on another host" in message


# ---- hosts that do not meet ---------------------------------------------------------------------


def launch_error(config: Path, *words: str) -> str:
    """Why the ranks could not be launched from this process."""
    with pytest.raises(LaunchError) as caught:
        train(resolve([config], words))
    return str(caught.value)


def test_fewer_processes_than_expected(short: Path, tmp_path: Path) -> None:
    words = ("--nproc=2", "--world_size=4", "--group_offset=0", "--launch.join_timeout=2")
    words += ("--ip=127.0.0.1", f"--port={free_port()}", "--output", str(tmp_path / "run"))
    output = finish("train", short, *words, cwd=tmp_path, status=2)
    (message,) = errors(output)
    assert "1 of 2 hosts (2 of 4 processes) came" in message
    assert "within 2 s" in message and "launch.join_timeout" in message
    assert len(output.splitlines()) == 1, output


def test_a_first_host_that_is_not_there(short: Path) -> None:
    port = free_port()
    words = ("--nproc=2", "--world_size=4", "--group_offset=2", "--launch.join_timeout=1")
    message = launch_error(short, *words, "--ip=127.0.0.1", f"--port={port}")
    assert f"nobody answered at 127.0.0.1:{port} within 1 s" in message
    assert "--group_offset=0" in message and "launch.join_timeout" in message


@pytest.mark.parametrize("offset", [0, 1])
def test_unknown_host(short: Path, tmp_path: Path, offset: int) -> None:
    words = ("--nproc=1", "--world_size=2", f"--group_offset={offset}", "--port=5678")
    words += (f"--run.output={tmp_path / 'run'}",)
    message = launch_error(short, *words, "--ip=no.such.host.invalid", "--launch.plain=true")
    assert "host 'no.such.host.invalid' is unknown" in message and "--ip" in message


def test_fewer_spawned_ranks_than_expected(short: Path, tmp_path: Path) -> None:
    """Where no launcher of ours counts hosts, the ranks name who is missing."""
    env = {"RANK": "0", "WORLD_SIZE": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = shoal("train", short, "--launch.join_timeout=2", cwd=tmp_path, **env)
    assert command.wait() == 2
    (message,) = errors(command.output)
    assert "1 of 3 processes joined within 2 s; missing ranks: 1, 2" in message


@pytest.mark.parametrize(
    "words, said",
    [
        (("--nproc=2", "--world_size=3", "--port=5678"), "multiples of nproc=2"),
        (("--nproc=2", "--world_size=4"), "launch.port: must be named"),
        (("--nproc=1", "--world_size=2", "--group_offset=2", "--port=5678"), "at least 3"),
    ],
)
def test_impossible_launch(short: Path, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    folder = tmp_path / "run"
    with pytest.raises(ValueError, match=said):
        train(resolve([short], [*words, f"--run.output={folder}"]))
    assert not folder.exists()


@pytest.mark.slow
def test_the_launcher_leaves_no_trace_in_this_process(tmp_path: Path) -> None:
    """Signal handlers and variables are as before when ranks were launched from Python."""
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    environment = dict(os.environ)
    values = {"train.epochs": 1, "run.output": str(tmp_path / "run")}
    run(dataset="synthetic", nproc=2, config_dict=values)
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert dict(os.environ) == environment


@pytest.mark.slow
def test_ranks_follow_a_killed_launcher(endless: Path, tmp_path: Path) -> None:
    command, ranks = start_two(endless, tmp_path / "run")
    os.kill(command.process.pid, signal.SIGKILL)
    command.process.wait(10)
    deadline = time.monotonic() + TIMEOUT
    while any(is_alive(pid) for pid in ranks.values()):
        assert time.monotonic() < deadline, "ranks go on without their launcher"
        time.sleep(0.05)


@pytest.mark.slow
def test_two_runs_do_not_share_a_folder(endless: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = shoal("train", endless, "--output", folder, cwd=tmp_path)
    command.until("the first checkpoints", lambda: newest_step(folder) > 10)
    output = finish("train", "--resume", folder, cwd=tmp_path, status=2)
    (message,) = errors(output)
    assert f"in use by process {command.process.pid} on host" in message
    command.kill()
    # A killed run holds nothing.
    finish("train", "--resume", folder, "--epochs=1", cwd=tmp_path)


@pytest.mark.slow
def test_a_spawned_rank_that_is_killed(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    values = {"train.epochs": 100000, "run.output": str(folder)}
    config = write_config(tmp_path / "c.yaml", MODELS["BPR"], LONG, values)
    words = ("--dataset=synthetic", "--config_files", str(config), "--nproc=2", "--world_size=2")
    example = str(ROOT / "examples" / "pages" / "recbole" / "run_a.py")
    command = Command((sys.executable, example, *words, f"--port={free_port()}"), tmp_path)
    command.until("the first checkpoints", lambda: newest_step(folder) > 10)
    # Spawned ranks set their variables themselves; all that shows is that they use the group.
    children = [pid for pid, _, parent in processes() if parent == command.process.pid]
    ranks = [pid for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    assert command.wait() == 1
    assert "terminated with signal SIGKILL" in command.output
    assert not any(is_alive(pid) for pid in ranks)


def test_port_in_use(short: Path, tmp_path: Path) -> None:
    port = free_port()
    taken = Rendezvous(MeetingPlace.named("127.0.0.1", port))  # that of another run
    words = ("--nproc=2", "--world_size=4", "--ip=127.0.0.1", f"--port={port}")
    message = launch_error(short, *words, f"--run.output={tmp_path / 'run'}")
    taken.close()
    assert (
        message == f"port {port} on 127.0.0.1 is in use by another program; choose another, in "
        "--port, or in the first entry of --workers"
    )

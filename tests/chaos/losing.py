"""Losing: trials whose blow is no signal that ends a run for a person to resume."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from commands import SHOAL, Command, errors
from net_hosts import ADDRESSES, Hosts, joined_hosts

from chaos.ground import fill, small_disk
from chaos.hitting import (
    Problems,
    Reference,
    check_end,
    check_weights,
    ended,
    environment_of,
    find,
    finish,
    leftovers,
    send,
    start,
    tracebacks,
    wait_for_moment,
)
from chaos.trials import LINE, Trial

LOST = ("network between the hosts", "another host", "lost", "the meeting at")


def carry_out(trials: list[Trial], place: Path, reference: Reference) -> Iterator[Problems]:
    """The trials of a run; of each what was wrong."""
    place.mkdir()
    ways: dict[str, Callable[[Trial, Path, Reference], Problems]] = {
        **dict.fromkeys(LINE, lose_line),
        "full disk": lose_room,
        "clock": lose_time,
        "alone": bring_itself_back,
        "replica": go_on_without,
    }
    way = ways.get(trials[0].victim)
    if way is None:
        yield from send(trials, place, reference)
    else:
        yield way(trials[0], place, reference)


def lose_line(trial: Trial, place: Path, reference: Reference) -> Problems:
    """Two hosts with a rank each. A short cut heals; one for good is named by both."""
    with joined_hosts() as hosts:
        folder = place / "run"
        commands = [_on(hosts, k, trial, folder, place, reference) for k in range(2)]
        fell = wait_for_moment(trial, commands[0], folder, reference.steps)
        if fell:
            times = {"cut": [1.5], "flaps": [0.2] * 5, "cut for good": [float("inf")]}
            for seconds in times[trial.victim]:
                hosts.cut(1, seconds)
                time.sleep(0.3)
        problems: list[str] = []
        for k, command in enumerate(commands):
            status = ended(command)
            if status is None:
                return [f"host {k} did not end; see {command.file}"]
            if (status == 0) != (trial.victim != "cut for good" or not fell):
                problems.append(f"host {k} ended with status {status}; see {command.file}")
            if status and not any(word in command.output for word in LOST):
                problems.append(f"host {k} does not say that it lost the other: {command.file}")
            problems += tracebacks(command)
    problems += leftovers(place)
    if not fell:
        return problems or None
    output = commands[0].output
    if trial.victim == "cut for good":
        return problems + finish(trial, folder, place, [output], reference)
    return problems + check_end(trial, folder, place, [output], reference)


def _on(
    hosts: Hosts, k: int, trial: Trial, folder: Path, place: Path, reference: Reference
) -> Command:
    meet = (f"--ip={ADDRESSES[0]}", "--port=5678", "--nproc=1", "--world_size=2")
    words = ("train", str(reference.config), f"--strategy.name={trial.shape.kind}", *meet)
    more = (f"--group_offset={k}", "--launch.plain=true", "--output", str(folder))
    inside = ("ip", "netns", "exec", hosts.names[k], *SHOAL, *words, *more)
    return Command(inside, place / f"host-{k}", **environment_of(place, "counts-0"))


def lose_room(trial: Trial, place: Path, reference: Reference) -> Problems:
    """The disk is full: one error says so, and with room again the run goes on."""
    with small_disk(place / "disk") as disk:
        folder = disk / "run"
        command = start(trial.shape, reference.config, folder, place)
        fell = wait_for_moment(trial, command, folder, reference.steps)
        filler = fill(disk) if fell else None
        status = ended(command)
        if status is None:
            return [f"it did not end; see {command.file}"]
        problems = tracebacks(command) + leftovers(place)
        if status == 0:
            return problems or None
        if len(errors(command.output)) != 1 or "No space left" not in command.output:
            problems.append(f"it does not say that the disk is full; see {command.file}")
        if filler is not None:
            filler.unlink()
        return problems + finish(trial, folder, place, [command.output], reference)


def lose_time(trial: Trial, place: Path, reference: Reference) -> Problems:
    """The time of day jumps for all processes: nothing is to come of it."""
    folder = place / "run"
    command = start(trial.shape, reference.config, folder, place)
    fell = wait_for_moment(trial, command, folder, reference.steps)
    forwards = trial.part > 0.3
    (place / "clock").write_text("3600" if forwards else "-3600")
    status = ended(command)
    if status != 0:
        return [f"it ended with status {status}; see {command.file}"]
    problems = tracebacks(command) + leftovers(place)
    if not fell:
        return problems or None
    return problems + check_end(trial, folder, place, [command.output], reference)


def bring_itself_back(trial: Trial, place: Path, reference: Reference) -> Problems:
    """A rank is killed: the run goes on without it, then with all, and ends by itself."""
    folder, fewest = place / "run", max(1, trial.shape.workers - 1)
    words = ("--launch.max_restarts=2", f"--launch.min_nproc={fewest}", "--launch.regrow=0.5")
    command = start(trial.shape, reference.config, folder, place, *words)
    fell = wait_for_moment(trial, command, folder, reference.steps)
    ranks, rank = command.ranks(), int(1000 * trial.part) % trial.shape.workers
    if rank in ranks:
        with suppress(ProcessLookupError):  # it has ended just now
            os.kill(ranks[rank], trial.signal)
    status = ended(command)
    if status != 0:
        return [f"it ended with status {status}; see {command.file}"]
    problems = tracebacks(command) + leftovers(place)
    if not fell or "restart 1 of 2" not in command.output:
        return problems or None
    if f"rank {rank} on host" not in command.output:
        problems.append(f"the wrong culprit; see {command.file}")
    if trial.shape.is_exact:  # samples of steps that were done again are counted twice by design
        problems += check_weights(folder, reference)
    return problems


def go_on_without(trial: Trial, place: Path, reference: Reference) -> Problems:
    """One of two servers that hold the same rows is killed: the run ends as if nobody had."""
    folder = place / "run"
    words = ("--strategy.ps.replicas=2",)
    command = start(trial.shape, reference.config, folder, place, *words)
    fell = wait_for_moment(trial, command, folder, reference.steps)
    pid = find("server 0", command)
    if pid is not None:
        with suppress(ProcessLookupError):  # it has ended just now
            os.kill(pid, trial.signal)
    status = ended(command)
    if status != 0:
        return [f"it ended with status {status}; see {command.file}"]
    problems = tracebacks(command) + leftovers(place)
    told = command.output.count("its replica goes on")
    if not fell or not told:
        return problems or None
    if told > 1 or f"pid {pid}" not in command.output:
        problems.append(f"the wrong culprit; see {command.file}")
    return problems + check_end(trial, folder, place, [command.output], reference)

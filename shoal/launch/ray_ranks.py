"""Ranks on a Ray cluster: an actor each in a placement group; Ray brings back one that lost some.

    this process ── task `_attempt` (Ray retries it) ──┬── actor: rank 0, holds the meeting
                    makes the actors, waits for them   ├── actor: rank 1
                                                       └── …

The ranks meet as those of our own launcher do: at an address of rank 0's node, by the secret of the
run. What Ray carries (the work, the secret, the result) is as safe as the cluster: whoever may
submit to it may run code on it.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from shoal.distributed.hosts import WorldError
from shoal.distributed.rank_variables import set_rank
from shoal.distributed.ray_address import open_ray
from shoal.distributed.world import PeerLost
from shoal.launch.hosts import LaunchError

Work = Callable[[], Any]  # of one rank; rank 0's answer is that of all


class Lost(LaunchError):
    """A rank failed in a way that may go well another time: Ray tries again."""


@dataclass(frozen=True)
class RayWorkers:
    """The number of ranks, and the resources of the cluster that each of them takes."""

    number: int
    cpus: float = 1.0
    gpus: float = 0.0
    retries: int = 3  # of the whole group, after a rank was lost
    patience: float = 600.0  # seconds to wait for room in the cluster, also for a node's return

    def __post_init__(self) -> None:
        if self.number < 1:
            raise ValueError(f"num_workers={self.number}: there must be at least one")
        if self.gpus not in (0, 1):
            raise ValueError(f"gpus_per_worker={self.gpus:g}: a rank has one GPU, or none")

    @property
    def bundle(self) -> dict[str, float]:
        """The resources that Ray reserves for a rank."""
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}

    def __str__(self) -> str:
        gpu = " and a GPU" if self.gpus else ""
        return f"{self.number} workers with {self.cpus:g} CPU{gpu} each"


@dataclass(frozen=True)
class ActorPlace:
    """The location of an actor."""

    node: str
    address: str
    port: int  # free on that node
    host: str
    pid: int

    def __str__(self) -> str:
        return f"on host {self.host} (pid {self.pid}, Ray node {self.node[:8]})"


def run_on_ray(
    work: Work, workers: RayWorkers, address: str | None = None, secret: bytes = b""
) -> Any:
    """Do a work as the ranks of one group; what rank 0 answers.

    The work is done once more by all ranks when one was lost, so it must continue where it was.
    secret: what ranks must know to be let in; b"": one that is made here.
    """
    ray = open_ray(address)
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    secret = secret or secrets.token_urlsafe(32).encode()
    group = placement_group([workers.bundle] * workers.number, strategy="SPREAD")
    try:
        if not group.wait(min(workers.patience, 1e6)):
            raise LaunchError(_no_room(ray, workers))
        near = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        attempt = ray.remote(_attempt).options(
            num_cpus=0,
            max_retries=workers.retries,
            retry_exceptions=[Lost],
            scheduling_strategy=near,
            name="shoal",
        )
        return ray.get(attempt.remote(work, workers, group, secret, os.getcwd()))
    except ray.exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, Exception) else error
        raise cause from None
    finally:
        remove_placement_group(group)


def _attempt(work: Work, workers: RayWorkers, group: Any, secret: bytes, folder: str) -> Any:
    """Make the ranks, wait for them, and end them; Ray does it again where one was lost."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    ranks: list[Any] = [
        ray.remote(Rank)
        .options(
            num_cpus=workers.cpus,
            num_gpus=workers.gpus,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, number),
        )
        .remote(folder)
        for number in range(workers.number)
    ]
    try:
        try:
            places = ray.get([rank.place.remote() for rank in ranks], timeout=workers.patience)
        except ray.exceptions.GetTimeoutError:
            raise LaunchError(_no_room(ray, workers)) from None
        except ray.exceptions.RayActorError as error:
            raise Lost(
                f"a rank was lost before it began: {_reasons_of(error)}", passing=True
            ) from None
        nodes = [place.node for place in places]
        identity = {"size": workers.number, "secret": secret}
        identity |= {"address": places[0].address, "port": places[0].port}
        answers = []
        for number, node in enumerate(nodes):
            # Ray shows an actor its own GPU alone, as if the host had no other.
            local = (0, 1) if workers.gpus else (nodes[:number].count(node), nodes.count(node))
            identity |= dict(zip(("local_rank", "local_size"), local))
            answers.append(ranks[number].run.remote(work, number, **identity))
        return _wait(answers, places)
    except Lost as error:
        again = f"Ray starts the ranks again, {workers.retries} times at most"
        print(
            f"{error}; {again if workers.retries else 'no retries were asked for'}", file=sys.stderr
        )
        raise
    finally:
        _end(ranks)


class Rank:
    """An actor that is one rank."""

    def __init__(self, folder: str):
        if os.path.isdir(folder):  # relative names mean what they mean where the run is started
            os.chdir(folder)

    def place(self) -> ActorPlace:
        """The location of this actor, with a port at which ranks could meet."""
        import ray

        address = ray.util.get_node_ip_address()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
            port = probe.getsockname()[1]
        node = ray.get_runtime_context().get_node_id()
        return ActorPlace(node, address, port, socket.gethostname(), os.getpid())

    def run(self, work: Work, rank: int, **identity: Any) -> Any:
        """Be that rank (who: see set_rank), and do the work; its result, or how it failed."""
        set_rank(rank, **identity)
        try:
            answer = work()
        except PeerLost as error:
            return Failure(rank, "lost", str(error))
        except (ValueError, OSError, WorldError, LaunchError) as error:
            return Failure(rank, "error", str(error))
        except Exception as error:
            return Failure(rank, "fault", "".join(traceback.format_exception(error)).rstrip())
        return answer if rank == 0 else None


@dataclass(frozen=True)
class Failure:
    """How a rank failed: it lost its peers, a user can mend it (error), or only we can (fault)."""

    rank: int
    kind: str
    text: str

    def as_error(self, place: ActorPlace) -> LaunchError:
        """The failure as an error with one message."""
        text = f"rank {self.rank} {place} failed: {self.text}"
        return LaunchError(text, status=2) if self.kind == "error" else Lost(text, passing=True)


def _wait(answers: list[Any], places: list[ActorPlace]) -> Any:
    """What rank 0 answers, once all are done; else the failure of the one that failed by itself."""
    import ray

    pending, result, first = dict(zip(answers, range(len(answers)))), None, None
    deadline: float | None = None
    while pending:
        remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
        done, _ = ray.wait(list(pending), num_returns=1, timeout=remaining)
        if not done:
            break
        rank = pending.pop(done[0])
        try:
            answer = ray.get(done[0])
        except ray.exceptions.RayActorError as error:
            answer = Failure(rank, "gone", _reasons_of(error))
        if not isinstance(answer, Failure):
            result = answer if rank == 0 else result
        elif answer.kind != "lost":  # others only lost it
            raise answer.as_error(places[rank])
        elif first is None:
            first, deadline = answer, time.monotonic() + 15.0  # Ray knows by then
    if first is not None:
        raise first.as_error(places[first.rank])
    return result


def _end(ranks: list[Any]) -> None:
    """Kill the actors, and see them gone: the next ones train in the same folder."""
    import ray

    for rank in ranks:
        ray.kill(rank)
    for rank in ranks:
        with suppress(ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
            ray.get(rank.place.remote(), timeout=15.0)


def _reasons_of(error: Exception) -> str:
    """Ray's reasons for the end of an actor, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reasons = [line for line in lines if "reason" in line.lower() or "died" in line.lower()]
    return " ".join(reasons or lines[:1])


def _no_room(ray: ModuleType, workers: RayWorkers) -> str:
    has = ray.cluster_resources()
    return (
        f"Ray had no room for {workers} within {workers.patience:g} s: its nodes have "
        f"{has.get('CPU', 0):g} CPUs and {has.get('GPU', 0):g} GPUs; add nodes, wait for other "
        "jobs, or ask for less"
    )

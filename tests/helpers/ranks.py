"""Real ranks for tests: a function is run by W processes of this host."""

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.multiprocessing as mp
from forks import call

from shoal.distributed.rank_variables import set_rank
from shoal.distributed.world import connect


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_ranks(
    function: Callable[..., Any],
    size: int,
    folder: Path,
    *arguments: Any,
    shared_memory: bool = True,
) -> list[Any]:
    """function(world, *arguments) on every rank; what each returned (plain JSON), by rank.

    Without shared memory they talk over Gloo on loopback.
    """
    folder.mkdir(parents=True, exist_ok=True)
    given = (size, free_port(), function, str(folder), arguments, shared_memory)
    everything = (dict(os.environ), given)
    mp.start_processes(_start, everything, nprocs=size, join=True, start_method="forkserver")
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(size)]


def _start(rank: int, environment: dict[str, str], given: tuple[Any, ...]) -> None:
    call(environment, _rank, (rank, *given), {})


def _rank(
    rank: int,
    size: int,
    port: int,
    function: Callable[..., Any],
    folder: str,
    arguments: tuple,
    shared_memory: bool,
) -> None:
    set_rank(rank, size, rank, size, "127.0.0.1", port)
    world = connect("cpu", 60.0, threads=1, shared_memory=shared_memory)
    try:
        result = function(world, *arguments)
    finally:
        world.close()
    (Path(folder) / f"rank-{rank}.json").write_text(json.dumps(result))

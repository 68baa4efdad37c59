"""Variables: the rank of a process among its peers, from its launcher or from others."""

from __future__ import annotations

import os

from shoal.distributed.meeting import HOLDS, MEET, MeetingPlace


def is_worker() -> bool:
    """Whether a launcher (Shoal's own, torchrun, TorchX, Slurm via torchrun) started us."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def launched_number() -> int:
    """Which of the processes that a launcher has started this is; 0 without one."""
    return int(os.environ.get("RANK", 0))


def is_first() -> bool:
    """Whether this process is rank 0, or alone."""
    return launched_number() == 0


def is_first_of_host() -> bool:
    """Whether this process is the first of those that were started on its host, or alone."""
    return int(os.environ.get("LOCAL_RANK", 0)) == 0


def launched_size() -> int | None:
    """How many processes the launcher that started us has started; None without one."""
    return int(os.environ["WORLD_SIZE"]) if is_worker() else None


def set_rank(
    rank: int,
    size: int,
    local_rank: int,
    local_size: int,
    address: str,
    port: int,
    secret: bytes = b"",
) -> None:
    """Take the place of a launcher: say who this process is, and where rank 0 waits for all.

    secret: what ranks must know to be let in, where the address is not a loopback one.
    """
    if secret:
        os.environ["SHOAL_SECRET"] = secret.decode()
    variables = {MEET: MeetingPlace.named(address, port).text, HOLDS: str(int(rank == 0))}
    os.environ |= variables | rank_variables(rank, size, local_rank, local_size, address, port)


def rank_variables(
    rank: int, size: int, local_rank: int, local_size: int, address: str, port: int
) -> dict[str, str]:
    """Rank, sizes and address of a process, under torchrun's variable names."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_size),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }

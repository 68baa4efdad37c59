"""Hosts of a launch: how many there are, which of them this one is, and who may join."""

from __future__ import annotations

import tempfile

from shoal.config.schema import LaunchSection
from shoal.distributed.hosts import check_installed, is_loopback
from shoal.distributed.meeting import read_secret


class LaunchError(RuntimeError):
    """A rank failed, or the ranks could not be started; the text says which and why.

    status: the exit status of that rank as a shell shows it, 128 + the number of a signal.
    passing: whether a retry may succeed; not where a config is wrong.
    of_rank: whether the run may continue without the one that failed.
    """

    def __init__(self, text: str, status: int = 1, passing: bool = False, of_rank: bool = False):
        super().__init__(text)
        self.status, self.passing, self.of_rank = status, passing, of_rank


def scratch_folder() -> tempfile.TemporaryDirectory:
    """A folder for one launch. Should the launcher be killed, its processes take it away."""
    return tempfile.TemporaryDirectory(prefix="shoal-ranks-")


def host_of(section: LaunchSection) -> tuple[int, int]:
    """Number of hosts, and which of them this one is."""
    if section.hosts:
        return section.hosts, section.host_index
    world_size = section.nproc if section.world_size == -1 else section.world_size
    if world_size % section.nproc or section.group_offset % section.nproc:
        raise ValueError(
            f"world_size={world_size} and group_offset={section.group_offset} must be multiples of "
            f"nproc={section.nproc}; where hosts run different numbers of processes, say on each "
            "how many hosts there are and which it is: --launch.hosts=2 --launch.host_index=0"
        )
    return world_size // section.nproc, section.group_offset // section.nproc


def secret_of(section: LaunchSection) -> bytes:
    """The secret of all hosts; b"" where no other host can connect, or all may."""
    if host_of(section)[0] == 1 or is_loopback(section.ip):
        return b""
    check_installed("several hosts")
    secret = read_secret(section.secret)
    if not secret and not section.plain:
        raise ValueError(
            "several hosts, and no secret that says who may join: make keys with `shoal keys make "
            "KEYS`, copy KEYS/for-workers to every host and set launch.secret=KEYS/for-workers "
            "(or put a random text in the variable SHOAL_SECRET); on a network of your own, "
            "launch.plain=true does without"
        )
    return secret

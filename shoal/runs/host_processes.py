"""Launching: the processes of this host that a run has, from their start to their end."""

from __future__ import annotations

import logging
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import shoal
from shoal import config as config_room
from shoal.config import Resolved
from shoal.config.schema import Config
from shoal.files.durable import written
from shoal.launch.children import Culprit
from shoal.launch.hosts import LaunchError, scratch_folder
from shoal.launch.ranks import launch
from shoal.launch.restarts import Growth, MoreRanks, Restarts
from shoal.launch.servers import END_SECONDS, Servers
from shoal.launch.workers import Workers
from shoal.ps.address import is_old_socket
from shoal.training.run_folder import RunFolder, start_logging

log = logging.getLogger("shoal")


def with_new_servers(resolved: Resolved) -> Resolved:
    """The config of a run to continue, with new servers where its own listened on sockets here.

    Those sockets are gone. The new servers choose theirs; they are as many as before, or as many as
    launch.servers says. In a run's config that counts every replica.
    """
    launch, section = resolved.config.launch, resolved.config.strategy.ps
    addresses = section.addresses
    if not addresses or not all(is_old_socket(one) for one in addresses):
        return resolved
    values: dict[str, Any] = {"strategy.ps.addresses": []}
    if launch.servers in (0, len(addresses)):
        values["launch.servers"] = len(addresses) // section.replicas
    return resolved.with_values(values, "the launcher")


def train_launched(resolved: Resolved, resume: bool, folder: RunFolder | None = None) -> None:
    """Train on launched processes, and again where they fail and may; folder: on the first host."""
    restarts = Restarts(resolved.config.launch, folder)
    # Where workers come and go none of them stays for the whole of it.
    locked = folder.locked if folder and resolved.config.elastic else nullcontext
    while True:
        try:
            with locked():
                _train_once(resolved, resume, restarts.growth)
            return
        except LaunchError as error:
            restarts.again(error)
        except MoreRanks:
            restarts.grow()
        resume = True
        if restarts.nproc != resolved.config.launch.nproc:
            ranks = {"launch.nproc": restarts.nproc, "launch.world_size": -1}
            resolved = resolved.with_values(ranks, "the launcher")


def _train_once(resolved: Resolved, resume: bool, growth: Growth | None = None) -> None:
    """Start what this host runs, and wait for it."""
    section = resolved.config.launch
    with ExitStack() as stack:
        servers = stack.enter_context(_servers(resolved.config)) if section.servers else None
        if section.nproc and resolved.config.elastic:
            _launch_workers(resolved, servers, resume)
        elif section.nproc:
            _launch_ranks(resolved, servers, resume, growth)
        if servers is not None:
            servers.wait(END_SECONDS if section.nproc else None)


def _servers(config: Config) -> Servers:
    """The servers of this host; on one host alone they choose their ports themselves."""
    section, addresses = config.launch, config.strategy.ps.addresses
    host_addresses = addresses[section.first_server : section.first_server + section.servers]
    return Servers(config, host_addresses or None)


def _launch_workers(resolved: Resolved, servers: Servers | None, resume: bool) -> None:
    """Workers that come and go; where servers are here too, until the run is over."""
    resolved = _with_addresses(resolved, servers)
    with scratch_folder() as scratch:
        file = _write_config(resolved, scratch)
        args = ["train", str(file), *(["--resume"] if resume else [])]
        with Workers(args, resolved.config.launch, scratch) as workers:
            workers.wait(_culprit_of(servers))
            if servers is None:
                if not workers.any_ended_well:
                    raise LaunchError(workers.lost[0], passing=True)
                return
            if not workers.any_ended_well:
                log.info("workers that joined may go on; waiting for the servers")
            try:
                servers.wait(None)
            except LaunchError as error:
                lost = "".join(f"\n{text}" for text in workers.lost)
                raise LaunchError(f"{error}{lost}", passing=True) from None


def _culprit_of(servers: Servers | None) -> Culprit:
    return lambda: None if servers is None else servers.culprit


def _with_addresses(resolved: Resolved, servers: Servers | None) -> Resolved:
    """With the addresses that servers of this host have chosen."""
    if servers is None or resolved.config.strategy.ps.addresses:
        return resolved
    here = {"strategy.ps.addresses": servers.addresses, "launch.servers": len(servers.addresses)}
    return resolved.with_values(here, "the launcher")


def _write_config(resolved: Resolved, scratch: str) -> Path:
    """The config for the processes that are started, in a file."""
    file = Path(scratch) / "config.yaml"
    with written(file):
        file.write_text(config_room.dump(resolved.config))
    start_logging(resolved.config.run.log_level, form=resolved.config.run.log)
    for note in resolved.read_notes:  # carried out already: they cannot know it
        log.info("%s", note)
    return file


def _launch_ranks(
    resolved: Resolved, servers: Servers | None, resume: bool, growth: Growth | None
) -> None:
    resolved = _with_addresses(resolved, servers)
    config = resolved.config
    with scratch_folder() as scratch:
        file = _write_config(resolved, scratch)
        try:
            args = ["train", str(file), *(["--resume"] if resume else [])]
            # Other hosts hear of a server that failed from their rank.
            here = None if config.launch.hosts > 1 else servers
            launch(args, config.launch, scratch, culprit=_culprit_of(here), growth=growth)
        except (LaunchError, shoal.Interrupted):
            culprit = None if servers is None else servers.culprit or servers.find_stopped()
            if culprit is not None:
                raise LaunchError(culprit, passing=True) from None
            raise

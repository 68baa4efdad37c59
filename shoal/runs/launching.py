"""Launching: the processes of this host that a run has, once, from their start to their end."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import shoal
from shoal import config as config_room
from shoal.config import Resolved
from shoal.config.schema import Config
from shoal.launch.growing import Growth
from shoal.launch.hosts import LaunchError
from shoal.launch.servers import END_SECONDS, Servers


def train_once(resolved: Resolved, resume: bool, growth: Growth | None = None) -> None:
    """Start what this host runs, and wait for it."""
    section = resolved.config.launch
    with ExitStack() as stack:
        servers = stack.enter_context(_servers(resolved.config)) if section.servers else None
        if section.nproc:
            _launch_ranks(resolved, servers, resume, growth)
        if servers is not None:
            servers.wait(END_SECONDS if section.nproc else None)


def _servers(config: Config) -> Servers:
    """The servers of this host; on one host alone they choose their ports themselves."""
    section, given = config.launch, config.strategy.ps.addresses
    own = given[section.first_server : section.first_server + section.servers]
    return Servers(config, own or None)


def _launch_ranks(
    resolved: Resolved, servers: Servers | None, resume: bool, growth: Growth | None
) -> None:
    if servers is not None and not resolved.config.strategy.ps.addresses:
        addresses = {"strategy.ps.addresses": servers.addresses}
        resolved = resolved.with_values(addresses, "the launcher")
    # torch's elastic agent: only here is it needed
    from shoal.launch.ranks import launch, scratch_folder

    config = resolved.config
    with ExitStack() as stack:
        scratch = stack.enter_context(scratch_folder())
        if servers is not None and config.launch.hosts <= 1:  # others hear of it from their rank
            stack.enter_context(servers.stopping_us())
        file = Path(scratch) / "config.yaml"
        file.write_text(config_room.dump(config))
        for note in resolved.told:  # carried out already: the ranks cannot know it
            print(note, flush=True)
        try:
            words = ["train", str(file), *(["--resume"] if resume else [])]
            alive = (lambda: True) if servers is None else servers.are_alive
            launch(words, config.launch, scratch, can_save=alive, growth=growth)
        except (LaunchError, shoal.Interrupted):
            culprit = None if servers is None else servers.culprit or servers.find_stopped()
            if culprit is not None:
                raise LaunchError(culprit, passing=True) from None
            raise

"""Process: a server that is a process of its own, from its start to its end."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
from types import FrameType
from typing import Any

import torch

from shoal.config.tiers import TiersSection
from shoal.ps.keys import Keys
from shoal.ps.server.server import Server
from shoal.world.memory import keep_freed_memory

log = logging.getLogger("shoal")


def run_server(
    bind: str,
    index: int,
    keys: Keys | None = None,
    timeout: float = 10.0,
    threads: int = 1,
    announce: str | None = None,
    patience: float = math.inf,
    folder: str | None = None,
    plain: bool = False,
    journal: bool = False,
    tiers: TiersSection | None = None,
) -> int:
    """Serve from this process, which does nothing else, until the workers are done.

    It writes its address to the file `announce`, and why it failed to `announce`.failed.
    """
    torch.set_num_threads(threads)
    keep_freed_memory()
    how: Any = {"journal": journal, "tiers": tiers}
    server = Server(bind, index, keys, timeout, threads, patience, folder, plain, **how)

    def stop(number: int, frame: FrameType | None) -> None:
        server.told = number  # noted only: a handler may run anywhere, where nothing may be raised

    signal.signal(signal.SIGTERM, stop)
    if announce is not None:
        with open(announce + ".new", "w") as file:
            file.write(server.address)
        os.replace(announce + ".new", announce)
    log.info("server %d listens on %s", index, server.address)
    status = server.serve()
    if status and announce is not None:  # whoever started us tells it
        with open(announce + ".failed", "w") as file:
            json.dump({"message": server.failure or "it was told to end by SIGTERM"}, file)
    return status

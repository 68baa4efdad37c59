"""Process: a server that is its own process, from its start to its end."""

from __future__ import annotations

import json
import logging
import os
import signal
from types import FrameType
from typing import Any

import torch

from shoal.kernels.host_memory import keep_freed_memory
from shoal.ps.server.server import Server

log = logging.getLogger("shoal")


def run_server(announce: str | None = None, threads: int = 1, **options: Any) -> int:
    """Serve from this process, which does nothing else, until the workers are done.

    It writes its address to the file `announce`, and why it failed to `announce`.failed. options:
    arguments of Server.
    """
    torch.set_num_threads(threads)
    keep_freed_memory()
    server = Server(**options)

    def stop(number: int, frame: FrameType | None) -> None:
        # Recorded only: a handler may run anywhere, where nothing may be raised.
        server.stop_signal = number

    signal.signal(signal.SIGTERM, stop)
    if announce is not None:
        with open(announce + ".new", "w") as file:
            file.write(server.address)
        os.replace(announce + ".new", announce)
    log.info("server %d listens on %s", server.index, server.address)
    status = server.serve()
    if status and announce is not None:  # the launcher reports it
        with open(announce + ".failed", "w") as file:
            json.dump({"message": server.failure or "it was ended by SIGTERM"}, file)
    return status

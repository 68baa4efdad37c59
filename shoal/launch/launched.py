"""In a process that a launcher started: end with it, and leave word of a failure."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import traceback
from typing import Any

from shoal.world.world import PeerLost

# How long a rank that merely lost its peers waits before it exits, so that the agent sees the rank
# that really failed first.
GRACE_SECONDS = 2.0


def is_launched() -> bool:
    """Whether our own launcher started this process; it then reports failures."""
    return "SHOAL_LAUNCHER" in os.environ


def follow_launcher() -> None:
    """In a rank: end when told by the launcher, and when it is gone, however it ended."""
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))  # the launcher says it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = int(os.environ.get("SHOAL_LAUNCHER", os.getppid()))

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, name="follow launcher", daemon=True).start()


def record_failure(error: BaseException, fault: bool = False) -> bool:
    """In a rank: leave the cause where the agent finds it, as JSON; whether that worked."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    lost = isinstance(error, PeerLost)
    data: dict[str, Any] = {
        "message": f"{type(error).__name__}: {error}" if fault else str(error),
        "timestamp": str(int(time.time())),
        "kind": "peer lost" if lost else "fault" if fault else "error",
        "traceback": traceback.format_exception(error) if fault else [],
    }
    recorded = False
    if path:
        # The failure may be that of a full disk: a part of a record is worse than none.
        try:
            with open(path + ".new", "w") as file:
                json.dump(data, file)
            os.replace(path + ".new", path)
            recorded = True
        except OSError:
            pass
    if lost:
        time.sleep(GRACE_SECONDS)
    return recorded

"""In a process that a launcher started: end with it, and leave word of a failure."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.distributed.liveness import BEAT, FOLDER, look
from shoal.distributed.stop_signals import STOPPING
from shoal.distributed.world import PeerLost
from shoal.launch.watch import signs_of

# How long a rank that merely lost its peers waits before it exits, so that the launcher sees the
# rank that really failed first.
GRACE_SECONDS = 2.0
HANG_TIMEOUT = "SHOAL_HANG_TIMEOUT"  # the variable with launch.hang_timeout


def is_launched() -> bool:
    """Whether our own launcher started this process; it then reports failures."""
    return "SHOAL_LAUNCHER" in os.environ


def follow_launcher(name: str, saves: bool = False) -> None:
    """End when the launcher asks for it, is gone, or is stopped for good.

    name: what this process is called where the launcher looks for its beat.
    saves: whether it is given time to save where the whole run gets a signal to stop.
    """
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))  # the launcher reports it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if saves:
        _heed_sigterm()
    parent = int(os.environ.get("SHOAL_LAUNCHER", os.getppid()))
    folder = os.environ.get(FOLDER)
    if folder is not None:
        BEAT.open(Path(folder) / name)
    patience = float(os.environ.get(HANG_TIMEOUT, "inf"))

    def watch() -> None:
        runs = time.monotonic()  # when the launcher was last seen to
        while os.getppid() == parent:
            time.sleep(0.5)
            signs = signs_of(parent)
            if signs is None or not signs.stopped:
                runs = time.monotonic()
            elif time.monotonic() - runs > patience:
                text = f"the launcher (pid {parent}) was stopped {patience:g} s ago: {name} ends"
                print(text, file=sys.stderr, flush=True)
                record_failure(RuntimeError(text))  # for the launcher, should it continue
                os._exit(1)
        if folder is not None:  # it left them, if it was killed
            shutil.rmtree(Path(folder).parent, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=watch, name="follow launcher", daemon=True).start()


def _heed_sigterm() -> None:
    """Handle SIGTERM in a thread: the main thread may wait where no handler is called."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def listen() -> None:
        while True:
            if signal.SIGTERM in os.read(reader, 64):
                _end()

    signal.signal(signal.SIGTERM, lambda number, frame: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=listen, name="heed SIGTERM", daemon=True).start()


def _end() -> None:
    """Save if the whole run got a signal to stop or is to grow, else leave it or end.

    The launcher knows which.
    """
    folder = os.environ.get(FOLDER)
    deadline = time.monotonic() + 0.3  # SIGTERM may reach a rank before its launcher
    while folder is not None and time.monotonic() < deadline:
        if stop_file(Path(folder)).exists():
            STOPPING.everyone = True
            if STOPPING.ask(signal.SIGTERM):
                return
            break
        if grow_file(Path(folder)).exists() and STOPPING.signal is None:
            STOPPING.ask(signal.SIGTERM, hurry=False)  # unhandled only where the run is at its end
            return
        time.sleep(0.02)
    if STOPPING.may_leave and STOPPING.ask(signal.SIGTERM):
        return
    libc = ctypes.CDLL(None)  # Python's own function is for the main thread alone
    libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    libc.signal(signal.SIGTERM, None)  # None: SIG_DFL
    os.kill(os.getpid(), signal.SIGTERM)


def stop_file(beats: Path) -> Path:
    """The file next to the heartbeats that exists when SIGTERM means: save and stop the run."""
    return beats.parent / "stop"


def grow_file(beats: Path) -> Path:
    """The file next to the heartbeats that exists when SIGTERM means: save, ranks will join."""
    return beats.parent / "grow"


def signal_ranks(beats: Path) -> list[int]:
    """Send SIGTERM to the ranks of a launch; their process numbers."""
    beats_read = [look(file) for file in beats.iterdir() if not file.suffix]
    ranks = [beat.pid for beat in beats_read if beat is not None]
    for pid in ranks:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    return ranks


def record_failure(error: BaseException, fault: bool = False) -> bool:
    """In a rank: leave the cause where the launcher finds it, as JSON; whether that worked."""
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

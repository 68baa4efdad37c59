"""Stopping a run from outside: SIGTERM to the process that trains, so that it saves and ends.

The process is the one that the lock of the run's folder names. The system must report that it holds
that very lock, and that it is still the same process when the signal is sent.
"""

import os
import re
import signal
import socket
from pathlib import Path

EXCLUSIVE = re.compile(r"\bFLOCK\s+\w+\s+WRITE\b")  # a line of /proc/PID/fdinfo


def stop_run(folder: Path) -> int:
    """Ask the process that trains in a folder to save and end; its number. ValueError: none may."""
    pid = _read_lock_owner(folder / ".lock")
    try:
        holder = os.pidfd_open(pid)
    except OSError:
        raise ValueError("no process trains there any more") from None
    try:
        if not _holds_lock(pid, folder / ".lock"):
            raise ValueError("no process trains there any more")
        launcher = _launcher_of(pid)
        if launcher is None:
            signal.pidfd_send_signal(holder, signal.SIGTERM)
            return pid
        above = os.pidfd_open(launcher)  # a rank: its launcher stops all of them together
        try:
            if _parent_of(pid) != launcher:
                raise ValueError("its launcher is gone: the run ends by itself")
            # Any process can put a number of its parent's there, which may be that of the system.
            if os.stat(f"/proc/{launcher}").st_uid != os.stat(f"/proc/{pid}").st_uid:
                raise ValueError("its launcher is a process of another user: stop the run there")
            signal.pidfd_send_signal(above, signal.SIGTERM)
        finally:
            os.close(above)
        return launcher
    except PermissionError:
        raise ValueError("it is a run of another user, which that user alone can stop") from None
    finally:
        os.close(holder)


def _read_lock_owner(lock: Path) -> int:
    """The process that a lock names."""
    try:
        file = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        raise ValueError("no process trains there") from None
    try:
        text = os.read(file, 512).decode(errors="replace")
    finally:
        os.close(file)
    match = re.fullmatch(r"process (\d{1,10}) on host (\S+)\n", text)
    if match is None:
        raise ValueError("no process trains there")
    if match[2] != socket.gethostname():
        raise ValueError(f"it trains on host {match[2]}: stop it there")
    return int(match[1])


def _holds_lock(pid: int, lock: Path) -> bool:
    """Whether a process has the lock alone, by the records of the system.

    Whoever looks whether a run is in use shares its lock for a moment, this process as well.
    """
    lock_state = os.stat(lock, follow_symlinks=False)
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            is_lock = os.path.samestat(os.stat(f"/proc/{pid}/fd/{number}"), lock_state)
            if is_lock and EXCLUSIVE.search(Path(f"/proc/{pid}/fdinfo/{number}").read_text()):
                return True
        except FileNotFoundError:  # it was closed just now
            continue
    return False


def _launcher_of(pid: int) -> int | None:
    """The launcher of a rank; None where it was started by hand."""
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    process_ids = [word.partition(b"=")[2] for word in words if word.startswith(b"SHOAL_LAUNCHER=")]
    return int(process_ids[0]) if process_ids and process_ids[0].isdigit() else None


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

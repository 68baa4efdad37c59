"""Processes that end with the one that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

PARENT = """
import os, subprocess, sys
child = "import os, time; from shoal.distributed.parent_process import end_with_parent; "
child += f"end_with_parent({os.getpid()}); print(os.getpid(), flush=True); time.sleep(60)"
subprocess.run([sys.executable, "-c", child])
"""


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_child_ends_with_a_parent_that_was_killed() -> None:
    """An export that is killed leaves no process that checks its artifact."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert is_alive(child)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while is_alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(child)


def test_a_child_whose_parent_is_gone_exits() -> None:
    code = "from shoal.distributed.parent_process import end_with_parent; end_with_parent(1 << 29)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 1

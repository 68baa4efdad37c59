"""pipe_command: a user's program between a file and the parser of slots.

It gets the raw bytes of one file on its stdin and writes lines of slots to its stdout; there is one
process per file. No shell is involved: the command is split into words as a shell would.
"""

from __future__ import annotations

import atexit
import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from shoal.clicks.lines import line_chunks

_running: set[subprocess.Popen[bytes]] = set()


@atexit.register
def _end_all() -> None:
    """No program outlives the run, even one whose reader was left waiting for it."""
    for process in list(_running):
        process.kill()


def piped(command: str, path: Path) -> Iterator[bytes]:
    """What the program writes for one file, in chunks of whole lines."""
    with open(path, "rb") as source, tempfile.TemporaryFile() as errors:
        try:
            words = shlex.split(command)
            process = subprocess.Popen(words, stdin=source, stdout=subprocess.PIPE, stderr=errors)
        except (OSError, ValueError, IndexError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise ValueError(f"data.clicks.pipe_command {command!r} cannot be run: {why}") from None
        assert process.stdout is not None
        _running.add(process)
        try:
            yield from line_chunks(process.stdout.read, f"{path}, piped")
            status = process.wait()
        finally:  # also when the reader stops early
            if process.poll() is None:
                process.kill()
                process.wait()
            _running.discard(process)
            process.stdout.close()
        if status != 0:
            raise ValueError(_failure(command, path, status, errors.fileno()))


def _failure(command: str, path: Path, status: int, errors: int) -> str:
    size = os.fstat(errors).st_size
    tail = os.pread(errors, 8192, max(0, size - 8192)).decode("utf-8", "replace")
    lines = tail.splitlines()[-10:]
    ended = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
    output = "\n  ".join(["; its last words:", *lines]) if lines else ", and said nothing"
    return f"pipe_command {command!r} {ended} while reading {path}{output}"

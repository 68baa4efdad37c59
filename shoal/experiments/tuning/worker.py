"""One process that trains runs, one after the other.

Each line of its input is the folder of a run, in JSON. It answers with the number of the process
that trains there, and then with that process's exit status. Torch and Shoal are imported once;
each run has a fork of this process, so that nothing of it is left in memory for the next.
"""

import gc
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import NoReturn

import shoal
from shoal.distributed.parent_process import end_with_parent

OUTPUT = "output.txt"  # in the run's folder: what it prints


def main() -> None:
    """Train the folders that lines of standard input name, until there are no more."""
    gc.disable()
    from shoal.runs import run  # the heavy part, which forks share

    assert run.train is not None
    gc.freeze()
    gc.enable()
    for line in sys.stdin:
        folder, parent = json.loads(line), os.getpid()
        child = os.fork()
        if child == 0:
            end_with_parent(parent)
            train(Path(folder))
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def train(folder: Path) -> NoReturn:
    """In the fork: what `shoal train --resume FOLDER` does. Its output goes to a file there."""
    from shoal.runs.run import resolve_run
    from shoal.runs.run import train as train_run

    _write_to(folder / OUTPUT)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    shoal.STARTED = time.perf_counter()
    status = 0
    try:
        resolved = resolve_run(folder, values={"run.output": str(folder)}, trust=True)
        train_run(resolved, resume=True)
    except shoal.Interrupted as error:
        status = 128 + error.number
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        status = 2
    except BaseException as error:
        traceback.print_exception(error)
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _write_to(file: Path) -> None:
    """Standard output and error go to a file, and standard input is empty."""
    output = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o666)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, target in ((0, nothing), (1, output), (2, output)):
        os.dup2(target, number)


def _stop(number: int, frame: FrameType | None) -> None:
    """A run that trains saves and stops; before that it has nothing to save."""
    from shoal.distributed.stop_signals import STOPPING

    if not STOPPING.ask(number):
        raise shoal.Interrupted(number)

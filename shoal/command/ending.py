"""How a command ends: its result, one clear line for an error, and the exit status."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from types import FrameType
from typing import Any, NoReturn

import typer

import shoal


def print_result(result: dict[str, Any]) -> None:
    """The table at the end of a run."""
    from rich.console import Console
    from rich.table import Table

    table = Table("metric", "best valid", "test", title=f"{result['model']} on {result['dataset']}")
    for name, value in result["test"].items():
        table.add_row(name, f"{result['best_valid'].get(name, float('nan')):.4f}", f"{value:.4f}")
    Console().print(table)


def fail(error: Exception) -> NoReturn:
    """One clear line for what a user can mend, a traceback for what only we can."""
    from shoal.launch.hosts import LaunchError
    from shoal.launch.launched import is_launched, record_failure
    from shoal.world.world import WorldError

    fault = not isinstance(error, (ValueError, OSError, WorldError, LaunchError))
    recorded = record_failure(error, fault)
    if recorded and is_launched():
        pass  # the launcher tells it, once for all ranks
    elif fault:
        traceback.print_exception(error)
    else:
        typer.secho(f"error: {error}", fg="red", err=True)
    leave(1 if fault else 2)


def leave(status: int) -> NoReturn:
    """End at once: a rank must not wait for peers that are gone. A checkpoint may be finished."""
    if "shoal.training.checkpoint" in sys.modules:
        from shoal.training.checkpoint import finish_writing

        finish_writing(10.0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def stop(number: int, frame: FrameType | None) -> None:
    """Ctrl-C and the like: end the command in order. A second one ends it in any case."""
    signal.signal(number, signal.SIG_DFL)
    if number == signal.SIGTERM and "shoal.world.stopping" in sys.modules:
        from shoal.world.stopping import STOPPING

        if STOPPING.ask(number):  # a run that trains: it saves, and stops
            return
    raise shoal.Interrupted(number)

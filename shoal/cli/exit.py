"""How a command ends: its result, one clear line for an error, and the exit status."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import typer

import shoal
from shoal.cli import startup

if TYPE_CHECKING:
    from shoal.config.launch_section import RunSection

raised: list[shoal.Interrupted] = []  # a library whose import it ends may make another error of it


def print_result(result: dict[str, Any], run: RunSection) -> None:
    """Print the result of a run: a table and its folder, or a line where less is printed."""
    folder = f"run: {result['folder']}" if "folder" in result else ""
    if run.log == "json":
        from shoal.training.run_folder import json_line

        return typer.echo(json_line("info", "result", result))
    if run.is_quiet:
        shown = ", ".join(f"{name} {value:.4f}" for name, value in result["test"].items())
        suffix = f"; {folder}" if folder else ""
        return typer.echo(f"{result['model']} on {result['dataset']}: {shown}{suffix}")
    from rich.console import Console
    from rich.table import Table

    from shoal.runs.results import base_name

    base = result.get("base", {})
    heads = ["metric", "best valid", "test", *([base_name(base)] if base else [])]
    table = Table(*heads, title=f"{result['model']} on {result['dataset']}")
    for name, value in result["test"].items():
        cells = [result["best_valid"].get(name), value, *([base.get(name)] if base else [])]
        table.add_row(name, *("-" if one is None else f"{one:.4f}" for one in cells))
    Console().print(table)
    if folder:
        typer.echo(folder)


def print_next(commands: list[tuple[str, str]]) -> None:
    """Commands to type next, and what each is for."""
    from shoal.cli.ranking import printable

    width = max(len(command) for command, _ in commands)
    typer.echo("\nnext:")
    for command, purpose in commands:
        typer.echo(printable(f"  {command:{width}}  # {purpose}"))


def fail(error: Exception) -> NoReturn:
    """Exit after an error: one clear line if a user can fix it, a traceback if it is a bug."""
    from shoal.cli.machine import explain
    from shoal.distributed.world import WorldError
    from shoal.launch.child import is_launched, record_failure
    from shoal.launch.hosts import LaunchError

    if (line := explain(error)) is not None:
        error = ValueError(line)
    fault = not isinstance(error, (ValueError, OSError, WorldError, LaunchError))
    recorded = record_failure(error, fault)
    if recorded and is_launched():
        pass  # the launcher reports it, once for all ranks
    elif fault:
        traceback.print_exception(error)
    else:
        color = False if os.environ.get("NO_COLOR") else None  # None: on a terminal
        typer.secho(f"error: {error}", fg="red", err=True, color=color)
    leave(1 if fault else 2)


def exit_stopped(error: shoal.Interrupted) -> NoReturn:
    """Exit after a line about the signal that ended the command; ranks leave it to the launcher."""
    if "SHOAL_LAUNCHER" not in os.environ:
        typer.secho(f"stopped by {error}{_resume_hint()}", err=True)
    leave(128 + error.number)


def _resume_hint() -> str:
    """How a stopped command that trains can be continued; empty for other commands."""
    runs = _imported("shoal.training.run_folder", "RunFolder")
    if runs is None or runs.created is None:
        return ""
    saved = any(runs.created.checkpoints.glob("[!.]*"))
    return "; what was saved can be continued with --resume" if saved else "; nothing was saved yet"


def leave(status: int) -> NoReturn:
    """Exit at once after open checkpoints: a rank must not wait for peers that are gone."""
    if (
        finish_writing := _imported("shoal.training.checkpoint.writing", "finish_writing")
    ) is not None:
        finish_writing(10.0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def stop(number: int, frame: FrameType | None) -> None:
    """Ctrl-C and the like: end the command in order. A second one ends it in any case."""
    signal.signal(number, signal.SIG_DFL)
    stopping = _imported("shoal.distributed.stop_signals", "STOPPING")
    if number == signal.SIGTERM and stopping is not None and stopping.ask(number):
        return  # a run that trains: it saves, and stops
    raised.append(shoal.Interrupted(number))
    _raise_stop(number, frame)


def _raise_stop(number: int, frame: FrameType | None) -> None:
    if startup.under_way:  # torch's native code calls Python there, and aborts where that raises
        exit_stopped(raised[0])
    raise raised[0]


def not_dropped(dropped: sys.UnraisableHookArgs) -> None:
    """Raise a signal again that came while Python destroyed an object: it drops what is raised."""
    if isinstance(dropped.exc_value, shoal.Interrupted):
        signal.signal(signal.SIGALRM, _raise_stop)
        signal.setitimer(signal.ITIMER_REAL, 0.001)
    else:
        sys.__unraisablehook__(dropped)


def ignore_signals() -> None:
    """All is done and printed. Python would put back what ends it raw while it cleans up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


def _imported(module: str, name: str) -> Any:
    """An attribute of a module if it is imported already; a signal may come during imports."""
    return getattr(sys.modules.get(module), name, None)

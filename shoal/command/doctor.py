"""`shoal doctor`: what this machine has for training, what it lacks, what would make it faster."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

import shoal
from shoal.command.exit import leave
from shoal.command.startup import importing

MARKS = {"good": "✓", "slow": "~", "missing": "–", "broken": "✗"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of objects.")] = False,
    report: Annotated[
        bool,
        typer.Option("--report", help="Print a block for an issue: no names, no paths."),
    ] = False,
) -> None:
    """Examine this machine: status 1 where training cannot work on it."""
    with importing():
        from shoal.runs.machine_check import examine

    found = examine()
    broken = any(one.state == "broken" for one in found)
    if as_json:
        typer.echo(json.dumps([one.as_dict() for one in found], indent=2))
    elif report:
        typer.echo("```")
        for one in found:
            typer.echo(f"{MARKS[one.state]} {one.name}: {one.value}")
        typer.echo("```")
    else:
        width = max(len(one.name) for one in found)
        for one in found:
            colour = {"broken": "red", "slow": "yellow"}.get(one.state)
            typer.secho(f"{MARKS[one.state]} {one.name:<{width}}  {one.value}", fg=colour)
            if one.advice:
                typer.echo(f"  {'':<{width}}  → {one.advice}")
        typer.echo(_closing(broken, sum(one.state == "slow" for one in found)))
    if broken:
        leave(1)


def _closing(broken: bool, slow: int) -> str:
    if broken:
        return "\nTraining cannot work here: see ✗ above."
    if slow:
        return f"\nReady to train. {slow} of these would make it faster or safer: see ~ above."
    return "\nReady to train."


def describe_build() -> Iterator[str]:
    """What `shoal --version` prints. torch is not imported for it."""
    from shoal.kernels.core import describe_core

    yield f"shoal {shoal.__version__}"
    yield f"core {describe_core()}"
    yield f"python {platform.python_version()}, {platform.system()} {platform.machine()}"
    try:
        yield f"torch {version('torch')}"
    except PackageNotFoundError:
        yield "torch not installed"

"""`shoal doctor`: what this machine has for training, what it lacks, what would make it faster."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

import shoal
from shoal.cli.exit import leave
from shoal.cli.startup import importing

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
        from shoal.planning.machine_check import examine

    findings = examine()
    broken = any(finding.state == "broken" for finding in findings)
    if as_json:
        typer.echo(json.dumps([finding.as_dict() for finding in findings], indent=2))
    elif report:
        typer.echo("```")
        for finding in findings:
            typer.echo(f"{MARKS[finding.state]} {finding.name}: {finding.value}")
        typer.echo("```")
    else:
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            colour = {"broken": "red", "slow": "yellow"}.get(finding.state)
            typer.secho(
                f"{MARKS[finding.state]} {finding.name:<{width}}  {finding.value}", fg=colour
            )
            if finding.advice:
                typer.echo(f"  {'':<{width}}  → {finding.advice}")
        typer.echo(_closing(broken, sum(finding.state == "slow" for finding in findings)))
    if broken:
        leave(1)


def _closing(broken: bool, slow: int) -> str:
    if broken:
        return "\nTraining cannot work here: see ✗ above."
    if slow:
        return f"\nReady to train. {slow} of these would make it faster or safer: see ~ above."
    return "\nReady to train."


def describe_build() -> Iterator[str]:
    """Text that `shoal --version` prints. torch is not imported for it."""
    from shoal.kernels.core import describe_core

    yield f"shoal {shoal.__version__}"
    yield f"core {describe_core()}"
    yield f"python {platform.python_version()}, {platform.system()} {platform.machine()}"
    try:
        yield f"torch {version('torch')}"
    except PackageNotFoundError:
        yield "torch not installed"

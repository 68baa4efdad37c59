"""Commands that look after checkpoints: `shoal checkpoint verify | prune | copy`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoal.command.exit import leave
from shoal.command.startup import importing

RUN = typer.Argument(help="Folder of a run.")


def verify(run: Annotated[str, RUN]) -> None:
    """Read every byte of a run's checkpoints; status 1 where one is damaged."""
    with importing():
        from shoal.training.checkpoint import retention

    found = retention.verify(Path(run))
    for one in found:
        state = "whole" if one.problem is None else one.problem
        typer.echo(f"{one.path.name}  {one.size / 2**20:.1f} MiB  {state}")
    damaged = sum(one.problem is not None for one in found)
    typer.echo(f"{len(found)} checkpoints, {damaged} damaged")
    if damaged:
        leave(1)


def prune(
    run: Annotated[str, RUN],
    keep: Annotated[int, typer.Option(min=1, help="How many of the newest stay.")] = 1,
) -> None:
    """Remove all but the newest that are whole, the best, and what these build upon."""
    with importing():
        from shoal.training.checkpoint import retention

    gone = retention.prune(Path(run), keep)
    for path in gone:
        typer.echo(f"removed {path.name}")
    typer.echo(f"{len(gone)} removed")


def copy(
    run: Annotated[str, RUN],
    to: Annotated[str, typer.Argument(help="Folder of the copy; it must not hold a run.")],
) -> None:
    """Copy the newest whole checkpoint and the best one as a run of their own."""
    with importing():
        from shoal.training.checkpoint import retention

    for path in retention.copy(Path(run), Path(to)):
        typer.echo(f"copied {path.name}")
    typer.echo(f"run: {to}")

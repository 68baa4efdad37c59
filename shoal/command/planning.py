"""`shoal plan`: what each table and tier of a run will hold, before it runs."""

from __future__ import annotations

import typer

from shoal.command.arguments import resolve_words


def plan(context: typer.Context) -> None:
    """Print what every table takes of which memory; refuse what does not fit this machine.

    Configs and keys as for train: shoal plan config.yaml --launch.nproc=4
    """
    from shoal.runs.plan import plan_run

    typer.echo(plan_run(resolve_words(context.args).config))

"""`shoal plan`: what each table and tier of a run will hold, before it runs."""

from __future__ import annotations

import typer

from shoal.command.arguments import split_arguments


def plan(context: typer.Context) -> None:
    """Print what every table takes of which memory; refuse what does not fit this machine.

    Configs and keys as for train: shoal plan config.yaml --launch.nproc=4
    """
    from shoal.runs.plan import plan_run
    from shoal.runs.run import resolve

    typer.echo(plan_run(resolve(*split_arguments(context.args)).config))

"""Commands that use a trained run: `shoal eval`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from shoal.command.arguments import ONE_PROCESS, TRUST, split_arguments
from shoal.command.exit import print_result
from shoal.command.startup import importing


def evaluate(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="Folder of a run.")],
    output: Annotated[str | None, typer.Option(help="Write result.json into this folder.")] = None,
    trust: Annotated[bool, TRUST] = False,
) -> None:
    """Evaluate a run's best checkpoint again, on any number of processes."""
    with importing():
        from shoal.launch.child import follow_launcher
        from shoal.runs.trained import evaluate_run, open_config
        from shoal.world.variables import is_first, is_worker

    if is_worker():
        follow_launcher(f"rank-{os.environ['RANK']}")
    files, overrides = split_arguments(context.args)
    if files:
        raise typer.BadParameter(f"unexpected argument {files[0]}")
    resolved = open_config(run, overrides, dict(ONE_PROCESS), trust)
    section = resolved.config.launch
    if not is_worker() and (section.nproc > 1 or section.world_size > 1):
        from shoal.launch.hosts import scratch_folder
        from shoal.launch.ranks import launch

        extra = [] if output is None else ["--output", output]
        with scratch_folder() as scratch:
            launch(["eval", run, *extra, *["--trust"] * trust, *overrides], section, scratch)
        return
    result = evaluate_run(run, resolved, output)
    if is_first():
        print_result(result)

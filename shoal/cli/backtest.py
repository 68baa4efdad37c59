"""The command `shoal backtest`: several cuts in time."""

from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.cli.arguments import QUIET, TRUST, only_warnings, resolve_args
from shoal.cli.startup import importing, prepare_config


def backtest(
    context: typer.Context,
    cuts: Annotated[
        int | None,
        typer.Option(min=1, help="Number of moments, with equally many interactions between."),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(help="Moments in place of --cuts: dates with commas, 2024-01-01,2024-02-01."),
    ] = None,
    output: Annotated[str | None, typer.Option(help="Folder that holds the runs.")] = None,
    quiet: Annotated[bool, QUIET] = False,
    trust: Annotated[bool, TRUST] = False,
) -> None:
    """Train on the past and test on what comes next, at several moments; finished ones are kept."""
    with importing():
        prepare_config()
        from shoal.experiments.backtest import backtest as run_backtest
        from shoal.training.run_folder import start_logging

    if cuts is not None and at is not None:
        raise typer.BadParameter("--cuts and --at both say where to cut; give one")
    resolved = resolve_args(context.args + only_warnings(quiet), trust=trust)
    if resolved.config.run.output is not None:
        raise typer.BadParameter("every cut has its run: give --output, not run.output")
    start_logging(resolved.config.run.log_level, form=resolved.config.run.log)
    dates = [one.strip() for one in at.split(",")] if at else []
    _print(run_backtest(resolved, cuts, dates, output), resolved.config.eval.valid_metric.lower())


def _print(report: dict[str, Any], metric: str) -> None:
    """A row for each cut, and the mean."""
    from rich.console import Console
    from rich.table import Table

    # Metrics that all cuts have: the folder of a finished one may be somebody else's.
    names = sorted(report["mean"], key=lambda name: name != metric)[:6]
    table = Table(title=f"{report['model']} on {report['dataset']}, tested in time")
    for head in ("cut", "test from", "train", "test", "best epoch", *names):
        table.add_column(head)
    for number, cut in enumerate(report["cuts"], start=1):
        values = [f"{cut['metrics'][name]:.4f}" for name in names]
        sizes = [f"{cut[part]:,}" for part in ("train", "test")]
        table.add_row(str(number), cut["test_from"][:16], *sizes, str(cut["best_epoch"]), *values)
    table.add_section()
    pairs = [f"{report['mean'][name]:.4f} ± {report['deviation'][name]:.4f}" for name in names]
    table.add_row("mean", *[""] * 4, *pairs)
    Console(width=10_000).print(table)
    typer.echo(f"runs: {Path(report['cuts'][0]['folder']).parent}")

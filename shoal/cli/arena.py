"""`shoal arena`: models, data sets and seeds from one file, compared on one page."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.cli.arguments import QUIET, TRUST
from shoal.cli.startup import DATA_SPACE, importing

FAILED = 1  # the exit status where a cell has no figures


def arena(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="YAML file: models, data, seeds, keys, ...")
    ],
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Runs at once, also on one GPU. Default: as FILE says, else 1."),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(min=0, help="Stop after so many minutes; the same command continues."),
    ] = None,
    launch: Annotated[
        str | None, typer.Option(help="Command that starts a run on a cluster: 'srun --gpus=1'.")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(help="Folder of the arena. Default: arenas/ and the name of FILE."),
    ] = None,
    quiet: Annotated[bool, QUIET] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    trust: Annotated[bool, TRUST] = False,
) -> None:
    """Train models × data sets × seeds of one file, and compare them on one page.

    The same command continues what was stopped. The exit status is 1 where a run has no figures.
    """
    with importing(needed=DATA_SPACE):
        from shoal.experiments.arena.arena import run_arena
        from shoal.experiments.arena.arena_file import read_arena
        from shoal.experiments.tuning.study_folder import StudyLimits

    arena_file = read_arena(file)
    limits = StudyLimits(jobs=jobs or arena_file.jobs, minutes=minutes, launch=launch)
    folder = Path(output or Path("arenas", Path(file).stem))
    conclusion = run_arena(
        arena_file,
        folder,
        limits,
        report=_print_nothing if quiet else lambda line: typer.echo(line, err=as_json),
        trust=trust,
    )
    if as_json:
        typer.echo(json.dumps(conclusion, indent=2))
    else:
        _print(conclusion)
    has_failed = any(problem["state"] != "waiting" for problem in conclusion["problems"])
    differs = any(row.get("no_test") is not None for row in conclusion["data"])
    if has_failed or differs:
        raise typer.Exit(FAILED)


def _print_nothing(line: str) -> None:
    """Progress report of a quiet command."""


def _print(conclusion: dict[str, Any]) -> None:
    """A table for every data set, what has no figures, and where the page is."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from shoal.experiments.arena import arena_text

    for row in conclusion["data"]:
        if row["metrics"]:
            table = Table(
                "model", *row["metrics"], box=SIMPLE, title=f"test, {escape(row['data'])}"
            )
            for model, name in arena_text.names_of_models(conclusion, row).items():
                figures = [rows.get(model) for rows in row["metrics"].values()]
                cells = ["\n".join(arena_text.figure_lines(figure)) for figure in figures]
                table.add_row(escape(name), *cells)
            Console(width=10_000).print(table)
        typer.echo(arena_text.outcome_of_data(row))
    for note in arena_text.notes(conclusion):
        typer.echo(note)
    for model, data, seed, state, reason in arena_text.problem_rows(conclusion):
        where = f"{model} on {data}" + ("" if seed == "all" else f", seed {seed}")
        typer.echo(f"{where}: {state}: {reason}")
    typer.echo(f"look at the arena: {conclusion['folder']}/report.html")
    if not conclusion["finished"]:
        typer.echo("the time is over; the same command continues")

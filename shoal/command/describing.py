"""`shoal data describe`: what a data set holds, and what its columns are read as."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shoal.command.arguments import resolve_words
from shoal.world.durable import written


def data_describe(
    context: typer.Context,
    write: Annotated[
        str | None, typer.Option(help="Write the features as yaml, to edit and train with.")
    ] = None,
    html: Annotated[str | None, typer.Option(help="Write a page with plots.")] = None,
) -> None:
    """Print figures of a data set and the features that its columns suggest.

    Configs, data files and keys as for train: shoal data describe ratings.csv --html page.html
    """
    from shoal.runs.describe import describe_run

    resolved = resolve_words(context.args)
    for note in resolved.told:
        typer.echo(note)
    told = describe_run(resolved.config)
    typer.echo(told.text)
    if write is not None:
        with written(write):
            Path(write).write_text(told.yaml, encoding="utf-8")
        typer.echo(f"{write}: the features, to edit and to add to a config")
    if html is not None:
        if told.page is None:
            raise ValueError("--html: a page is made of interactions, and this is a click log")
        with written(html):
            Path(html).write_text(told.page(), encoding="utf-8")
        typer.echo(f"{html}: open it in a browser")

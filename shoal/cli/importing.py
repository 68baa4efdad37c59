"""`shoal import recbole PATH`: a model class written for RecBole becomes one that trains here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.new import snake
from shoal.files.durable import no_links

if TYPE_CHECKING:
    from shoal.compat.recbole_import.translation import Line


def recbole(
    path: Annotated[str, typer.Argument(help="The class: FILE.py, or FILE.py:Class.")],
    to: Annotated[
        str | None, typer.Option(help="The file to write; else NAME_shoal.py, in this folder.")
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(help="A property file with defaults of the options; may be repeated."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Write over a file that is there.")
    ] = False,
) -> None:
    """Move a model class of RecBole: print what becomes of it, and write a file that trains.

    The file is read, never run. What a person must look at has a comment LOOK in the new file.
    """
    from shoal.compat.recbole_import.translation import translate

    configs = None if config is None else [Path(file) for file in config]
    translation = translate(path, configs)
    file = Path(to or f"{snake(translation.name)}_shoal.py")
    if file.suffix != ".py":
        raise ValueError(f"--to {file}: a model is in a Python file; write its name as in model.py")
    if file.exists() and not force:
        raise ValueError(f"{file} is there already; choose another with --to, or add --force")
    with open(file, "w", encoding="utf-8", opener=no_links) as opened:
        opened.write(translation.text)
    print_lines(translation.lines)
    looks = translation.looks
    if looks:
        places = "1 place needs" if looks == 1 else f"{looks} places need"
        typer.echo(f"{places} a person: search {file} for LOOK")
    typer.echo(f"{file}: train it with `shoal train --model={file}:{translation.name}`")


def print_lines(lines: list[Line]) -> None:
    """A table: what stands in the class, and what it is here."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from shoal.cli.ranking import printable

    table = Table("line", "in the class", "here", "", box=SIMPLE)
    for line in lines:
        state = f"look here: {line.look}" if line.look else "done"
        cells = (str(line.number), line.what, line.becomes, state)
        table.add_row(*(Text(printable(cell)) for cell in cells))  # no markup: it is others' text
    Console().print(table)

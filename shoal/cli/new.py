"""`shoal new model NAME`: a documented starting point for a custom model, and its test."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from shoal.files.durable import no_links

TEMPLATES = ("model.py.txt", "test_model.py.txt")  # in templates/


def snake(name: str) -> str:
    """TwoTower -> two_tower"""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def write_model(name: str, folder: Path) -> tuple[Path, Path]:
    """Write NAME's file and its test."""
    if not name.isidentifier() or not name[0].isupper():
        raise ValueError(f"{name!r} is no name for a class; write it as in TwoTower")
    stem = snake(name)
    files = folder / f"{stem}.py", folder / f"test_{stem}.py"
    for file in files:
        if file.exists():
            raise ValueError(f"{file} is there already; choose another name, or move it away")
    folder.mkdir(parents=True, exist_ok=True)
    for file, template in zip(files, TEMPLATES):
        text = resources.files("shoal.cli").joinpath("templates", template).read_text()
        with open(file, "w", opener=no_links) as opened:
            opened.write(text.replace("FILE", stem).replace("NAME", name))
    return files


def model(
    name: Annotated[str, typer.Argument(help="The class's name, as in TwoTower.")],
    to: Annotated[str, typer.Option(help="Folder for the two files.")] = ".",
) -> None:
    """Write a documented starting point for a model of your own, and its test."""
    file, test = write_model(name, Path(to))
    typer.echo(f"{file}: train it with `shoal train --model={file}:{name}`")
    typer.echo(f"{test}: run it with `python -m pytest {test}`; pytest is a package of its own")

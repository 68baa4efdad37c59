"""`shoal quickstart`: three questions, a config and a script; with --run lists for three users."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from shoal.command.exit import print_result
from shoal.command.ranking import print_ranking, printable
from shoal.command.startup import importing

if TYPE_CHECKING:
    from shoal.runs.quickstart import Asked, StarterFiles
    from shoal.runs.trained import Trained

USERS, TOPK, TAKEN = 3, 5, 3  # lists that are shown, their length, and what somebody took


def quickstart(
    file: Annotated[
        str | None,
        typer.Argument(metavar="[FILE|planted|ml-100k]", help="Your data, or data to try."),
    ] = None,
    task: Annotated[
        Literal["recommend", "next", "clicks"] | None, typer.Option(help="What you want.")
    ] = None,
    on: Annotated[
        Literal["here", "processes", "gpu"] | None, typer.Option(help="Where it runs.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="The column of users.")] = None,
    item: Annotated[str | None, typer.Option(help="The column of items.")] = None,
    time: Annotated[str | None, typer.Option(help="The column of times.")] = None,
    rating: Annotated[str | None, typer.Option(help="The column of ratings.")] = None,
    label: Annotated[str | None, typer.Option(help="The column of clicks, 0 or 1.")] = None,
    to: Annotated[str, typer.Option(help="Folder for the two files.")] = ".",
    run: Annotated[bool, typer.Option("--run", help="Train at once, and show lists.")] = False,
) -> None:
    """Write a config and a script for your data, to read and to change.

    Asks three questions; what is given is not asked, and without a terminal nothing is.
    """
    with importing():
        from shoal.runs.quickstart import PLACES, TASKS, Asked, write

    given = {"user": user, "item": item, "time": time, "rating": rating, "label": label}
    columns = {role: name for role, name in given.items() if name is not None}
    asks = sys.stdin.isatty() and None in (file, task, on)
    if asks:
        typer.echo("Enter takes what stands in brackets.\n")
    data = file or _ask_data(asks)
    task_name = task or _ask("What do you want?", TASKS, asks)
    place = on or _ask("How will it run?", _possible(PLACES), asks)
    if place not in _possible(PLACES):
        raise ValueError("--on gpu: this machine has no usable GPU (`shoal doctor`); use --on here")
    asked = Asked(data, task_name, place, columns)
    written = write(asked, Path(to))
    for note in written.notes:
        typer.echo(printable(note))
    typer.echo(f"{written.config}: the config, to read and to change")
    typer.echo(f"{written.script}: the same from Python")
    if run:
        _run(asked, written)
    else:
        folder = f"runs/{asked.name}"
        train = f"shoal train {shlex.quote(str(written.config))} --output {folder}"
        first = [(f"shoal data fetch {data}", "downloads it")] * asked.must_be_fetched
        first += [(train, "trains, and prints a table")]
        _print_next([*first, *_uses(asked, folder, written.user)])


# ---- questions ----------------------------------------------------------------------------------


def _ask_data(asks: bool) -> str:
    """A file, or the name of a data set."""
    from shoal.command.arguments import DATA

    if not asks:
        typer.echo("no file is given: this uses planted data, which Shoal generates")
        return "planted"
    here = sorted(one.name for one in Path().iterdir() if one.suffix in DATA and one.is_file())
    typer.echo("Which data?  A file (csv, Parquet, Arrow, JSON lines), `planted` for generated")
    typer.echo("data, or `ml-100k` for MovieLens." + f"  Here: {', '.join(here[:6])}" * bool(here))
    while True:
        said = typer.prompt("data", default=here[0] if here else "planted").strip().strip("'\"")
        if said in ("planted", "ml-100k", "ml-1m", "ml-20m") or Path(said).is_file():
            return said
        typer.echo(f"there is no file {said}; name one, or planted, or ml-100k")


def _ask(question: str, choices: dict[str, str], asks: bool) -> str:
    """One of the choices, by its number or its name; the first where nobody can be asked."""
    names = list(choices)
    if not asks or len(names) == 1:
        return names[0]
    typer.echo(f"\n{question}")
    for number, text in enumerate(choices.values(), start=1):
        typer.echo(f"  {number}  {text}")
    while True:
        said = str(typer.prompt("number", default="1")).strip().lower()
        if said in names:
            return said
        if said.isdigit() and 1 <= int(said) <= len(names):
            return names[int(said) - 1]
        typer.echo(f"write a number from 1 to {len(names)}")


def _possible(places: dict[str, str]) -> dict[str, str]:
    """Where it can run: a GPU only where there is one."""
    import torch

    return {k: v for k, v in places.items() if k != "gpu" or torch.cuda.is_available()}


# ---- what comes next ----------------------------------------------------------------------------


def _uses(asked: "Asked", folder: str, user: str | None) -> list[tuple[str, str]]:
    """Commands that use a trained run, and what each is for."""
    run, model = shlex.quote(folder), shlex.quote(f"{asked.name}-model")
    lists = f"shoal recommend {run} --user {shlex.quote(user or '196')}"
    shown = [(lists, "the best items of a user")]
    if asked.task == "clicks" and asked.data == "planted":
        shown = []
    return [
        *shown,
        (f"shoal export {run} --to {model}", "a folder that needs neither config nor data"),
        (f"shoal serve {model}", "answers at http://127.0.0.1:8000, with a page to try it"),
    ]


def _print_next(commands: list[tuple[str, str]]) -> None:
    width = max(len(command) for command, _ in commands)
    typer.echo("\nnext:")
    for command, what in commands:
        typer.echo(printable(f"  {command:{width}}  # {what}"))


def _run(asked: "Asked", written: "StarterFiles") -> None:
    """Train, print the table, lists of three users, and what comes next."""
    from shoal.data.sources import fetch
    from shoal.runs import run
    from shoal.runs.trained import Trained

    if asked.must_be_fetched:
        typer.echo(f"{asked.data}: {fetch.fetch(asked.data, Path('dataset'))}")
    resolved = run.resolve([written.config])
    result = run.train(resolved)
    print_result(result, resolved.config.run)
    folder, user = result["folder"], written.user
    if asked.task != "clicks" or asked.data != "planted":
        user = _print_lists(Trained(folder))
    _print_next(_uses(asked, folder, user))


def _print_lists(trained: "Trained") -> str:
    """Lists of some users with what they took before; one of the users."""
    import numpy as np

    from shoal.runs.recommender import Wanted

    recommender = trained.recommender
    seen, names = recommender.catalogue.seen, recommender.items.values
    verb = "saw" if trained.model.kind == "clicks" else "took"
    users: list[Any] = recommender.users.values[1 : 1 + USERS].tolist()
    for number, user in enumerate(users, start=1):
        (found,) = recommender.answer([Wanted(user, topk=TOPK)])
        taken = names[seen(np.array([number]))[1][:TAKEN]].tolist()
        titles = recommender.titles([*taken, *(item for item, _ in found)])
        took = ", ".join(titles.get(one, str(one)) for one in taken)
        typer.echo("\n" + printable(f"user {user} {verb} {took}, …"))
        print_ranking(f"user {user}", found, titles)
    return str(users[0])

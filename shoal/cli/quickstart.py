"""`shoal quickstart`: three questions, a config and a script; with --run lists for three users."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from shoal.cli.exit import print_next, print_result
from shoal.cli.ranking import print_ranking, printable
from shoal.cli.startup import DATA_SPACE, importing

if TYPE_CHECKING:
    from shoal.planning.first_look import FirstLook
    from shoal.planning.starter_files import QuickstartAnswers, StarterFiles
    from shoal.runs.trained_run import Trained

USERS, TOPK, TAKEN = 3, 5, 3  # lists that are shown, their length, and items that a user took


def quickstart(
    file: Annotated[
        str | None,
        typer.Argument(metavar="[FILE|synthetic|ml-100k]", help="Your data, or data to try."),
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
    dates: Annotated[
        Literal["day", "month"] | None, typer.Option(help="What comes first in 05/06/2024.")
    ] = None,
    feature: Annotated[
        list[str] | None,
        typer.Option(help="A column to use though it looks like an outcome; repeatable."),
    ] = None,
    to: Annotated[str, typer.Option(help="Folder for the two files.")] = ".",
    run: Annotated[bool, typer.Option("--run", help="Train at once, and show lists.")] = False,
) -> None:
    """Write a config and a script for your data, to read and to change.

    Asks three questions; what is given is not asked, and without a terminal nothing is.
    """
    with importing(needed=DATA_SPACE):
        from shoal.planning.first_look import look_at
        from shoal.planning.starter_files import PLACES, TASKS, QuickstartAnswers, rating_of_clicks

    roles = {"user": user, "item": item, "time": time, "rating": rating, "label": label}
    columns = {role: name for role, name in roles.items() if name is not None}
    asks = sys.stdin.isatty() and None in (file, task, on)
    if asks:
        typer.echo("Enter takes what stands in brackets.\n")
    data = file or _ask_data(asks)
    look = look_at(Path(data), columns) if QuickstartAnswers(data, "", "").is_file else None
    label = None if look is None else look.label
    task_name = task or _choose_task(TASKS, look, asks)
    only_taken = True
    if look is not None and label is not None and task is None and task_name != "clicks" and asks:
        only_taken = _ask_taken(label, look.share)
    place = on or _ask("How will it run?", _possible_places(PLACES), asks)
    if place not in _possible_places(PLACES):
        raise ValueError("--on gpu: this machine has no usable GPU (`shoal doctor`); use --on here")
    features = tuple(feature or ())
    if look is not None:
        _check_columns(features, look.columns, data)
        if task_name == "clicks" and sys.stdin.isatty():
            threshold = rating_of_clicks(look) if label is None else None
            features += _ask_outcomes(look.outcomes(threshold), features)
    answers = QuickstartAnswers(
        data=data,
        task=task_name,
        place=place,
        columns=columns,
        features=features,
        only_taken=only_taken,
    )
    written = _write(answers, Path(to), look, dates, asks)
    for note in written.notes:
        typer.echo(printable(note))
    typer.echo(f"{written.config}: the config, to read and to change")
    typer.echo(f"{written.script}: the same from Python")
    if run:
        _run(answers, written)
    else:
        folder = f"runs/{answers.name}"
        train = f"shoal train {shlex.quote(str(written.config))} --output {folder}"
        first = [(f"shoal data fetch {data}", "downloads it")] * answers.must_be_fetched
        first += [(train, "trains, and prints a table")]
        print_next([*first, *_list_commands(answers, folder, written.user)])


# ---- questions ----------------------------------------------------------------------------------


def _ask_data(asks: bool) -> str:
    """A file, or the name of a data set."""
    from shoal.cli.arguments import DATA

    if not asks:
        typer.echo("no file is given: this uses synthetic data, which Shoal generates")
        return "synthetic"
    data_files = sorted(
        path.name for path in Path().iterdir() if path.suffix in DATA and path.is_file()
    )
    typer.echo("Which data?  A file (csv, Parquet, Arrow, JSON lines), `synthetic` for generated")
    typer.echo(
        "data, or `ml-100k` for MovieLens."
        + f"  Here: {', '.join(data_files[:6])}" * bool(data_files)
    )
    while True:
        default = data_files[0] if data_files else "synthetic"
        answer = typer.prompt("data", default=default).strip().strip("'\"")
        if answer in ("synthetic", "ml-100k", "ml-1m", "ml-20m") or Path(answer).is_file():
            return answer
        typer.echo(f"there is no file {answer}; name one, or synthetic, or ml-100k")


def _write(
    answers: "QuickstartAnswers",
    folder: Path,
    look: "FirstLook | None",
    dates: str | None,
    asks: bool,
) -> "StarterFiles":
    """Write the files; ask whether the day or the month comes first in a column of unclear dates.

    dates: the order of all columns of dates; None: ask for it.
    """
    from shoal.data.dates import AmbiguousDates
    from shoal.planning.starter_files import write

    orders: dict[str, str] = {}
    while True:
        try:
            return write(replace(answers, dates=orders), folder, look)
        except AmbiguousDates as doubt:
            if doubt.column in orders or (dates is None and not asks):
                remedy = "say it with --dates=day or --dates=month"
                raise ValueError(f"{doubt.problem}; {remedy}") from None
            question = f"{doubt.column}: what comes first in {doubt.example}?"
            choices = {"day": "the day", "month": "the month"}
            orders[doubt.column] = dates or _ask(question, choices, asks)


def _choose_task(tasks: dict[str, str], look: "FirstLook | None", asks: bool) -> str:
    """The task: the user's answer, or what the columns suggest."""
    label = None if look is None else look.label
    if look is None or label is None:
        return _ask("What do you want?", tasks, asks)
    about = f"{look.path}: {label} is 0 or 1, and 1 in {look.share:.0%} of the rows"
    if not asks:
        typer.echo(
            printable(
                f"{about}, so this predicts {label} (--task clicks); to recommend from the rows "
                f"where it is 1, use --task recommend"
            )
        )
        return "clicks"
    typer.echo("\n" + printable(f"{about}."))
    return _ask("What do you want?", tasks, asks, default="clicks")


def _ask_taken(label: str, share: float) -> bool:
    """Whether only rows whose label is 1 count as taken."""
    choices = {
        "taken": f"only those where {label} is 1 ({share:.0%})",
        "all": f"all, also those where {label} is 0",
    }
    return _ask("Which rows say what a user took?", choices, True) == "taken"


def _ask_outcomes(outcomes: dict[str, str], features: tuple[str, ...]) -> tuple[str, ...]:
    """Columns that look like outcomes, and are known before by the user's answer."""
    inputs = []
    for name, reason in outcomes.items():
        if name in features:
            continue
        typer.echo("\n" + printable(f"{name} may be known only afterwards: {reason}."))
        typer.echo("A model that reads such a column looks perfect in tests, and fails in use.")
        if typer.confirm(printable(f"Is {name} known before, when you predict?"), default=False):
            inputs.append(name)
    return tuple(inputs)


def _check_columns(features: tuple[str, ...], columns: list[str], data: str) -> None:
    """Refuse a --feature that the file does not have."""
    for name in features:
        if name not in columns:
            raise ValueError(f"--feature={name}: {data} has only {', '.join(columns)}")


def _ask(question: str, choices: dict[str, str], asks: bool, default: str | None = None) -> str:
    """One of the choices, by its number or its name; the first where there is no terminal to ask.

    default: what Enter takes; None: the first.
    """
    names = list(choices)
    usual = str(names.index(default) + 1 if default is not None else 1)
    if not asks or len(names) == 1:
        return names[0]
    typer.echo(f"\n{question}")
    for number, text in enumerate(choices.values(), start=1):
        typer.echo(f"  {number}  {text}")
    while True:
        answer = str(typer.prompt("number", default=usual)).strip().lower()
        if answer in names:
            return answer
        if answer.isdigit() and 1 <= int(answer) <= len(names):
            return names[int(answer) - 1]
        typer.echo(f"write a number from 1 to {len(names)}")


def _possible_places(places: dict[str, str]) -> dict[str, str]:
    """Places where training can run: the GPU only where there is one."""
    import torch

    return {k: v for k, v in places.items() if k != "gpu" or torch.cuda.is_available()}


# ---- what comes next ----------------------------------------------------------------------------


def _list_commands(
    answers: "QuickstartAnswers", folder: str, user: str | None
) -> list[tuple[str, str]]:
    """Commands that use a trained run, and what each is for."""
    run, model = shlex.quote(folder), shlex.quote(f"{answers.name}-model")
    lists = f"shoal recommend {run} --user {shlex.quote(user or '196')}"
    shown = [(lists, "the best items of a user")]
    if answers.task == "clicks" and answers.data == "synthetic":
        shown = []
    return [
        *shown,
        (f"shoal export {run} --to {model}", "a folder that needs neither config nor data"),
        (f"shoal serve {model}", "answers at http://127.0.0.1:8000, with a page to try it"),
    ]


def _run(answers: "QuickstartAnswers", written: "StarterFiles") -> None:
    """Train, print the table, lists of three users, and what comes next."""
    from shoal.data.sources import fetch
    from shoal.runs import run
    from shoal.runs.trained_run import Trained

    if answers.must_be_fetched:
        typer.echo(f"{answers.data}: {fetch.fetch(answers.data, Path('dataset'))}")
    resolved = run.resolve([written.config])
    result = run.train(resolved)
    print_result(result, resolved.config.run)
    folder, user = result["folder"], written.user
    if answers.task != "clicks" or answers.data != "synthetic":
        user = _print_lists(Trained(folder))
    print_next(_list_commands(answers, folder, user))


def _print_lists(trained: "Trained") -> str:
    """Print lists of some users with what they took before; return one of the users."""
    import numpy as np

    from shoal.recommender.recommender import RankingQuestion

    recommender = trained.recommender
    seen, names = recommender.catalogue.seen, recommender.items.values
    verb = "saw" if trained.model.kind == "clicks" else "took"
    users: list[Any] = recommender.users.values[1 : 1 + USERS].tolist()
    for number, user in enumerate(users, start=1):
        (ranking,) = recommender.answer([RankingQuestion(user, topk=TOPK)])
        taken = names[seen(np.array([number]))[1][:TAKEN]].tolist()
        titles = recommender.titles([*taken, *(item for item, _ in ranking)])
        shown_items = ", ".join(titles.get(one, str(one)) for one in taken)
        typer.echo("\n" + printable(f"user {user} {verb} {shown_items}, …"))
        print_ranking(f"user {user}", ranking, titles)
    return str(users[0])

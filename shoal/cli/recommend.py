"""`shoal recommend`: the list of a user or a history, or a file with the lists of many users."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, NoReturn

import typer

from shoal.cli.arguments import TRUST
from shoal.cli.startup import importing
from shoal.files.durable import written

RUN_OR_ARTIFACT = (
    "Folder of a run or an artifact. A run answers --user and --history; the options marked "
    "Artifact need one: shoal export RUN --to DIR."
)


def recommend(
    run: Annotated[str, typer.Argument(metavar="RUN|ARTIFACT", help=RUN_OR_ARTIFACT)],
    user: Annotated[str | None, typer.Option(help="A user's id as the data has it.")] = None,
    history: Annotated[
        str | None,
        typer.Option(
            help="Items, oldest first, with commas between them; one that holds a comma is quoted: "
            "'\"A, b\",C'."
        ),
    ] = None,
    everybody: Annotated[bool, typer.Option("--all", help="Artifact: for all users.")] = False,
    users: Annotated[
        str | None, typer.Option(help="Artifact: for users of a file, one per line.")
    ] = None,
    topk: Annotated[int, typer.Option(help="How many items.")] = 10,
    output: Annotated[
        str | None, typer.Option(help="--all, --users: FILE.parquet, .csv or .jsonl")
    ] = None,
    exclude: Annotated[
        str | None, typer.Option(help="Artifact: file of items to leave out.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Artifact: file of items to choose from.")
    ] = None,
    category: Annotated[
        str | None, typer.Option(help="Artifact: items to choose from, FILE:COLUMN=VALUE")
    ] = None,
    seen: Annotated[
        bool | None,
        typer.Option(
            "--seen/--no-seen", help="Artifact: recommend items that a user took, or not."
        ),
    ] = None,
    nproc: Annotated[int, typer.Option(help="Cores that compute; 0: all.")] = 0,
    approximate: Annotated[
        bool, typer.Option("--approximate", help="Rank by an index; prints its recall.")
    ] = False,
    spreadsheet: Annotated[
        bool, typer.Option("--spreadsheet", help="csv: ids that begin like a formula get a '.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Add the largest shares of each score.")
    ] = False,
    trust: Annotated[bool, TRUST] = False,
) -> None:
    """The best items for a user or a history, or for all users into a file; original ids."""
    is_for_many = everybody or users is not None
    if is_for_many + (user is not None) + (history is not None) != 1:
        raise ValueError("say for whom: --user ID, --history A,B,C, --all or --users FILE")
    is_run = _is_run(run)
    filters = Filters(exclude=exclude, only=only, category=category, seen=seen)
    if is_run and (is_for_many or filters.any_given()):
        typed_options = {
            "user": user,
            "history": history,
            "users": users,
            "all": everybody or None,
            "output": output,
            "topk": None if topk == 10 else topk,
            **asdict(filters),
        }
        _refuse_options_of_artifacts(run, typed_options, trust)
    if is_for_many:
        _check_file(output, explain=explain, spreadsheet=spreadsheet)
        _write_lists(
            artifact=run,
            output=str(output),
            topk=topk,
            users=users,
            filters=filters,
            approximate=approximate,
            nproc=nproc,
            spreadsheet=spreadsheet,
        )
    elif is_run:
        _print_list_of_run(run, user, history, topk, explain=explain, trust=trust)
    else:
        _print_list_of_artifact(run, user, history, topk, filters, explain=explain)


@dataclass(frozen=True)
class Filters:
    """Which items may be recommended, as the options of the command say it."""

    exclude: str | None  # file of items to leave out
    only: str | None  # file of items to choose from
    category: str | None  # FILE:COLUMN=VALUE of items to choose from
    seen: bool | None  # whether items that a user took may be recommended; None: as the model says

    def any_given(self) -> bool:
        """True where at least one of the options was typed."""
        return any(value is not None for value in asdict(self).values())


def _is_run(folder: str) -> bool:
    """True for a run's folder, False for an artifact; anything else is refused."""
    if (Path(folder) / "config.yaml").is_file():
        return True
    if (Path(folder) / "manifest.json").is_file():
        return False
    raise ValueError(
        f"{folder} is neither a run's folder nor an artifact; `shoal runs` lists runs, "
        "`shoal export RUN --to DIR` makes an artifact"
    )


def _refuse_options_of_artifacts(run: str, options: dict[str, Any], trust: bool) -> NoReturn:
    """Refuse options that a run does not have; the error names the commands to type instead."""
    to = f"exported/{Path(run).resolve().name}"
    raise ValueError(
        f"{run} is a run, which answers --user and --history, without filters; make an "
        f"artifact of it: `shoal export {quote(run)} --to {quote(to)}{' --trust' * trust}`, "
        f"then: `shoal recommend {quote(to)} {_format_options(options)}`"
    )


def _format_options(options: dict[str, Any]) -> str:
    """Options as they are typed on a command line; None: the option is left out."""
    flags = {True: "--{}", False: "--no-{}"}
    return " ".join(
        flags[value].format(name) if isinstance(value, bool) else f"--{name} {quote(str(value))}"
        for name, value in options.items()
        if value is not None
    )


def _check_file(output: str | None, explain: bool, spreadsheet: bool) -> None:
    """Refuse lists of many users without a file, and options that do not fit it."""
    if output is None:
        raise ValueError("--all needs a file to write to: --output top.parquet")
    if explain:
        raise ValueError("--explain is about one user or history: --user ID or --history A,B,C")
    if spreadsheet and not output.endswith(".csv"):
        raise ValueError(f"--spreadsheet is about csv, and --output is {output}")


def _write_lists(
    artifact: str,
    output: str,
    topk: int,
    users: str | None,
    filters: Filters,
    approximate: bool,
    nproc: int,
    spreadsheet: bool,
) -> None:
    """Write the lists of many users into a file; users: a file of them, None: all."""
    from shoal.serving.bulk import recommend_many

    with written(output):
        count = recommend_many(
            folder=artifact,
            output=output,
            topk=topk,
            users=users,
            exclude=filters.exclude,
            only=filters.only,
            category=filters.category,
            seen=filters.seen,
            approximate=approximate,
            nproc=nproc,
            spreadsheet=spreadsheet,
        )
    typer.echo(f"{count} users: {output}")


def _print_list_of_run(
    run: str, user: str | None, history: str | None, topk: int, explain: bool, trust: bool
) -> None:
    """Print what a run recommends to a user, or after a history."""
    with importing():
        import torch

        from shoal.cli.ranking import typed_items
        from shoal.runs.trained_run import Trained

    torch.set_num_threads(os.cpu_count() or 1)
    trained = Trained(run, trust=trust)
    items = None if history is None else typed_items(history, trained.recommender.items)
    ranking = trained.recommend(user, topk, items)
    _print_list(trained, ranking, user, history, items, explain)


def _print_list_of_artifact(
    artifact: str, user: str | None, history: str | None, topk: int, filters: Filters, explain: bool
) -> None:
    """Print what an artifact recommends to a user, or after a history, of the items allowed."""
    from shoal.cli.ranking import typed_items
    from shoal.serving.artifact.artifact import load
    from shoal.serving.bulk import allowed_items, read_lines

    opened = load(artifact)
    items = None if history is None else typed_items(history, opened.recommender.items)
    banned = [] if filters.exclude is None else read_lines(filters.exclude)
    allowed = allowed_items(filters.only, filters.category)
    ranking = opened.recommend(user, items, topk, banned, allowed, filters.seen)
    _print_list(opened, ranking, user, history, items, explain)


def _print_list(
    opened: Any,
    ranking: Any,
    user: str | None,
    history: str | None,
    history_items: list[str] | None,
    explain: bool,
) -> None:
    """Print a list with titles; explain: with the largest shares of each score.

    opened: the run or artifact; history: as it was typed, history_items: its items.
    """
    from shoal.cli.ranking import print_ranking

    why = None
    if explain and ranking.by == "model":
        known_items = history_items and [
            item for item in history_items if item not in ranking.unknown
        ]
        why = [opened.explain(user, item, known_items) for item, _ in ranking]
    if history and "," in history and ranking.unknown and '"' not in history:
        typer.echo("an item that holds a comma is quoted: --history '\"A, b\",C'")
    who = f"user {user}" if history is None else f"history {history}"
    print_ranking(who, ranking, opened.recommender.titles(item for item, _ in ranking), why)

"""Commands that look things up or after: configs, models, runs, checkpoints, keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from shoal.cli.arguments import TRUST, resolve_args
from shoal.cli.exit import leave
from shoal.cli.startup import importing

RUN = typer.Argument(help="Folder of a run.")


def models(
    name: Annotated[
        str | None,
        typer.Argument(help="The model to describe: a name, or FILE.py:Class."),
    ] = None,
    space: Annotated[
        bool, typer.Option("--space", help="Print what `shoal tune` searches, as YAML.")
    ] = False,
) -> None:
    """List the models, or describe one of them."""
    from shoal.models import describe, overview

    if space:
        from shoal.experiments.tuning.default_space import default_space
        from shoal.experiments.tuning.space import space_text

        if name is None:
            raise typer.BadParameter("--space needs a model: shoal models BPR --space")
        return typer.echo(space_text(default_space(name)), nl=False)
    for line in overview() if name is None else describe(name):
        typer.echo(line)


def runs(
    root: Annotated[str, typer.Argument(help="Folder that holds runs, or a run.")] = "runs",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a list of objects instead of a table.")
    ] = False,
) -> None:
    """List runs: model, data, the deciding metric, how they ended, where they were exported."""
    from shoal.runs.listing import list_runs

    summaries = list_runs(root)
    if as_json:
        typer.echo(json.dumps(summaries, indent=2))
        return
    if not summaries:
        other_roots = sorted({str(one.parent.parent) for one in Path(root).glob("*/*/config.yaml")})
        hint = f"; these folders in it hold some: {', '.join(other_roots)}" if other_roots else ""
        return typer.echo(f"{root} holds no runs{hint}")
    _print_runs(summaries)
    if len(summaries) == 1 and summaries[0]["folder"] == str(Path(root)) and summaries[0]["reason"]:
        typer.echo(f"why: {summaries[0]['reason']}")


def _print_runs(summaries: list[dict[str, Any]]) -> None:
    """A table; why a run failed is cut to what the terminal has left."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    heads = ["run", "model", "data", "protocol", "metric", "best valid", "test", "epochs"]
    heads += ["state", "exported"]
    rows = []
    for run in summaries:
        figures = ["–" if x is None else f"{x:.4f}" for x in (run["best_valid"], run["test"])]
        name = Path(run["folder"]).name
        name += "" if run["start"] is None else f" ← {Path(run['start']).name}"
        epochs = "–" if run["epochs"] is None else str(run["epochs"])
        named = (name, run["model"], run["data"], run["protocol"] or "–", run["metric"])
        rows.append(
            [*named, *figures, epochs, run["state"], ", ".join(run["exported"][-1:]) or "–"]
        )
    console = Console(width=10_000)  # names are there to be copied: they are not cut
    reasons = [" ".join((run["reason"] or "–").split()) for run in summaries]
    if any(run["reason"] for run in summaries):
        table_width = sum(2 + max(map(len, column)) + 1 for column in zip(heads, *rows))
        room = max(30, Console().width - table_width - 4)
        reasons = [
            reason if len(reason) <= room else f"{reason[: room - 1]}…" for reason in reasons
        ]
        heads, rows = [*heads, "why"], [[*row, reason] for row, reason in zip(rows, reasons)]
    table = Table(*heads, box=SIMPLE)
    for row in rows:
        table.add_row(*map(Text, row))  # no markup: files of others wrote it
    console.print(table)


def config_show(context: typer.Context, trust: Annotated[bool, TRUST] = False) -> None:
    """Print the resolved config with the origin of every value."""
    from shoal import config as room

    typer.echo(room.show(resolve_args(context.args, trust=trust)))


def config_keys(
    word: Annotated[
        str | None, typer.Argument(help="Only keys with this word in their name or text.")
    ] = None,
) -> None:
    """Print every key with its default, what it may be and what it does."""
    from shoal import config as room

    typer.echo(room.key_page() if word is None else room.keys_with(word), nl=False)


def config_schema() -> None:
    """Print a JSON schema of the config for editors."""
    from shoal import config as room
    from shoal.models import MODELS, lookup

    typer.echo(json.dumps(room.json_schema(dict(lookup(name) for name in MODELS)), indent=2))


def keys_make(
    folder: Annotated[str, typer.Argument(help="A new folder for the keys.")],
) -> None:
    """Make the keys by which processes of several hosts know each other, for a run."""
    from shoal.distributed.hosts import check_installed

    check_installed("keys")
    from shoal.distributed.key_files import make_keys

    key_folder = make_keys(folder)
    typer.echo(
        f"{key_folder}: copy {key_folder}/for-workers to every host with ranks and "
        f"{key_folder}/for-servers to the hosts of servers, and set launch.secret (with parameter "
        "servers strategy.ps.keys) to the folder that holds them"
    )


def checkpoint_verify(run: Annotated[str, RUN]) -> None:
    """Read every byte of a run's checkpoints; status 1 where one is damaged."""
    with importing():
        from shoal.training import retention

    checkpoints = retention.verify(Path(run))
    for checkpoint in checkpoints:
        state = "whole" if checkpoint.problem is None else checkpoint.problem
        typer.echo(f"{checkpoint.path.name}  {checkpoint.size / 2**20:.1f} MiB  {state}")
    damaged = sum(checkpoint.problem is not None for checkpoint in checkpoints)
    typer.echo(f"{len(checkpoints)} checkpoints, {damaged} damaged")
    if damaged:
        leave(1)


def checkpoint_prune(
    run: Annotated[str, RUN],
    keep: Annotated[int, typer.Option(min=1, help="How many of the newest stay.")] = 1,
) -> None:
    """Remove all but the newest that are whole, the best, and what these build upon."""
    with importing():
        from shoal.training import retention

    removed = retention.prune(Path(run), keep)
    for path in removed:
        typer.echo(f"removed {path.name}")
    typer.echo(f"{len(removed)} removed")


def checkpoint_copy(
    run: Annotated[str, RUN],
    to: Annotated[str, typer.Argument(help="Folder of the copy; it must not hold a run.")],
) -> None:
    """Copy the newest whole checkpoint and the best one as a separate run."""
    with importing():
        from shoal.training import retention

    for path in retention.copy(Path(run), Path(to)):
        typer.echo(f"copied {path.name}")
    typer.echo(f"run: {to}")

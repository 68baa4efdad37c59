"""The command line: shoal train, eval, recommend, config, data, models."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

import shoal

if TYPE_CHECKING:  # `shoal --help` is quick: torch comes in with the command that needs it
    from shoal.config import Resolved

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Shoal trains recommenders: one model file, one config, any number of processes.",
)
config_app = typer.Typer(no_args_is_help=True, help="Look at configs.")
data_app = typer.Typer(no_args_is_help=True, help="Get data sets.")
app.add_typer(config_app, name="config")
app.add_typer(data_app, name="data")
keys_app = typer.Typer(no_args_is_help=True, help="Keys between hosts.")
app.add_typer(keys_app, name="keys")

# How a run was launched says nothing about how it is evaluated, or continued on other processes.
ALONE = {
    "launch.nproc": 1,
    "launch.world_size": -1,
    "launch.ip": "localhost",
    "launch.port": 0,
    "launch.group_offset": 0,
    "launch.hosts": 0,
    "launch.host": 0,
    "launch.servers": 0,
    "launch.first_server": 0,
}
TRUST = typer.Option("--trust", help="Run the code that the run folder's config names.")
Overrides = "Any config key as --section.key=value; RecBole's flat keys (--epochs=5) work too."


@app.command(context_settings=PASS_ON, epilog=Overrides)
def train(
    context: typer.Context,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue the run in --output (or in the folder given)."),
    ] = False,
    output: Annotated[str | None, typer.Option(help="Folder of the run.")] = None,
    trust: Annotated[bool, TRUST] = False,
) -> None:
    """Train from CONFIG.yaml files (and overrides); evaluate and test the best checkpoint."""
    from shoal.launch.ranks import follow_launcher, is_launched
    from shoal.runs.run import train
    from shoal.world.world import is_first, is_worker

    if is_worker():
        follow_launcher()
    files, overrides, is_run = run_arguments(context.args, resume, output)
    counted = any(key_of(word) in ("nproc", "launch.nproc", "world_size") for word in overrides)
    values = ALONE if is_run and counted else None  # not half of how it was launched before
    resolved = resolve(files, overrides, values, trust or not is_run)
    check_resumable(resolved, resume)
    result = train(resolved, resume)
    if result and is_first() and not is_launched():
        print_result(result)
        typer.echo(f"run: {result['folder']}")


@app.command("launch", context_settings=PASS_ON, epilog=Overrides)
def launch_command(
    context: typer.Context,
    worker_num: Annotated[int | None, typer.Option("--worker_num", help="Workers here.")] = None,
    server_num: Annotated[int | None, typer.Option("--server_num", help="Servers here.")] = None,
    workers: Annotated[str | None, typer.Option(help="HOST:PORT,… of all workers.")] = None,
    servers: Annotated[str | None, typer.Option(help="HOST:PORT,… of all servers.")] = None,
    role: Annotated[str | None, typer.Option(help="Run only this: worker or server.")] = None,
    index: Annotated[int, typer.Option(help="With --role: which of them.")] = 0,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue the run in --output (or in the folder given)."),
    ] = False,
    output: Annotated[str | None, typer.Option(help="Folder of the run.")] = None,
    trust: Annotated[bool, TRUST] = False,
) -> None:
    """Train with parameter servers: `shoal launch --worker_num=2 --server_num=1 CONFIG.yaml`.

    On many hosts run the same command with --workers and --servers on each of them. PaddleRec's
    `-m CONFIG.yaml -o key=value` works too.
    """
    from shoal.launch.roles import find_roles
    from shoal.runs.run import train, with_roles
    from shoal.world.world import is_worker

    if is_worker():
        raise ValueError("shoal launch starts processes itself; run it without torchrun")
    roles = find_roles(worker_num, server_num, workers, servers, role, index)
    files, overrides, is_run = run_arguments(context.args, resume, output)
    processes = {"launch.nproc": max(1, roles.nproc), "launch.world_size": roles.world_size}
    if roles.workers:  # several hosts are asked for the port at which they meet
        processes["launch.port"] = int(roles.workers[0].rsplit(":", 1)[1])
    named = resolve(files, overrides, processes, trust or not is_run)
    if named.config.strategy.name == "auto":
        named = resolve(files, overrides, {"strategy.name": "ps", **processes})
    resolved = with_roles(named, roles)
    check_resumable(resolved, resume)
    result = train(resolved, resume)
    if result:
        print_result(result)
        typer.echo(f"run: {result['folder']}")


@app.command(hidden=True)
def serve(
    bind: Annotated[str, typer.Option(help="HOST:PORT; port 0: any.")] = "127.0.0.1:0",
    index: Annotated[int, typer.Option(help="Number of this server.")] = 0,
    keys: Annotated[str | None, typer.Option(help="Folder of `shoal keys make`.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds of silence before giving up.")] = 10.0,
    threads: Annotated[int, typer.Option(help="Threads for rows.")] = 1,
    announce: Annotated[str | None, typer.Option(help="File to write the address to.")] = None,
    patience: Annotated[float, typer.Option(help="Seconds to wait for a worker.")] = math.inf,
) -> None:
    """One parameter server; `shoal launch` starts them."""
    from shoal.launch.ranks import follow_launcher, is_launched
    from shoal.ps.keys import read_keys
    from shoal.ps.server.server import run_server
    from shoal.training.run_folder import start_logging

    if is_launched():
        follow_launcher()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started us hears it, and tells us
    start_logging("info", 0)
    found = None if keys is None else read_keys(keys, "server")
    leave(run_server(bind, index, found, timeout, threads, announce, patience))


@keys_app.command("make")
def keys_make(
    folder: Annotated[str, typer.Argument(help="A new folder for the keys.")],
) -> None:
    """Make the keys that workers and servers of different hosts know each other by."""
    from shoal.ps.keys import make_keys

    typer.echo(f"{make_keys(folder)}: copy it to every host and set strategy.ps.keys")


@app.command("eval", context_settings=PASS_ON, epilog=Overrides)
def evaluate_command(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="Folder of a run.")],
    output: Annotated[str | None, typer.Option(help="Write result.json into this folder.")] = None,
    trust: Annotated[bool, TRUST] = False,
) -> None:
    """Evaluate a run's best checkpoint again, on any number of processes."""
    from shoal.launch.ranks import follow_launcher, launch
    from shoal.runs.run import resolve_run
    from shoal.runs.trained import evaluate
    from shoal.world.world import is_first, is_worker

    if is_worker():
        follow_launcher()
    files, overrides = split_arguments(context.args)
    if files:
        raise typer.BadParameter(f"unexpected argument {files[0]}")
    section = resolve_run(run, overrides, ALONE, trust).config.launch
    if not is_worker() and (section.nproc > 1 or section.world_size > 1):
        extra = [] if output is None else ["--output", output]
        launch(["eval", run, *extra, *["--trust"] * trust, *overrides], section)
        return
    result = evaluate(run, overrides, output, ALONE, trust)
    if is_first():
        print_result(result)


@app.command()
def recommend(
    run: Annotated[str, typer.Argument(help="Folder of a run.")],
    user: Annotated[str, typer.Option(help="A user's id as the data has it.")],
    topk: Annotated[int, typer.Option(help="How many items.")] = 10,
    trust: Annotated[bool, TRUST] = False,
) -> None:
    """The best items for one user; original ids in and out."""
    from rich.console import Console
    from rich.table import Table

    from shoal.runs.trained import recommend

    table = Table("rank", "item", "score", title=f"for user {user}")
    for number, (item, score) in enumerate(recommend(run, user, topk, trust), start=1):
        table.add_row(str(number), item, f"{score:.4f}")
    Console().print(table)


@app.command()
def models() -> None:
    """List the models."""
    from shoal.models import MODELS

    for name in MODELS:
        typer.echo(name)


@config_app.command("show", context_settings=PASS_ON, epilog=Overrides)
def config_show(context: typer.Context) -> None:
    """Print the resolved config with the origin of every value."""
    from shoal import config as room

    typer.echo(room.show(resolve(*split_arguments(context.args))))


@config_app.command("schema")
def config_schema() -> None:
    """Print a JSON schema of the config for editors."""
    from shoal import config as room
    from shoal.models import MODELS, lookup

    typer.echo(json.dumps(room.json_schema(dict(lookup(name) for name in MODELS)), indent=2))


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(help="ml-100k, ml-1m or ml-20m")],
    to: Annotated[str, typer.Option(help="Folder that holds data sets.")] = "dataset",
) -> None:
    """Download an official MovieLens archive, check it and unpack it.

    SHOAL_MIRROR may name a folder or a URL that holds the archives.
    """
    from shoal.data.fetch import fetch

    typer.echo(f"{name}: {fetch(name, Path(to))}")


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Shoal trains recommenders: one model file, one config, any number of processes."""
    if show:
        from shoal import __version__

        typer.echo(f"shoal {__version__}")
        raise typer.Exit


def split_arguments(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Config files and overrides. `--config_files='a.yaml b.yaml'` is RecBole's way to name files.

    A word after `--key` (without =) is that key's value.
    """
    files: list[str] = []
    overrides: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            (files if "=" not in word else overrides).append(word)
            continue
        if "=" not in word and rest and not rest[0].startswith("--"):
            word = f"{word}={rest.pop(0)}"
        key, _, value = word.lstrip("-").partition("=")
        if key in ("m", "o") and not value:
            what = "-m CONFIG.yaml" if key == "m" else "-o key=value"
            raise typer.BadParameter(f"-{key} stands without its value: {what}")
        if key == "m":  # PaddleRec's way to name the file, and to override a key
            files.append(value)
            continue
        if key == "o":
            overrides.append(f"--{value}")
            while rest and "=" in rest[0] and not rest[0].startswith("-"):
                overrides.append(f"--{rest.pop(0)}")
            continue
        if key.replace("-", "_") in ("config_files", "config_file_list"):
            files += value.split()
        else:
            overrides.append(word)
    return files, overrides


def run_arguments(
    arguments: list[str], resume: bool, output: str | None
) -> tuple[list[str], list[str], bool]:
    """As split_arguments, of a command that trains; and whether a run brings its own config."""
    files, overrides = split_arguments(arguments)
    if resume and len(files) == 1 and not Path(files[0]).is_file():
        output, files = output or files[0], []
    is_run = bool(resume and not files and output)
    if is_run:
        files = [str(run_config(str(output)))]
    if output is not None:
        overrides.append(f"--run.output={json.dumps(output)}")
    return files, overrides, is_run


def check_resumable(resolved: Resolved, resume: bool) -> None:
    """Refuse to resume nothing."""
    if resume and resolved.config.run.output is None:
        raise typer.BadParameter(
            "--resume needs the run's folder: --output DIR, or the folder itself"
        )


def key_of(override: str) -> str:
    """`--launch.nproc=2` -> `launch.nproc`"""
    return override.lstrip("-").partition("=")[0].replace("-", "_")


def run_config(folder: str) -> Path:
    """The config of a run's folder."""
    from shoal.training.run_folder import RunFolder

    RunFolder(folder).check_is_run()
    return Path(folder) / "config.yaml"


def resolve(
    files: list[str],
    overrides: list[str],
    values: dict[str, Any] | None = None,
    trust: bool = True,
) -> Resolved:
    """The config of these files; without `trust`, the first must name no code to run."""
    from shoal.runs.run import check_trusted, resolve

    resolved = resolve(files, overrides, values)
    if not trust:
        check_trusted(resolved, files[0])
    return resolved


def print_result(result: dict[str, Any]) -> None:
    """The table at the end of a run."""
    from rich.console import Console
    from rich.table import Table

    table = Table("metric", "best valid", "test", title=f"{result['model']} on {result['dataset']}")
    for name, value in result["test"].items():
        table.add_row(name, f"{result['best_valid'].get(name, float('nan')):.4f}", f"{value:.4f}")
    Console().print(table)


def fail(error: Exception) -> NoReturn:
    """One clear line for what a user can mend, a traceback for what only we can."""
    from shoal.launch.ranks import LaunchError, is_launched, record_failure
    from shoal.world.world import WorldError

    fault = not isinstance(error, (ValueError, OSError, WorldError, LaunchError))
    recorded = record_failure(error, fault)
    if recorded and is_launched():
        pass  # the launcher tells it, once for all ranks
    elif fault:
        traceback.print_exception(error)
    else:
        typer.secho(f"error: {error}", fg="red", err=True)
    leave(1 if fault else 2)


def leave(status: int) -> NoReturn:
    """End at once: a rank must not wait for peers that are gone. A checkpoint may be finished."""
    if "shoal.training.checkpoint" in sys.modules:
        from shoal.training.checkpoint import finish_writing

        finish_writing(10.0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def stop(number: int, frame: FrameType | None) -> None:
    """Ctrl-C and the like: end the command in order. A second one ends it in any case."""
    signal.signal(number, signal.SIG_DFL)
    raise shoal.Interrupted(number)


def main() -> None:
    """Entry point of the `shoal` command."""
    if "SHOAL_LAUNCHER" not in os.environ:  # else a launcher stops us and tells of it
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
    try:
        app(standalone_mode=True)
    except shoal.Interrupted as error:
        typer.secho(f"stopped by {error}; what was saved can be continued with --resume", err=True)
        leave(128 + error.number)
    except Exception as error:
        fail(error)


if __name__ == "__main__":
    main()

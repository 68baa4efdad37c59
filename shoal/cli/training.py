"""Commands that train: `shoal train`, `shoal launch`, and the servers it starts."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import shoal
from shoal.cli.arguments import (
    ANNOUNCE,
    ONE_PROCESS,
    QUIET,
    TRUST,
    check_resumable,
    daily_arguments,
    join_arguments,
    key_of,
    need_data,
    only_warnings,
    run_arguments,
    split_arguments,
    take_data,
)
from shoal.cli.exit import leave, print_result
from shoal.cli.startup import importing, prepare_config
from shoal.compat.command_arguments import as_paddle_launches

if TYPE_CHECKING:
    from shoal.config import Resolved


def train(
    context: typer.Context,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue the run in --output (or in the folder given)."),
    ] = False,
    output: Annotated[str | None, typer.Option(help="Folder of the run.")] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", help="Continue from this run, with its config and --data."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="A file or folder: the data, in place of the config's.")
    ] = None,
    join: Annotated[
        str | None,
        typer.Option(help="Join this run, which is under way, as one more worker (ps.elastic)."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(help="Train on a Ray cluster: auto, its ADDRESS, or local."),
    ] = None,
    follow: Annotated[
        str | None,
        typer.Option(help="With --from: train on the files of this folder as they come."),
    ] = None,
    export: Annotated[
        str | None, typer.Option(help="With --follow: export into this folder.")
    ] = None,
    every: Annotated[str, typer.Option(help="With --export: how often, 30s, 10m, 2h.")] = "10m",
    once: Annotated[
        bool, typer.Option("--once", help="With --follow: end when no file is left.")
    ] = False,
    quiet: Annotated[bool, QUIET] = False,
    trust: Annotated[bool, TRUST] = False,
) -> None:
    """Train from CONFIG.yaml files (and overrides); evaluate and test the best checkpoint."""
    args = context.args + only_warnings(quiet)
    if follow is not None:
        return _follow(
            args,
            folder=follow,
            start=start,
            output=output,
            export=export,
            export_every=every,
            once=once,
            trust=trust,
        )
    with importing():
        prepare_config()
        from shoal.distributed.rank_variables import is_first, is_worker
        from shoal.launch.child import follow_launcher, is_launched
        from shoal.runs import run  # noqa: F401 (with all that it imports, at once)

    if is_worker():
        follow_launcher(f"rank-{os.environ['RANK']}", saves=True)
    resolved = _resolve_training(
        args,
        is_bare=not (context.args or output or start or join or data),
        resume=resume,
        output=output,
        start=start,
        data=data,
        join=join,
        trust=trust,
    )
    result = _run_training(resolved, resume, ray)
    if result and is_first() and not is_launched():
        print_result(result, resolved.config.run)


def _resolve_training(
    args: list[str],
    is_bare: bool,
    resume: bool,
    output: str | None,
    start: str | None,
    data: str | None,
    join: str | None,
    trust: bool,
) -> Resolved:
    """The config of files, or of the run that is continued or joined, with data in its place.

    args: config files, a file of data and overrides, as they were typed; is_bare: nothing was typed
    behind the command; start: the run of --from.
    """
    from shoal.runs.input_data import with_data
    from shoal.runs.run import resolve

    files, overrides, is_run = run_arguments(args, resume, output)
    files, data_argument = take_data(files)
    if data is not None and data_argument is not None:
        raise typer.BadParameter(f"--data {data} and {data_argument} are both data; give one")
    data = data or data_argument
    overrides = as_paddle_launches(overrides)
    if is_bare:
        need_data()
    # A run that is continued on another number of processes forgets how it was launched before.
    counted = any(key_of(arg) in ("nproc", "launch.nproc", "world_size") for arg in overrides)
    values = ONE_PROCESS if is_run and counted else None
    if start is not None and not is_run:
        files, values = daily_arguments(start, output, files)
        is_run = True
    if join is not None:
        files, values = join_arguments(join, files)
        is_run = True
    folder = Path(files[0]).parent if is_run else None
    resolved = resolve(files, overrides, values, "shoal train --resume", folder=folder, trust=trust)
    if data is not None:
        resolved = with_data(resolved, data)
    check_resumable(resolved, resume)
    if join is not None and not resolved.config.elastic:
        raise typer.BadParameter(f"--join {join}: that run has no strategy.ps.elastic=true")
    return resolved


def _run_training(
    resolved: Resolved, resume: bool, ray: str | None = None
) -> dict[str, Any] | None:
    """Train, here or on a Ray cluster; the result, in the process that has it."""
    from shoal.runs import run
    from shoal.runs.results import NotCopied

    try:
        if ray is None:
            return run.train(resolved, resume)
        from shoal.runs.ray_cluster import train_command

        return train_command(resolved, resume, ray)
    except NotCopied as error:  # the run is finished: its table comes first
        print_result(error.result, resolved.config.run)
        raise


def _follow(
    args: list[str],
    folder: str,
    start: str | None,
    output: str | None,
    export: str | None,
    export_every: str,
    once: bool,
    trust: bool,
) -> None:
    """Run `shoal train --follow`: train on the files of a folder as they come."""
    with importing():
        from shoal.daily.follow import follow, seconds_of
        from shoal.runs import run
        from shoal.training.run_folder import start_logging

    if start is None or output is None:
        raise typer.BadParameter(
            "--follow continues from a run, into a folder: --from RUN --output FOLDER"
        )
    files, overrides = split_arguments(args)
    files, values = daily_arguments(start, output, files)
    # A file is read in one pass, without an evaluation after it: the model was tested before.
    values |= {"train.epochs": 1, "train.eval_every": 0, "start.test_first": True}
    resolved = run.resolve(
        files, overrides, values, "shoal train --follow", folder=start, trust=trust
    )
    start_logging(resolved.config.run.log_level, form=resolved.config.run.log)
    try:
        count = follow(
            resolved=resolved,
            folder=Path(folder),
            output=Path(output),
            start=str(Path(start).absolute()),
            to=Path(export) if export else None,
            export_seconds=seconds_of(export_every),
            once=once,
            trust=trust,
        )
    except shoal.Interrupted as error:
        if error.number != signal.SIGTERM:
            raise
        return typer.echo("stopped; the same command continues")
    typer.echo(f"trained on {count} files: {output}")


def launch(
    context: typer.Context,
    worker_num: Annotated[
        int | None, typer.Option("--worker_num", help="Number of workers on this host.")
    ] = None,
    server_num: Annotated[
        int | None, typer.Option("--server_num", help="Number of servers on this host.")
    ] = None,
    workers: Annotated[str | None, typer.Option(help="HOST:PORT,… of all workers.")] = None,
    servers: Annotated[str | None, typer.Option(help="HOST:PORT,… of all servers.")] = None,
    role: Annotated[
        str | None, typer.Option(help="Run only one process: worker or server.")
    ] = None,
    index: Annotated[int, typer.Option(help="With --role: index of the worker or server.")] = 0,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue the run in --output (or in the folder given)."),
    ] = False,
    output: Annotated[str | None, typer.Option(help="Folder of the run.")] = None,
    quiet: Annotated[bool, QUIET] = False,
    trust: Annotated[bool, TRUST] = False,
) -> None:
    """Train with parameter servers: `shoal launch --worker_num=2 --server_num=1 CONFIG.yaml`.

    On many hosts run the same command with --workers and --servers on each of them. PaddleRec's
    `-m CONFIG.yaml -o key=value` works too. Without servers `shoal train` starts the processes; a
    script of your own is started by `python -m shoal.launch SCRIPT`.
    """
    with importing():
        prepare_config()
        from shoal.distributed.rank_variables import is_worker
        from shoal.launch.roles import find_roles
        from shoal.runs import run
        from shoal.runs.input_data import with_data

    if is_worker():
        raise ValueError("shoal launch starts processes itself; run it without torchrun")
    files, overrides, is_run = run_arguments(context.args + only_warnings(quiet), resume, output)
    files, data = take_data(files)
    folder = Path(files[0]).parent if is_run else None
    resolved = None
    if server_num is None and workers is None and servers is None and role is None:
        # PaddleRec's gpubox is launched, and has no servers: its rows are with the workers.
        worker_options = [] if worker_num is None else [f"--launch.nproc={worker_num}"]
        local_values: dict[str, Any] = {"strategy.ps.addresses": []}  # new servers choose theirs
        resolved = run.resolve(
            files, [*overrides, *worker_options], local_values, folder=folder, trust=trust
        )
    if resolved is None or resolved.config.strategy.name != "sharded":
        roles = find_roles(worker_num, server_num, workers, servers, role, index)
        resolved = run.resolve_with_roles(files, overrides, roles, folder=folder, trust=trust)
    if data is not None:
        resolved = with_data(resolved, data)
    check_resumable(resolved, resume)
    result = _run_training(resolved, resume)
    if result:
        print_result(result, resolved.config.run)


def server(
    bind: Annotated[
        str, typer.Option(help="HOST:PORT or ipc://PATH; port 0: any.")
    ] = "127.0.0.1:0",
    index: Annotated[int, typer.Option(help="Index of this server.")] = 0,
    keys: Annotated[str | None, typer.Option(help="Folder of `shoal keys make`.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds of silence before giving up.")] = 10.0,
    threads: Annotated[int, typer.Option(help="Threads for rows.")] = 1,
    announce: Annotated[str | None, ANNOUNCE] = None,
    patience: Annotated[float, typer.Option(help="Seconds to wait for a worker.")] = math.inf,
    folder: Annotated[
        str | None, typer.Option(help="Folder of checkpoints; nothing is written elsewhere.")
    ] = None,
    plain: Annotated[bool, typer.Option(help="Listen beyond this host without keys.")] = False,
    replica: Annotated[int, typer.Option(help="Index of this server among its replicas.")] = 0,
    log: Annotated[str, typer.Option(help="Form of the log: text or json.")] = "text",
    log_level: Annotated[
        str, typer.Option(help="Level of the least important lines logged.")
    ] = "info",
    journal: Annotated[
        bool,
        typer.Option("--journal", help="Keep a journal: started again, it continues where it was."),
    ] = False,
    tiers_host: Annotated[
        str | None, typer.Option(help="Host memory for rows, such as 60GB; with --tiers-ssd.")
    ] = None,
    tiers_ssd: Annotated[
        str | None, typer.Option(help="Folder on a local disk for rows above --tiers-host.")
    ] = None,
) -> None:
    """Run one parameter server, which holds rows in training; `shoal launch` starts them all.

    A trained model answers over HTTP by `shoal serve`.
    """
    with importing():
        from shoal.config.row_rules import TiersSection
        from shoal.distributed.key_files import read_keys
        from shoal.launch.child import follow_launcher, is_launched
        from shoal.ps.server.process import run_server
        from shoal.training.run_folder import start_logging

    if is_launched():
        follow_launcher(f"server-{index}" + f"-{replica}" * bool(replica))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process gets it, and ends this one
    start_logging(log_level, form=log)
    server_keys = None if keys is None else read_keys(keys, "server")
    has_tiers = tiers_host is not None or tiers_ssd is not None
    tier_options = {"host": tiers_host, "ssd": tiers_ssd}
    tiers = TiersSection.model_validate(tier_options) if has_tiers else None
    leave(
        run_server(
            announce,
            threads,
            bind=bind,
            index=index,
            keys=server_keys,
            timeout=timeout,
            patience=patience,
            folder=folder,
            plain=plain,
            journal=journal,
            tiers=tiers,
        )
    )

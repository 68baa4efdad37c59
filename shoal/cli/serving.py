"""Commands that use a trained run: eval, export, recommend, predict, serve."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal, NoReturn

import typer

from shoal import how_to_install
from shoal.cli.arguments import ONE_PROCESS, TRUST, split_arguments
from shoal.cli.exit import print_result
from shoal.cli.startup import importing
from shoal.files.durable import written


def evaluate(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="Folder of a run.")],
    output: Annotated[str | None, typer.Option(help="Write result.json into this folder.")] = None,
    per_user: Annotated[
        str | None,
        typer.Option(help="FILE.parquet: write the list and the values of each test user."),
    ] = None,
    trust: Annotated[bool, TRUST] = False,
) -> None:
    """Evaluate a run's best checkpoint again, on any number of processes."""
    with importing():
        from shoal.distributed.rank_variables import is_first, is_worker
        from shoal.launch.child import follow_launcher
        from shoal.runs.trained_run import evaluate_run, open_config

    if is_worker():
        follow_launcher(f"rank-{os.environ['RANK']}")
    files, overrides = split_arguments(context.args)
    if files:
        raise typer.BadParameter(f"unexpected argument {files[0]}")
    resolved = open_config(run, overrides, dict(ONE_PROCESS), trust)
    section = resolved.config.launch
    if not is_worker() and (section.nproc > 1 or section.world_size > 1):
        from shoal.launch.hosts import scratch_folder
        from shoal.launch.ranks import launch

        extra = [] if output is None else ["--output", output]
        extra += [] if per_user is None else ["--per-user", per_user]
        with scratch_folder() as scratch:
            launch(["eval", run, *extra, *["--trust"] * trust, *overrides], section, scratch)
        return
    result = evaluate_run(run, resolved, output, per_user)
    if is_first():
        print_result(result, resolved.config.run)


def export(
    run: Annotated[str, typer.Argument(help="Folder of a run.")],
    to: Annotated[str, typer.Option(help="Folder of the artifact; must not be there yet.")],
    rows: Annotated[
        Literal["float32", "float16", "int8"], typer.Option(help="How rows are stored.")
    ] = "float32",
    delta: Annotated[
        str | None, typer.Option(help="Write only rows that differ from this artifact's.")
    ] = None,
    histories: Annotated[
        bool,
        typer.Option(
            help="Include what users took: answers leave it out, and histories are of it."
        ),
    ] = True,
    tolerance: Annotated[
        float | None, typer.Option(help="How far answers may differ, as a part of the largest.")
    ] = None,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Write model.onnx too, checked with onnxruntime.")
    ] = False,
    trust: Annotated[bool, TRUST] = False,
) -> None:
    """Export a run's best checkpoint as an artifact that needs neither config nor data.

    A fresh process loads it and must answer as the trained model does, or nothing is left behind.
    """
    with importing():
        from shoal.serving.artifact.export import export

    with written(to):
        checks = export(
            run,
            to,
            rows=rows,
            delta=delta,
            histories=histories,
            tolerance=tolerance,
            trust=trust,
            onnx=onnx,
        )
    typer.echo(
        f"checked in a fresh process: answers differ by at most {checks['largest_difference']:.3g} "
        f"({checks['allowed']:.3g} allowed); rows ({rows}) "
        f"by at most {checks['largest_row_error']:.3g}"
    )
    if onnx:
        largest_difference = checks["onnx_largest_difference"]
        typer.echo(f"model.onnx: onnxruntime's answers differ by at most {largest_difference:.3g}")
    typer.echo(f"artifact: {to}")


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
    # For whom, and whether this run or artifact can answer.
    many = everybody or users is not None
    if many + (user is not None) + (history is not None) != 1:
        raise ValueError("say for whom: --user ID, --history A,B,C, --all or --users FILE")
    is_run = (Path(run) / "config.yaml").is_file()
    if not is_run and not (Path(run) / "manifest.json").is_file():
        raise ValueError(
            f"{run} is neither a run's folder nor an artifact; `shoal runs` lists runs, "
            "`shoal export RUN --to DIR` makes an artifact"
        )
    filters = (exclude, only, category, seen)
    if is_run and (many or any(one is not None for one in filters)):
        typed_options: dict[str, Any] = {"user": user, "history": history, "users": users}
        typed_options |= {
            "all": everybody or None,
            "output": output,
            "topk": None if topk == 10 else topk,
        }
        typed_options |= {"exclude": exclude, "only": only, "category": category, "seen": seen}
        _refuse_options_of_artifacts(run, typed_options, trust)
    # Many users: a file with the list of each.
    if many:
        from shoal.serving.bulk import recommend_many

        if output is None:
            raise ValueError("--all needs a file to write to: --output top.parquet")
        if explain:
            raise ValueError("--explain is about one user or history: --user ID or --history A,B,C")
        if spreadsheet and not output.endswith(".csv"):
            raise ValueError(f"--spreadsheet is about csv, and --output is {output}")
        with written(output):
            count = recommend_many(
                folder=run,
                output=output,
                topk=topk,
                users=users,
                exclude=exclude,
                only=only,
                category=category,
                seen=seen,
                approximate=approximate,
                nproc=nproc,
                spreadsheet=spreadsheet,
            )
        typer.echo(f"{count} users: {output}")
        return
    # One user or history: print the list.
    from shoal.cli.ranking import print_ranking, typed_items

    opened: Any
    if is_run:
        with importing():
            import torch

            from shoal.runs.trained_run import Trained

        torch.set_num_threads(os.cpu_count() or 1)
        opened = Trained(run, trust=trust)
        words = None if history is None else typed_items(history, opened.recommender.items)
        ranking = opened.recommend(user, topk, words)
    else:
        from shoal.serving.artifact.artifact import load
        from shoal.serving.bulk import allowed_items, read_lines

        opened = load(run)
        words = None if history is None else typed_items(history, opened.recommender.items)
        banned = [] if exclude is None else read_lines(exclude)
        ranking = opened.recommend(user, words, topk, banned, allowed_items(only, category), seen)
    who = f"user {user}" if history is None else f"history {history}"
    why = None
    if explain and ranking.by == "model":
        history_items = words and [one for one in words if one not in ranking.unknown]
        why = [opened.explain(user, item, history_items) for item, _ in ranking]
    if history and "," in history and ranking.unknown and '"' not in history:
        typer.echo("an item that holds a comma is quoted: --history '\"A, b\",C'")
    print_ranking(who, ranking, opened.recommender.titles(item for item, _ in ranking), why)


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


def predict(
    artifact: Annotated[str, typer.Argument(help="Folder of an artifact.")],
    input: Annotated[str, typer.Option(help="Samples, in the format of the training data.")],
    output: Annotated[str, typer.Option(help="FILE.parquet, .csv or .jsonl")],
) -> None:
    """Predict the clicks of samples: a line for each, in their order."""
    from shoal.serving.bulk import predict_file

    with written(output):
        count = predict_file(artifact, input, output)
    typer.echo(f"{count} samples: {output}")


def serve(
    artifact: Annotated[
        str, typer.Argument(help="An artifact, or a folder of them: the last is served.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0: any.")] = 8000,
    token_file: Annotated[
        str | None, typer.Option(help="File with the bearer token to ask for (or SHOAL_TOKEN).")
    ] = None,
    tls_cert: Annotated[str | None, typer.Option(help="Certificate (PEM).")] = None,
    tls_key: Annotated[str | None, typer.Option(help="Its key (PEM).")] = None,
    plain: Annotated[
        bool, typer.Option(help="Listen beyond this host without token or TLS.")
    ] = False,
    batch: Annotated[int, typer.Option(help="Requests answered together, at most.")] = 64,
    body_bytes: Annotated[int, typer.Option(help="Bytes of a request, at most.")] = 1 << 20,
    state_bytes: Annotated[
        int, typer.Option(min=0, help="Bytes to keep of histories between requests; 0: none.")
    ] = 1 << 28,
    seconds: Annotated[
        float,
        typer.Option(help="Seconds in which a request is sent; as many in which it is answered."),
    ] = 10.0,
    refresh: Annotated[
        float, typer.Option(help="Seconds between checks for a newer artifact.")
    ] = 2.0,
    drain: Annotated[
        float, typer.Option(help="Seconds to answer new connections in after SIGTERM.")
    ] = 5.0,
    threads: Annotated[int, typer.Option(help="Threads that compute; 0: all cores.")] = 0,
    announce: Annotated[str | None, typer.Option(help="File to write the address to.")] = None,
) -> None:
    """Serve an artifact over HTTP: recommendations, scores and clicks as JSON.

    A parameter server, which holds rows in training, is started by `shoal launch`.
    """
    try:
        with importing():
            from shoal.serving.http.listening import read_token
            from shoal.serving.service.server import Limits
            from shoal.serving.service.server import serve as listen
    except ImportError as error:
        raise ValueError(f"{error}: {how_to_install('serve')}") from error
    import torch

    from shoal.training.run_folder import start_logging

    start_logging("info")
    torch.set_num_threads(1)  # batches side by side, see Api
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # until it listens; then it stops in order
    cores = threads or os.cpu_count() or 1
    limits = Limits(
        body_bytes, seconds, seconds, batch=batch, threads=cores, state_bytes=state_bytes
    )
    listen(
        artifact=artifact,
        host=host,
        port=port,
        limits=limits,
        token=read_token(token_file),
        certificate=tls_cert,
        key=tls_key,
        plain=plain,
        refresh=refresh,
        announce=announce,
        drain=drain,
    )

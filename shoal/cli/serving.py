"""Commands that use a trained run: eval, export, predict, serve (and recommend.py)."""

from __future__ import annotations

import os
import signal
from typing import Annotated, Literal

import typer

from shoal import how_to_install
from shoal.cli.arguments import (
    ANNOUNCE,
    HOST,
    ONE_PROCESS,
    PORT,
    TLS_CERT,
    TLS_KEY,
    TOKEN_FILE,
    TRUST,
    split_arguments,
)
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
    host: Annotated[str, HOST] = "127.0.0.1",
    port: Annotated[int, PORT] = 8000,
    token_file: Annotated[str | None, TOKEN_FILE] = None,
    tls_cert: Annotated[str | None, TLS_CERT] = None,
    tls_key: Annotated[str | None, TLS_KEY] = None,
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
    announce: Annotated[str | None, ANNOUNCE] = None,
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

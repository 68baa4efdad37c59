"""Commands that use a trained run: eval, export, predict, serve (and recommend.py)."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from shoal import how_to_install
from shoal.cli.arguments import (
    ANNOUNCE,
    BATCH,
    BENCH,
    BENCH_JSON,
    BENCH_P99,
    BENCH_SECONDS,
    BODY_BYTES,
    DEADLINE,
    DRAIN,
    HOST,
    ITEMS,
    ITEMS_TOKEN_FILE,
    ONE_PROCESS,
    PLAIN,
    PORT,
    PROCESSES,
    REFRESH,
    SECONDS,
    THREADS,
    TLS_CERT,
    TLS_KEY,
    TOKEN_FILE,
    TRUST,
    split_arguments,
)
from shoal.cli.exit import print_result
from shoal.cli.startup import importing
from shoal.files.durable import written

if TYPE_CHECKING:
    from shoal.serving.http.listening import ServiceReach
    from shoal.serving.processes.service_process import ServiceProcess


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
    context: typer.Context,
    artifact: Annotated[
        str,
        typer.Argument(
            help="An artifact, a folder of them (the last is served), or FILE.yaml of versions."
        ),
    ],
    host: Annotated[str, HOST] = "127.0.0.1",
    port: Annotated[int, PORT] = 8000,
    token_file: Annotated[str | None, TOKEN_FILE] = None,
    tls_cert: Annotated[str | None, TLS_CERT] = None,
    tls_key: Annotated[str | None, TLS_KEY] = None,
    plain: Annotated[bool, PLAIN] = False,
    batch: Annotated[int, BATCH] = 64,
    body_bytes: Annotated[int, BODY_BYTES] = 1 << 20,
    state_bytes: Annotated[
        int, typer.Option(min=0, help="Bytes to keep of histories between requests; 0: none.")
    ] = 1 << 28,
    seconds: Annotated[float, SECONDS] = 10.0,
    deadline: Annotated[float | None, DEADLINE] = None,
    refresh: Annotated[float, REFRESH] = 2.0,
    drain: Annotated[float, DRAIN] = 5.0,
    threads: Annotated[int, THREADS] = 0,
    processes: Annotated[int, PROCESSES] = 1,
    items: Annotated[str | None, ITEMS] = None,
    items_token_file: Annotated[str | None, ITEMS_TOKEN_FILE] = None,
    announce: Annotated[str | None, ANNOUNCE] = None,
    bench: Annotated[bool, BENCH] = False,
    bench_seconds: Annotated[float, BENCH_SECONDS] = 5.0,
    bench_p99: Annotated[float, BENCH_P99] = 50.0,
    as_json: Annotated[bool, BENCH_JSON] = False,
) -> None:
    """Serve an artifact over HTTP: recommendations, scores and clicks as JSON.

    A parameter server, which holds rows in training, is started by `shoal launch`.
    """
    from shoal.cli.bench import bench_artifact, wants_bench

    if wants_bench(context):
        return bench_artifact(context, artifact)
    if items_token_file is not None and items is None:
        raise ValueError("--items-token-file: there is no --items FOLDER; name one")
    reach, process = begin_processes(
        processes,
        items_token_file=items_token_file,
        host=host,
        port=port,
        token_file=token_file,
        certificate=tls_cert,
        key=tls_key,
        plain=plain,
        refresh=refresh,
        announce=announce,
        drain=drain,
    )
    with importing_service():
        from shoal.serving.service.api import Limits
        from shoal.serving.service.server import serve as listen
        from shoal.serving.versions.app import serve_versions
        from shoal.serving.versions.file import is_versions_file
    limits = Limits(
        body_bytes=body_bytes,
        seconds=seconds,
        answer_seconds=seconds,
        deadline=None if deadline is None else deadline / 1000,
        batch=batch,
        threads=begin_service(threads, process),
        state_bytes=state_bytes // processes,
    )
    if is_versions_file(artifact):
        serve_versions(artifact, reach, limits, process, items)
    else:
        listen(artifact, reach, limits, process, items)


def begin_processes(
    count: int, *, token_file: str | None, items_token_file: str | None = None, **places: Any
) -> tuple[ServiceReach, ServiceProcess | None]:
    """Where a service listens, and which of its processes this is; the parent of several stays
    here. None: it is the only one. places: the other arguments of `ServiceReach`.
    """
    with importing_service():
        from shoal.serving.http.listening import ServiceReach, read_token
        from shoal.serving.processes.parent import begin_processes
    items_token = read_token(items_token_file, "SHOAL_ITEMS_TOKEN", "--items-token-file")
    reach = ServiceReach(token=read_token(token_file), items_token=items_token, **places)
    return reach, begin_processes(count, reach)


@contextmanager
def importing_service() -> Iterator[None]:
    """Context of imports of a service, for which the extra `serve` is needed."""
    try:
        with importing():
            yield
    except ImportError as error:
        raise ValueError(f"{error}: {how_to_install('serve')}") from error


def begin_service(threads: int, process: ServiceProcess | None = None) -> int:
    """Prepare this process to answer requests; how many threads compute in it.

    threads: those of all processes, 0: all cores.
    """
    import torch

    from shoal.training.run_folder import start_logging

    start_logging("info")
    torch.set_num_threads(1)  # batches side by side, see BatchedApi
    threads = threads or os.cpu_count() or 1
    if process is None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # until it listens; then it stops in order
        return threads
    if process.number:  # the first one reports what all of them do
        logging.getLogger("shoal").setLevel(logging.WARNING)
    return process.share(threads)

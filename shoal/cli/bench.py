"""`--bench` of `shoal serve` and `shoal pipeline serve`: how fast a service is on this machine."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from shoal.cli.ranking import print_table
from shoal.cli.startup import importing

if TYPE_CHECKING:
    from shoal.serving.load.measurement import ServiceFigure, ServiceFigures
    from shoal.serving.pipeline.pipeline import Pipeline

# Options of where a service listens and whom it answers, or which a measurement would write to.
NOT_MEASURED = (
    "host",
    "port",
    "token_file",
    "tls_cert",
    "tls_key",
    "plain",
    "drain",
    "announce",
    "log",
    "items",
    "items_token_file",
)
OF_BENCH = ("bench", "bench_seconds", "bench_p99", "as_json")


def wants_bench(context: typer.Context) -> bool:
    """Whether a service is to be measured; options of `--bench` without it are refused."""
    if context.params["bench"]:
        return True
    for option in _typed_options(context):
        if option.name in OF_BENCH:
            raise ValueError(f"{option.opts[0]} belongs to --bench: add --bench, or leave it out")
    return False


def service_options(context: typer.Context) -> list[str]:
    """The options that were typed, for the service that is measured."""
    words = []
    for option in _typed_options(context):
        if option.name in NOT_MEASURED:
            raise ValueError(
                "--bench starts a service at loopback, which only it asks and which keeps neither "
                f"a log nor new items: leave {option.opts[0]} out"
            )
        if option.name not in OF_BENCH:
            words.append(f"{option.opts[0]}={context.params[str(option.name)]}")
    return words


def _typed_options(context: typer.Context) -> list[Any]:
    """The options of a command that were typed."""
    options = [option for option in context.command.params if option.opts[0].startswith("--")]
    sources = [context.get_parameter_source(str(option.name)) for option in options]
    return [
        option
        for option, source in zip(options, sources)
        if source is not None and source.name == "COMMANDLINE"
    ]


def bench_artifact(context: typer.Context, artifact: str) -> None:
    """Measure `shoal serve` of an artifact with its own users, histories or samples."""
    words = ["serve", artifact, *service_options(context)]
    with importing():
        from shoal.serving.artifact.artifact import Artifact
        from shoal.serving.load.questions import artifact_questions
        from shoal.serving.service.service import artifact_places
        from shoal.serving.versions.file import is_versions_file, read_versions

    if is_versions_file(artifact):  # their users are alike
        versions = read_versions(artifact)
        folder = versions.folder(next(iter(versions.shares)))
    else:
        folder = artifact_places(Path(artifact))[0]
    path, questions = artifact_questions(Artifact(folder))
    _measure(context, artifact, words, path, questions)


def bench_pipeline(
    context: typer.Context, file: str, open_pipeline: Callable[[str], Pipeline]
) -> None:
    """Measure `shoal pipeline serve` of a pipeline with users of its first source."""
    words = ["pipeline", "serve", file, *service_options(context)]
    pipeline = open_pipeline(file)
    from shoal.serving.load.questions import pipeline_questions

    path, questions = pipeline_questions(pipeline)
    _measure(context, file, words, path, questions)


def _measure(
    context: typer.Context,
    place: str,
    words: Sequence[str],
    path: str,
    questions: Sequence[Mapping[str, Any]],
) -> None:
    """Measure the service of a command, and print its figures."""
    from shoal.serving.load.measurement import measure_service

    options = context.params
    figures = measure_service(
        words, path, questions, seconds=options["bench_seconds"], p99=options["bench_p99"]
    )
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    if options["as_json"]:
        document = {"service": place, "path": path, "machine": machine, **_plain(figures)}
        typer.echo(json.dumps(document, indent=1))
        return
    _print_figures(f"{place}: POST {path}; {machine}, clients included", figures)


def _plain(figures: ServiceFigures) -> dict[str, Any]:
    """Figures as JSON has them: null for what is not known."""

    def plain(figure: ServiceFigure) -> dict[str, Any]:
        values = {"load": figure.load, **asdict(figure.result), "cpu": figure.cpu}
        return {
            name: None if isinstance(value, float) and not isfinite(value) else value
            for name, value in values.items()
        }

    highest = figures.highest
    return {
        "by_clients": [plain(figure) for figure in figures.by_clients],
        "p99_bound": figures.p99,
        "highest": None if highest is None else plain(highest),
    }


def _print_figures(title: str, figures: ServiceFigures) -> None:
    rows = []
    shown = [*figures.by_clients, *([] if figures.highest is None else [figures.highest])]
    for figure in shown:
        result = figure.result
        milliseconds = [result.p50, result.p99, nan if figure.cpu is None else figure.cpu]
        cells = [f"{value:.2f}" if isfinite(value) else "–" for value in milliseconds]
        rows.append([figure.load, f"{result.rate:,.0f}", f"{result.refusals:,}", *cells])
    heads = ["load", "answers/s", "refused", "p50, ms", "p99, ms", "CPU ms"]
    print_table(heads, rows, title)
    if figures.highest is None:
        typer.echo(
            f"no rate that was tried keeps the p99 within {figures.p99:g} ms; --bench-p99 sets "
            "another bound"
        )
    else:
        typer.echo(
            f"{figures.highest.load}, at random moments, is the highest rate found whose p99 is "
            f"within {figures.p99:g} ms (--bench-p99)"
        )

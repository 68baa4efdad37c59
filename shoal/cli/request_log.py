"""`shoal pipeline impressions` and `estimate`: what a pipeline's request log is good for."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli.pipeline import FILE, SEED, open_pipeline
from shoal.cli.ranking import print_table
from shoal.cli.startup import importing
from shoal.files.durable import replace_durably, written

if TYPE_CHECKING:
    from shoal.serving.pipeline.offpolicy import EstimateReport

LOG = typer.Argument(help="The request log: its folder, or one of its files.")
OUTCOMES = typer.Option(
    help="Table of what came of it, csv or Parquet: request, item, label. What was shown and has "
    "no row has the label 0."
)


def impressions(
    log: Annotated[str, LOG],
    outcomes: Annotated[str, OUTCOMES],
    output: Annotated[str, typer.Option(help="FILE.parquet, .csv or .jsonl")],
    clip: Annotated[
        float | None, typer.Option(min=1, help="The largest weight; by default any.")
    ] = None,
) -> None:
    """Write a request log as a table to train click models on: a row for each shown item.

    Columns: request, time, user, item, position (from 1), propensity, score, weight (1 /
    propensity; 1 where nothing was drawn), the columns of the context, and label.
    """
    with importing():
        from shoal.serving.pipeline.impressions import KNOWN_LATER, write_impressions
        from shoal.serving.pipeline.request_log import read_outcomes
        from shoal.training.run_folder import start_logging

    start_logging("info")
    with written(output):
        totals = write_impressions(log, read_outcomes(outcomes), output, clip)
    typer.echo(
        f"{totals.rows:,} impressions of {totals.requests:,} requests, {totals.positive:,} with a "
        f"label that is not 0: {output}"
    )
    if totals.is_binary:
        left_out = ",".join(KNOWN_LATER)
        typer.echo(
            f"train on it: shoal train {output} --model=DeepFM --data.fields.label=label "
            f"--data.unload.inter=[{left_out}]"
        )


def estimate(
    file: Annotated[str, FILE],
    log: Annotated[str, typer.Option(help="The request log: its folder, or one of its files.")],
    outcomes: Annotated[str, OUTCOMES],
    places: Annotated[
        int | None, typer.Option(min=1, help="Count the first so many places; by default all.")
    ] = None,
    clip: Annotated[
        float | None, typer.Option(min=1, help="The largest weight; by default any.")
    ] = None,
    draws: Annotated[
        int,
        typer.Option(
            min=1, max=100_000, help="Lists drawn per request where chances are not known exactly."
        ),
    ] = 200,
    output: Annotated[str | None, typer.Option(help="FILE.json: write all figures.")] = None,
    seed: Annotated[int | None, SEED] = None,
) -> None:
    """Estimate what a pipeline would have earned on logged requests, without showing it.

    By inverse propensity (ips), self-normalised (snips) and doubly robust (dr), each with its 95 %
    interval. The log must be of a pipeline that explores.
    """
    pipeline = open_pipeline(file, seed)
    from shoal.serving.pipeline.offpolicy import estimate, warn_known_outcomes
    from shoal.serving.pipeline.request_log import read_log, read_outcomes

    labels_of = read_outcomes(outcomes)
    requests = list(read_log(log))
    labels = [labels_of.of(request) for request in requests]
    labels_of.check()
    warn_known_outcomes(pipeline, requests, labels)
    report = estimate(pipeline, requests, labels, places, clip, draws)
    _print_report(f"{file} on {log}", report, draws)
    if output is not None:
        with written(output):
            replace_durably(Path(output), json.dumps(asdict(report), indent=1).encode())
        typer.echo(f"figures: {output}")


def _print_report(title: str, report: EstimateReport, draws: int) -> None:
    """Print estimates with their intervals, and what they rest on."""
    rows = [
        [result.name, f"{result.value:.4f}", f"{result.low:.4f} to {result.high:.4f}"]
        for result in (report.logged, *report.estimates)
    ]
    print_table(["", "value per request", "95 % interval"], rows, title)
    chances = "exact" if report.is_exact else f"shares of {draws} drawn lists"
    typer.echo(
        f"{report.supported:,} of {report.requests:,} requests count "
        f"({report.supported / report.requests:.0%}), {report.places} places; "
        f"effective sample {report.effective:,.0f} requests; covered {report.covered:.0%}; "
        f"the pipeline's chances are {chances}"
    )
    for sentence in report.warnings:
        typer.echo(sentence)

"""`shoal pipeline`: retrieval, ranking and rules as a file describes them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
    PLAIN,
    PORT,
    PROCESSES,
    REFRESH,
    SECONDS,
    THREADS,
    TLS_CERT,
    TLS_KEY,
    TOKEN_FILE,
)
from shoal.cli.ranking import print_table
from shoal.cli.startup import importing
from shoal.files.durable import replace_durably, written

if TYPE_CHECKING:
    from shoal.serving.pipeline.pipeline import Pipeline
    from shoal.serving.pipeline.question import PipelineAnswer

FILE = typer.Argument(help="The pipeline: a YAML file, or an exported folder.")
SEED = typer.Option(help="Seed of what rules draw at random.")


def check(file: Annotated[str, FILE]) -> None:
    """Open everything that a pipeline names, and print its stages and what each costs.

    Checksums of artifacts, item and user ids of all stages, attributes that rules read: the first
    thing that is wrong is an error with its line. Costs are of one question, on one core or more.
    """
    pipeline = open_pipeline(file)
    from shoal.serving.pipeline.trial import trial_question, try_stages

    question = trial_question(pipeline)
    costs = try_stages(pipeline)
    rows = []
    for cost in costs:
        spent = "–" if cost.milliseconds is None else f"{cost.milliseconds:.2f}"
        rows.append([cost.stage, cost.what, f"{cost.items:,}", spent])
    print_table(["stage", "", "items left", "ms"], rows, f"{file}, for user {question.user}")
    if pipeline.ranker is not None and pipeline.ranker.context:
        typer.echo(f"a question's context must have: {', '.join(pipeline.ranker.context)}")
    if not any(name.partition(" ")[0] == "seen" for name in pipeline.rules):
        typer.echo("no rule `seen`: items that a user took may come again")


def recommend(
    file: Annotated[str, FILE],
    user: Annotated[str | None, typer.Option(help="A user's id as the data has it.")] = None,
    history: Annotated[
        str | None,
        typer.Option(help="Items, oldest first, with commas between them; also beside --user."),
    ] = None,
    users: Annotated[str | None, typer.Option(help="For users of a file, one per line.")] = None,
    input: Annotated[
        str | None,
        typer.Option(
            help="For questions of a file of JSON lines, with the keys user, history, times, "
            "number, context, exclude and time."
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="--users, --input: FILE.parquet, .csv or .jsonl")
    ] = None,
    number: Annotated[int, typer.Option(help="How many items.")] = 10,
    context: Annotated[
        str, typer.Option(help='What the click model reads besides, as JSON: {"device": "phone"}.')
    ] = "{}",
    seed: Annotated[int | None, SEED] = None,
) -> None:
    """The best items for a user or a history, or for many questions into a file.

    Each item has its score, the sources that brought it, and how far stages moved it.
    """
    if (user is not None or history is not None) + (users is not None) + (input is not None) != 1:
        raise ValueError("say for whom: --user ID, --history A,B,C, --users FILE or --input FILE")
    is_for_many = users is not None or input is not None
    if is_for_many != (output is not None):
        raise ValueError("--users and --input write to a file, --output; others to the terminal")
    columns = _parse_context(context)
    pipeline = open_pipeline(file, seed)
    if not is_for_many:
        from shoal.cli.ranking import typed_items

        items = None if history is None else typed_items(history, pipeline.items.ids)
        answer = pipeline.recommend(user, items, number=number, context=columns)
        who = " ".join(
            f"{noun} {name}"
            for noun, name in (("user", user), ("history", history))
            if name is not None
        )
        _print_answer(pipeline, who, answer)
        return
    from shoal.serving.pipeline.many_questions import (
        questions_of_users,
        read_questions,
        write_answers,
    )

    if users is not None:
        questions = questions_of_users(users, number, columns)
    else:
        questions = read_questions(str(input), number, columns)
    with written(str(output)):
        answered = write_answers(pipeline, questions, str(output))
    typer.echo(f"{answered.questions} questions: {output}")
    if empty := answered.without_items:
        numbers = ", ".join(map(str, empty[:5])) + ", ..." * (len(empty) > 5)
        typer.echo(
            f"{len(empty)} of them got no items, and have no row: {numbers} (their users or "
            "histories are not known, or rules leave nothing; a fallback fills such lists)"
        )
    for stage, times in pipeline.fallbacks.items():
        typer.echo(f"fallback in place of {stage}: {times} questions")


def evaluate(
    file: Annotated[str, FILE],
    test: Annotated[
        str,
        typer.Option(help="Table of what users took after the artifacts' data: csv or Parquet."),
    ],
    user: Annotated[
        str | None, typer.Option(help="Its column of users; by default that of the first source.")
    ] = None,
    item: Annotated[
        str | None, typer.Option(help="Its column of items; by default that of the first source.")
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(help="Its column that is 0 in rows of what was not taken; they are left out."),
    ] = None,
    topk: Annotated[int, typer.Option(min=1, max=1000, help="How many items a list has.")] = 10,
    output: Annotated[
        str | None, typer.Option(help="FILE.json: write the metrics of every stage.")
    ] = None,
    seed: Annotated[int | None, SEED] = None,
) -> None:
    """Measure what retrieval finds, what the ranker gains, and what each rule costs."""
    pipeline = open_pipeline(file, seed)
    from shoal.serving.pipeline.evaluation import evaluate, read_test

    questions = read_test(pipeline, test, user=user, item=item, label=label)
    stages = evaluate(pipeline, questions, topk)
    heads = list(stages[0].metrics)
    rows = []
    for stage in stages:
        figures = [f"{stage.metrics[name]:.4f}" for name in heads[:-1]]
        rows.append([stage.stage, *figures, f"{stage.metrics[heads[-1]]:.1f}"])
    print_table(["behind", *heads], rows, f"{file}, {len(questions):,} questions of {test}")
    if output is not None:
        document = {
            "pipeline": file,
            "test": test,
            "questions": len(questions),
            "stages": [{"stage": stage.stage, **stage.metrics} for stage in stages],
        }
        with written(output):
            replace_durably(Path(output), json.dumps(document, indent=1).encode())
        typer.echo(f"metrics: {output}")


def export(
    file: Annotated[str, FILE],
    output: Annotated[str, typer.Option(help="A folder that is not there yet.")],
) -> None:
    """Write a pipeline, its artifacts and its table into one folder, with checksums.

    `shoal pipeline` check, recommend, eval and serve take that folder in place of a file.
    """
    with importing():
        from shoal.serving.pipeline.export import export_pipeline
        from shoal.training.run_folder import start_logging

    start_logging("info")
    with written(output):
        folder = export_pipeline(file, output)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    typer.echo(f"pipeline: {folder} ({size / 1e6:,.1f} MB)")


def serve(
    context: typer.Context,
    file: Annotated[str, FILE],
    host: Annotated[str, HOST] = "127.0.0.1",
    port: Annotated[int, PORT] = 8000,
    token_file: Annotated[str | None, TOKEN_FILE] = None,
    tls_cert: Annotated[str | None, TLS_CERT] = None,
    tls_key: Annotated[str | None, TLS_KEY] = None,
    plain: Annotated[bool, PLAIN] = False,
    batch: Annotated[int, BATCH] = 64,
    body_bytes: Annotated[int, BODY_BYTES] = 1 << 20,
    seconds: Annotated[float, SECONDS] = 10.0,
    deadline: Annotated[float | None, DEADLINE] = None,
    refresh: Annotated[float, REFRESH] = 2.0,
    drain: Annotated[float, DRAIN] = 5.0,
    threads: Annotated[int, THREADS] = 0,
    processes: Annotated[int, PROCESSES] = 1,
    log: Annotated[
        str | None, typer.Option(help="Folder for the request log: a line for each answer.")
    ] = None,
    seed: Annotated[int | None, SEED] = None,
    announce: Annotated[str | None, ANNOUNCE] = None,
    bench: Annotated[bool, BENCH] = False,
    bench_seconds: Annotated[float, BENCH_SECONDS] = 5.0,
    bench_p99: Annotated[float, BENCH_P99] = 50.0,
    as_json: Annotated[bool, BENCH_JSON] = False,
) -> None:
    """Serve a pipeline over HTTP, with a page that shows where each item came from."""
    from shoal.cli.bench import bench_pipeline, wants_bench

    if wants_bench(context):
        return bench_pipeline(context, file, open_pipeline)
    from shoal.cli.serving import begin_processes, begin_service, importing_service

    reach, process = begin_processes(
        processes,
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
        from shoal.serving.pipeline_service.app import serve_pipeline
        from shoal.serving.service.api import Limits
    limits = Limits(
        body_bytes=body_bytes,
        seconds=seconds,
        answer_seconds=seconds,
        deadline=None if deadline is None else deadline / 1000,
        batch=batch,
        threads=begin_service(threads, process),
    )
    serve_pipeline(file, reach, limits, seed, log, process)


def open_pipeline(file: str, seed: int | None = None) -> Pipeline:
    """The pipeline of a file, on all cores, whose stages may take their time."""
    with importing():
        import torch

        from shoal.serving.pipeline.pipeline import Pipeline
        from shoal.training.run_folder import start_logging

    start_logging("info")
    torch.set_num_threads(os.cpu_count() or 1)
    return Pipeline(file, seed, limits=False)


def _parse_context(text: str) -> dict[str, Any]:
    """The columns of --context."""
    try:
        context = json.loads(text)
    except ValueError as error:
        raise ValueError(f"--context {text!r} is no JSON: {error}") from None
    if not isinstance(context, dict):
        raise ValueError(f'--context {text!r} must be an object such as {{"device": "phone"}}')
    return context


def _print_answer(pipeline: Pipeline, who: str, answer: PipelineAnswer) -> None:
    """Print an answer: titles where items have them, and what brought and moved each item."""
    titles: dict[Any, str] = {}
    for source in pipeline.sources.values():
        titles |= source.artifact.recommender.titles(shown.item for shown in answer)
    is_explored = any(shown.propensity is not None for shown in answer)
    heads = ["rank", "item", *["title"] * bool(titles), "score", "from", "moved"]
    rows = []
    for rank, shown in enumerate(answer, start=1):
        row = [str(rank), shown.item, *([titles.get(shown.item, "")] if titles else [])]
        row.append("–" if shown.score is None else f"{shown.score:.4f}")
        row.append(", ".join(shown.sources) or "–")
        row.append(", ".join(f"{stage} {places:+d}" for stage, places in shown.moved.items()))
        row += [f"{shown.propensity:.4f}" if shown.propensity is not None else "–"] * is_explored
        rows.append(row)
    print_table([*heads, *["propensity"] * is_explored], rows, f"for {who}")
    if answer.unknown:
        typer.echo(f"sources that do not know who asks: {', '.join(answer.unknown)}")
    if answer.fallbacks:
        typer.echo(f"the fallback took the place of: {', '.join(answer.fallbacks)}")

"""Many questions from a file, and their answers into another.

question, user, rank, item, score, sources, moved, propensity     a row for each shown item
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError
from pydantic_core import from_json

from shoal.config.data_section import seconds_of
from shoal.config.errors import did_you_mean
from shoal.data.bounded_files import check_line, open_text
from shoal.serving.bulk import parts_of, read_lines
from shoal.serving.pipeline.pipeline import Pipeline
from shoal.serving.pipeline.question import PipelineAnswer, PipelineQuestion
from shoal.serving.pipeline.rule import PipelineSection

BLOCK = 256  # questions that pass the stages together
Name = str | int | float


class QuestionEntry(PipelineSection):
    """A question as a line of a file has it; PipelineQuestion says what its keys mean."""

    user: Name | None = None
    history: list[Name] | None = None
    times: list[int] | None = None
    number: int | None = None
    context: dict[str, Any] | None = None
    exclude: list[Name] | None = None
    time: float | str | None = None


def questions_of_users(
    file: str | Path, number: int, context: Mapping[str, Any]
) -> Iterator[PipelineQuestion]:
    """A question for each user of a file, one in a line."""
    for user in read_lines(file):
        yield PipelineQuestion(user, number=number, context=dict(context))


def read_questions(
    file: str | Path, number: int, context: Mapping[str, Any]
) -> Iterator[PipelineQuestion]:
    """The questions of a file of JSON lines; number and context stand in for what a line lacks."""
    path = Path(file)
    if not path.is_file():
        raise ValueError(f"--input: there is no file {file}")
    with open_text(path) as lines:
        for line_number, line in enumerate(lines, start=1):
            check_line(path, len(line))
            if line.strip():
                yield _question(f"{path}:{line_number}", line, number, context)


def _question(place: str, line: bytes, number: int, context: Mapping[str, Any]) -> PipelineQuestion:
    try:
        value = from_json(line)
    except ValueError as error:
        raise ValueError(f"{place}: this is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f'{place}: a question is an object such as {{"user": "7"}}')
    for key in value:
        if key not in QuestionEntry.model_fields:
            names = ", ".join(QuestionEntry.model_fields)
            hint = did_you_mean(key, QuestionEntry.model_fields)
            raise ValueError(f"{place}: unknown key {key[:80]!r}; the keys are: {names}{hint}")
    try:
        entry = QuestionEntry.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise ValueError(f"{place}: {first['loc'][0]}: {first['msg']}") from None
    question = PipelineQuestion(
        user=entry.user,
        history=entry.history,
        times=entry.times,
        number=number if entry.number is None else entry.number,
        context={**context, **(entry.context or {})},
        exclude=entry.exclude or (),
    )
    try:
        if entry.time is not None:
            question = replace(question, time=seconds_of(entry.time))
        question.check()
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None
    return question


@dataclass(frozen=True)
class WrittenAnswers:
    """How many questions there were, and the numbers of those that got no item."""

    questions: int
    without_items: list[int]


def write_answers(
    pipeline: Pipeline, questions: Iterable[PipelineQuestion], output: str | Path
) -> WrittenAnswers:
    """Write the answers of questions, numbered from 1, to a file."""
    count, without_items = 0, list[int]()
    source = iter(questions)
    with parts_of(output) as write:
        while block := list(islice(source, BLOCK)):
            answers = pipeline.answer(block)
            write(_columns(block, answers, first=count + 1, kind=pipeline.items.ids.kind))
            numbered = enumerate(answers, start=count + 1)
            without_items += [number for number, answer in numbered if not len(answer)]
            count += len(block)
    return WrittenAnswers(count, without_items)


def _columns(
    questions: list[PipelineQuestion], answers: list[PipelineAnswer], first: int, kind: type
) -> dict[str, Any]:
    """The answers of a block of questions as columns."""
    import polars as pl

    lengths = [len(answer) for answer in answers]
    users = [None if question.user is None else str(question.user) for question in questions]
    shown = [item for answer in answers for item in answer]
    ranks = [np.arange(1, length + 1, dtype=np.int32) for length in lengths]
    types: dict[type, Any] = {int: pl.Int64, float: pl.Float64, str: pl.String}
    return {
        "question": np.repeat(np.arange(first, first + len(questions)), lengths),
        "user": pl.Series(users, dtype=pl.String).gather(np.repeat(np.arange(len(users)), lengths)),
        "rank": np.concatenate(ranks),
        "item": pl.Series([item.item for item in shown], dtype=types[kind]),
        "score": pl.Series([item.score for item in shown], dtype=pl.Float64),
        "sources": pl.Series([", ".join(item.sources) for item in shown], dtype=pl.String),
        "moved": pl.Series([json.dumps(item.moved) for item in shown], dtype=pl.String),
        "propensity": pl.Series([item.propensity for item in shown], dtype=pl.Float64),
    }

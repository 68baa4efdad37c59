"""Request logs of the shop: what a pipeline shows, and labels whose chances are known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from shop_pipeline import category, likes

from shoal.serving.pipeline.pipeline import Pipeline
from shoal.serving.pipeline.question import PipelineAnswer, PipelineQuestion
from shoal.serving.pipeline.request_log import LoggedRequest

TIME = 1_763_571_234.0


def chance(user: str, item: str, place: int) -> float:
    """The chance of a label of 1 at a place (0 is the first): of liked items three times as high,
    and less at every place."""
    number = int(item[1:])
    return (0.2 + 0.4 * (category(item) in likes(user)) + 0.005 * number) / (1 + 0.5 * place)


def log_entry(
    number: int, question: PipelineQuestion, answer: PipelineAnswer, with_places: bool = True
) -> dict:
    """A line of the log for an answer."""
    entry = {
        "request": f"{number:032x}",
        "time": TIME + number,
        "pipeline": "0123456789ab",
        "user": question.user,
        "history": question.history,
        "context": dict(question.context),
        "items": [shown.item for shown in answer],
        "scores": [shown.score for shown in answer],
        "propensity": [shown.propensity for shown in answer],
        "sources": [list(shown.sources) for shown in answer],
        "fallbacks": list(answer.fallbacks),
    }
    if with_places:
        entry["place_propensity"] = [shown.place_propensity for shown in answer]
    return entry


def write_log(
    folder: Path, pipeline: Pipeline, questions: Sequence[PipelineQuestion], seed: int
) -> Path:
    """A folder with the log of these questions, and outcomes.csv beside it."""
    random = np.random.default_rng(seed)
    folder.mkdir()
    lines, outcomes = [], []
    for number, (question, answer) in enumerate(zip(questions, pipeline.answer(questions))):
        entry = log_entry(number, question, answer)
        lines.append(json.dumps(entry))
        for place, item in enumerate(entry["items"]):
            if random.random() < chance(question.user, item, place):
                outcomes.append((entry["request"], item, 1.0))
    half = len(lines) // 2
    (folder / "requests-20261119-120000-1.jsonl").write_text("\n".join(lines[:half]) + "\n")
    (folder / "requests-20261119-130000-1.jsonl").write_text("\n".join(lines[half:]) + "\n")
    frame = pl.DataFrame(outcomes, schema=["request", "item", "label"], orient="row")
    frame.write_csv(folder / "outcomes.csv")
    return folder


def drawn_log(
    pipeline: Pipeline, users: Sequence[str], number: int, random: np.random.Generator
) -> tuple[list[LoggedRequest], list[np.ndarray]]:
    """A log as it would be read, and its labels."""
    questions = [PipelineQuestion(user, number=number, time=TIME) for user in users]
    requests, labels = [], []
    for n, (user, answer) in enumerate(zip(users, pipeline.answer(questions))):
        items = [shown.item for shown in answer]
        chances = np.array([chance(user, item, place) for place, item in enumerate(items)])
        requests.append(
            LoggedRequest(
                request=str(n),
                time=TIME,
                pipeline="",
                user=user,
                history=None,
                context={},
                items=items,
                scores=np.array([shown.score for shown in answer]),
                propensity=np.array([shown.propensity for shown in answer], np.float64),
                place_propensity=np.array([shown.place_propensity for shown in answer], np.float64),
            )
        )
        labels.append((random.random(len(items)) < chances).astype(np.float64))
    return requests, labels

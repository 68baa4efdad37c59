"""Questions to a pipeline over HTTP, bounded, and how many of them are answered together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any
from uuid import uuid4

import numpy as np
from pydantic import Field, model_validator

from shoal.serving.pipeline.log_writer import RequestLog
from shoal.serving.pipeline.pipeline import Pipeline
from shoal.serving.pipeline.question import (
    MOST_CONTEXT,
    MOST_LISTED,
    MOST_NUMBER,
    PipelineAnswer,
    PipelineQuestion,
)
from shoal.serving.service.questions import Cell, Question, Word

MOST_TOGETHER = 64  # questions of one request
Items = Annotated[list[Word], Field(max_length=MOST_LISTED)]


class RecommendByPipeline(Question):
    """The best items for a user, for a history, or for a user with a newer history."""

    user: Word | None = Field(None, description="a user's id as the data has it")
    history: Items | None = Field(None, description="items, oldest first")
    times: Annotated[list[int], Field(max_length=MOST_LISTED + 1)] | None = Field(
        None, description="when they were taken, in seconds since 1970"
    )
    number: int = Field(10, ge=1, le=MOST_NUMBER, description="how many items")
    context: Annotated[dict[Word, Cell], Field(max_length=MOST_CONTEXT)] = Field(
        default_factory=dict, description="columns that the click model reads besides"
    )
    exclude: Items = Field(default_factory=list, description="items that may not come")
    time: float | None = Field(
        None,
        ge=0,
        le=1e12,
        allow_inf_nan=False,
        description="when it is asked, in seconds since 1970; now by default",
    )
    captions: bool = Field(False, description="titles and pictures too, where items have them")

    @model_validator(mode="after")
    def _has_asker(self) -> RecommendByPipeline:
        if self.user is None and self.history is None:
            raise ValueError("give a user, a history, or both")
        return self

    def question(self) -> PipelineQuestion:
        """The question as a pipeline takes it."""
        return PipelineQuestion(
            user=self.user,
            history=self.history,
            times=self.times,
            number=self.number,
            context=self.context,
            exclude=self.exclude,
            time=self.time,
        )


class RecommendManyByPipeline(Question):
    """Several questions, answered in one pass of each stage."""

    questions: Annotated[list[RecommendByPipeline], Field(min_length=1, max_length=MOST_TOGETHER)]


QUESTIONS: dict[str, type[Question]] = {
    "recommend": RecommendByPipeline,
    "recommend_many": RecommendManyByPipeline,
}


class PipelineAnswers:
    """Answers batches of requests by a pipeline, and logs them. log: None, there is none."""

    def __init__(self, log: RequestLog | None = None):
        self.log = log

    def __call__(self, pipeline: Pipeline, kind: str, requests: Sequence[Any]) -> list[Any]:
        """The answers of requests of one kind, or what is wrong with each."""
        is_many = kind == "recommend_many"
        parts = [request.questions if is_many else [request] for request in requests]
        errors = [_error(pipeline, part) for part in parts]
        sound = [part for part, error in zip(parts, errors) if error is None]
        lists = iter(self._answers(pipeline, [question for part in sound for question in part]))
        answers: list[Any] = []
        for part, error in zip(parts, errors):
            if error is not None:
                answers.append(error)
                continue
            named = [next(lists) for _ in part]
            answers.append({"answers": named} if is_many else named[0])
        return answers

    def _answers(
        self, pipeline: Pipeline, requests: Sequence[RecommendByPipeline]
    ) -> list[dict[str, Any]]:
        """Each of these questions answered, in one pass."""
        questions = [request.question() for request in requests]
        answers = pipeline.answer(questions)
        ids = [uuid4().hex for _ in requests]
        if self.log is not None:
            self.log.add(pipeline.version, ids, questions, answers)
        return [
            _listed(pipeline, answer, number, request.captions)
            for answer, number, request in zip(answers, ids, requests)
        ]


def _error(pipeline: Pipeline, requests: Sequence[RecommendByPipeline]) -> ValueError | None:
    """What is wrong with these questions to this pipeline."""
    try:
        for request in requests:
            pipeline.check(request.question())
    except ValueError as error:
        return error
    return None


def _listed(
    pipeline: Pipeline, answer: PipelineAnswer, request: str, captions: bool
) -> dict[str, Any]:
    items = [
        {
            "item": shown.item,
            "score": shown.score,
            "sources": list(shown.sources),
            "moved": dict(shown.moved),
            "propensity": shown.propensity,
        }
        for shown in answer
    ]
    if captions:
        for item in items:
            item |= caption(pipeline, item["item"])
    return {
        "items": items,
        "unknown": list(answer.unknown),
        "fallbacks": list(answer.fallbacks),
        "request": request,
        "pipeline": pipeline.version,
    }


def caption(pipeline: Pipeline, item: Any) -> dict[str, str]:
    """`title` and `picture` of an item, where a source has them."""
    texts: dict[str, str] = {}
    for source in pipeline.sources.values():
        texts = {**source.artifact.recommender.caption(item), **texts}
    return texts


def examples(pipeline: Pipeline) -> dict[str, Any]:
    """What a pipeline can be asked, with some of its own users and items."""
    first = next(iter(pipeline.sources.values())).artifact
    users = np.unique(np.linspace(1, len(first.users) - 1, 5).astype(np.int64))
    popular = first.items.values[first.recommender.popular(5)[0]].tolist()
    return {
        "users": first.users.values[users].tolist() if len(first.users) > 1 else [],
        "items": [{"item": item, **caption(pipeline, item)} for item in popular],
        "reads_histories": any(s.artifact.reads_histories for s in pipeline.sources.values()),
        "context": [] if pipeline.ranker is None else pipeline.ranker.context,
        "stages": pipeline.stages,
    }

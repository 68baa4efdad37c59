"""Questions: the bodies of requests, bounded, and how a model answers many of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SkipValidation,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import from_json

from shoal.clicks.encoder import check_names, together
from shoal.config.errors import did_you_mean
from shoal.data.batch import Batch
from shoal.recommender.ranked_items import RankedItems
from shoal.recommender.recommender import RankingQuestion
from shoal.serving.artifact.artifact import Artifact

MOST_ITEMS = 10_000  # in a list of a request
MOST_VALUES = 1_000  # of a sample that is explained, which is predicted some hundred times
MOST_CELLS = 1 << 20  # samples x columns of a request; as many are predicted at a time
Word = Annotated[str, Field(min_length=1, max_length=512)]
Words = Annotated[list[Word], Field(max_length=MOST_ITEMS)]


class Question(BaseModel):
    """Base: unknown keys are refused; numbers stand for ids as text."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)


# Beside several versions of a model (serving/versions), what decides which of them answers.
Key = Annotated[
    Word | None,
    Field(description="what keeps a client at one version, such as a session; the user by default"),
]


class Who(Question):
    """A user that the model knows, or a history, oldest first."""

    # Fields of which a request has exactly one.
    alternatives: ClassVar[tuple[str, ...]] = ("user", "history")

    user: Word | None = Field(None, description="a user's id as the data has it")
    history: Words | None = Field(None, description="items, oldest first")
    times: Annotated[list[int], Field(max_length=MOST_ITEMS + 1)] | None = Field(
        None, description="when they were taken, in seconds, for models that read it"
    )
    key: Key = None

    @model_validator(mode="after")
    def _has_one_alternative(self) -> Who:
        if sum(getattr(self, name) is not None for name in self.alternatives) != 1:
            raise ValueError(f"give {' or '.join(self.alternatives)}, one of them")
        return self


class Recommend(Who):
    """The best items, of a user, of several users or for a history."""

    alternatives: ClassVar[tuple[str, ...]] = ("user", "users", "history")
    users: Annotated[list[Word], Field(min_length=1, max_length=1_000)] | None = Field(
        None, description="several users, answered in one pass"
    )

    topk: int = Field(10, ge=1, le=1_000)
    exclude: Words = Field(default_factory=list, description="items that may not come")
    only: Words | None = Field(None, description="items that alone may come")
    seen: bool | None = Field(None, description="whether items taken before may come again")
    captions: bool = Field(False, description="titles and pictures too, where items have them")


class Score(Who):
    """Scores of items."""

    items: Annotated[list[Word], Field(min_length=1, max_length=MOST_ITEMS)]


class Similar(Question):
    """Items whose vectors point the same way."""

    item: Word
    topk: int = Field(10, ge=1, le=1_000)
    captions: bool = Field(False, description="titles and pictures too, where items have them")
    key: Key = None


One = int | float | Annotated[str, Field(max_length=1 << 16)] | None
Cell = One | Annotated[list[One], Field(max_length=1_000)]
SAMPLE = TypeAdapter(dict[str, Cell], config=ConfigDict(strict=True))


class Predict(Question):
    """Clicks of samples: columns as the training data had them; a cell may hold a list."""

    samples: Annotated[  # values are checked sample by sample, until one is wrong
        list[dict[str, SkipValidation[Cell]]], Field(min_length=1, max_length=10_000)
    ]
    key: Key = None


class Explain(Who):
    """Why an item has its score: shares of what was taken. Of click models, those of a sample."""

    alternatives: ClassVar[tuple[str, ...]] = ("user", "history", "sample")
    item: Word | None = Field(None, description="the item, beside a user or a history")
    sample: dict[str, SkipValidation[Cell]] | None = Field(
        None, description="columns as the training data had them, of click models"
    )

    @model_validator(mode="after")
    def _with_item(self) -> Explain:
        if (self.item is None) == (self.sample is None):
            raise ValueError("give an item beside a user or a history, or a sample alone")
        return self


def parse(question: type[Question], body: bytes) -> Question:
    """The question in a body; ValueError names the first thing that is wrong with it."""
    try:
        value = from_json(body)
    except ValueError as error:
        raise ValueError(f"this is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("send a JSON object")
    fields = FIELDS.get(question) or question.model_fields
    unknown = next((key for key in value if key not in fields), None)
    if unknown is not None:  # pydantic would list them all
        hint = did_you_mean(unknown[:80], fields)
        raise ValueError(f"unknown key {unknown[:80]!r}; allowed: {', '.join(fields)}{hint}")
    try:
        return question.model_validate(value)
    except ValidationError as error:
        raise ValueError(_first_of(error)) from None


def _first_of(error: ValidationError, *place: object) -> str:
    """One sentence about the first thing that is wrong."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(map(str, (*place, *first["loc"])))[:200]
    return f"{where}: {first['msg']}" if where else first["msg"]


def answer_batch(model: Artifact, kind: str, questions: Sequence[Any]) -> list[Any]:
    """The answers of questions of one kind, or what is wrong with each, all by the same model."""
    answers = ANSWERS[kind](model, questions)
    name = model.folder.name
    return [
        answer if isinstance(answer, Exception) else {**answer, "artifact": name}
        for answer in answers
    ]


def answer_recommend(model: Artifact, questions: Sequence[Recommend]) -> list[Any]:
    """Answers of /v1/recommend; questions about the whole catalogue are ranked together."""
    whose = [[one.user] if one.users is None else one.users for one in questions]
    flat = [
        RankingQuestion(
            user,
            history=question.history,
            times=question.times,
            topk=question.topk,
            exclude=question.exclude,
            only=question.only,
            seen=question.seen,
        )
        for question, users in zip(questions, whose)
        for user in users
    ]
    rankings = iter(model.recommender.answer(flat))
    answers: list[Any] = []
    for question, users in zip(questions, whose):
        if question.users is None:
            answers.append(_listed(model, next(rankings), question.captions))
        else:
            lists = [
                {"user": user, **_listed(model, next(rankings), question.captions)}
                for user in users
            ]
            answers.append({"users": lists})
    return answers


def _listed(model: Artifact, ranking: RankedItems, captions: bool) -> dict[str, Any]:
    items = [{"item": item, "score": score} for item, score in ranking]
    if captions:
        items = [{**one, **model.recommender.caption(one["item"])} for one in items]
    return {"items": items, "by": ranking.by, "unknown": list(ranking.unknown)}


def answer_score(model: Artifact, questions: Sequence[Score]) -> list[Any]:
    """Answers of /v1/score."""
    answers = []
    for question in questions:
        asker = RankingQuestion(question.user, question.history, question.times)
        answers.append({"scores": model.recommender.score(asker, question.items)})
    return answers


def answer_similar(model: Artifact, questions: Sequence[Similar]) -> list[Any]:
    """Answers of /v1/similar."""
    return [
        _listed(model, model.similar_items(question.item, question.topk), question.captions)
        for question in questions
    ]


def answer_explain(model: Artifact, questions: Sequence[Explain]) -> list[Any]:
    """Answers of /v1/explain: shares, the largest first."""
    answers: list[Any] = []
    for question in questions:
        if question.sample is not None:
            _samples(model, [question.sample])  # refuses what is no sample
            cells = question.sample.values()
            if sum(len(v) if isinstance(v, list) else 1 for v in cells) > MOST_VALUES:
                raise ValueError(f"a sample of more than {MOST_VALUES} values is not explained")
            explanation = model.predictor.explain(question.sample)
        else:
            explanation = model.explain(
                question.user, question.item, question.history, question.times
            )
        word = "item" if explanation.of == "items" else "feature"
        titles = {what: {"title": title} for what, title in explanation.titles.items()}
        shares = [{word: what, "share": x, **titles.get(what, {})} for what, x in explanation]
        answers.append(
            {
                "shares": shares,
                "score": explanation.score,
                "rest": explanation.rest,
                "rest_is": explanation.rest_is,
                "error": explanation.error,
            }
        )
    return answers


def examples(model: Artifact) -> dict[str, Any]:
    """The kinds of questions for this model, with some of its own users and items."""
    if model.kind == "clicks":
        return {"asks": ["predict", "explain"], "sample": _empty(model)}
    if model.kind == "module":
        return {"asks": []}
    asks = ["recommend", *["similar"] * (model.kind == "retrieval")]
    asks += ["explain"] * (model.signature.get("explained_by") is not None)
    count = len(model.users) - 1
    places = np.unique(np.linspace(1, count, min(count, 5)).astype(np.int64))
    try:
        model.seen(places)
    except ValueError:  # exported without what users took
        places = places[:0]
    popular = model.items.values[model.recommender.popular(5)[0]].tolist()
    return {
        "asks": asks,
        "users": model.users.values[places].tolist(),
        "items": [{"item": one, **model.recommender.caption(one)} for one in popular],
        "reads_histories": model.reads_histories,
    }


def _empty(model: Artifact) -> dict[str, Any]:
    """The columns of a sample, with the first known user and item, the other cells empty."""
    ids_by_column = getattr(model.encoder, "ids", {})
    return {
        name: ids_by_column[name].values[1]
        if name in ids_by_column and len(ids_by_column[name]) > 1
        else None
        for name in model.encoder.columns
    }


def answer_predict(model: Artifact, questions: Sequence[Predict]) -> list[Any]:
    """Answers of /v1/predict; samples of all requests are predicted together."""
    answers: list[Any] = [None] * len(questions)
    parts: dict[int, Batch] = {}
    for number, question in enumerate(questions):
        try:
            parts[number] = _samples(model, question.samples)
        except ValueError as error:
            answers[number] = error
        samples = sum(batch.size for batch in parts.values())
        many = bool(parts) and samples * model.encoder.width > MOST_CELLS
        if parts and (many or number + 1 == len(questions)):
            chances = iter(model.predictor.predict_batch(together(list(parts.values()))).tolist())
            for place, batch in parts.items():
                answers[place] = {"clicks": [next(chances) for _ in range(batch.size)]}
            parts = {}
    return answers


def _samples(model: Artifact, samples: Sequence[dict[str, Any]]) -> Batch:
    """Raw samples, encoded."""
    if model.kind != "clicks":
        raise ValueError(f"{model.model} ranks items: it predicts no clicks; ask /v1/recommend")
    encoder = model.encoder
    most = max(1, MOST_CELLS // max(1, encoder.width))
    if len(samples) > most:
        raise ValueError(f"a request has at most {most} samples of {encoder.width} columns")
    check_names(samples, encoder.columns)
    for number, raw in enumerate(samples):
        try:
            SAMPLE.validate_python(raw)
        except ValidationError as error:
            raise ValueError(_first_of(error, "samples", number)) from None
    return encoder.batch(encoder.frame(samples))


QUESTIONS: dict[str, type[Question]] = {
    "recommend": Recommend,
    "score": Score,
    "similar": Similar,
    "predict": Predict,
    "explain": Explain,
}
FIELDS = {question: question.model_fields for question in QUESTIONS.values()}
ANSWERS: dict[str, Callable[[Artifact, Sequence[Any]], list[Any]]] = {
    "recommend": answer_recommend,
    "score": answer_score,
    "similar": answer_similar,
    "predict": answer_predict,
    "explain": answer_explain,
}

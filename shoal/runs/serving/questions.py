"""What may be asked: the bodies of requests, bounded, and how a model answers many of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

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

from shoal.config.errors import did_you_mean
from shoal.data.batch import Batch
from shoal.data.clicks.encoder import check_names, together
from shoal.runs.artifact.loaded import Artifact
from shoal.runs.ranked import RankedItems
from shoal.runs.recommender import Wanted

MOST_ITEMS = 10_000  # in a list of a request
MOST_VALUES = 1_000  # of a sample that is explained, which is predicted some hundred times
MOST_CELLS = 1 << 20  # samples x columns of a request; as many are predicted at a time
Word = Annotated[str, Field(min_length=1, max_length=512)]
Words = Annotated[list[Word], Field(max_length=MOST_ITEMS)]


class Question(BaseModel):
    """Base: unknown keys are refused; numbers stand for ids as text."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)


class Who(Question):
    """A user that the model knows, or a history, oldest first."""

    user: Word | None = Field(None, description="a user's id as the data has it")
    history: Words | None = Field(None, description="items, oldest first")
    times: Annotated[list[int], Field(max_length=MOST_ITEMS + 1)] | None = Field(
        None, description="when they were taken, in seconds, for models that read it"
    )

    @model_validator(mode="after")
    def _one_of_them(self) -> Who:
        every = ("user", "users", "history", "sample")
        named = [name for name in every if name in type(self).model_fields]
        if sum(getattr(self, name) is not None for name in named) != 1:
            raise ValueError(f"give {' or '.join(named)}, one of them")
        return self


class Recommend(Who):
    """The best items, of a user, of several users or for a history."""

    users: Annotated[list[Word], Field(min_length=1, max_length=1_000)] | None = Field(
        None, description="several users, answered in one pass"
    )

    topk: int = Field(10, ge=1, le=1_000)
    exclude: Words = Field([], description="items that may not come")
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


One = int | float | Annotated[str, Field(max_length=1 << 16)] | None
Cell = One | Annotated[list[One], Field(max_length=1_000)]
SAMPLE = TypeAdapter(dict[str, Cell], config=ConfigDict(strict=True))


class Predict(Question):
    """Clicks of samples: columns as the training data had them; a cell may hold a list."""

    samples: Annotated[  # values are checked sample by sample, until one is wrong
        list[dict[str, SkipValidation[Cell]]], Field(min_length=1, max_length=10_000)
    ]


class Explain(Who):
    """Why an item has its score: shares of what was taken. Of click models, those of a sample."""

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
    """What a body asks; ValueError about the first thing that is wrong, whatever else is."""
    try:
        value = from_json(body)
    except ValueError as error:
        raise ValueError(f"this is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("send a JSON object")
    known = question.model_fields
    unknown = next((key for key in value if key not in known), None)
    if unknown is not None:  # pydantic would list them all
        hint = did_you_mean(unknown[:80], known)
        raise ValueError(f"unknown key {unknown[:80]!r}; allowed: {', '.join(known)}{hint}")
    try:
        return question.model_validate(value)
    except ValidationError as error:
        raise ValueError(_first_of(error)) from None


def _first_of(error: ValidationError, *place: object) -> str:
    """One sentence about the first thing that is wrong."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(map(str, (*place, *first["loc"])))[:200]
    return f"{where}: {first['msg']}" if where else first["msg"]


def answer_recommend(model: Artifact, asked: Sequence[Recommend]) -> list[Any]:
    """The items of each; all that ask for the whole catalogue are ranked together."""
    whose = [[one.user] if one.users is None else one.users for one in asked]
    flat = [
        Wanted(user, one.history, one.times, one.topk, one.exclude, one.only, one.seen)
        for one, users in zip(asked, whose)
        for user in users
    ]
    found = iter(model.recommender.answer(flat))
    answers: list[Any] = []
    for one, users in zip(asked, whose):
        if one.users is None:
            answers.append(_listed(model, next(found), one.captions))
        else:
            lists = [{"user": user, **_listed(model, next(found), one.captions)} for user in users]
            answers.append({"users": lists})
    return answers


def _listed(model: Artifact, found: RankedItems, captions: bool) -> dict[str, Any]:
    items = [{"item": item, "score": score} for item, score in found]
    if captions:
        items = [{**one, **model.recommender.caption(one["item"])} for one in items]
    return {"items": items, "by": found.by, "unknown": list(found.unknown)}


def answer_score(model: Artifact, asked: Sequence[Score]) -> list[Any]:
    """Scores of each."""
    return [
        {"scores": model.recommender.score(Wanted(one.user, one.history, one.times), one.items)}
        for one in asked
    ]


def answer_similar(model: Artifact, asked: Sequence[Similar]) -> list[Any]:
    """Similar items of each."""
    return [_listed(model, model.similar_items(one.item, one.topk), one.captions) for one in asked]


def answer_explain(model: Artifact, asked: Sequence[Explain]) -> list[Any]:
    """Shares of each, the largest first."""
    answers: list[Any] = []
    for one in asked:
        if one.sample is not None:
            _samples(model, [one.sample])  # refuses what is no sample
            if sum(len(v) if isinstance(v, list) else 1 for v in one.sample.values()) > MOST_VALUES:
                raise ValueError(f"a sample of more than {MOST_VALUES} values is not explained")
            found = model.predictor.explain(one.sample)
        else:
            found = model.explain(one.user, one.item, one.history, one.times)
        word = "item" if found.of == "items" else "feature"
        titles = {what: {"title": title} for what, title in found.titles.items()}
        shares = [{word: what, "share": x, **titles.get(what, {})} for what, x in found]
        facts = {"score": found.score, "rest": found.rest, "rest_is": found.rest_is}
        answers.append({"shares": shares, **facts, "error": found.error})
    return answers


def examples(model: Artifact) -> dict[str, Any]:
    """What may be asked of this model, with some of its own users and items."""
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
    """The columns of a sample; of users and items the first that are known."""
    known = getattr(model.encoder, "ids", {})
    return {
        name: known[name].values[1] if name in known and len(known[name]) > 1 else None
        for name in model.encoder.columns
    }


def answer_predict(model: Artifact, asked: Sequence[Predict]) -> list[Any]:
    """Probabilities of each; samples of all requests are predicted together."""
    answers: list[Any] = [None] * len(asked)
    parts: dict[int, Batch] = {}
    for number, one in enumerate(asked):
        try:
            parts[number] = _samples(model, one.samples)
        except ValueError as error:
            answers[number] = error
        samples = sum(batch.size for batch in parts.values())
        many = bool(parts) and samples * model.encoder.width > MOST_CELLS
        if parts and (many or number + 1 == len(asked)):
            chances = iter(model.predictor.of(together(list(parts.values()))).tolist())
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
ANSWERS: dict[str, Callable[[Artifact, Sequence[Any]], list[Any]]] = {
    "recommend": answer_recommend,
    "score": answer_score,
    "similar": answer_similar,
    "predict": answer_predict,
    "explain": answer_explain,
}

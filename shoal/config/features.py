"""The keys `data.features` and `data.labels`: what the columns of a data set mean."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

Kind = Literal["id", "ids", "sequence", "number", "numbers", "text"]
Side = Literal["user", "item", "context"]
Vocabulary = Literal["exact", "hashed", "growing"]
Transform = Literal["log", "normalise"]
Loss = Literal["logistic", "squared"]
Count = Annotated[int, Field(ge=1, le=1 << 40)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class FeatureOptions(TypedDict, total=False):
    """One feature; only `kind` must be given. See shoal/data/features.py."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]

    kind: Kind
    side: Side  # whose it is; left out: the file that has the column
    column: str  # left out: the feature's name
    vocabulary: Vocabulary
    rows: Count  # hashed: into so many; else of a cross
    table: str  # features that name the same one share their rows
    dim: Count  # width of its rows; left out: the model's
    pooling: Literal["sum", "mean"]
    length: Count  # of ids and sequence: the last so many; of numbers: how many
    default: Number | str | None  # of missing cells
    transforms: list[Transform]
    buckets: list[Number] | Count  # limits, or how many of equal counts: a number becomes an id
    cross: list[str]  # features whose ids together are this one's
    weights: str  # ids, sequence: the column with the weight of each
    time: str  # sequence: the column with the time of each, by which they are sorted


class LabelOptions(TypedDict, total=False):
    """One label: its column, its loss, and how much that counts."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]

    column: str  # left out: the label's name
    loss: Loss
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)]

"""Feature and Label: the one description of a data set's columns.

A feature says what a column means, whose it is (the user's, the item's, the interaction's own) and
how its values become ids of a table or numbers. What a config does not say is guessed from the
columns' types; `shoal data describe` prints the guess.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from shoal.config.data_section import Kind, Loss, Side, Transform, Vocabulary
from shoal.config.errors import did_you_mean
from shoal.config.schema import DataSection
from shoal.data.column_meaning import has_hours, holds_times
from shoal.data.dataset import Column, Dataset, FieldType, Ragged

KIND_OF: dict[FieldType, Kind] = {
    "token": "id",
    "token_seq": "ids",
    "float": "number",
    "float_seq": "numbers",
}
LISTS = ("ids", "sequence", "text")
NUMBERS = ("number", "numbers")
OF_TIMES = ("hour", "weekday", "age")  # transforms of a time
PACKED = "slots"  # the field of a batch with the ids of all features, for models with one table
LENGTH = 50  # of a history whose feature does not say
ACTION_BUCKETS = 16  # of a label that is any number, in a history
HASHED_ROWS = 1 << 16  # of hashed features and crosses that do not say how many


@dataclass(frozen=True)
class Feature:
    """One feature. `rows` is None until a data set has counted them, or where its table grows.

    kind    id: one id; ids: a list, pooled; sequence: a list in order; text: words, hashed
            number: one value; numbers: `length` values
    cross   the ids of these features together are this one's

    >>> import shoal
    >>> genre = shoal.Feature("genre", "ids", side="item", dim=8)
    >>> genre.column, genre.table, genre.is_sparse
    ('genre', 'genre', True)
    """

    name: str
    kind: Kind
    side: Side = "context"
    column: str = ""
    vocabulary: Vocabulary = "exact"
    rows: int | None = None
    table: str = ""
    dim: int | None = None
    pooling: str = "sum"
    length: int | None = None
    default: float | str | None = None
    transforms: tuple[Transform, ...] = ()
    buckets: int | tuple[float, ...] | None = None
    cross: tuple[str, ...] = ()
    weights: str | None = None
    time: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "column", self.column or self.name)
        object.__setattr__(self, "table", _table_name(self.table or self.name))

    @property
    def is_sparse(self) -> bool:
        """Whether it has ids, and so reads a table; else it has numbers."""
        return self.kind not in NUMBERS or self.buckets is not None

    @property
    def is_of_time(self) -> bool:
        """Whether its column holds times, of which it is the hour, the weekday or the age."""
        return self.transforms[:1] != () and self.transforms[0] in OF_TIMES

    @property
    def is_list(self) -> bool:
        """Whether a sample has a list of ids."""
        return self.kind in LISTS

    @property
    def width(self) -> int:
        """Values of a dense feature."""
        return (self.length or 1) if self.kind == "numbers" else 1


def _table_name(name: str) -> str:
    """A name that files of rows can have: the name of a column may be any text."""
    return "".join(f"%{ord(one):02X}" if one in "/\\\0" else one for one in name)


@dataclass(frozen=True)
class Label:
    """What a click model learns to predict. logistic: 0 or 1; squared: any number."""

    name: str
    column: str = ""
    loss: Loss = "logistic"
    weight: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "column", self.column or self.name)


def options(feature: Feature) -> dict[str, Any]:
    """The options of a feature as data.features has them: all that differ from the defaults."""
    settings: dict[str, Any] = {"kind": feature.kind, "side": feature.side}
    plain = Feature(feature.name, feature.kind, feature.side)
    for field in fields(Feature)[3:]:
        value = getattr(feature, field.name)
        if value != getattr(plain, field.name):
            settings[field.name] = list(value) if isinstance(value, tuple) else value
    if feature.vocabulary == "exact" and not feature.cross:
        settings.pop("rows", None)  # counted, not chosen
    return settings


def is_history(feature: Feature, dataset: Dataset) -> bool:
    """Whether a feature is made of interactions: the items that the user took before each."""
    return feature.kind == "sequence" and feature.column == dataset.item_field


def time_of(history: str) -> str:
    """The feature with the times of a history's interactions."""
    return f"{history}_time"


def action_of(history: str, label: str) -> str:
    """The feature with what a label was at a history's interactions."""
    return f"{history}_{label}"


def with_actions(
    dataset: Dataset, features: tuple[Feature, ...], labels: tuple[Label, ...]
) -> tuple[Feature, ...]:
    """The features, and two kinds for each history: times and labels of its interactions.

    Behind the time of the last interaction stands that of the row. Labels are ids: 1 or 2, or the
    number of a bucket.
    """
    extended = list(features)
    for history in features:
        if not is_history(history, dataset):
            continue
        like = partial(Feature, kind="sequence", length=history.length)
        if dataset.time_field is not None and dataset.time_field in dataset.inter:
            name = time_of(history.name)
            extended.append(like(name, column=dataset.time_field, vocabulary="growing"))
        for label in labels:
            limits: Any = (0.5,) if label.loss == "logistic" else ACTION_BUCKETS
            name = action_of(history.name, label.name)
            extended.append(like(name, column=label.column, buckets=limits))
    names = [feature.name for feature in extended]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(
                f"data.features.{name}: a history has its labels and times under such names; give "
                "the feature or the label another one"
            )
    return tuple(extended)


def features_of(
    dataset: Dataset, config: DataSection, history: bool = False
) -> tuple[Feature, ...]:
    """The features that the config describes; if it describes none, those that the columns suggest.

    history: add the items that the user took before, for a model that reads them.
    """
    if config.features is None:
        features, item = guess(dataset, config), dataset.item_field
        if history:
            name = "history" if all(f.name != "history" for f in features) else f"{item}_history"
            past = Feature(name, "sequence", "context", item, table=item, length=config.max_len)
            features = (*features, past)
        return features
    if PACKED in config.features:
        raise ValueError(
            f"data.features.{PACKED}: this name stands for all ids together; give the feature "
            f"another one, and say `column: {PACKED}`"
        )
    features = tuple(declared(name, dict(settings)) for name, settings in config.features.items())
    placed = [_placed(feature, dataset, config) for feature in features]
    by_name = {feature.name: feature for feature in placed}
    for feature in placed:
        for part in feature.cross:
            part_feature = by_name.get(part)
            if (
                part_feature is None
                or part_feature.cross
                or not part_feature.is_sparse
                or part_feature.is_list
            ):
                raise ValueError(
                    f"data.features.{feature.name}.cross: {part!r} is not a feature of one id "
                    f"(kind id, or a number with buckets); name some of "
                    f"{', '.join(n for n, f in by_name.items() if f.is_sparse and not f.is_list)}"
                    f"{did_you_mean(part, by_name)}"
                )
    return tuple(placed)


def labels_of(dataset: Dataset, config: DataSection) -> tuple[Label, ...]:
    """The labels that the config names; where it names none, the label field."""
    options_by_label: dict[str, dict[str, Any]] = dict(config.labels or {})  # type: ignore[arg-type]
    labels = tuple(Label(name, **label_options) for name, label_options in options_by_label.items())
    labels = labels or (Label(config.fields.label),)
    floats = [name for name in dataset.inter if dataset.types[name] == "float"]
    for label in labels:
        if label.column not in floats:
            has = f"its columns of numbers are {', '.join(floats) or 'none'}"
            raise ValueError(
                f"data set {dataset.name!r} has no label {label.column!r} ({has}): make one of a "
                "rating with data.threshold, as in data.threshold={rating: 4}, or name the column "
                f"with --label=NAME (data.fields.label){did_you_mean(label.column, floats)}"
            )
    return labels


def guess(dataset: Dataset, config: DataSection) -> tuple[Feature, ...]:
    """What the columns suggest: tokens are ids, lists are pooled, numbers are normalised.

    A time is its hour, its weekday and its age, of the interaction itself hour and weekday. Ratings
    and labels are no features: they are not known before the event, or are it.
    """
    features = [
        Feature(dataset.user_field, "id", "user"),
        Feature(dataset.item_field, "id", "item"),
    ]
    fields = config.fields
    left_out: set[str | None] = {dataset.user_field, dataset.item_field}
    left_out |= {fields.rating, fields.label}
    left_out |= {config.sample_weight, *(config.labels or {})}
    left_out |= set(config.encode or {})  # their vectors are read
    left_out |= {label_options.get("column") for label_options in (config.labels or {}).values()}
    sides: list[tuple[Side, dict[str, Column]]] = [
        ("user", dataset.users),
        ("item", dataset.items),
        ("context", dataset.inter),
    ]
    names = {PACKED, *(feature.name for feature in features)}
    for side, columns in sides:
        for column in columns:
            if column in left_out:
                continue
            name = f"{side}_{column}" if column in names else column
            names.add(name)
            kind, values = KIND_OF[dataset.types[column]], columns[column]
            is_event = side == "context" and column == config.fields.time
            if isinstance(values, np.ndarray) and kind == "number":
                unpadded = values if side == "context" else values[1:]  # row 0 is padding
                if holds_times(column, unpadded):
                    features += _features_of_time(name, side, column, has_hours(unpadded), is_event)
                    continue
            if is_event:  # a count of rows or of days, which only grows
                continue
            transforms: tuple[Transform, ...] = ("normalise",) if kind in NUMBERS else ()
            length = None
            if isinstance(values, Ragged) and kind == "numbers":
                length = int((values.offsets[1:] - values.offsets[:-1]).max(initial=1))
            features.append(Feature(name, kind, side, column, transforms=transforms, length=length))
    return tuple(features)


def _features_of_time(
    name: str, side: Side, column: str, hours: bool, is_event: bool
) -> list[Feature]:
    """What a column of times suggests.

    hours: some times are not at midnight. is_event: it is when the interaction happened, and the
    age of what happens now is always 0.
    """
    features = []
    if hours:
        limits = tuple(float(hour) for hour in range(1, 24))
        of_hour = Feature(f"{name}_hour", "number", side, column, transforms=("hour",))
        features.append(replace(of_hour, buckets=limits))
    limits = tuple(float(day) for day in range(1, 7))
    of_day = Feature(f"{name}_weekday", "number", side, column, transforms=("weekday",))
    features.append(replace(of_day, buckets=limits))
    if not is_event:
        transforms: tuple[Transform, ...] = ("age", "normalise")
        features.append(Feature(f"{name}_age", "number", side, column, transforms=transforms))
    return features


def declared(name: str, settings: dict[str, Any]) -> Feature:
    """One entry of data.features, checked by itself."""
    where = f"data.features.{name}"
    if "kind" not in settings and not settings.get("cross"):
        raise ValueError(f"{where} has no kind; say id, ids, sequence, number, numbers or text")
    for key in ("transforms", "cross"):
        settings[key] = tuple(settings.get(key) or ())
    if isinstance(settings.get("buckets"), list):
        limits = settings["buckets"] = tuple(settings["buckets"])
        if not limits or list(limits) != sorted(set(limits)):
            raise ValueError(f"{where}.buckets: {list(limits)}; limits rise, each above the last")
    if settings["cross"]:
        settings = {"kind": "id", "vocabulary": "hashed", **settings}
        if (
            len(settings["cross"]) < 2
            or settings["kind"] != "id"
            or settings["vocabulary"] != "hashed"
        ):
            raise ValueError(f"{where}: a cross is an id, hashed, of two features or more")
    if settings["kind"] == "text":
        settings = {"vocabulary": "hashed", **settings}
        if settings["vocabulary"] == "exact":
            raise ValueError(f"{where}.vocabulary: words of text are hashed, or growing")
    feature = Feature(name, **settings)
    wrong = {
        "pooling": "pooling" in settings and not feature.is_list,
        "length": "length" in settings and feature.kind in ("id", "number"),
        "transforms": bool(feature.transforms) and feature.kind not in NUMBERS,
        "buckets": feature.buckets is not None and feature.kind != "number",
        "weights": feature.weights is not None and feature.kind not in ("ids", "sequence"),
        "time": feature.time is not None and feature.kind != "sequence",
        "vocabulary": "vocabulary" in settings and feature.kind in NUMBERS,
        "rows": "rows" in settings and feature.vocabulary != "hashed",
    }
    for key, is_wrong in wrong.items():
        if is_wrong:
            raise ValueError(f"{where}.{key} does not belong to kind {feature.kind}; leave it out")
    if not set(OF_TIMES).isdisjoint(feature.transforms[1:]):
        raise ValueError(
            f"{where}.transforms: {', '.join(feature.transforms)}; hour, weekday and age are made "
            "of a time, so one of them may only stand first"
        )
    if feature.kind == "numbers" and feature.length is None:
        raise ValueError(f"{where}.length: say how many numbers there are")
    if feature.vocabulary == "hashed":
        feature = replace(feature, rows=feature.rows or HASHED_ROWS)
    return feature


def _placed(feature: Feature, dataset: Dataset, config: DataSection) -> Feature:
    """The feature with its side; its column must be there and hold what its kind needs."""
    if feature.cross:
        return replace(feature, side="context")
    where = f"data.features.{feature.name}"
    tables: dict[Side, dict[str, Column]] = {
        "user": {dataset.user_field: dataset.inter[dataset.user_field], **dataset.users},
        "item": {dataset.item_field: dataset.inter[dataset.item_field], **dataset.items},
        "context": dataset.inter,
    }
    if is_history(feature, dataset):
        length = feature.length or config.max_len
        return replace(feature, side="context", length=length)
    chosen_side = (config.features or {})[feature.name].get("side")
    sides = (
        [chosen_side]
        if chosen_side
        else [side for side, table in tables.items() if feature.column in table]
    )
    if not sides or feature.column not in tables[sides[0]]:
        column_names = [name for side in (sides or tables) for name in tables[side]]
        source = f"side {sides[0]}" if sides else "the data"
        raise ValueError(
            f"{where}: {source} has no column {feature.column!r}; there are "
            f"{', '.join(column_names)}"
            f"{did_you_mean(feature.column, column_names)} (columns of .user and .item files are "
            "loaded when data.load names them)"
        )
    table = tables[sides[0]]
    for key, column, holds in [
        ("column", feature.column, "float" if feature.kind in NUMBERS else "token"),
        ("weights", feature.weights, "float_seq"),
        ("time", feature.time, "float_seq"),
    ]:
        if column is None:
            continue
        if column not in table:
            raise ValueError(
                f"{where}.{key}: there is no column {column!r} of side {sides[0]}"
                f"{did_you_mean(column, table)}"
            )
        type_ = dataset.types[column]
        listed = feature.kind in ("ids", "sequence", "numbers") and key == "column"
        if not type_.startswith(holds) or (listed and not type_.endswith("_seq")):
            raise ValueError(
                f"{where}: kind {feature.kind} does not fit the column {column!r}, which is "
                f"{type_}; choose {KIND_OF[type_]}, or read the column as another type"
            )
        if feature.kind in ("id", "number") and type_.endswith("_seq"):
            raise ValueError(
                f"{where}: the column {column!r} holds lists; choose the kind {KIND_OF[type_]}"
            )
    return replace(feature, side=sides[0])

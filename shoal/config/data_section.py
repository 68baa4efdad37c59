"""The section `data`: where samples come from, and what is kept of them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator, with_config
from typing_extensions import TypedDict

from shoal.config.encode_section import EncodeOptions
from shoal.config.intervals import parse_intervals
from shoal.config.section import RUN, STRICT, Choices, Section
from shoal.config.vectors_section import VectorsSection

MOST_ROWS = 1 << 40  # of a table or a data set: what its bytes are counted in must not overflow
MOST_COLUMNS = 1 << 16  # of a table or a click log
# Names of data.format; `add_format` adds those that come with a package.
FORMATS = Choices(
    "auto",
    "atomic",
    "movielens",
    "prepared",
    "synthetic",
    "random",
    "synthetic_clicks",
    "slots",
    "criteo",
    "multi_hot",
    "libfm",
    "mind",
    "csv",
    "parquet",
    "arrow",
    "jsonl",
    "lists",
    "session_lists",
    "literals",
    "diginetica",
)
# Formats that hold click logs alone; csv and parquet hold either.
CLICK_FORMATS = ["slots", "criteo", "multi_hot", "libfm", "mind", "synthetic_clicks"]
GENERATED = (
    "synthetic",
    "random",
    "synthetic_clicks",
)  # names and formats of data that Shoal makes
DATASETS = "dataset"  # the default of data.path
PREPARED = "manifest.json"  # the file that makes a folder a prepared one
Kind = Literal["id", "ids", "sequence", "number", "numbers", "text"]
Side = Literal["user", "item", "context"]
Vocabulary = Literal["exact", "hashed", "growing"]
Transform = Literal["log", "normalise", "hour", "weekday", "age"]
Loss = Literal["logistic", "squared"]
Count = Annotated[int, Field(ge=1, le=MOST_ROWS)]
Many = Annotated[int, Field(ge=2, le=MOST_ROWS)]
Number = Annotated[float, Field(allow_inf_nan=False)]


@with_config(STRICT)
class FeatureOptions(TypedDict, total=False):
    """What a column means; only `kind` must be given. See shoal/data/features.py."""

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


# Kinds of data.cells -> the type of the column that such cells become.
KINDS_OF_CELLS: dict[str, Literal["token", "token_seq", "float", "float_seq"]] = {
    "id": "token",
    "ids": "token_seq",
    "number": "float",
    "numbers": "float_seq",
    "time": "float",
}


@with_config(STRICT)
class CellOptions(TypedDict, total=False):
    """How the cells of a column are read; what is left out is found by looking at them."""

    # id: as it stands; ids: a list; time: dates, or numbers since 1970
    kind: Literal["id", "ids", "number", "numbers", "time"]
    separator: str  # of lists; "[]": they are in brackets
    currency: str  # taken away from numbers
    thousands: str  # the sign between thousands, taken away from numbers
    decimal: Literal[".", ","]  # the decimal sign of numbers
    percent: bool  # numbers may end in "%"
    order: Literal["day", "month"]  # which comes first in dates such as 05/06/2024
    unit: Literal["s", "ms", "us", "ns"]  # of times that are numbers, since 1970


@with_config(STRICT)
class LabelOptions(TypedDict, total=False):
    """`data.labels`: a label's column, loss, and how much that counts."""

    column: str  # left out: the label's name
    loss: Loss
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _intervals(text: str) -> str:
    parse_intervals(text)
    return text


def _some(ratio: list[float]) -> list[float]:
    if sum(ratio) <= 0:
        raise ValueError("the parts must not all be zero")
    return ratio


def _tab(text: object) -> object:
    r"""A shell passes '\t' as two characters."""
    return text.replace("\\t", "\t") if isinstance(text, str) else text


Intervals = Annotated[str, AfterValidator(_intervals)]
Character = Annotated[str, Field(min_length=1, max_length=1)]


def add_format(name: str, click_log: bool = False) -> None:
    """Allow a name of data.format; click_log: its files hold click logs alone."""
    if name != "tables":  # those of data.files, whatever their format
        FORMATS.add(name)
    if click_log and name not in CLICK_FORMATS:
        CLICK_FORMATS.append(name)


class FieldsSection(Section):
    user: str = Field("user_id", description="column that names the user")
    item: str = Field("item_id", description="column that names the item")
    rating: str = Field("rating", description="column that holds the rating")
    time: str = Field("timestamp", description="column that holds the time of an interaction")
    label: str = Field("label", description="column that holds the label, 0 or 1")


class SyntheticSection(Section):
    """The generated data set: latent taste, power-law popularity, drift over time."""

    users: Many = Field(943, description="number of users")
    items: Many = Field(1682, description="number of items")
    interactions: Many = Field(100_000, description="number of interactions")
    factors: int = Field(8, ge=1, description="dimensions of the hidden taste")
    strength: float = Field(
        4.0,
        ge=0,
        description="how much users follow their hidden taste; 0: popularity alone decides",
    )
    drift: float = Field(0.3, ge=0, description="how far a user's taste wanders from first to last")
    popularity: float = Field(
        0.8, ge=0, description="exponent of the power law by which items occur"
    )
    item_features: int = Field(0, ge=0, le=64, description="columns that describe an item; 0: none")
    new_items: float = Field(
        0.0, ge=0, le=0.4, description="share of items that come only in the last eighth of a user"
    )
    seed: int = Field(
        7,
        description="seed of the generated data; another seed gives another data set of equal size",
    )


class RandomSection(Section):
    """Generated data of users and items drawn uniformly, to measure speed with."""

    users: Count = Field(10, description="number of users")
    items: Count = Field(30, description="number of items")
    interactions: Count = Field(300, description="number of interactions")
    seed: int = Field(
        7,
        description="seed of the generated data; another seed gives another data set of equal size",
    )


Bag = Annotated[int, Field(ge=1, le=10_000)]


class SyntheticClicksSection(Section):
    """A generated click log, from a known logistic model: the best possible AUC is known."""

    samples: int = Field(
        50_000,
        ge=10,
        le=MOST_ROWS,
        description="samples to train on; the valid and the test split have a tenth as many each",
    )
    slots: int = Field(
        8, ge=1, le=MOST_COLUMNS, description="number of slots of a sample, each with ids"
    )
    ids_per_slot: Count | list[Count] = Field(
        1000, description="distinct ids of every slot; a list: a number for each"
    )
    bags: Bag | list[Bag] = Field(
        1, description="ids in every slot of a sample; a list: a number for each"
    )
    dense: int = Field(4, ge=0, le=MOST_COLUMNS, description="number of dense values of a sample")
    popularity: float = Field(
        1.05, ge=0, description="exponent of the power law by which ids occur"
    )
    strength: float = Field(
        1.0, ge=0, description="how much clicks depend on ids and dense values; 0: not at all"
    )
    seed: int = Field(
        7,
        description="seed of the generated data; another seed gives another data set of equal size",
    )

    @model_validator(mode="after")
    def _one_for_each_slot(self) -> Self:
        for key in ("ids_per_slot", "bags"):
            sizes = getattr(self, key)
            if isinstance(sizes, list) and len(sizes) != self.slots:
                raise ValueError(
                    f"{key} has {len(sizes)} numbers, and there are {self.slots} slots"
                )
        return self


class ClicksSection(Section):
    """Click logs: labelled samples with slots of ids and dense values, in any number of files."""

    train: str | None = Field(
        None, description="files to train on: a file, a folder or a pattern; sorted by name"
    )
    valid: str | None = Field(
        None,
        description="files to validate on: a file, a folder or a pattern; null: the test files",
    )
    test: str | None = Field(
        None,
        description="files to test on: a file, a folder or a pattern; null: the valid files, "
        "or none",
    )
    reader: Literal["memory", "stream", "custom"] = Field(
        "memory",
        description="memory: load and shuffle all; stream: read on; custom: your own reader",
    )
    custom: Annotated[str | None, RUN] = Field(
        None, description="the class of reader custom, as FILE.py[:CLASS]"
    )
    pipe_command: Annotated[str | None, RUN] = Field(
        None, description="a program: raw lines on its stdin, lines of slots on its stdout"
    )
    split_files: bool = Field(
        False, description="a worker reads its share of the files, not its share of each batch"
    )
    slots: list[str] | Annotated[int, Field(ge=0, le=MOST_COLUMNS)] | None = Field(
        None,
        description="slots (columns) with ids, by name or number; null: the ones that the format "
        "has",
    )
    dense: list[str] | Annotated[int, Field(ge=0, le=MOST_COLUMNS)] | None = Field(
        None,
        description="dense values (columns), by name or number; null: the ones that the format has",
    )
    label: str | None = Field(
        None, description="column of the label in a click log; null: the one that the format has"
    )
    group: str | None = Field(None, description="the slot that GAUC groups by")
    rows: Count | list[Count] | None = Field(
        None,
        description="ids are folded below this number; multi_hot: a number for each slot; null: "
        "tables grow",
    )
    threads: int = Field(1, ge=1, description="threads that parse click logs, of each worker")
    profile: bool = Field(False, description="log the reader's own speed after every epoch")
    synthetic: SyntheticClicksSection = Field(default_factory=SyntheticClicksSection)


def _cuts(at: list[str | float] | str | float) -> list[str | float]:
    """One or two moments, each after the last, as a list."""
    moments = at if isinstance(at, list) else [at]
    if not 1 <= len(moments) <= 2:
        raise ValueError("allowed: one date, or two: where valid and where test begins")
    times = list(map(seconds_of, moments))
    if times != sorted(set(times)):
        raise ValueError("the second date must come after the first")
    return moments


def seconds_of(moment: str | float) -> float:
    """A date (UTC where it names no zone) or seconds, as seconds since 1970.

    >>> seconds_of("2024-01-01"), seconds_of("2024-01-01T12:00"), seconds_of(12)
    (1704067200.0, 1704110400.0, 12.0)
    """
    if not isinstance(moment, str):
        return float(moment)
    try:
        date = datetime.fromisoformat(moment)
    except ValueError:
        raise ValueError(
            f"{moment!r} is no date; write 2024-01-31, 2024-01-31T18:00, or seconds since 1970"
        ) from None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


Moments = Annotated[list[str | Number] | str | Number, AfterValidator(_cuts)]


class SplitSection(Section):
    by: Literal["auto", "ratio", "leave_one_out", "sessions"] = Field(
        "auto",
        description="parts by ratio, the last interactions of every user, or whole histories "
        "(sessions); auto: leave_one_out where interactions have an order, see "
        "docs/reference/data.md",
    )
    targets: Literal["all", "last"] = Field(
        "all",
        description="sessions: the items to find in one that is tested; all but the first, each "
        "from those before it, or the last",
    )
    pause: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None,
        description="sessions: minutes without an interaction after which a user's next one begins "
        "another session; null: a user is a session",
    )
    ratio: Annotated[list[Annotated[float, Field(ge=0)]], AfterValidator(_some)] = Field(
        [0.8, 0.1, 0.1], min_length=3, max_length=3, description="shares of train, valid and test"
    )
    leave: Literal["valid_and_test", "valid_only", "test_only"] = Field(
        "valid_and_test",
        description="leave_one_out: the parts that get an interaction of each user",
    )
    order: Literal["auto", "random", "time", "file"] = Field(
        "auto",
        description="order of the interactions; auto: by time where there is one, else random; "
        "file: in the order of the rows",
    )
    group_by: Literal["user", "none"] = Field(
        "user", description="ratio: cut the interactions of each user, or all together"
    )
    at: Moments | None = Field(
        None,
        description="in place of by, ratio, leave and order: dates (2024-01-31) or seconds since "
        "1970. Two: train before the first, valid until the second, test from it on. One: no valid "
        "part",
    )
    seed: int | None = Field(
        None,
        ge=0,
        description="seed of order random; null: run.seed. With a seed, run.seed varies training "
        "alone",
    )

    @model_validator(mode="after")
    def _timed(self) -> SplitSection:
        if self.at is not None and self.order == "file":
            raise ValueError(
                "data.split.at: cuts by time, and data.split.order=file is for data without; leave "
                "one of them out"
            )
        return self

    @property
    def moments(self) -> list[float]:
        """The seconds of `at`, ascending."""
        return [] if self.at is None else [seconds_of(one) for one in _cuts(self.at)]


class FilterSection(Section):
    values: dict[str, Intervals] = Field(
        default_factory=dict, description='float field -> intervals, e.g. {rating: "[3,inf)"}'
    )
    user_inter_num: Intervals = Field(
        "[0,inf)",
        description="keep users whose number of interactions is in one of these intervals",
    )
    item_inter_num: Intervals = Field(
        "[0,inf)",
        description="keep items whose number of interactions is in one of these intervals",
    )
    by_user_or_item: bool = Field(
        True, description="drop interactions of users and items absent from .user / .item files"
    )
    duplicates: Literal["first", "last"] | None = Field(
        None, description="which of repeated (user, item) pairs is kept; null: all"
    )


class DataSection(Section):
    name: str | None = Field(
        None,
        description="data set: a folder under data.path, or data that Shoal generates: synthetic "
        "(of "
        "click models: a click log), random; null: what data.files, data.clicks.train or data.path "
        "name",
    )
    path: str = Field(
        DATASETS,
        description="folder that holds data sets: PATH/NAME/NAME.inter; without data.name, the "
        "data set's own folder",
    )
    format: Annotated[str, FORMATS] = Field(
        "auto",
        description="format of the data; auto: chosen by the files, see docs/reference/data.md",
    )
    files: dict[str, str] | None = Field(
        None,
        description="your own tables: inter (or train, valid and test), user, item -> a file, "
        "a folder or a pattern",
    )
    encoding: str = Field("utf-8", description="encoding of csv and JSON lines")
    quote: Character | None = Field('"', description="what quotes cells of csv; null: nothing")
    columns: Annotated[list[str], Field(min_length=2)] | None = Field(
        None,
        description="names of the columns of interactions in csv whose first line names none; "
        "null: the first line names them",
    )
    escape: Character | None = Field(
        None,
        description="what stands before a quote that belongs to a cell of csv, such as \\; null: "
        "a quote inside a cell is written twice",
    )
    bad_rows: Literal["error", "skip"] = Field(
        "error",
        description="csv, JSON lines, inputs of `shoal prepare`: rows that cannot be read end the "
        "run, or are left out and counted",
    )
    clicks: ClicksSection = Field(default_factory=ClicksSection)
    synthetic: SyntheticSection = Field(default_factory=SyntheticSection)
    random: RandomSection = Field(default_factory=RandomSection)
    fields: FieldsSection = Field(default_factory=FieldsSection)
    separator: Annotated[Character, BeforeValidator(_tab)] = Field(
        "\t", description="character between the cells of a line"
    )
    seq_separator: Annotated[str, BeforeValidator(_tab)] = Field(
        " ", min_length=1, description="text between the entries of a list in a cell"
    )
    load: dict[str, list[str]] | None = Field(
        None, description="file suffix -> columns to load; null loads all of .inter"
    )
    unload: dict[str, list[str]] | None = Field(
        None, description="file suffix -> columns to leave out"
    )
    extra_suffixes: list[str] = Field(
        default_factory=list, description="suffixes of further files to load"
    )
    filter: FilterSection = Field(default_factory=FilterSection)
    threshold: Annotated[dict[str, float], Field(min_length=1, max_length=1)] | None = Field(
        None, description="field -> value; at or above it the label is 1"
    )
    normalize: list[str] | Literal["all"] = Field(
        default_factory=list, description="float fields scaled to [0, 1]"
    )
    cells: dict[str, CellOptions] | None = Field(
        None,
        description="column -> how its cells are read, where that is not as found: {price: {kind: "
        'id}, tags: {separator: ";"}, day: {order: month}}',
    )
    features: dict[str, FeatureOptions] | None = Field(
        None,
        description="name -> kind, side, vocabulary and more of a feature; only these are read; "
        "null: read from the columns",
    )
    encode: Annotated[dict[str, EncodeOptions] | None, RUN] = Field(
        None,
        description="column of text of the items -> how it becomes the feature COLUMN_vector: "
        "{title: {encoder: all-MiniLM-L6-v2, missing: unknown}}",
    )
    codes: str | None = Field(
        None,
        description='file of JSON with the semantic ids of items, {"item": [5, 1, 0]}, for models '
        "that read them (TIGER); null: the model makes its own",
    )
    item_vectors: VectorsSection = Field(default_factory=VectorsSection)
    user_vectors: VectorsSection = Field(default_factory=VectorsSection)
    labels: dict[str, LabelOptions] | None = Field(
        None, description="name -> column, loss, weight; null: the label field, logistic"
    )
    sample_weight: str | None = Field(
        None, description="the column with the weight of each sample in the loss"
    )
    presplit: Annotated[list[str], Field(min_length=2, max_length=3)] | None = Field(
        None,
        description="name parts: NAME.PART.inter are the train, valid and test rows; of two, the "
        "train and test rows",
    )
    split: SplitSection = Field(default_factory=SplitSection)
    max_len: int = Field(50, ge=1, description="most items of a user's history, the newest ones")
    cache: bool = Field(True, description="keep prepared columns in a folder next to the raw files")

    @model_validator(mode="after")
    def _distinct(self) -> DataSection:
        if self.escape is not None and self.escape in (self.quote, self.separator):
            raise ValueError(
                f"data.escape: given {self.escape!r}, which data.quote or data.separator is"
            )
        return self

    @property
    def folder(self) -> Path:
        """Where a data set lies: data.path/data.name, or data.path itself if no name is given."""
        return Path(self.path, self.name or "")

    @property
    def stem(self) -> str:
        """The name of that folder, which its files have too: NAME.inter."""
        return self.name or Path(self.path).resolve().name

    @property
    def title(self) -> str:
        """What the data is called in titles, messages and names of folders."""
        files = self.files or {}
        data_file = files.get("inter") or files.get("train") or self.clicks.train
        if self.name is not None and self.name not in GENERATED:
            return self.name
        if data_file is not None:
            return _stem(data_file) or Path(self.path).resolve().name
        if self.format in GENERATED:
            return self.format
        if self.name is not None and not Path(self.path, PREPARED).is_file():
            return self.name
        return Path(self.path).resolve().name


def _stem(path: str) -> str:
    """The last part of a path or pattern that is a name, without endings: day_0 of day_0.csv.gz."""
    for part in reversed(path.split("/")):
        if name := re.sub(r"[^\w-]+", "-", part.partition(".")[0]).strip("-"):
            return name
    return ""

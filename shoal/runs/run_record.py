"""What runs left behind, read for a page: files that are missing, damaged or made by somebody else
do not end it. `missing` says of each what is not shown.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.config.output import flat
from shoal.data.parquet_counts import check_counts
from shoal.files.durable import open_regular
from shoal.files.folders import opened_folder
from shoal.runs.listing import read_config, read_run
from shoal.runs.run_files import number, numbers, objects, parse_object, text_of, whole
from shoal.training.run_folder import RunFolder

if TYPE_CHECKING:
    import polars as pl

MOST_PARQUET = 1 << 30  # bytes of a file of Parquet
MOST_USERS, MOST_ITEMS = 100_000, 1_000_000  # lines that are read; runs write no more
PLAIN = ("user", "train", "positives", "items", "hits")  # columns of users that are no metrics


@dataclass(frozen=True)
class EpochLine:
    """A line of metrics.jsonl."""

    epoch: int
    loss: float | None
    valid: dict[str, float]
    seconds: tuple[float | None, float | None]  # of training, of evaluation
    ranks: list[float | None]  # the loss of each rank, where it was recorded


@dataclass
class RunRecord:
    """One run as pages show it."""

    folder: Path
    name: str
    summary: dict[str, Any]  # as `shoal runs` lists it
    config: dict[str, Any] = field(default_factory=dict)  # by dotted key
    result: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)  # what `shoal plan --compare` left
    epochs: list[EpochLine] = field(default_factory=list)
    users: "pl.DataFrame | None" = None
    evaluated: int = 0  # users; the file may hold a sample of them
    items: "pl.DataFrame | None" = None
    missing: list[str] = field(default_factory=list)

    @property
    def metric(self) -> str:
        """The one that decides which epoch is the best."""
        return self.summary["metric"]

    @property
    def test(self) -> dict[str, float]:
        """Test metrics that are numbers."""
        return numbers(self.result.get("test"))

    @property
    def best_valid(self) -> dict[str, float]:
        return numbers(self.result.get("best_valid"))

    @property
    def best_epoch(self) -> int | None:
        return whole(self.result.get("best_epoch"))

    @property
    def user_metrics(self) -> list[str]:
        """Metrics that have a value for each user."""
        if self.users is None:
            return []
        return [name for name in self.users.columns if name not in PLAIN]

    @property
    def is_sample(self) -> bool:
        """True where users.parquet holds only some of the users that were evaluated."""
        return self.users is not None and self.evaluated > len(self.users)


def read_runs(folders: Sequence[str | Path]) -> list[RunRecord]:
    """Every run that is named, once each; ValueError where there is none."""
    places: dict[Path, Path] = {}
    for folder in map(Path, folders):
        inside = [] if RunFolder(folder).is_run else list(folder.glob("*/config.yaml"))
        if inside:
            runs = f"holds {len(inside)} runs" if len(inside) > 1 else "holds a run"
            raise ValueError(f"{folder} is no run, it {runs}; name them: {inside[0].parent} ...")
        RunFolder(folder).check_is_run()
        places.setdefault(folder.resolve(), folder)
    names = [place.name for place in places]
    records = []
    for place, folder in places.items():
        alone = names.count(place.name) == 1
        records.append(read_record(folder, place.name if alone else "/".join(place.parts[-2:])))
    return records


def read_record(folder: Path, name: str) -> RunRecord:
    """All that a run left behind; name: its name among others."""
    record = RunRecord(folder, name, read_run(folder))
    with _noting(record, "config.yaml"):
        record.config = flat(read_config(folder))
    if (folder / "result.json").exists():
        with _noting(record, "result.json"):
            record.result = parse_object(text_of(folder / "result.json"))
    else:
        record.missing.append("result.json: the run has no result yet, so no test is shown")
    if (folder / "plan.json").exists():
        with _noting(record, "plan.json"):
            record.plan = parse_object(text_of(folder / "plan.json"))
    with _noting(record, "metrics.jsonl"):
        record.epochs = list(_epochs(text_of(folder / "metrics.jsonl"), record))
    if not os.path.lexists(folder / "evaluation"):
        record.missing.append(
            "evaluation/ is not there: intervals, quality by user and lists are not shown "
            "(eval.per_user writes it for models that rank items)"
        )
        return record
    with _noting(record, "evaluation/users.parquet"), _opened(folder, "users.parquet") as file:
        _take_users(record, file)
    if record.users is None:  # items are counted over their lists
        return record
    with _noting(record, "evaluation/items.parquet"), _opened(folder, "items.parquet") as file:
        _take_items(record, file)
    return record


@contextmanager
def _opened(folder: Path, name: str) -> Iterator[BufferedReader]:
    """A file of RUN/evaluation; neither it nor the folder is a link."""
    with (
        opened_folder(folder, "evaluation") as evaluation,
        open_regular(name, links=False, folder=evaluation) as file,
    ):
        yield file


@contextmanager
def _noting(record: RunRecord, file: str) -> Iterator[None]:
    """While a file is read: note what is wrong with it, and continue without it."""
    try:
        yield
    except FileNotFoundError:
        record.missing.append(f"{file} is not there, so what it has is not shown")
    except OSError as error:
        record.missing.append(f"{file} cannot be read ({error.strerror or error})")
    except (ValueError, RecursionError) as error:
        record.missing.append(f"{file} is damaged ({one_line(error)})")


def _epochs(text: str, record: RunRecord) -> Iterator[EpochLine]:
    """The lines, ascending by epoch; a torn last line is that of a run that was killed."""
    lines, bad = {}, 0
    for line in objects(text):
        epoch = whole(line.get("epoch"))
        if epoch is None:
            bad += 1
            continue
        ranks = line.get("loss_by_rank")
        lines[epoch] = EpochLine(
            epoch,
            number(line.get("loss")),
            numbers(line.get("valid")),
            (number(line.get("train_seconds")), number(line.get("eval_seconds"))),
            [number(rank) for rank in ranks] if isinstance(ranks, list) else [],
        )
    if bad:
        record.missing.append(f"metrics.jsonl: {bad} of its lines cannot be read")
    for epoch in sorted(lines):
        yield lines[epoch]


def _take_users(record: RunRecord, file: BufferedReader) -> None:
    import polars as pl

    frame = _parquet(file, MOST_USERS)
    text, counts = {"user": pl.String}, {"train": pl.Int64, "positives": pl.Int64}
    lists = {"items": pl.List(pl.String), "hits": pl.List(pl.Boolean)}
    floats = [name for name, kind in frame.schema.items() if kind.is_float()]
    metrics = {name: pl.Float64 for name in floats if name not in PLAIN}
    frame = _cast(frame, text | counts | lists | metrics)
    if frame["user"].null_count() or frame["user"].n_unique() < len(frame):
        raise ValueError("a user stands there twice, or has no name")
    lengths = [frame[name].list.len() for name in lists]
    if any(one.null_count() for one in lengths) or (lengths[0] != lengths[1]).any():
        raise ValueError("lists of items and of hits differ in length")
    file.seek(0)
    count_text = pl.read_parquet_metadata(file).get("shoal.users", "")
    record.evaluated = max(
        len(frame), int(count_text) if count_text.isdecimal() and len(count_text) < 16 else 0
    )
    record.users = frame


def _take_items(record: RunRecord, file: BufferedReader) -> None:
    import polars as pl

    kinds = {"item": pl.String, "train": pl.Int64, "recommended": pl.Int64, "title": pl.String}
    frame = _parquet(file, MOST_ITEMS)
    if "positives" in frame.columns:  # older runs have none
        kinds["positives"] = pl.Int64
    frame = _cast(frame, kinds)
    if frame["item"].null_count() or frame["item"].n_unique() < len(frame):
        raise ValueError("an item stands there twice, or has no name")
    record.items = frame


def _parquet(file: BufferedReader, rows: int) -> "pl.DataFrame":
    import polars as pl

    if os.fstat(file.fileno()).st_size > MOST_PARQUET:
        raise ValueError(f"it has more than {MOST_PARQUET >> 20} MiB")
    try:
        check_counts(Path(str(file.name)), file.fileno())
        frame = pl.read_parquet(file, n_rows=rows, hive_partitioning=False, glob=False)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, MemoryError) as error:
        raise ValueError(one_line(error)) from None
    if not len(frame):
        raise ValueError("it has no lines")
    return frame


def _cast(frame: "pl.DataFrame", kinds: dict[str, Any]) -> "pl.DataFrame":
    import polars as pl

    if lacking := [name for name in kinds if name not in frame.columns]:
        raise ValueError(f"it has no column {', '.join(lacking)}")
    try:
        frame = frame.select([pl.col(name).cast(kind) for name, kind in kinds.items()])
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise ValueError(one_line(error)) from None
    counts = [name for name, kind in kinds.items() if kind == pl.Int64]
    wrong = [k for k in counts if frame[k].null_count() or (frame[k] < 0).any()]
    if wrong:
        raise ValueError(f"column {wrong[0]} holds something other than counts")
    return frame


def one_line(error: object, most: int = 200) -> str:
    """One line of text about an error."""
    return short(next(iter(str(error).splitlines()), ""), most)


def short(value: Any, most: int = 120) -> str:
    """Text that does not fill the page."""
    text = str(value)
    return text if len(text) <= most else text[: most - 1] + "…"

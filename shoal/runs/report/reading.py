"""What runs left behind, read for a page: files that are missing, damaged or made by somebody else
do not end it. `missing` says of each what is not shown.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shoal.config.output import flat
from shoal.config.yaml_io import read_file
from shoal.data.parquet_counts import check_counts
from shoal.runs.listing import read_run
from shoal.training.run_folder import RunFolder
from shoal.world.durable import open_regular

if TYPE_CHECKING:
    import polars as pl

MOST_BYTES = 64 << 20  # of a file of JSON
MOST_PARQUET = 1 << 30  # and of one of Parquet
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
        found = self.result.get("best_epoch")
        return found if isinstance(found, int) else None

    @property
    def user_metrics(self) -> list[str]:
        """Metrics that have a value for each user."""
        if self.users is None:
            return []
        return [name for name in self.users.columns if name not in PLAIN]

    @property
    def is_sample(self) -> bool:
        """Whether users.parquet holds some of the users that were evaluated."""
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
        records.append(_read_record(folder, place.name if alone else "/".join(place.parts[-2:])))
    return records


def _read_record(folder: Path, name: str) -> RunRecord:
    record = RunRecord(folder, name, read_run(folder))
    with _noting(record, "config.yaml"):
        record.config = flat(read_file(folder / "config.yaml")[0])
    if (folder / "result.json").exists():
        with _noting(record, "result.json"):
            record.result = _object(text_of(folder / "result.json"))
    else:
        record.missing.append("result.json: the run has no result yet, so no test is shown")
    if (folder / "plan.json").exists():
        with _noting(record, "plan.json"):
            record.plan = _object(text_of(folder / "plan.json"))
    with _noting(record, "metrics.jsonl"):
        record.epochs = list(_epochs(text_of(folder / "metrics.jsonl"), record))
    if not (folder / "evaluation").is_dir():
        record.missing.append(
            "evaluation/ is not there: intervals, quality by user and lists are not shown "
            "(eval.per_user writes it for models that rank items)"
        )
        return record
    with _noting(record, "evaluation/users.parquet"):
        _take_users(record, folder / "evaluation" / "users.parquet")
    if record.users is not None:  # items are counted over their lists
        with _noting(record, "evaluation/items.parquet"):
            _take_items(record, folder / "evaluation" / "items.parquet")
    return record


@contextmanager
def _noting(record: RunRecord, file: str) -> Iterator[None]:
    """In here a file is read; what is wrong with it is noted, and the page continues without."""
    try:
        yield
    except FileNotFoundError:
        record.missing.append(f"{file} is not there, so what it has is not shown")
    except OSError as error:
        record.missing.append(f"{file} cannot be read ({error.strerror or error})")
    except (ValueError, RecursionError) as error:
        record.missing.append(f"{file} is damaged ({one_line(error)})")


def text_of(path: Path) -> str:
    """A file's text; ValueError where it is longer than any that a run writes."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES >> 20} MiB")
        return file.read().decode("utf-8", errors="replace")


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("it holds no object of JSON")
    return found


def objects(text: str) -> Iterator[dict[str, Any]]:
    """Of each line its object; an empty one where a line holds none, as one that was torn."""
    for line in text.splitlines():
        try:
            yield _object(line)
        except (ValueError, RecursionError):
            yield {}


def _epochs(text: str, record: RunRecord) -> Iterator[EpochLine]:
    """The lines, ascending by epoch; a torn last line is that of a run that was killed."""
    found, bad = {}, 0
    for one in objects(text):
        epoch = one.get("epoch")
        if not isinstance(epoch, int):
            bad += 1
            continue
        ranks = one.get("loss_by_rank")
        found[epoch] = EpochLine(
            epoch,
            number(one.get("loss")),
            numbers(one.get("valid")),
            (number(one.get("train_seconds")), number(one.get("eval_seconds"))),
            [number(rank) for rank in ranks] if isinstance(ranks, list) else [],
        )
    if bad:
        record.missing.append(f"metrics.jsonl: {bad} of its lines cannot be read")
    for epoch in sorted(found):
        yield found[epoch]


def _take_users(record: RunRecord, path: Path) -> None:
    import polars as pl

    frame = _parquet(path, MOST_USERS)
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
    said = pl.read_parquet_metadata(path).get("shoal.users", "")
    record.evaluated = max(len(frame), int(said) if said.isdecimal() and len(said) < 16 else 0)
    record.users = frame


def _take_items(record: RunRecord, path: Path) -> None:
    import polars as pl

    kinds = {"item": pl.String, "train": pl.Int64, "recommended": pl.Int64, "title": pl.String}
    frame = _parquet(path, MOST_ITEMS)
    if "positives" in frame.columns:  # older runs have none
        kinds["positives"] = pl.Int64
    frame = _cast(frame, kinds)
    if frame["item"].null_count() or frame["item"].n_unique() < len(frame):
        raise ValueError("an item stands there twice, or has no name")
    record.items = frame


def _parquet(path: Path, rows: int) -> "pl.DataFrame":
    import polars as pl

    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > MOST_PARQUET:
            raise ValueError(f"it has more than {MOST_PARQUET >> 20} MiB")
    try:
        check_counts(path)
        frame = pl.read_parquet(path, n_rows=rows, hive_partitioning=False, glob=False)
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
    whole = [name for name, kind in kinds.items() if kind == pl.Int64]
    wrong = [k for k in whole if frame[k].null_count() or (frame[k] < 0).any()]
    if wrong:
        raise ValueError(f"column {wrong[0]} holds something other than counts")
    return frame


def number(value: Any) -> float | None:
    """A number that can be drawn; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < 1e100 else None  # NaN is not


def numbers(values: Any) -> dict[str, float]:
    """The entries of a mapping that are finite numbers."""
    found = {k: number(v) for k, v in values.items()} if isinstance(values, dict) else {}
    return {str(k): v for k, v in found.items() if v is not None}


def inner(values: dict[str, Any], key: str) -> dict[str, Any]:
    """A mapping within one; empty where it is none."""
    found = values.get(key)
    return found if isinstance(found, dict) else {}


def one_line(error: object, most: int = 200) -> str:
    """What an error is, in a line."""
    return short(next(iter(str(error).splitlines()), ""), most)


def short(value: Any, most: int = 120) -> str:
    """Text that does not fill the page."""
    text = str(value)
    return text if len(text) <= most else text[: most - 1] + "…"

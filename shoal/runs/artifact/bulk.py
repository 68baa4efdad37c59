"""Bulk: the best items of many users into a file, some thousand users at a time.

user, rank, item, score     a row for each place of each user's list; parquet, csv or jsonl
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.data.ids import Ids
from shoal.runs.artifact.loaded import Artifact
from shoal.runs.recommender import NOBODY

CHUNK_USERS = 1 << 14
SUFFIXES = (".parquet", ".csv", ".jsonl")


@dataclass(frozen=True)
class Job:
    """What is recommended to whom."""

    artifact: str
    output: str
    topk: int = 10
    users: str | None = None  # a file of users, one in a line; None: all
    exclude: str | None = None  # a file of items that may not come
    only: str | None = None  # a file of the items that alone may come
    category: str | None = None  # FILE:COLUMN=VALUE: items of a table that have this value
    seen: bool | None = None  # whether what was taken may come again; None: as trained
    approximate: bool = False  # by an index, whose recall is told


def recommend_many(job: Job, nproc: int = 0) -> int:
    """Write the file; how many users it has. nproc: cores that compute; 0: all."""
    if job.topk < 1 or nproc < 0:
        raise ValueError(
            f"topk is {job.topk} and nproc {nproc}; topk is 1 or more, nproc not less than 0"
        )
    if nproc:
        torch.set_num_threads(nproc)
    artifact = Artifact(job.artifact)
    artifact.needs_catalogue()
    users, names = _users(artifact, job.users)
    allowed = _allowed(artifact, job)
    banned = _numbers(artifact, job.exclude) if job.exclude else NOBODY
    by, items = None, names_of(artifact.items)
    if job.approximate:
        from shoal.runs.artifact.index import Approximate

        if allowed is not None:
            raise ValueError("an index ranks the whole catalogue: leave --only and --category out")
        index = Approximate(artifact)
        by = index.rank
        text = f"approximate: recall@{job.topk} is {index.recall(job.topk):.4f}"
        print(text, file=sys.stderr, flush=True)
    with parts_of(job.output) as write:
        for first in range(0, len(users), CHUNK_USERS):
            some = slice(first, first + CHUNK_USERS)
            how = (job.topk, allowed, banned, job.seen, by)
            found = artifact.recommender.rank_users(users[some], *how)
            write(_columns(names[some], items, *found))
    return len(users)


def _users(artifact: Artifact, file: str | None) -> tuple[np.ndarray, Any]:
    """Numbers of the users, 0 where one is not known, and what they are called."""
    import polars as pl

    if file is None:
        return np.arange(1, len(artifact.users)), names_of(artifact.users)[1:]
    words = read_lines(file)
    numbers = artifact.users.find(words)
    if numbers.all():
        return numbers, names_of(artifact.users).gather(numbers)
    missing = int((numbers == 0).sum())
    print(
        f"{missing} of {len(words)} users are not known, as {words[int(numbers.argmin())]!r}: the "
        "most popular items answer",
        file=sys.stderr,
        flush=True,
    )
    return numbers, pl.Series(words, dtype=pl.String)


def names_of(ids: Ids) -> Any:
    """Every id as a column of its type; that of the padding is empty."""
    import polars as pl

    kind = {int: pl.Int64, float: pl.Float64, str: pl.String}[ids.kind]
    return pl.Series(ids.values.tolist(), dtype=kind)


def _numbers(artifact: Artifact, file: str) -> np.ndarray:
    """Items of a file; those that the model does not know cannot come anyway."""
    found = np.unique(artifact.items.find(read_lines(file)))
    return found[found > 0]


def _allowed(artifact: Artifact, job: Job) -> np.ndarray | None:
    allowed = None if job.only is None else _numbers(artifact, job.only)
    if job.category is not None:
        known = np.unique(artifact.items.find(items_of_category(job.category)))
        chosen = known[known > 0]
        allowed = chosen if allowed is None else np.intersect1d(allowed, chosen)
    if allowed is not None and not len(allowed):
        raise ValueError("no item is left to recommend: --only and --category name none of them")
    return allowed


def read_lines(file: str | Path) -> list[str]:
    """The words of a file, one in a line."""
    try:
        text = Path(file).read_text()
    except OSError as error:
        raise ValueError(f"cannot read {file}: {error.strerror}") from error
    return [line.strip() for line in text.splitlines() if line.strip()]


def items_of_category(rule: str) -> list[str]:
    """FILE:COLUMN=VALUE -> the first column of the rows of a csv or parquet file that match."""
    import polars as pl

    file, _, rest = rule.rpartition(":")
    column, equals, value = rest.partition("=")
    if not (file and column and equals):
        raise ValueError(f"--category {rule!r} must be FILE:COLUMN=VALUE")
    if not Path(file).is_file():
        raise ValueError(f"--category: there is no file {file}")
    try:
        table = (
            pl.read_parquet(file)
            if file.endswith(".parquet")
            else pl.read_csv(file, infer_schema=False)
        )
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise ValueError(f"--category: {file} cannot be read: {error}") from None
    if column not in table.columns:
        raise ValueError(f"{file} has no column {column}; it has {', '.join(table.columns)}")
    kept = table.filter(pl.col(column).cast(pl.String) == value)
    return kept[table.columns[0]].cast(pl.String).to_list()


def _columns(users: Any, names: Any, items: np.ndarray, scores: np.ndarray) -> dict[str, Any]:
    kept = items.reshape(-1) > 0
    topk = items.shape[1]
    return {
        "user": users.gather(np.repeat(np.arange(len(users)), topk)[kept]),
        "rank": np.tile(np.arange(1, topk + 1, dtype=np.int32), len(users))[kept],
        "item": names.gather(items.reshape(-1)[kept]),
        "score": scores.reshape(-1)[kept],
    }


@contextmanager
def parts_of(output: str | Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """What writes columns, part after part, to a file that appears whole."""
    import polars as pl

    path = Path(output)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"--output {path} must end in {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise ValueError(f"--output {path}: there is no folder {path.parent}; make it first")
    folder = path.with_name(f".{path.name}.parts")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    files: list[Path] = []

    def write(columns: dict[str, Any]) -> None:
        files.append(folder / f"{len(files):08d}{path.suffix}")
        table = pl.DataFrame(columns)
        if path.suffix == ".parquet":
            table.write_parquet(files[-1])
        elif path.suffix == ".csv":
            table.write_csv(files[-1], include_header=len(files) == 1)
        else:
            table.write_ndjson(files[-1])

    try:
        yield write
        if not files:
            raise ValueError(f"there is nothing to write to {path}")
        whole = folder / f"whole{path.suffix}"
        if path.suffix == ".parquet":
            pl.scan_parquet(files).sink_parquet(whole)
        else:
            with open(whole, "wb") as out:
                for file in files:
                    with open(file, "rb") as part:
                        shutil.copyfileobj(part, out)
        os.replace(whole, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)

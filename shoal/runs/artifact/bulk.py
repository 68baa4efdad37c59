"""Bulk: the best items of many users into a file, some thousand users at a time.

    user, rank, item, score     a row for each place of each user's list; parquet, csv or jsonl

With several processes each takes every n-th chunk; chunks are written apart and joined in order, so
the file does not depend on how many there were.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.runs.artifact.loaded import Artifact

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


def recommend_many(job: Job, nproc: int = 1, tell: Callable[[str], None] = print) -> int:
    """Write the file; how many users it has."""
    output = Path(job.output)
    if output.suffix not in SUFFIXES:
        raise ValueError(f"--output {output} must end in {', '.join(SUFFIXES)}")
    if job.topk < 1 or nproc < 1:
        raise ValueError(f"topk is {job.topk} and nproc {nproc}; both must be 1 or more")
    if not output.parent.is_dir():
        raise ValueError(f"--output {output}: there is no folder {output.parent}; make it first")
    parts = output.with_name(f".{output.name}.parts")
    shutil.rmtree(parts, ignore_errors=True)
    parts.mkdir()
    try:
        if nproc == 1:
            count = _work(job, parts, 0, 1, tell)
        else:
            count = _work_apart(job, parts, nproc)
        join_parts(parts, output)
    finally:
        shutil.rmtree(parts, ignore_errors=True)
    return count


def _work_apart(job: Job, parts: Path, nproc: int) -> int:
    Artifact(job.artifact)  # one clear error, not one of each process
    command = [
        sys.executable,
        "-m",
        "shoal.runs.artifact.bulk",
        json.dumps(asdict(job)),
        str(parts),
    ]
    workers = [
        subprocess.Popen([*command, str(k), str(nproc)], stdout=subprocess.PIPE, text=True)
        for k in range(nproc)
    ]
    try:
        told = [worker.communicate()[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    if any(worker.returncode for worker in workers):
        raise ValueError("a process that recommends has failed; see above")
    return sum(int(text.split()[-1]) for text in told)


def _work(job: Job, parts: Path, rank: int, size: int, tell: Callable[[str], None]) -> int:
    """This process's chunks of users."""
    artifact = Artifact(job.artifact, check=size == 1)
    artifact.needs_catalogue()
    users = _users(artifact, job.users)
    allowed = _allowed(artifact, job)
    banned = _numbers(artifact, job.exclude) if job.exclude else None
    chunks = range(0, len(users), CHUNK_USERS)
    index = None
    if job.approximate:
        from shoal.runs.artifact.index import Approximate

        if allowed is not None:
            raise ValueError("an index ranks the whole catalogue: leave --only and --category out")
        index = Approximate(artifact)
        if rank == 0:
            text = f"approximate: recall@{job.topk} is {index.recall(job.topk):.4f}"
            print(text, file=sys.stderr, flush=True)
    done = 0
    for number in range(rank, len(chunks), size):
        some = users[chunks[number] : chunks[number] + CHUNK_USERS]
        found, scores = recommend_chunk(
            *(artifact, some, job.topk, allowed, banned, job.seen, index)
        )
        suffix = Path(job.output).suffix
        _write(artifact, some, found, scores, parts / f"{number:08d}{suffix}")
        done += len(some)
        tell(f"{done} users")
    return done


def recommend_chunk(
    artifact: Artifact,
    users: np.ndarray,
    topk: int,
    allowed: np.ndarray | None = None,
    banned: np.ndarray | None = None,
    seen: bool | None = None,
    index: Any = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Items [b, k] (0: none left) and scores [b, k] of known users, by number."""
    again = artifact.repeatable if seen is None else seen
    rows, items = np.zeros(0, np.int64), np.zeros(0, np.int64)
    if not again:
        rows, items = artifact.seen_pairs(users)
    if banned is not None and len(banned):
        rows = np.concatenate([rows, np.repeat(np.arange(len(users)), len(banned))])
        items = np.concatenate([items, np.tile(banned, len(users))])
    query = artifact.query_of_known(users)
    if index is not None:
        return index.rank(query, topk, (rows, items))
    return artifact.rank(query, topk, (rows, items), allowed)


def _users(artifact: Artifact, file: str | None) -> np.ndarray:
    if file is None:
        return np.arange(1, len(artifact.users))
    return artifact.users.need(read_lines(file), "user")


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
    table = (
        pl.read_parquet(file)
        if file.endswith(".parquet")
        else pl.read_csv(file, infer_schema=False)
    )
    if column not in table.columns:
        raise ValueError(f"{file} has no column {column}; it has {', '.join(table.columns)}")
    kept = table.filter(pl.col(column).cast(pl.String) == value)
    return kept[table.columns[0]].cast(pl.String).to_list()


def _write(
    artifact: Artifact, users: np.ndarray, items: np.ndarray, scores: np.ndarray, path: Path
) -> None:
    import polars as pl

    kept = items.reshape(-1) > 0
    topk = items.shape[1]
    names_of_users = pl.Series(np.asarray(artifact.users.words)[users], dtype=pl.String)
    names_of_items = _series(artifact)
    columns = {
        "user": names_of_users.gather(np.repeat(np.arange(len(users)), topk)[kept]),
        "rank": np.tile(np.arange(1, topk + 1, dtype=np.int32), len(users))[kept],
        "item": names_of_items.gather(items.reshape(-1)[kept]),
        "score": scores.reshape(-1)[kept],
    }
    write_part(columns, path)


def write_part(columns: dict[str, Any], path: Path) -> None:
    """One part of a file, as its suffix says."""
    import polars as pl

    table = pl.DataFrame(columns)
    if path.suffix == ".parquet":
        table.write_parquet(path)
    elif path.suffix == ".csv":
        table.write_csv(path)
    else:
        table.write_ndjson(path)


def _series(artifact: Artifact) -> Any:
    import polars as pl

    found = artifact.__dict__.get("_item_series")
    if found is None:
        found = artifact.__dict__["_item_series"] = pl.Series(artifact.items.words, dtype=pl.String)
    return found


def join_parts(parts: Path, output: Path) -> None:
    """The parts, in order, as one file that appears whole."""
    files = sorted(parts.iterdir())
    if not files:
        raise ValueError("there is nobody to recommend to")
    whole = parts / f"whole{output.suffix}"
    if output.suffix == ".parquet":
        import polars as pl

        pl.scan_parquet(files).sink_parquet(whole)
    else:
        with open(whole, "wb") as out:
            for number, file in enumerate(files):
                with open(file, "rb") as part:
                    if number and output.suffix == ".csv":
                        part.readline()  # its header
                    shutil.copyfileobj(part, out)
    os.replace(whole, output)


if __name__ == "__main__":
    own = Job(**json.loads(sys.argv[1]))
    place, number, total = Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // total))
    try:
        print(_work(own, place, number, total, lambda text: None))
    except ValueError as error:
        sys.exit(f"error: {error}")

"""Bulk: the best items of many users, or the clicks of many samples, into a file.

user, rank, item, score     a row for each place of each user's list; parquet, csv or jsonl
click                       a row for each sample, in order

Exact ranking is the default. An index looks at few of the items, so some of the best are missed:
how many is measured against exact ranking on queries of the model itself, and reported. Samples
have the format of the data that the model was trained on; labels are not needed.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal import how_to_install
from shoal.clicks import ClickLog
from shoal.clicks.encoder import LogEncoder
from shoal.clicks.per_feature import per_feature
from shoal.config.schema import DataSection
from shoal.data.bounded_files import open_text, plain_name
from shoal.data.ids import Ids
from shoal.data.prepared.inputs import form_of
from shoal.data.sources.tables import read_frame
from shoal.kernels.topk import Pairs
from shoal.recommender.recommender import NO_IDS
from shoal.serving.artifact.artifact import Artifact, Fields

SUFFIXES = (".parquet", ".csv", ".jsonl")


def recommend_many(
    folder: str | Path,
    output: str | Path,
    topk: int = 10,
    users: str | Path | None = None,
    exclude: str | None = None,
    only: str | None = None,
    category: str | None = None,
    seen: bool | None = None,
    approximate: bool = False,
    nproc: int = 0,
    spreadsheet: bool = False,
) -> int:
    """Write the best items of users of an artifact; return the number of users.

    users: a file of them, one in a line; None: all. exclude, only: files of items. category:
    FILE:COLUMN=VALUE, items of a table that have this value. seen: whether what was taken may come
    again; None: as trained. approximate: by an index. nproc: cores that compute; 0: all.
    spreadsheet: ids that it would compute, as =HYPERLINK(...), get a ' in front.
    """
    if topk < 1 or nproc < 0:
        raise ValueError(f"topk is {topk} and nproc {nproc}; topk is 1 or more, nproc 0 or more")
    if nproc:
        torch.set_num_threads(nproc)
    artifact = Artifact(folder)
    artifact.needs_catalogue()
    numbers, names = _users(artifact, users)
    # The items that may come.
    chosen = allowed_items(only, category)
    allowed = None if chosen is None else _numbers(artifact, chosen)
    if allowed is not None and not len(allowed):
        raise ValueError("no item is left to recommend: --only and --category name none of them")
    banned = _numbers(artifact, read_lines(exclude)) if exclude else NO_IDS
    items = names_of(artifact.items)
    if spreadsheet:
        names, items = _not_computed(names), _not_computed(items)
    index_rank = None
    if approximate:
        if allowed is not None:
            raise ValueError("an index ranks the whole catalogue: leave --only and --category out")
        index = Approximate(artifact)
        index_rank = index.rank
        text = f"approximate: recall@{topk} is {index.recall(topk):.4f}"
        print(text, file=sys.stderr, flush=True)
    # Lists of many users at a time.
    with parts_of(output) as write:
        for first in range(0, len(numbers), 1 << 14):
            block = slice(first, first + (1 << 14))
            best, scores = artifact.recommender.rank_users(
                numbers[block],
                topk,
                allowed=allowed,
                banned=banned,
                seen=seen,
                by=index_rank,
            )
            write(_columns(names[block], items, best, scores))
    return len(numbers)


def _users(artifact: Artifact, file: str | Path | None) -> tuple[np.ndarray, Any]:
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


def _not_computed(ids: Any) -> Any:
    """A column of ids without formulas; -0.5 is none."""
    import polars as pl

    if ids.dtype != pl.String:
        return ids
    formula = ids.str.contains(r"^[=+\-@\t\r]") & ids.cast(pl.Float64, strict=False).is_null()
    return ids.zip_with(~formula, "'" + ids)


def _numbers(artifact: Artifact, items: list[str]) -> np.ndarray:
    """Numbers of the items that the model knows; the others are never recommended."""
    numbers = np.unique(artifact.items.find(items))
    return numbers[numbers > 0]


def allowed_items(only: str | None, category: str | None) -> list[str] | None:
    """The items that alone may come: those of a file, of a category, or of both; None: all."""
    allowed = None if only is None else read_lines(only)
    if category is not None:
        chosen = items_of_category(category)
        allowed = chosen if allowed is None else [one for one in allowed if one in {*chosen}]
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
    """A function that writes columns, part after part, to a file that appears whole."""
    import polars as pl

    path = Path(output)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"--output {path} must end in {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise ValueError(f"--output {path}: there is no folder {path.parent}; make it first")
    folder = path.with_name(f".{path.name}.parts")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    whole, parts = folder / f"whole{path.suffix}", 0

    def write(columns: dict[str, Any]) -> None:
        nonlocal parts
        parts += 1
        table = pl.DataFrame(columns)
        if path.suffix == ".parquet":
            table.write_parquet(folder / f"{parts:08d}.parquet")
            return
        with open(whole, "ab") as out:
            if path.suffix == ".csv":
                table.write_csv(out, include_header=parts == 1)
            else:
                table.write_ndjson(out)

    try:
        yield write
        if not parts:
            raise ValueError(f"there is nothing to write to {path}")
        if path.suffix == ".parquet":
            pl.scan_parquet(sorted(folder.iterdir())).sink_parquet(whole)
        os.replace(whole, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# ---- approximate top-k, by usearch (HNSW) -------------------------------------------------------


class Approximate:
    """An index over the item vectors of an artifact."""

    def __init__(self, artifact: Artifact):
        try:
            from usearch.index import Index
        except ImportError as error:
            raise ValueError(f"{error}: {how_to_install('index')}") from error
        self.artifact = artifact
        vectors = artifact.item_vectors.numpy()
        self._index: Any = Index(ndim=vectors.shape[1], metric="ip", dtype="f32")
        self._index.add(np.arange(1, len(vectors)), vectors[1:])

    def rank(self, query: Fields, topk: int, without: Pairs) -> tuple[np.ndarray, np.ndarray]:
        """The best items [b, k] by the index, and their scores [b, k]; see Recommender.rank."""
        queries = self.artifact.queries(query)
        size = len(queries)
        longest = int(np.bincount(without[0], minlength=1).max()) if len(without[0]) else 0
        count = min(topk + longest + 64, len(self.artifact.items) - 1)
        matches = self._index.search(queries.numpy(), count)
        keys = np.asarray(matches.keys, dtype=np.int64).reshape(size, count)
        # The index rounds; scores are the model's own.
        vectors = self.artifact.item_vectors[torch.from_numpy(keys.reshape(-1))]
        scores = torch.einsum("bd,bnd->bn", queries, vectors.view(size, count, -1)).numpy().copy()
        banned = set(zip(without[0].tolist(), without[1].tolist()))
        for row, keys_of in enumerate(keys.tolist()):
            for column, key in enumerate(keys_of):
                if (row, key) in banned:
                    scores[row, column] = -np.inf
        order = np.argsort(-scores, axis=1, kind="stable")[:, :topk]
        scores = np.take_along_axis(scores, order, 1)
        return np.where(np.isneginf(scores), 0, np.take_along_axis(keys, order, 1)), scores

    def recall(self, topk: int) -> float:
        """The share of exact lists that the index returns, for users spread over all of them."""
        users = np.linspace(1, len(self.artifact.users) - 1, 256).astype(np.int64)
        users = np.unique(users)
        query = self.artifact.of_users(users)
        exact, _ = self.artifact.recommender.rank(query, len(users), topk)
        approximate, _ = self.rank(query, topk, (NO_IDS, NO_IDS))
        same = sum(len(np.intersect1d(a[a > 0], b)) for a, b in zip(exact, approximate))
        return same / max(1, int((exact > 0).sum()))


# ---- clicks of samples --------------------------------------------------------------------------


def predict_file(folder: str | Path, source: str | Path, output: str | Path) -> int:
    """Write a probability for each sample of a file, in order; return the number of samples."""
    artifact = Artifact(folder)
    artifact.needs_clicks()
    if not Path(source).is_file():
        raise ValueError(f"--input: there is no file {source}")
    names = [name for name, _ in artifact.labels]
    names = ["click"] if len(names) == 1 else names
    count = 0
    with tempfile.TemporaryDirectory(prefix="shoal-predict-") as scratch, parts_of(output) as write:
        for chances in _chances(artifact, Path(source), Path(scratch)):
            write(dict(zip(names, chances.reshape(len(chances), -1).T)))
            count += len(chances)
        if not count:
            raise ValueError(f"--input: {source} has no samples")
    return count


def _chances(artifact: Artifact, source: Path, scratch: Path) -> Iterator[np.ndarray]:
    encoder = artifact.encoder
    chunk_size = 1 << 16  # samples at a time
    if not isinstance(encoder, LogEncoder) or encoder.form in ("csv", "parquet"):
        if isinstance(encoder, LogEncoder):
            spelling = DataSection(separator=artifact.signature["separator"], quote=None)
        else:
            spelling = encoder.config
        frame = read_frame(source, spelling, form_of(source, spelling))
        artifact.predictor.warn_unknown(frame)
        for first in range(0, len(frame), chunk_size):
            yield artifact.predictor.chances(frame[first : first + chunk_size])
        return
    layout = encoder.layout
    form = "criteo" if encoder.form == "criteo" else "slots"  # (as generated clicks are written)
    if layout.slot_rows:  # prepared or not
        form, file = "multi_hot", source
    else:
        file = _with_labels(source, form, layout.label, scratch)
    for block in ClickLog([file], form, layout).blocks(file):
        for first in range(0, len(block), chunk_size):
            batch = block.samples(slice(first, first + chunk_size)).batch()
            batch = per_feature(batch, layout, encoder.features)
            yield artifact.predictor.predict_batch(batch).numpy()


def _with_labels(source: Path, form: str, label: str, scratch: Path) -> Path:
    """A file of lines that have labels: the given one, or a copy of it with zeros."""
    copy = scratch / f"{plain_name(source).stem}.txt"
    with open_text(source) as lines:
        first = lines.readline()
        if form == "slots":
            has, zero = f" {label}:".encode() in b" " + first, f"{label}:0 ".encode()
        else:
            has, zero = first.count(b"\t") != 38, b"0\t"
        if has:
            return source
        with open(copy, "wb") as out:
            for line in chain([first], lines):
                if line.strip(b"\r\n"):
                    out.write(zero + line.rstrip(b"\r\n") + b"\n")
    return copy

"""JSON lines: an object for each row."""

from __future__ import annotations

import io
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shoal.config.schema import DataSection
from shoal.data.bounded_files import (
    LONGEST_LINE,
    MOST_DEPTH,
    VALUE_BYTES,
    check_columns,
    check_depth,
    check_expansion,
    open_text,
)
from shoal.data.sources.tables import TableHeader
from shoal.data.sources.text import Lines, TextFormat

if TYPE_CHECKING:
    import polars as pl


HEADER_BYTES = 1 << 16  # in which the keys of the first objects stand; the first is read whole
STEPS = np.zeros(256, np.int8)  # down and up in the nesting
STEPS[[ord("["), ord("{")]], STEPS[[ord("]"), ord("}")]] = 1, -1


class JsonLines(TextFormat):
    """Columns are the keys of the first objects, and others that come later."""

    name = "jsonl"
    endings = (".jsonl", ".ndjson", ".json")
    first_row = 1
    has_header = False

    def header(self, path: Path, config: DataSection) -> TableHeader:
        with open_text(path) as source:
            text = source.read(HEADER_BYTES)
            if b"\n" not in text:  # the first object alone is longer
                text += source.readline(LONGEST_LINE)
        lines = text.split(b"\n")
        if not lines[0].strip():
            raise ValueError(f'{path} is empty; every line is an object, as in {{"user_id": 1}}')
        names: dict[str, None] = {}
        for line in lines[: -1 if len(lines) > 1 else None]:
            with suppress(ValueError, RecursionError):  # rows() reports the line
                row = json.loads(line)
                names |= dict.fromkeys(row if isinstance(row, dict) else ())
        check_columns(path, len(names))
        return TableHeader(list(names))

    def rows(
        self, body: bytes, header: TableHeader, columns: list[str], lines: Lines
    ) -> tuple[pl.DataFrame, np.ndarray | None, int]:
        import polars as pl

        check_nesting(body, lines)
        with suppress(
            pl.exceptions.PolarsError, pl.exceptions.PanicException
        ):  # else below, line by line
            frame = _read(body, lines)
            if len(frame) == body.count(b"\n") + 1:
                return _whole(frame, header), None, 0
        good_lines, numbers, skipped = [], [], 0
        for number, line in enumerate(body.split(b"\n"), start=lines.first):
            if not line.strip():
                continue
            try:
                if not isinstance(json.loads(line), dict):
                    raise ValueError("no object")
            except ValueError as error:
                if lines.skip:
                    skipped += 1
                    continue
                raise ValueError(
                    f"{lines.name}, line {number}: not an object of JSON ({error}): {line[:80]!r}; "
                    "correct it, or set data.bad_rows=skip to leave such lines out"
                ) from None
            good_lines.append(line)
            numbers.append(number)
        if not good_lines:
            raise ValueError(f"{lines.name} holds no rows; every line is an object of JSON")
        try:
            frame = _read(b"\n".join(good_lines), lines)
            return _whole(frame, header), np.array(numbers, np.int64), skipped
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise ValueError(
                f"{lines.name}: its lines have no common columns, or mixed types: {error}"
            ) from None


def check_nesting(body: bytes, lines: Lines) -> None:
    """Refuse a line that is nested too deep: parsers of JSON call themselves at every level."""
    text = np.frombuffer(body, np.uint8)
    steps = STEPS[text]
    places = np.flatnonzero(steps)
    if len(places) <= MOST_DEPTH:
        return
    depths = np.cumsum(steps[places], dtype=np.int64)
    # A line that is whole ends at the depth where it began.
    ends = np.flatnonzero(text == ord("\n"))
    line_numbers = np.searchsorted(ends, places)
    firsts = np.searchsorted(line_numbers, line_numbers)
    deep = depths - np.where(firsts > 0, depths[firsts - 1], 0) > MOST_DEPTH
    for number in np.unique(line_numbers[deep]).tolist():
        start, stop = (int(ends[k]) if 0 <= k < len(ends) else None for k in (number - 1, number))
        line = body[0 if start is None else start + 1 : stop]
        bare = np.frombuffer(re.sub(rb'"(?:[^"\\]|\\.)*"', b"", line), np.uint8)  # no texts
        depth = int(np.cumsum(STEPS[bare], dtype=np.int64).max(initial=0))
        check_depth(f"{lines.name}, line {lines.first + number}", depth)


def _read(body: bytes, lines: Lines) -> pl.DataFrame:
    """Lines as a frame, whose size is known before it is made."""
    import polars as pl

    schema = pl.scan_ndjson(io.BytesIO(body), infer_schema_length=None).collect_schema()
    rows, columns = body.count(b"\n") + 1, sum(_leaves(one) for one in schema.dtypes())
    check_columns(lines.name, columns)
    content = rows * columns * VALUE_BYTES
    check_expansion(lines.name, len(body), content, f"{rows:,} rows of {columns:,} columns")
    return pl.read_ndjson(io.BytesIO(body), schema=schema)


def _leaves(dtype: pl.DataType) -> int:
    """Columns that a type stands for: an object is one for each of its keys."""
    import polars as pl

    while isinstance(dtype, pl.List | pl.Array):
        dtype = dtype.inner  # type: ignore[assignment]
    if isinstance(dtype, pl.Struct):
        return sum(_leaves(inner) for inner in pl.Schema(dtype.to_schema()).dtypes())
    return 1


def _whole(frame: pl.DataFrame, header: TableHeader) -> pl.DataFrame:
    """The frame with empty columns for names of the header that no object of this part has."""
    import polars as pl

    missing = [name for name in header.names if name not in frame.columns]
    return frame.with_columns(pl.lit(None).alias(name) for name in missing)

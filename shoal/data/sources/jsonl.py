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
    check_line,
    open_text,
)
from shoal.data.sources.tables import TableHeader
from shoal.data.sources.text import Lines, TextFormat

if TYPE_CHECKING:
    import polars as pl


HEADER_BYTES = 1 << 16  # in which the keys of the first objects stand; the first is read whole
SCHEMA_BYTES = 1 << 16  # of lines whose keys are counted at a time: Polars takes rows x keys
STEPS = np.zeros(256, np.int8)  # down and up in the nesting
STEPS[[ord("["), ord("{")]], STEPS[[ord("]"), ord("}")]] = 1, -1


class JsonLines(TextFormat):
    """Columns are the keys of the first objects, and others that come later."""

    name = "jsonl"
    endings = (".jsonl", ".ndjson", ".json")
    first_row = 1
    has_header = False
    memory_factor = 4

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
            frame = _read(body, columns, lines)
            if len(frame) == body.count(b"\n") + 1:
                return frame, None, 0
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
            frame = _read(b"\n".join(good_lines), columns, lines)
            return frame, np.array(numbers, np.int64), skipped
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


def _read(body: bytes, columns: list[str], lines: Lines) -> pl.DataFrame:
    """Columns of lines as a frame, whose size is known before it is made.

    A column that no line has is empty.
    """
    import polars as pl

    schema, num_columns = infer_schema(body, columns, lines)
    rows = body.count(b"\n") + 1
    content = rows * num_columns * VALUE_BYTES
    check_expansion(lines.name, len(body), content, f"{rows:,} rows of {num_columns:,} columns")
    frame = pl.read_ndjson(io.BytesIO(body), schema=schema)
    missing = [name for name in columns if name not in schema]
    return frame.with_columns(pl.lit(None).alias(name) for name in missing)


def infer_schema(body: bytes, columns: list[str], lines: Lines) -> tuple[pl.Schema, int]:
    """The types of columns, as all lines have them, and how many columns all keys would be.

    Polars counts no keys: lines that have others each would take minutes and gigabytes. So blocks
    of lines are looked at one after the other, and their keys are counted.
    """
    import polars as pl

    wanted = set(columns)
    leaves: dict[str, int] = {}  # key -> the columns that it stands for
    num_columns = 0
    previous: pl.Schema | None = None
    held: list[pl.Schema] = []  # schemas of the columns that blocks have
    start = 0
    while start < len(body):
        stop = body.find(b"\n", start + SCHEMA_BYTES)
        block = body[start : stop if stop >= 0 else len(body)]
        if len(block) > LONGEST_LINE:
            check_line(lines.name, max(map(len, block.split(b"\n"))))
        start += len(block) + 1
        schema = pl.scan_ndjson(io.BytesIO(block), infer_schema_length=None).collect_schema()
        if schema == previous:
            continue
        previous = schema
        for name, dtype in schema.items():
            leaves[name] = max(leaves.get(name, 0), _leaves(dtype))
        num_columns = sum(leaves.values())
        check_columns(lines.name, num_columns)
        # Without a column Polars returns no rows: then it reads the first that there is.
        kept = [name for name in schema if name in wanted] or schema.names()[:1]
        block_schema = pl.Schema({name: schema[name] for name in kept})
        if block_schema not in held:
            held.append(block_schema)
    frames = [pl.DataFrame(schema=schema) for schema in held] or [pl.DataFrame()]
    return pl.concat(frames, how="diagonal_relaxed").schema, num_columns


def _leaves(dtype: pl.DataType) -> int:
    """Columns that a type stands for: an object is one for each of its keys."""
    import polars as pl

    while isinstance(dtype, pl.List | pl.Array):
        dtype = dtype.inner  # type: ignore[assignment]
    if isinstance(dtype, pl.Struct):
        return sum(_leaves(inner) for inner in pl.Schema(dtype.to_schema()).dtypes())
    return 1

"""csv with any separator, quotes and encoding, and JSON lines, as frames of columns.

The good path never touches a row in Python; only where something is wrong, or cells are quoted, are
lines looked at one by one.
"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shoal.config.schema import DataSection
from shoal.data.sources.delimited import read_bytes

if TYPE_CHECKING:
    import polars as pl

SEPARATORS = (",", "\t", ";", "|")
Found = tuple["pl.DataFrame", "np.ndarray | None", int]  # rows, line of each, how many left out


def read_csv(path: Path, config: DataSection) -> Found:
    """A csv file with a header; all cells as text."""
    import polars as pl

    body = _decoded(read_bytes(path), config.encoding, path)
    head = body.partition(b"\n")[0]
    if not head.strip():
        raise ValueError(f"{path} is empty; its first line must name the columns")
    separator = _separator(head.decode(), config.separator)
    quote = config.quote.encode() if config.quote else b""
    lines: np.ndarray | None = None
    skipped = 0
    names = next(csv.reader(io.StringIO(head.decode()), **_how(separator, config)))
    quoted = bool(quote) and quote in body
    blank = b"\n\n" in body
    rows = body.count(b"\n")
    sound = (
        not quoted and not blank and body.count(separator.encode()) == (rows + 1) * (len(names) - 1)
    )
    if sound and rows:
        frame = _frame(body, separator, "", path)
        if len(frame) == rows and not (len(names) > 1 and frame[names[-1]].has_nulls()):
            return frame, None, 0
    body, lines, skipped = _row_by_row(body, names, separator, config, path)
    if not len(lines):
        return pl.DataFrame(schema=dict.fromkeys(names, pl.String)), lines, skipped
    return _frame(body, separator, '"', path), lines, skipped


def _frame(body: bytes, separator: str, quote: str, path: Path) -> pl.DataFrame:
    import polars as pl

    try:
        return pl.read_csv(body, separator=separator, quote_char=quote or None, infer_schema=False)
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"{path}: not readable as csv: {error}") from error


def _how(separator: str, config: DataSection) -> dict:
    if config.quote:
        return {"delimiter": separator, "quotechar": config.quote, "strict": True}
    return {"delimiter": separator, "quoting": csv.QUOTE_NONE}


def _row_by_row(
    body: bytes, names: list[str], separator: str, config: DataSection, path: Path
) -> tuple[bytes, np.ndarray, int]:
    """The same rows in plain quotes, the line of each, and how many bad ones were left out."""
    kept, lines, skipped = io.StringIO(), [], 0
    writer = csv.writer(kept, delimiter=separator, lineterminator="\n")
    writer.writerow(names)
    reader = csv.reader(io.StringIO(body.decode(), newline=""), **_how(separator, config))
    begun = 1
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise ValueError(
                f"{path}, line {begun}: {error}; is {config.quote!r} what quotes cells "
                "(data.quote)? null: nothing does"
            ) from None
        if row is None:
            break
        first, begun = begun, reader.line_num + 1
        if first == 1 or not row:  # the header, a blank line
            continue
        if len(row) != len(names):
            if config.bad_rows == "skip":
                skipped += 1
                continue
            raise ValueError(
                f"{path}, line {first}: {len(row)} cells where the header names {len(names)} "
                f"({', '.join(names)}): {separator.join(row)[:80]!r}; correct the line, set "
                "data.separator or data.quote if they are others, or data.bad_rows=skip to leave "
                "such rows out"
            )
        lines.append(first)
        writer.writerow(row)
    return kept.getvalue().encode(), np.array(lines, np.int64), skipped


def _decoded(data: bytes, encoding: str, path: Path) -> bytes:
    """UTF-8, whatever it was."""
    try:
        text = data.decode(encoding)
    except LookupError:
        raise ValueError(f"data.encoding: there is no encoding {encoding!r}") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}, line {line}: byte {data[error.start]:#04x} is not {encoding}; set "
            "data.encoding to what the file has, such as latin-1 or cp1252"
        ) from None
    if encoding.replace("-", "").lower() in ("utf8", "ascii"):
        return data
    return text.removeprefix("\ufeff").replace("\r\n", "\n").rstrip("\n").encode()


def _separator(head: str, said: str) -> str:
    """The one that the config names if the header has it, else the most frequent of the usual."""
    if said in head:
        return said
    return max(SEPARATORS, key=head.count)


def read_lines(path: Path, config: DataSection) -> Found:
    """JSON lines: an object for each row."""
    import polars as pl

    body = _decoded(read_bytes(path), config.encoding, path)
    if not body.strip():
        raise ValueError(f'{path} is empty; every line is an object, as in {{"user_id": 1}}')
    lines: np.ndarray | None = None
    skipped = 0
    try:
        if b"\n\n" not in body:
            frame = pl.read_ndjson(io.BytesIO(body), infer_schema_length=None)
            if len(frame) == body.count(b"\n") + 1:
                return frame, None, 0
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException):
        pass  # below, line by line
    kept, numbers = [], []
    for number, line in enumerate(body.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            if not isinstance(json.loads(line), dict):
                raise ValueError("no object")
        except ValueError as error:
            if config.bad_rows == "skip":
                skipped += 1
                continue
            raise ValueError(
                f"{path}, line {number}: not an object of JSON ({error}): {line[:80]!r}; correct "
                "it, or set data.bad_rows=skip to leave such lines out"
            ) from None
        kept.append(line)
        numbers.append(number)
    if not kept:
        raise ValueError(f"{path} holds no rows")
    lines = np.array(numbers, np.int64)
    try:
        frame = pl.read_ndjson(io.BytesIO(b"\n".join(kept)), infer_schema_length=None)
        return frame, lines, skipped
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise ValueError(
            f"{path}: its lines have no common columns, or mixed types: {error}"
        ) from None

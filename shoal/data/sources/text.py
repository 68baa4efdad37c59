"""csv with any separator, quotes and encoding, and JSON lines, as frames of columns.

The good path never touches a row in Python; only where something is wrong, or cells are quoted, are
lines looked at one by one.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shoal.config.schema import DataSection
from shoal.data.packed import open_text
from shoal.data.sources.delimited import read_bytes
from shoal.data.sources.quotes import Cells

if TYPE_CHECKING:
    import polars as pl

MOST_HEADER = 1 << 20  # bytes
SEPARATORS = (",", "\t", ";", "|")
Found = tuple["pl.DataFrame", "np.ndarray | None", int]  # rows, line of each, how many left out


def read_csv(path: Path, config: DataSection) -> Found:
    """A csv file with a header; all cells as text."""
    import polars as pl

    body = decoded(read_bytes(path), config.encoding, path)
    head = body.partition(b"\n")[0].decode()
    if not head.strip():
        raise ValueError(f"{path} is empty; its first line must name the columns")
    cells = cells_of(head, config)
    names = cells.header(head, path)
    body = cells.without_null(body)
    if cells.marked(body) and (plain := cells.without_quotes(body)) is not None:
        body = plain
    rows = body.count(b"\n")
    whole = body.count(cells.separator.encode()) == (rows + 1) * (len(names) - 1)
    if rows and whole and b"\n\n" not in body and not cells.marked(body):
        frame = _frame(body, cells.separator, None, path)
        if len(frame) == rows and not (len(names) > 1 and frame[names[-1]].has_nulls()):
            return frame, None, 0
    kept, lines, skipped = _row_by_row(body, names, cells, config, path)
    if not len(lines):
        return pl.DataFrame(schema=dict.fromkeys(names, pl.String)), lines, skipped
    return _frame(kept, cells.separator, '"', path), lines, skipped


def first_line(path: Path, encoding: str = "utf-8") -> str:
    """The first line of a text, which names columns."""
    try:
        with open_text(path) as source:
            line = source.readline(MOST_HEADER)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from error
    head = decoded(line.removeprefix(b"\xef\xbb\xbf"), encoding, path).decode().rstrip("\r\n")
    if not head.strip():
        raise ValueError(f"{path} is empty; its first line must name the columns")
    return head


def header_of(path: Path, config: DataSection) -> list[str]:
    """The columns that the first line of a csv file names."""
    head = first_line(path, config.encoding)
    return cells_of(head, config).header(head, path)


def cells_of(head: str, config: DataSection) -> Cells:
    """How cells are told apart: by data.separator if the header has it, else the most frequent."""
    said = config.separator
    separator = said if said in head else max(SEPARATORS, key=head.count)
    return Cells(separator, config.quote, config.escape)


def _frame(body: bytes, separator: str, quote: str | None, path: Path) -> pl.DataFrame:
    import polars as pl

    try:
        return pl.read_csv(body, separator=separator, quote_char=quote, infer_schema=False)
    except pl.exceptions.PolarsError as error:
        raise ValueError(f"{path}: not readable as csv: {error}") from error


def _row_by_row(
    body: bytes, names: list[str], cells: Cells, config: DataSection, path: Path
) -> tuple[bytes, np.ndarray, int]:
    """The same rows in plain quotes, the line of each, and how many bad ones were left out."""
    kept, lines, skipped = io.StringIO(), [], 0
    writer = csv.writer(kept, delimiter=cells.separator, lineterminator="\n")
    writer.writerow(names)
    for line, row in cells.rows(body, len(names)):
        if line == 1 or row == []:  # the header, a blank line
            continue
        if isinstance(row, csv.Error) or len(row) != len(names):
            if config.bad_rows != "skip":
                raise ValueError(f"{path}, line {line}: {wrong_row(row, names, cells)}")
            skipped += 1
            continue
        lines.append(line)
        writer.writerow(row)
    return kept.getvalue().encode(), np.array(lines, np.int64), skipped


def wrong_row(row: list[str] | csv.Error, names: list[str], cells: Cells) -> str:
    """What is wrong with a row, and the remedy."""
    if isinstance(row, csv.Error):
        escape = "nothing" if cells.escape is None else repr(cells.escape)
        return (
            f"{row}; cells are quoted by {cells.quote!r} (data.quote; null: by nothing), and "
            f"{escape} escapes a quote within a cell (data.escape, such as \\): set them, correct "
            "the line, or set data.bad_rows=skip to leave such rows out"
        )
    return (
        f"{len(row)} cells where the header names {len(names)} ({', '.join(names)}): "
        f"{cells.separator.join(row)[:80]!r}; correct the line, set data.separator or data.quote "
        "if they are others, or data.bad_rows=skip to leave such rows out"
    )


def is_utf8(encoding: str) -> bool:
    """Whether text of an encoding is UTF-8 as it is."""
    return encoding.replace("-", "").lower() in ("utf8", "ascii")


def is_by_line(encoding: str) -> bool:
    """Whether lines of an encoding can be found, and decoded each by itself."""
    try:
        name = codecs.lookup(encoding).name
    except LookupError:
        raise ValueError(f"data.encoding: there is no encoding {encoding!r}") from None
    return "\n".encode(encoding) == b"\n" and not name.startswith(("utf-7", "iso2022", "hz"))


def decoded(data: bytes, encoding: str, path: Path, first_line: int = 1) -> bytes:
    """UTF-8, whatever it was; first_line: its number in the file."""
    try:
        text = data.decode(encoding)
    except LookupError:
        raise ValueError(f"data.encoding: there is no encoding {encoding!r}") from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + first_line
        raise ValueError(
            f"{path}, line {line}: byte {data[error.start]:#04x} is not {encoding}; set "
            "data.encoding to what the file has, such as latin-1 or cp1252"
        ) from None
    if is_utf8(encoding):
        return data
    return text.removeprefix("\ufeff").replace("\r\n", "\n").rstrip("\n").encode()


def read_lines(path: Path, config: DataSection) -> Found:
    """JSON lines: an object for each row."""
    import polars as pl

    body = decoded(read_bytes(path), config.encoding, path)
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

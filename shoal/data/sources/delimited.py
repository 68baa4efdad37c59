"""Delimited text -> columns, by Polars, with errors that name the line.

The good path never touches a row in Python; only after something failed are lines looked at one
by one, to say which.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shoal.data.dataset import FieldType
from shoal.data.packed import open_text
from shoal.data.raw import RawColumn

if TYPE_CHECKING:  # Polars is imported where it is used: training from the cache does not need it
    import polars as pl

_STAND_IN = b"\x1f"  # replaces separators longer than the one byte that Polars allows


LARGEST = float(np.finfo(np.float32).max)


@dataclass
class ParsedColumn:
    """One column of one file: values (String or Float64; null is empty), offsets for lists."""

    values: pl.Series
    offsets: np.ndarray | None = None


@dataclass
class Layout:
    """How one file is laid out. fields: all columns in order; load: those wanted."""

    fields: dict[str, FieldType]
    load: list[str]
    separator: str
    seq_separator: str = " "
    first_line: int = 2
    required: frozenset[str] = frozenset()


def read_bytes(path: Path) -> bytes:
    """The text without byte-order mark, with LF line ends and without blank lines at its end."""
    try:
        with open_text(path) as source:
            return clean(source.read())
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from error


def clean(data: bytes) -> bytes:
    """Text as read_bytes promises it."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    if b"\r\n" in data:
        data = data.replace(b"\r\n", b"\n")
    return data.rstrip(b"\n")


def parse(body: bytes, layout: Layout, where: str) -> dict[str, ParsedColumn]:
    """Columns layout.load of the text `body` (no header); `where` names the file in errors."""
    import polars as pl

    if not body:
        raise ValueError(f"{where} holds no rows after its header; fill or remove the file")
    names = list(layout.fields)
    separator = layout.separator.encode()
    if len(separator) != 1:
        if _STAND_IN in body:
            raise ValueError(
                f"{where}: contains the control character 0x1f, which cannot be read together "
                f"with the separator {layout.separator!r}; use a separator of one character"
            )
        body, separator = body.replace(separator, _STAND_IN), _STAND_IN
    wanted = [i for i, name in enumerate(names) if name in layout.load or name == names[-1]]
    try:
        frame = pl.read_csv(
            body,
            has_header=False,
            separator=separator.decode(),
            quote_char=None,
            schema={name: pl.String for name in names},
            columns=wanted,
        )
    except pl.exceptions.PolarsError as error:
        _complain_of_shape(body, separator, layout, where)
        _complain_of_encoding(body, layout, where)
        raise ValueError(f"{where}: not readable as delimited text: {error}") from error
    # Equal totals and no row too short to reach the last column: every row has all cells.
    if body.count(separator) != len(frame) * (len(names) - 1) or frame[names[-1]].has_nulls():
        _complain_of_shape(body, separator, layout, where)

    columns = {}
    for name in layout.load:
        text = frame[name]
        if name in layout.required and text.has_nulls():
            row = int(text.is_null().arg_max() or 0)
            raise ValueError(
                f"{where}, line {layout.first_line + row}: {name!r} is empty; "
                "give it a value or remove the line"
            )
        columns[name] = _convert(name, text, layout, where)
    return columns


def join(parts: list[ParsedColumn], kind: FieldType) -> RawColumn:
    """One raw column of the same column of one or several files, words numbered as they come."""
    import polars as pl

    values = parts[0].values if len(parts) == 1 else pl.concat([p.values for p in parts])
    offsets = None
    if parts[0].offsets is not None:
        lengths = np.concatenate([np.diff(p.offsets) for p in parts if p.offsets is not None])
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    if kind.startswith("float"):
        return RawColumn(values.fill_null(float("nan")).to_numpy(), None, offsets)
    words = values.unique(maintain_order=True).drop_nulls()
    if len(words) == 0:
        return RawColumn(np.full(len(values), -1, np.int64), np.empty(0, object), offsets)
    codes = values.cast(pl.Enum(words)).to_physical().cast(pl.Int64).fill_null(-1)
    return RawColumn(codes.to_numpy(), np.array(words.to_list(), dtype=object), offsets)


def _convert(name: str, text: pl.Series, layout: Layout, where: str) -> ParsedColumn:
    kind = layout.fields[name]
    offsets = None
    if kind.endswith("_seq"):
        import polars as pl

        lists = text.fill_null("").str.split(layout.seq_separator)
        lists = lists.list.eval(pl.element().filter(pl.element() != ""))
        lengths = lists.list.len().to_numpy().astype(np.int64)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        text = lists.explode().drop_nulls()  # an empty list explodes to one null
    if kind.startswith("token"):
        return ParsedColumn(text, offsets)
    return ParsedColumn(_floats(name, text, offsets, layout, where), offsets)


def _floats(
    name: str, text: pl.Series, offsets: np.ndarray | None, layout: Layout, where: str
) -> pl.Series:
    import polars as pl

    numbers = text.cast(pl.Float64, strict=False)
    if numbers.null_count() > text.null_count():
        numbers = text.str.strip_chars().cast(pl.Float64, strict=False)
    # Columns are kept as float32: what is finite must be so there, too.
    bad = text.is_not_null() & ~(numbers.abs() <= LARGEST).fill_null(False)
    if not bad.any():
        return numbers
    index = int(bad.arg_max() or 0)
    row = index if offsets is None else int(np.searchsorted(offsets, index, side="right")) - 1
    problem = "is not a number" if numbers[index] is None else "is not finite in 32 bits"
    raise ValueError(
        f"{where}, line {layout.first_line + row}: {text[index]!r} in {name!r} {problem}, but the "
        f"type of {name!r} is {layout.fields[name]}; correct the value or remove the line"
    )


def _complain_of_shape(body: bytes, separator: bytes, layout: Layout, where: str) -> None:
    """Raise for the first line whose number of cells is not the header's."""
    want = len(layout.fields)
    for number, line in enumerate(body.split(b"\n"), start=layout.first_line):
        found = line.count(separator) + 1
        if found != want:
            text = line.replace(_STAND_IN, layout.separator.encode()).decode(errors="replace")
            raise ValueError(
                f"{where}, line {number}: {found if line else 'no'} cells where the header names "
                f"{want} ({', '.join(layout.fields)}): {text[:80]!r}; correct the line, or set "
                f"data.separator if {layout.separator!r} is not what separates the cells"
            )


def _complain_of_encoding(body: bytes, layout: Layout, where: str) -> None:
    """Raise for the first line that is not UTF-8."""
    for number, line in enumerate(body.split(b"\n"), start=layout.first_line):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{where}, line {number}: byte {line[error.start]:#04x} is not UTF-8; "
                "save the file as UTF-8"
            ) from error

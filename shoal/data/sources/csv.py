"""csv with a header, any separator, quotes and encoding; and other text of cells in lines.

Polars reads the cells wherever its answer is exact: every row is whole, and quotes stand around
cells. It repairs what is wrong without a word, so that is looked at before. Lines of other text are
read one by one: an error then names its line, and bad rows are left out. Blank lines hold nothing.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.config.schema import DataSection
from shoal.data.bounded_files import check_columns
from shoal.data.sources.tables import TableHeader
from shoal.data.sources.text import Lines, TextFormat, first_line
from shoal.data.sources.typed import OR_SKIP

if TYPE_CHECKING:
    import polars as pl

SEPARATORS = (",", "\t", ";", "|")
OTHER_FORMAT = ", set data.separator or data.quote if they are others"
# Stands for separators longer than the one byte that Polars allows, and between cells of which
# some hold the separator.
STAND_IN = "\x1f"


@dataclass(frozen=True)
class CellFormat:
    """What stands between cells, what quotes them, and what escapes a quote within one."""

    separator: str
    quote: str | None = '"'
    escape: str | None = None

    def header(self, line: str, path: Path) -> list[str]:
        """The names in the first line of a file."""
        try:
            return next(csv.reader([line], **self._reader_options), [])
        except csv.Error as error:
            raise ValueError(f"{path}: its first line is no header: {error}") from None

    def marked(self, body: bytes) -> bool:
        """Whether anything is quoted or escaped in a text."""
        return any(mark and mark.encode() in body for mark in (self.quote, self.escape))

    def without_null(self, body: bytes) -> bytes:
        """The text with empty cells in place of NULL without quotes, as databases write it.

        >>> CellFormat(";").without_null(b'"7";NULL\\n"8";"NULL"')
        b'"7";\\n"8";"NULL"'
        """
        if b"NULL" not in body or not self.quote:
            return body
        between, quote = re.escape(self.separator.encode()), re.escape(self.quote.encode())
        before, after = quote + between, between + quote
        pattern = rb"(?<=%s)NULL(?=\n|$|%s)|(?:^|(?<=\n))NULL(?=%s)" % (before, after, after)
        return re.sub(pattern, b"", body)

    def row_lines(self, body: bytes, width: int) -> np.ndarray | None:
        """The line on which each row begins, from 0, where quotes are sound and rows are whole.

        Sound: each quote opens or closes a cell, or is doubled within one. Whole: each row has
        `width` cells. None where either is not so: a quote elsewhere is read in different ways.

        >>> CellFormat(";").row_lines(b'"User-ID";ISBN\\n"7";"a;b"\\n"8 ""x""\\n";c', 2).tolist()
        [0, 1, 2]
        >>> CellFormat(";").row_lines(b'7;5" disk', 2)
        """
        quote, separator = (self.quote or "").encode(), self.separator.encode()
        if len(quote) != 1 or len(separator) != 1:
            return None
        if self.escape and self.escape.encode() in body:
            return None
        text = np.frombuffer(body, np.uint8)
        is_quote, is_line_end = text == quote[0], text == ord("\n")
        is_cell_end = (text == separator[0]) | is_line_end
        # Before a quote that opens and behind one that closes stands the end of a cell, or, where
        # a quote is doubled, the other one of the two.
        quotes = np.flatnonzero(is_quote)
        opening, closing = quotes[0::2], quotes[1::2]
        if len(opening) != len(closing):
            return None
        may_stand_beside = np.append(is_cell_end | is_quote, True)  # also what is not in the text
        if not (may_stand_beside[opening - 1].all() and may_stand_beside[closing + 1].all()):
            return None
        # Signs within a cell are its text.
        is_outside = np.bitwise_xor.accumulate(is_quote.view(np.uint8)) == 0
        ends = np.flatnonzero(is_cell_end & is_outside)
        row_ends = np.flatnonzero(is_line_end[ends])
        cells = np.diff(row_ends, prepend=-1, append=len(ends))
        if (cells != width).any():
            return None
        following = np.flatnonzero(is_outside[np.flatnonzero(is_line_end)]) + 1
        return np.concatenate([[0], following])

    def rows(self, body: bytes, width: int) -> Iterator[tuple[int, list[str] | csv.Error]]:
        """The number of its first line, from 1, and the cells of each row; or what is wrong.

        What follows the first line of a row that is wrong (or has not `width` cells) is read again:
        a quote that is not closed does not swallow the rows behind it. Blank lines have no cells.
        """
        lines = list(io.StringIO(body.decode(), newline=""))
        at = 0
        while at < len(lines):
            begin = at
            reader = csv.reader(
                (lines[k] for k in range(begin, len(lines))), **self._reader_options
            )
            try:
                for row in reader:
                    yield at + 1, row
                    if len(row) not in (0, width):
                        at += 1
                        break
                    at = begin + reader.line_num
            except csv.Error as error:
                yield at + 1, error
                at += 1

    @property
    def _reader_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"delimiter": self.separator, "escapechar": self.escape}
        if self.quote:
            return {**options, "quotechar": self.quote, "strict": True}
        return {**options, "quoting": csv.QUOTE_NONE}


@dataclass(frozen=True)
class CellHeader(TableHeader):
    """The columns of a text of cells, and how its cells are separated and quoted."""

    cells: CellFormat = CellFormat(",")


class CellText(TextFormat):
    """Lines of cells; how they are separated and quoted stands in the header that is read."""

    def rows(
        self, body: bytes, header: TableHeader, columns: list[str], lines: Lines
    ) -> tuple[pl.DataFrame, np.ndarray | None, int]:
        """The rows of lines, the line of each (None: they follow each other), and bad ones."""
        assert isinstance(header, CellHeader)
        return read_cells(body, header.names, header.cells, columns, lines)


class Csv(CellText):
    """Cells are separated by data.separator if the header has it, else by the most frequent."""

    name = "csv"
    endings: tuple[str, ...] = (".csv", ".tsv", ".txt")

    def described(self, config: DataSection) -> Csv:
        return self if config.columns is None else UNNAMED

    def header(self, path: Path, config: DataSection) -> CellHeader:
        head, preferred = first_line(path, config.encoding), config.separator
        separator = preferred if preferred in head else max(SEPARATORS, key=head.count)
        cells = CellFormat(separator, config.quote, config.escape)
        names = cells.header(head, path)
        check_columns(path, len(names))
        if self.has_header:
            check_names_once(names, path)
        return CellHeader(names, cells=cells)


def check_names_once(names: list[str], path: Path) -> None:
    """Refuse a header that names two columns alike."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        shown = (
            f"the column {twice[0]!r} stands there twice"
            if twice[0]
            else ("two columns have no name")
        )
        raise ValueError(
            f"{path}, line 1: {shown}; give every column a name of its own, or remove the line and "
            "name them by data.columns"
        )


class UnnamedCsv(Csv):
    """Cells from the first line on; data.columns names the columns."""

    first_row = 1
    has_header = False

    def header(self, path: Path, config: DataSection) -> CellHeader:
        cells, names = super().header(path, config).cells, config.columns
        assert names is not None, "Csv.described chooses this class where columns are named"
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise ValueError(f"data.columns names {twice[0]!r} twice; every column has its name")
        first = cells.header(first_line(path, config.encoding), path)
        if len(first) != len(names):
            raise ValueError(
                f"{path}, line 1: {len(first)} cells where data.columns names {len(names)} "
                f"({', '.join(names)}): {cells.separator.join(first)[:80]!r}; is it another file, "
                "or has it other columns or another data.separator?"
            )
        return CellHeader(names, cells=cells)


UNNAMED = UnnamedCsv()


def read_cells(
    body: bytes,
    names: list[str],
    cells: CellFormat,
    columns: list[str],
    lines: Lines,
) -> tuple[pl.DataFrame, np.ndarray | None, int]:
    """The cells of `columns` (all are `names`) as text; the line of each row; bad rows."""
    import polars as pl

    file_cells = cells
    if len(cells.separator.encode()) != 1:
        if STAND_IN.encode() in body:
            raise ValueError(
                f"{lines.name}: contains the control character 0x1f, which cannot be read together "
                f"with the separator {cells.separator!r}; use a separator of one character"
            )
        body = body.replace(cells.separator.encode(), STAND_IN.encode())
        cells = replace(cells, separator=STAND_IN)
    body = cells.without_null(body)
    blank = b"\n\n" in body or body[:1] in (b"", b"\n")
    if not blank:
        fast = _read_marked if cells.marked(body) else _read_plain
        with suppress(pl.exceptions.PolarsError):
            if (read := fast(body, names, columns, cells, lines)) is not None:
                return *read, 0
    good_rows, line_numbers, skipped = io.StringIO(), [], 0
    writer = csv.writer(good_rows, delimiter=cells.separator, lineterminator="\n")
    for line, row in cells.rows(body, len(names)):
        if row == []:  # a blank line
            continue
        number = lines.first + line - 1
        over = not lines.whole and not isinstance(row, csv.Error) and "\n" in "".join(row)
        if isinstance(row, csv.Error) or len(row) != len(names) or over:
            if not lines.skip:
                problem = "a cell goes over the end of its line; write such files as Parquet"
                problem = problem if over else _wrong(row, names, file_cells)
                raise ValueError(f"{lines.name}, line {number}: {problem}")
            skipped += 1
            continue
        line_numbers.append(number)
        writer.writerow(row)
    if not line_numbers:
        frame = pl.DataFrame(schema=dict.fromkeys(names, pl.String))
    else:
        frame = _frame(good_rows.getvalue().encode(), names, columns, cells.separator, '"')
    return frame, np.array(line_numbers, np.int64), skipped


def _read_plain(
    body: bytes, names: list[str], columns: list[str], cells: CellFormat, lines: Lines
) -> tuple[pl.DataFrame, np.ndarray | None] | None:
    """Cells of text without quotes; None where not every line is whole."""
    rows = body.count(b"\n") + 1
    if body.count(cells.separator.encode()) != rows * (len(names) - 1):
        return None
    frame = _frame(body, names, columns, cells.separator, None)
    # Where one line is too short and another too long, the short one's last cell is null.
    if len(frame) != rows or (len(names) > 1 and frame[names[-1]].has_nulls()):
        return None
    return frame, None


def _read_marked(
    body: bytes, names: list[str], columns: list[str], cells: CellFormat, lines: Lines
) -> tuple[pl.DataFrame, np.ndarray | None] | None:
    """Cells of text with quotes, and the line of each row; None where a line may be wrong."""
    import polars as pl

    row_lines = cells.row_lines(body, len(names))
    if row_lines is None:
        return None
    has_long_rows = len(row_lines) <= body.count(b"\n")  # some go over the end of a line
    if has_long_rows and not lines.whole:
        return None
    frame = _frame(body, names, columns, cells.separator, cells.quote)
    if len(frame) != len(row_lines):
        return None
    frame = frame.with_columns(pl.all().replace("", None))  # a quoted cell may be empty, too
    return frame, lines.first + row_lines if has_long_rows else None


def _frame(
    body: bytes, names: list[str], columns: list[str], separator: str, quote: str | None
) -> pl.DataFrame:
    """The given columns as text, and the last one, which shows whether lines are whole."""
    import polars as pl

    return pl.read_csv(
        body,
        has_header=False,
        separator=separator,
        quote_char=quote,
        schema=dict.fromkeys(names, pl.String),
        columns=[k for k, name in enumerate(names) if name in columns or name == names[-1]],
    )


def _wrong(row: list[str] | csv.Error, names: list[str], cells: CellFormat) -> str:
    """What is wrong with a row, and the remedy."""
    if isinstance(row, csv.Error):
        escape = "nothing" if cells.escape is None else repr(cells.escape)
        return (
            f"{row}; cells are quoted by {cells.quote!r} (data.quote; null: by nothing), and "
            f"{escape} escapes a quote within a cell (data.escape, such as \\): set them, correct "
            f"the line{OR_SKIP}"
        )
    return (
        f"{len(row)} cells where the header names {len(names)} ({', '.join(names)}): "
        f"{cells.separator.join(row)[:80]!r}; correct the line{OTHER_FORMAT}{OR_SKIP}"
    )

"""Quoted cells of csv: taken off all at once where that is exact, else read row by row."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


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

    def without_quotes(self, body: bytes) -> bytes | None:
        """The text without quotes, where each pair is around a cell that needs none.

        None: a cell holds a quote, a separator or a line's end, or a quote stands elsewhere.

        >>> CellFormat(";").without_quotes(b'"User-ID";ISBN\\n"7";""')
        b'User-ID;ISBN\\n7;'
        >>> CellFormat(";").without_quotes(b'"a;b";c')
        """
        quote, separator = (self.quote or "").encode(), self.separator.encode()
        if len(quote) != 1 or len(separator) != 1:
            return None
        if self.escape and self.escape.encode() in body:
            return None
        text = np.frombuffer(body, np.uint8)
        ends = (text == separator[0]) | (text == ord("\n"))  # of cells
        quotes = np.flatnonzero(text == quote[0])
        opening, closing = quotes[0::2], quotes[1::2]
        if len(opening) != len(closing):
            return None
        begins = (opening == 0) | ends[opening - 1]
        stops = (closing == len(text) - 1) | ends[np.minimum(closing + 1, len(text) - 1)]
        ends_at = np.flatnonzero(ends)
        is_one_cell = np.searchsorted(ends_at, opening) == np.searchsorted(ends_at, closing)
        return body.replace(quote, b"") if bool((begins & stops & is_one_cell).all()) else None

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

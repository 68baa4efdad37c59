"""Lines of Python literals: a dict for each row, as in the Steam reviews.

They are read by `ast.literal_eval`, which evaluates no code, and lines are bounded in length and
depth. A value that is a list of dicts is a row for each of them, with the other keys of its line;
an empty list is no row.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from shoal.config.schema import DataSection
from shoal.data.bounded_files import check_columns, open_text
from shoal.data.sources.jsonl import check_nesting
from shoal.data.sources.tables import TableHeader
from shoal.data.sources.text import Lines, TextFormat

if TYPE_CHECKING:
    import polars as pl

LONGEST_LITERAL = 1 << 20  # bytes of a line: the parser takes some hundred times as much
HEADER_LINES = 20  # whose keys are the columns


class Literals(TextFormat):
    """Columns are the keys of the first lines."""

    name = "literals"
    first_row = 1
    has_header = False
    memory_factor = 4

    def header(self, path: Path, config: DataSection) -> TableHeader:
        names: dict[str, None] = {}
        with open_text(path) as source:
            for number in range(1, HEADER_LINES + 1):
                line = source.readline(LONGEST_LITERAL + 1)
                if not line.strip():
                    break
                try:
                    for row in parsed_rows(line, str(path), number):
                        names |= dict.fromkeys(row)
                except ValueError:  # rows() reports the line
                    if number == 1 and config.bad_rows != "skip":
                        raise
        if not names:
            raise ValueError(f"{path} is empty; every line is a dict of Python")
        check_columns(path, len(names))
        return TableHeader(list(names))

    def rows(
        self, body: bytes, header: TableHeader, columns: list[str], lines: Lines
    ) -> tuple[pl.DataFrame, np.ndarray | None, int]:
        import polars as pl

        cells: dict[str, list[str | None]] = {name: [] for name in columns}
        row_lines: list[int] = []
        skipped = 0
        for number, line in enumerate(body.split(b"\n"), start=lines.first):
            if not line.strip():
                continue
            try:
                rows = list(parsed_rows(line, lines.name, number))
            except ValueError:
                if not lines.skip:
                    raise
                skipped += 1
                continue
            for row in rows:
                row_lines.append(number)
                for name, column in cells.items():
                    column.append(_text(row.get(name)))
        frame = pl.DataFrame(cells, schema=dict.fromkeys(columns, pl.String))
        return frame, np.array(row_lines, np.int64), skipped


def parsed_rows(line: bytes, name: str, number: int) -> Iterator[dict[str, Any]]:
    """The rows of a line; name: of its file, number: its own, for errors.

    >>> list(parsed_rows(b"{'user': 'a', 'reviews': [{'game': 1}, {'game': 2}]}", "log", 1))
    [{'user': 'a', 'game': 1}, {'user': 'a', 'game': 2}]
    """
    where = f"{name}, line {number}"
    if len(line) > LONGEST_LITERAL:
        raise ValueError(f"{where}: more than {LONGEST_LITERAL} bytes; is a row on every line?")
    check_nesting(line, Lines(name, number))
    try:
        value = ast.literal_eval(line.decode().strip())
        if not isinstance(value, dict):
            raise ValueError("no dict")
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(
            f"{where}: not a dict of Python ({type(error).__name__}): {line[:80]!r}; correct it, "
            "or set data.bad_rows=skip to leave such lines out"
        ) from None
    own = {str(key): one for key, one in value.items() if not _is_rows(one)}
    lists = [one for one in value.values() if _is_rows(one)]
    if not lists:
        yield own
    for rows in lists:
        for row in rows:
            yield own | {str(key): one for key, one in row.items()}


def _is_rows(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)


def _text(value: object) -> str | None:
    """A value as a cell: 1 and 0 for True and False, empty for None."""
    if value is None or isinstance(value, list | dict | tuple | set):
        return None
    return str(int(value)) if isinstance(value, bool) else str(value)

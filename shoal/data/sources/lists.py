"""Lines of item numbers: a line for each user, as LightGCN's files, or for each session.

    lists           0 7 12 9        user 0 took the items 7, 12 and 9
    session_lists   7 12 9          a session of the items 7, 12 and 9, named after its line

A user without items, and a blank line, hold no rows.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shoal.config.schema import DataSection
from shoal.data.sources.tables import TableHeader
from shoal.data.sources.text import Lines, TextFormat

if TYPE_CHECKING:
    import polars as pl

NUMBERS = re.compile(rb"[0-9 \t\r\n]*")


class ItemLists(TextFormat):
    """A line is a user and that user's items."""

    name = "lists"
    first_row = 1
    has_header = False
    names_user = True  # by the first number of a line

    def header(self, path: Path, config: DataSection) -> TableHeader:
        user, item = config.fields.user, config.fields.item
        return TableHeader([user, item], {user: "token", item: "token"})

    def rows(
        self, body: bytes, header: TableHeader, columns: list[str], lines: Lines
    ) -> tuple[pl.DataFrame, np.ndarray | None, int]:
        import polars as pl

        texts, skipped = body.split(b"\n"), 0
        numbers = [*range(lines.first, lines.first + len(texts))]
        if NUMBERS.fullmatch(body) is None:
            is_sound = [NUMBERS.fullmatch(text) is not None for text in texts]
            if not lines.skip:
                place = is_sound.index(False)
                raise ValueError(_not_numbers(lines, numbers[place], texts[place], self.names_user))
            skipped = is_sound.count(False)
            numbers = [number for number, sound in zip(numbers, is_sound) if sound]
            texts = [text for text, sound in zip(texts, is_sound) if sound]
        words = [text.decode().split() for text in texts]
        users: list[str] = []
        items: list[str] = []
        row_lines: list[np.ndarray] = []
        for number, line in zip(numbers, words):
            line_items = line[1:] if self.names_user else line
            user = line[0] if line and self.names_user else f"{Path(lines.name).stem}:{number}"
            users += [user] * len(line_items)
            items += line_items
            row_lines.append(np.full(len(line_items), number, np.int64))
        user_column, item_column = header.names
        frame = pl.DataFrame(
            {user_column: users, item_column: items},
            schema={user_column: pl.String, item_column: pl.String},
        )
        return frame, np.concatenate(row_lines or [np.empty(0, np.int64)]), skipped


class SessionLists(ItemLists):
    """A line is a session: its items in order."""

    name = "session_lists"
    names_user = False


def _not_numbers(lines: Lines, number: int, text: bytes, names_user: bool) -> str:
    """The message about a line that holds something else than numbers."""
    shown = text[:80].decode(errors="replace")
    form = "USER ITEM ITEM ..." if names_user else "ITEM ITEM ..."
    return (
        f"{lines.name}, line {number}: {shown!r} is not a line of whole numbers ({form}); correct "
        "it, or set data.bad_rows=skip to leave such lines out"
    )

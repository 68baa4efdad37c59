"""A class while it is translated: edits of its text, and the lines of the table.

The functions that translate one kind of thing each take a Draft and add to it.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

from shoal.compat.recbole_import.edits import Edits, first_line
from shoal.compat.recbole_import.options import OptionKey
from shoal.compat.recbole_import.source import ModelSource


@dataclass(frozen=True)
class Line:
    """A line of the table: what stands in the class, and what it is here."""

    number: int
    what: str
    becomes: str
    look: str = ""  # why a person must look; empty: done


class Draft:
    """What is collected from the top of the file to its end."""

    def __init__(self, source: ModelSource):
        self.source = source
        self.edits = Edits(source.text)
        self.lines: list[Line] = []
        self.runtime_names: dict[str, str] = {}  # of shoal.compat.recbole -> as what
        self.options: dict[str, OptionKey] = {}
        self.tables: set[str] = set()  # attributes of the class
        self.left_out: list[ast.stmt] = [*source.others]  # of the module
        # `forward` is the training step here, so the class's own has another name.
        self.step_name = "compute" if "compute" not in source.methods else "compute_outputs"

    def done(self, node: Any, what: str, becomes: str) -> None:
        """Add a line of something that needs nobody."""
        self.lines.append(Line(node.lineno, what, becomes))

    def look(self, node: Any, what: str, why: str) -> None:
        """Add a line of something that stays and that a person must look at, with a comment."""
        self.lines.append(Line(node.lineno, what, "as it was", why))
        statement = node
        while not isinstance(statement, ast.stmt):
            statement = self.source.parents[statement]
        self.edits.insert_above(first_line(statement), look_comment(why))


def look_comment(why: str) -> str:
    """The lines of a comment that asks a person to look."""
    return "".join(f"# {line}\n" for line in wrap(f"LOOK: {why}", 88))

"""Replacements in a source text at places of its syntax tree; all else stays as it was written."""

from __future__ import annotations

import ast
from typing import Any


def first_line(node: Any) -> int:
    """The line where a statement begins: that of its first decorator, if it has one."""
    return min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])


class Edits:
    """Collects replacements of spans, and writes the text with them.

    >>> import ast
    >>> from shoal.compat.recbole_import.edits import Edits
    >>> text = "width = config['width']  # of vectors"
    >>> edits = Edits(text)
    >>> edits.replace(ast.parse(text).body[0].value, "options.width")
    >>> edits.text()
    'width = options.width  # of vectors'
    """

    def __init__(self, text: str):
        self._bytes = text.encode()
        lines = self._bytes.split(b"\n")
        self._starts = [0]
        for line in lines:
            self._starts.append(self._starts[-1] + len(line) + 1)
        self._lines = lines
        self._spans: list[tuple[int, int, bytes]] = []

    def start(self, node: Any) -> int:
        """Where a node begins, in bytes."""
        return self._starts[node.lineno - 1] + node.col_offset

    def end(self, node: Any) -> int:
        """Where a node ends, in bytes."""
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def source(self, node: Any) -> str:
        """The text of a node."""
        return self._bytes[self.start(node) : self.end(node)].decode()

    def replace(self, node: Any, new: str) -> None:
        """Put a text in place of a node."""
        self.replace_span(self.start(node), self.end(node), new)

    def replace_span(self, start: int, end: int, new: str) -> None:
        """Put a text in place of bytes; within a span that is replaced already nothing happens."""
        if not any(first < end and start < last for first, last, _ in self._spans):
            self._spans.append((start, end, new.encode()))

    def find(self, text: str, start: int) -> int:
        """Where a text stands next, from a place in bytes."""
        return self._bytes.index(text.encode(), start)

    def insert_above(self, line: int, new: str) -> None:
        """Put lines above a line, indented as it is; new: without indentation, its end included."""
        raw = self._lines[line - 1]
        indent = raw[: len(raw) - len(raw.lstrip())].decode()
        block = "".join(
            indent + part if part.strip() else part for part in new.splitlines(keepends=True)
        )
        at = self._starts[line - 1]
        self._spans.append((at, at, block.encode()))

    def insert_below(self, node: ast.stmt, new: str) -> None:
        """Put lines below a statement that begins at the margin."""
        at = min(self._starts[node.end_lineno or node.lineno], len(self._bytes))
        self._spans.append((at, at, new.encode()))

    def comment_out(self, node: Any, why: str) -> None:
        """Make comments of the lines of a statement, below a line that says why."""
        first = first_line(node)
        start, end = self._starts[first - 1], self._starts[node.end_lineno] - 1
        lines = self._bytes[start:end].decode().split("\n")
        indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
        commented = [f"{indent}# {line.removeprefix(indent)}".rstrip() for line in lines]
        above = [f"{indent}# {why}"] if why else []
        self._spans = [span for span in self._spans if not start <= span[0] < end]
        self._spans.append(
            (start, min(end, len(self._bytes)), "\n".join(above + commented).encode())
        )

    def remove(self, node: ast.stmt) -> None:
        """Leave out the lines of a statement."""
        first = first_line(node)
        start, end = self._starts[first - 1], self._starts[node.end_lineno or first]
        self._spans = [span for span in self._spans if not start <= span[0] < end]
        self._spans.append((start, min(end, len(self._bytes)), b""))

    def text(self) -> str:
        """The text with all replacements."""
        parts, at = [], 0
        # Where an insertion and a replacement begin at one place, the insertion is first.
        for start, end, new in sorted(self._spans, key=lambda span: (span[0], span[1])):
            if start >= at:  # not within what was replaced as a whole
                parts += [self._bytes[at:start], new]
                at = end
        return b"".join([*parts, self._bytes[at:]]).decode()

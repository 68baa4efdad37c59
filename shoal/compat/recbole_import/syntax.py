"""Questions about an expression or statement: what it reads, calls or assigns."""

from __future__ import annotations

import ast
from collections.abc import Iterator

Function = ast.FunctionDef


def is_self(node: ast.AST) -> bool:
    """Whether an expression is the name self."""
    return isinstance(node, ast.Name) and node.id == "self"


def is_super(node: ast.AST) -> bool:
    """Whether an expression is super(), with or without arguments."""
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
    )


def last_name(node: ast.expr) -> str:
    """a.b.Base -> Base; empty: it is no name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def keyword_value(call: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword argument; None: the call has none of this name."""
    return next((one.value for one in call.keywords if one.arg == name), None)


def assigned_pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each target of a statement and its value: a, b = 1, 2 has the pairs a, 1 and b, 2."""
    value = node.value
    for target in node.targets:
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        is_pair = isinstance(value, ast.Tuple) and len(value.elts) == len(targets)
        values = value.elts if is_pair else [value] * len(targets)  # type: ignore[attr-defined]
        yield from zip(targets, values)


def assignments(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Attributes of self that a statement assigns, and their values: self.a, self.b = 1, 2."""
    for target, value in assigned_pairs(node) if isinstance(node, ast.Assign) else ():
        if isinstance(target, ast.Attribute) and is_self(target.value):
            yield target.attr, value


def one_line(text: str) -> str:
    """A text in one line of 60 characters at most."""
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:59]}…"

"""Import statements of a file for RecBole, and its code that is no part of a class."""

from __future__ import annotations

import ast
import sys
from importlib.util import find_spec

from shoal.compat.recbole import NAMES

# Modules of RecBole, also where a project has a copy of them: common/abstract_recommender.py.
MODULES = {
    "abstract_recommender",
    "loss",
    "init",
    "layers",
    "utils",
    "enum_type",
    "losses",
}


def is_recbole(node: ast.ImportFrom) -> bool:
    """Whether names come from RecBole, or from a project's copy of it."""
    module = node.module or ""
    if module.split(".")[0] in ("recbole", "recbox"):
        return True
    return module.split(".")[-1] in MODULES and any(one.name in NAMES for one in node.names)


def full_names(tree: ast.Module) -> dict[str, str]:
    """Local name -> what it was imported as: nn -> torch.nn."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                names[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            module = "recbole" if is_recbole(node) else node.module or ""
            for alias in node.names:
                names[alias.asname or alias.name] = f"{module}.{alias.name}"
    return names


def dotted(node: ast.AST, names: dict[str, str]) -> str:
    """The full name of an expression such as nn.Embedding; empty: it is no name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([names.get(node.id, node.id), *reversed(parts)])


def missing_packages(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Packages of an import statement that are not installed here; nothing is imported."""
    tops = {(node.module or "").split(".")[0]} if isinstance(node, ast.ImportFrom) else set()
    if isinstance(node, ast.Import):
        tops = {alias.name.split(".")[0] for alias in node.names}
    return [top for top in sorted(tops) if top not in sys.stdlib_module_names and not _is_here(top)]


def _is_here(top: str) -> bool:
    try:
        return find_spec(top) is not None
    except (ImportError, ValueError):
        return False


def only_defines(node: ast.stmt) -> bool:
    """Whether a statement of a module defines something and does nothing else."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Try):
        inside = [*node.body, *node.orelse, *node.finalbody]
        inside += [one for handler in node.handlers for one in handler.body]
        simple = ast.Import | ast.ImportFrom | ast.Assign | ast.Pass
        return all(isinstance(one, simple) for one in inside)
    return isinstance(
        node,
        ast.Import
        | ast.ImportFrom
        | ast.FunctionDef
        | ast.AsyncFunctionDef
        | ast.ClassDef
        | ast.Assign
        | ast.AnnAssign
        | ast.Pass,
    )

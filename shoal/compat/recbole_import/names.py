"""Full names: what the file imported a name as, so that nn.Embedding is torch.nn.Embedding."""

from __future__ import annotations

import ast

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

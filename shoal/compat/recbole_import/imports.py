"""Import statements: what comes from RecBole is imported from shoal.compat.recbole."""

from __future__ import annotations

import ast
import sys
from importlib.util import find_spec

from shoal.compat.recbole import NAMES
from shoal.compat.recbole_import.draft import Draft, Line
from shoal.compat.recbole_import.edits import first_line
from shoal.compat.recbole_import.names import is_recbole


def translate_imports(draft: Draft) -> None:
    """Every import statement of what stays of the file."""
    for statement in draft.source.tree.body:
        for node in ast.walk(statement) if statement not in draft.left_out else ():
            if isinstance(node, ast.Import | ast.ImportFrom):
                _import(draft, node)


def _import(draft: Draft, node: ast.Import | ast.ImportFrom) -> None:
    text = draft.edits.source(node).split("\n")[0]
    if isinstance(node, ast.Import) and node.names[0].name.split(".")[0] == "recbole":
        _leave_out(draft, node, text, "RecBole itself is not here")
    elif isinstance(node, ast.ImportFrom) and is_recbole(node):
        _import_from_recbole(draft, node)
    elif isinstance(node, ast.ImportFrom) and node.level:
        why = "a file of its own imports nothing beside it; put what it needs into this file"
        _leave_out(draft, node, text, why)
    elif node in draft.source.tree.body:  # elsewhere it may be in a try
        missing = _missing_packages(node)
        if missing:
            draft.look(node, text, f"{', '.join(missing)} is not installed here")


def _leave_out(draft: Draft, node: ast.stmt, what: str, why: str) -> None:
    """Make a comment of an import that a person must look at."""
    draft.edits.comment_out(node, f"LOOK: {why}.")
    draft.lines.append(Line(node.lineno, what, "a comment", why))


def _import_from_recbole(draft: Draft, node: ast.ImportFrom) -> None:
    """Note the names that are here; `import_runtime` imports them at once."""
    tree = draft.source.tree
    names = ", ".join(alias.name for alias in node.names)
    from_here = [alias for alias in node.names if alias.name in NAMES]
    for alias in from_here:
        draft.runtime_names[alias.name] = alias.asname or alias.name
    in_use = {name.id for name in ast.walk(tree) if isinstance(name, ast.Name)}
    unknown = [
        alias.name
        for alias in node.names
        if alias.name not in NAMES and (alias.asname or alias.name) in in_use
    ]
    if unknown:
        missing = ", ".join(unknown)
        why = f"{missing} of {node.module} has no counterpart here; put its code into this file"
        _leave_out(draft, node, f"import {names}", why)
    elif node in tree.body:
        draft.edits.remove(node)
        becomes = "from shoal.compat.recbole" if from_here else "left out: it is not used"
        draft.done(node, f"import {names}", becomes)
    else:  # in a function or a try, which needs a statement
        draft.edits.replace(node, "pass")


def _missing_packages(node: ast.Import | ast.ImportFrom) -> list[str]:
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


def import_runtime(draft: Draft) -> None:
    """Import what stands for RecBole's names, behind the imports at the top of the file."""
    base = draft.source.base
    draft.runtime_names.setdefault(base, base)
    names = sorted(
        name if alias == name else f"{name} as {alias}"
        for name, alias in draft.runtime_names.items()
    )
    statement = f"from shoal.compat.recbole import {', '.join(names)}\n"
    if len(statement) > 101:
        body = "".join(f"    {name},\n" for name in names)
        statement = f"from shoal.compat.recbole import (\n{body})\n"
    if any("field(default_factory" in key.declaration for key in draft.options.values()):
        statement = f"from dataclasses import field\n\n{statement}"
    top = draft.source.tree.body
    first_class = min(node.lineno for node in top if isinstance(node, ast.ClassDef))
    imports = [node for node in top if isinstance(node, ast.Import | ast.ImportFrom)]
    imports_above = [node for node in imports if node.lineno < first_class]
    if imports_above:
        draft.edits.insert_below(imports_above[-1], statement)
    else:
        draft.edits.insert_above(first_line(draft.source.chain[-1]), f"{statement}\n\n")

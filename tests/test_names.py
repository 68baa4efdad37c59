"""Names that say nothing are not bound any more: a name answers "a what?".

Loop variables of comprehensions that fit one line may be short, and `former_method` may bind the
name that a method had in the release before.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "shoal"
NO_NOUNS = {"one", "found", "given", "made", "some", "known", "told", "asked", "beside"}
ROOMS = sorted(path.name for path in ROOT.iterdir() if (path / "__init__.py").is_file())


def bindings(path: Path) -> list[str]:
    """Where a file binds such a name, as FILE:LINE NAME."""
    tree = ast.parse(path.read_text())
    short: set[int] = set()
    for node in ast.walk(tree):
        is_comprehension = isinstance(
            node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
        )
        if is_comprehension and node.lineno == node.end_lineno:  # type: ignore[attr-defined]
            for generator in node.generators:  # type: ignore[attr-defined]
                short |= {id(name) for name in ast.walk(generator.target)}
        is_call = isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if is_call and ast.unparse(node.value.func) == "former_method":  # type: ignore[attr-defined]
            short |= {id(name) for name in node.targets}  # type: ignore[attr-defined]
    places = []
    for node in ast.walk(tree):
        name = None
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in short:
            name = node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            name = node.attr
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = node.name
        if name in NO_NOUNS:
            places.append(f"{path.relative_to(ROOT)}:{node.lineno} {name}")  # type: ignore[attr-defined]
    return places


@pytest.mark.parametrize("room", ROOMS)
def test_names_are_nouns(room: str) -> None:
    places = [place for path in sorted((ROOT / room).rglob("*.py")) for place in bindings(path)]
    assert not places, "\n".join(places)

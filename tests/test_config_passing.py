"""A config is read at the top and passed as what is needed: a section of it, or the values.

A function that takes the whole Config may read any of 200 keys, and only its body says which.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "shoal"
# Parameters of type Config that each room still has: may only become fewer. What reads all of a
# config (writing it, comparing it, building a run of it) keeps its own.
LEFT = {
    "clicks": 9,
    "config": 13,
    "data": 3,
    "embedding": 4,
    "experiments": 3,
    "launch": 3,
    "planning": 7,
    "runs": 18,
    "training": 4,
}
ROOMS = sorted(path.name for path in ROOT.iterdir() if (path / "__init__.py").is_file())


def config_parameters(path: Path) -> list[str]:
    """Parameters of a file's functions whose type names Config, as FILE:LINE FUNCTION."""
    places = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            for annotation in [argument.annotation for argument in arguments]:
                if annotation is not None and "Config" in _names(annotation):
                    places.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    return places


def _names(annotation: ast.expr) -> set[str]:
    names = {node.id for node in ast.walk(annotation) if isinstance(node, ast.Name)}
    texts = [node.value for node in ast.walk(annotation) if isinstance(node, ast.Constant)]
    return names | {text for text in texts if isinstance(text, str)}


@pytest.mark.parametrize("room", ROOMS)
def test_sections_are_passed_instead_of_whole_configs(room: str) -> None:
    files = sorted((ROOT / room).rglob("*.py"))
    places = [place for path in files for place in config_parameters(path)]
    assert len(places) <= LEFT.get(room, 0), "\n".join(places)

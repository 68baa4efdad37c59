"""Docstrings stand alone, and calls show what they pass.

An editor shows a docstring without its neighbours: one that begins with "The same" says nothing
there. A tuple that is packed in one line and splatted into a call in the next hides which value is
which argument: pass them by name, or make a small dataclass.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "shoal"
BEGINNINGS = ("The same", "Of ", "Those ", "Some of", "The opposite", "What was")
ROOMS = sorted(path.name for path in ROOT.iterdir() if (path / "__init__.py").is_file())
FILES = [
    path.as_posix()
    for folder in (ROOT, ROOT.parent / "tests", ROOT.parent / "benchmarks")
    for path in folder.rglob("*.py")
]
FILES_OF_USERS = {"train.py", "ours.py", "my_models.py"}  # scripts and plugins in examples
Function = ast.FunctionDef | ast.AsyncFunctionDef


def files_of(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


def needy_docstrings(path: Path) -> list[str]:
    """Docstrings of a file that need their neighbour, as FILE:LINE TEXT."""
    places = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, Function | ast.ClassDef | ast.Module):
            text = ast.get_docstring(node) or ""
            if text.startswith(BEGINNINGS) or "likewise" in text.lower():
                line = getattr(node, "lineno", 1)
                places.append(f"{path.relative_to(ROOT)}:{line} {text.splitlines()[0]}")
    return places


def lines_of_splats(path: Path) -> list[str]:
    """Lines that begin with a splat of something in brackets, as FILE:LINE."""
    lines = enumerate(path.read_text().splitlines(), start=1)
    return [
        f"{path.relative_to(ROOT)}:{number}"
        for number, line in lines
        if line.lstrip().startswith("*(")
    ]


def packs(path: Path) -> list[str]:
    """Calls with `*name` where the same function binds the name to a tuple literal."""
    places = []
    for function in ast.walk(ast.parse(path.read_text())):
        if not isinstance(function, Function):
            continue
        tuples: set[str] = set()
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
                tuples |= {name.id for name in node.targets if isinstance(name, ast.Name)}
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        for splat in [
            node for call in calls for node in call.args if isinstance(node, ast.Starred)
        ]:
            if isinstance(splat.value, ast.Name) and splat.value.id in tuples:
                places.append(f"{path.relative_to(ROOT)}:{splat.lineno} *{splat.value.id}")
    return sorted(set(places))


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_stand_alone(room: str) -> None:
    places = [place for path in files_of(room) for place in needy_docstrings(path)]
    assert places == [], "\n".join(places)


@pytest.mark.parametrize("room", ROOMS)
def test_no_line_begins_with_a_splat_of_brackets(room: str) -> None:
    places = [place for path in files_of(room) for place in lines_of_splats(path)]
    assert places == [], "\n".join(places)


@pytest.mark.parametrize("room", ROOMS)
def test_no_tuple_is_packed_to_be_splatted(room: str) -> None:
    places = [place for path in files_of(room) for place in packs(path)]
    assert places == [], "\n".join(places)


@pytest.mark.parametrize("room", ROOMS)
def test_files_that_docstrings_name_are_there(room: str) -> None:
    """Files of the package, of tests and of benchmarks; FILE.py in capitals is a user's."""
    missing: list[str] = []
    for path in files_of(room):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, Function | ast.ClassDef | ast.Module):
                text = ast.get_docstring(node) or ""
                for name in re.findall(r"(?<![\w./-])[a-z_]\w*(?:/\w+)*\.py\b", text):
                    is_there = any(file.endswith(f"/{name}") for file in FILES)
                    if not is_there and name not in FILES_OF_USERS:
                        missing.append(f"{path.relative_to(ROOT)}: {name}")
    assert missing == [], "\n".join(missing)

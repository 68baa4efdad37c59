"""What the docs name is there: pages, places in them, files, keys, commands, names of Python."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import shoal
from shoal.command.cli import app
from shoal.config.keys import KEYS, SECTIONS

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "docs"))
import generate  # noqa: E402

KINDS_OF_PAGES = ("*.md", "docs/**/*.md", "benchmarks/*.md", "examples/pages/*.md")
PAGES = sorted(page for kind in KINDS_OF_PAGES for page in ROOT.glob(kind))
FOLDERS = "shoal|tests|benchmarks|examples|recipes|csrc|docs"
NOT_PYTHON = {  # components of TorchX, operators of ONNX, a file, an entry in a file
    *("shoal.train", "shoal.ps", "shoal.lookup", "shoal.pooled", "shoal.listed"),
    *("shoal.secret", "shoal.users"),
}
PYTHON = {  # names of Python that read like keys
    "data.batch",
    "data.features",
    "data.feature_table",
    "data.joined",
    "data.knowledge",
    "strategy.estimator",
    "strategy.export_saved_model",
}
of_a_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def places(page: Path) -> set[str]:
    """What `PAGE.md#...` may name: the headings, as GitHub writes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    heads = [re.sub(r"[^\w\- ]", "", line.lower()) for line in re.findall(r"^#+ (.+)$", text, re.M)]
    return {head.strip().replace(" ", "-") for head in heads}


@of_a_page
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if link.startswith(("http://", "https://")):
            continue
        name, _, place = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not place or place in places(target), link


@of_a_page
def test_files_are_there(page: Path) -> None:
    for name in re.findall(rf"`((?:{FOLDERS})/[\w./*-]+?)(?::\w+)?`", page.read_text()):
        assert list(ROOT.glob(name.rstrip("/"))), name


def keys_of(text: str) -> Iterator[str]:
    """Dotted names in code (`train.epochs`, `--train.epochs=5`) that begin with a section."""
    sections = "|".join(name for name in SECTIONS if "." not in name)
    yield from re.findall(rf"(?:`|--)((?:{sections})(?:\.[a-z_]\w*)+)(?![\w.(-])", text)


@of_a_page
def test_keys_are_those_of_the_config(page: Path) -> None:
    free = [key for key, leaf in KEYS.items() if isinstance(leaf.default, dict | None)]
    for key in set(keys_of(page.read_text())) - PYTHON:
        if key.startswith("model.") or Path(key).suffix in (".py", ".log", ".yaml", ".json"):
            continue
        known = key in KEYS or key in SECTIONS or key.startswith(tuple(f"{one}." for one in free))
        assert known or key == "train.epoch", key  # the last is a misspelt one, on purpose


@of_a_page
def test_commands_are_there(page: Path) -> None:
    commands = {one.name for one in app.registered_commands}
    commands |= {one.name for one in app.registered_groups}
    for name in re.findall(r"(?:^|`|bin/)shoal ([a-z]+)\b", page.read_text(), re.MULTILINE):
        assert name in commands, name


@of_a_page
def test_names_of_python_are_there(page: Path) -> None:
    """`shoal.NAME` and `from shoal.MODULE import NAME`; the change log also names former ones."""
    text = "" if page.name == "CHANGELOG.md" else page.read_text()
    for name in re.findall(r"(?<![\w./-])shoal((?:\.[A-Za-z_]\w*)+)(?!\w|\.\w)", text):
        if f"shoal{name}" not in NOT_PYTHON:
            find(f"shoal{name}")
    for module, names in re.findall(r"from (shoal[\w.]*) import ([\w, ]+)", text):
        for name in names.split(","):
            find(f"{module}.{name.split(' as ')[0].strip()}")


def find(name: str) -> Any:
    """What a full name means: an attribute, or a module."""
    found: Any = shoal
    for part in name.split(".")[1:]:
        if not hasattr(found, part):
            import_module(f"{found.__name__}.{part}")
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("name", generate.PAGES)
def test_generated_pages_are_those_of_the_code(name: str) -> None:
    """Else: `python docs/generate.py`."""
    assert (ROOT / "docs" / "reference" / name).read_text() == generate.PAGES[name]()


def test_every_command_and_name_has_an_example() -> None:
    commands = [name for name, _ in generate.list_commands(get_command(app))]
    assert sorted(commands) == sorted(generate.EXAMPLES)
    assert all(line.startswith(f"shoal {name}") for name, line in generate.EXAMPLES.items())
    parts = re.split(r"^### ", generate.name_page(), flags=re.MULTILINE)[1:]
    entries = {part.partition("\n")[0]: part for part in parts}
    assert {f"shoal.{name}" for name in shoal.__all__} - {"shoal.__version__"} <= {*entries}
    for name, part in entries.items():
        assert "```pycon" in part or name == "shoal.ray", f"{name} has no example"

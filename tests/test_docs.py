"""What the docs name is there: pages, places in them, files, keys of a config, commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.command.cli import app
from shoal.config import key_page
from shoal.config.keys import KEYS, SECTIONS

ROOT = Path(__file__).resolve().parents[1]
KINDS_OF_PAGES = ("*.md", "docs/**/*.md", "benchmarks/*.md", "examples/pages/*.md")
PAGES = sorted(page for kind in KINDS_OF_PAGES for page in ROOT.glob(kind))
FOLDERS = "shoal|tests|benchmarks|examples|recipes|csrc|docs"
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


def test_the_page_of_keys_is_that_of_the_code() -> None:
    """Else: `shoal config keys > docs/reference/keys.md`."""
    assert (ROOT / "docs" / "reference" / "keys.md").read_text() == key_page()

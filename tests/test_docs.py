"""What the docs name is there: pages, places in them, files, keys, commands, names of Python."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import shoal
from shoal.cli.main import OLD_NAMES, app
from shoal.compat.dialects.paddlerec import PaddleRec
from shoal.compat.dialects.recbole import RecBole
from shoal.compat.dialects.torchrec import TorchRec
from shoal.config.keys import KEYS, SECTIONS
from shoal.config.renamed_keys import REMOVED_KEYS, find_renamed
from shoal.models import MODELS
from shoal.models import find as find_model
from shoal.runs.run import resolve

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
ENDINGS = (".py", ".log", ".yaml", ".json", ".txt", ".csv", ".gz")  # of files such as train.txt
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


@pytest.mark.parametrize(
    "page", sorted(ROOT.glob("docs/*/*.md")), ids=lambda page: str(page.relative_to(ROOT))
)
def test_a_page_says_who_it_is_for(page: Path) -> None:
    text = re.sub(r"\A---.*?^---\n", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    title, reader = text.strip().split("\n\n")[:2]
    assert title.startswith("# ") and reader.startswith("For ")


@of_a_page
def test_files_are_there(page: Path) -> None:
    for name in re.findall(rf"`((?:{FOLDERS})/[\w./*-]+?)(?::\w+)?`", page.read_text()):
        assert list(ROOT.glob(name.rstrip("/"))), name


@of_a_page
def test_tests_are_there(page: Path) -> None:
    """`test_name`, and `test_name_*` for several, beside the file that has them."""
    lines = [line for line in page.read_text().splitlines() if "`tests/" in line]
    for name in re.findall(r"`(test_\w+\*?)`", "\n".join(lines)):
        found = f"def {name}(" if not name.endswith("*") else f"def {name[:-1]}"
        assert any(found in path.read_text() for path in ROOT.glob("tests/**/test_*.py")), name


def keys_of(text: str) -> Iterator[str]:
    """Dotted names in code (`train.epochs`, `--train.epochs=5`) that begin with a section."""
    sections = "|".join(name for name in SECTIONS if "." not in name)
    yield from re.findall(rf"(?:`|--)((?:{sections})(?:\.[a-z_]\w*)+)(?![\w.(-])", text)


@of_a_page
def test_keys_are_those_of_the_config(page: Path) -> None:
    free = [key for key, leaf in KEYS.items() if isinstance(leaf.default, dict | None)]
    for key in set(keys_of(page.read_text())) - PYTHON:
        if key.startswith("model.") or Path(key).suffix in ENDINGS:
            continue
        known = key in KEYS or key in SECTIONS or key.startswith(tuple(f"{one}." for one in free))
        renamed = page.name == "CHANGELOG.md" and find_renamed(key)
        removed = page.name in ("CHANGELOG.md", "torchrec.md") and key in REMOVED_KEYS
        misspelt = key == "train.epoch"  # on purpose
        assert known or renamed or removed or misspelt, key


COMMANDS = {name: one for name, one in generate.list_commands(get_command(app), hidden=True)}
FREE = tuple(f"{key}." for key, leaf in KEYS.items() if isinstance(leaf.default, dict | None))
WORDS = {  # keys without a section: of other tools, of models
    *(row.key for dialect in (PaddleRec, RecBole, TorchRec) for row in dialect.table),
    *(option.name for model in MODELS for option in fields(find_model(model).Options)),
    *("ips", "gpus"),  # of PaddleRec's launcher
    "n_epochs",  # of the dialect that a page registers
}


def commands_of(text: str) -> Iterator[str]:
    """Commands in blocks and between backticks, each in one line."""
    joined = text.replace("\\\n", " ")
    for block in re.findall(r"^```[^`\n]*\n(.*?)^```", joined, re.MULTILINE | re.DOTALL):
        yield from re.findall(r"^(?:\$ |!)?(shoal [a-z].*)$", block, re.MULTILINE)
    yield from re.findall(r"`(shoal [a-z][^`]*)`", joined)


@of_a_page
def test_commands_and_their_options_are_there(page: Path) -> None:
    for line in commands_of(page.read_text()):
        words = shlex.split(line, comments=True)[1:]
        if page.name == "CHANGELOG.md" and words[0] in OLD_NAMES:
            words[:1] = OLD_NAMES[words[0]].split()
        names = [name for name in (" ".join(words[:2]), words[0]) if name in COMMANDS]
        groups = {name.split()[0] for name in COMMANDS}
        assert names or words in [[group] for group in groups], line
        options = {
            name
            for one in (COMMANDS[names[0]].params if names else ())
            for name in (*one.opts, *one.secondary_opts)
        }
        for word in words:
            key = word.partition("=")[0].removeprefix("--").replace("-", "_")
            known = key in KEYS or key in SECTIONS or key in WORDS or key.startswith(FREE)
            if word.startswith("--") and not known and not key.startswith("model."):
                assert word.partition("=")[0] in {*options, "--help", "--"}, line


TAKE_A_CONFIG = (
    *("train", "tune", "plan", "sweep", "backtest", "launch"),
    *("prepare", "data", "config", "codes"),
)
RECIPES = [*ROOT.glob("recipes/*.yaml")]
OF_PADDLEREC = (
    ROOT / "examples" / "pages" / "paddlerec" / "models" / "rank" / "wide_deep" / "config.yaml"
)


def overrides_of(words: list[str]) -> Iterator[str]:
    """The keys of a config in a command, each in one word."""
    for word, after in pairwise([*words, ""]):
        key, equals, _ = word.removeprefix("--").partition("=")
        key = key.replace("-", "_")
        # `launch` is an option of `shoal plan`
        known = key in {*KEYS, *SECTIONS, *WORDS} - {"ips", "gpus", "config_files", "launch"}
        if not known and not key.startswith((*FREE, "model.")):
            continue
        if equals:
            yield word
        elif word.startswith("--"):
            yield f"{word}={after or 'true'}"


@of_a_page
def test_values_in_commands_are_allowed(page: Path) -> None:
    """Of commands that take a config; tutorials, and examples of the reference, are run."""
    if page.parent.name == "learn" or page.name == "CHANGELOG.md":
        return
    for line in commands_of(page.read_text()):
        command, *words = shlex.split(line, comments=True)[1:]
        if command not in TAKE_A_CONFIG:
            continue
        if "…" in line or re.search(r"\w\.py\b", line):  # code of your own
            continue
        files = [file for file in RECIPES if str(file.relative_to(ROOT)) in words]
        files += [OF_PADDLEREC] * (page.name == "paddlerec.md")
        overrides = [*overrides_of(words), *["--strategy.name=ps"] * (command == "launch")]
        resolve(files, overrides)


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
    assert (ROOT / "docs" / name).read_text() == generate.PAGES[name]()


def test_every_command_and_name_has_an_example() -> None:
    commands = [name for name, _ in generate.list_commands(get_command(app))]
    assert sorted(commands) == sorted(generate.EXAMPLES)
    assert all(line.startswith(f"shoal {name}") for name, line in generate.EXAMPLES.items())
    parts = re.split(r"^### ", generate.name_page(), flags=re.MULTILINE)[1:]
    entries = {part.partition("\n")[0]: part for part in parts}
    assert {f"shoal.{name}" for name in shoal.__all__} - {"shoal.__version__"} <= {*entries}
    for name, part in entries.items():
        assert "```pycon" in part or name == "shoal.ray", f"{name} has no example"


def test_figures_are_those_of_the_results() -> None:
    """The short page of benchmarks has no figure and no command of its own."""
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    rows = (ROOT / "docs" / "benchmarks" / "index.md").read_text().splitlines()
    rows = [row.split(" | ") for row in rows if row.endswith("` |") and "--- |" not in row]
    assert len(rows) > 8
    for _, _, figures, command in rows:
        assert command.removesuffix(" |") in results, command
        for figure in re.findall(r"\d[\d,.]*\d|\d", figures):
            assert figure in results, figures


@pytest.mark.slow
def test_five_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of the page, one after the other: recommendations are of the user's taste."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "start" / "five_minutes.md").read_text()
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        exec(block, names)
    liked = [int(item[1:]) in range(40, 80) for item, _ in names["fitted"].recommend("u1", topk=5)]
    assert sum(liked) >= 4
    assert names["fitted"].metrics["recall@10"] == pytest.approx(1 / 3, abs=0.06)
    assert (names["fitted"].folder / "report.html").is_file()
    assert len(shoal.load("model").recommend("u1", topk=5)) == 5

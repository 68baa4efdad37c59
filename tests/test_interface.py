"""What users type is changed on purpose only: config keys, commands, and their options.

tests/interface.txt lists all of it, one per line. Somebody's files and scripts use every line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from shoal.cli.main import app
from shoal.config.keys import KEYS
from shoal.models import MODELS, find
from shoal.models.options import meanings

FROZEN = Path(__file__).parent / "interface.txt"
HOW_TO_CHANGE = """\
Config keys, commands or options differ from tests/interface.txt. If that is on purpose, edit the
file by hand, and write it into CHANGELOG.md. What goes or gets another name keeps its old word for
a release (shoal/config/renamed_keys.py, OLD_NAMES in shoal/cli/main.py)."""
# A description is read alone: in an editor, in --help, by `shoal config keys WORD`.
NEEDS_A_NEIGHBOUR = re.compile(
    r"(?i)(the same|of |those|some of|the opposite|then |as above|ditto)|.*likewise"
)


def commands(group: Any, words: str = "shoal") -> Iterator[tuple[str, Any]]:
    """The commands of a group and of the groups in it that are not hidden, by what is typed."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{words} {name}")
        elif not command.hidden:
            yield f"{words} {name}", command


def descriptions() -> Iterator[tuple[str, str]]:
    """(what it is about, the description) of every config key, option and model option."""
    for key, leaf in KEYS.items():
        yield key, leaf.description or ""
    for words, command in commands(get_command(app)):
        yield words, command.help or ""
        for option in command.params:
            yield f"{words} {option.opts[0]}", option.help or ""
    for name in MODELS:
        for option, meaning in meanings(find(name).Options).items():
            yield f"{name} model.{option}", meaning


def interface() -> list[str]:
    """Every config key, command and option, sorted."""
    lines = [f"key {key}" for key in KEYS]
    for words, command in commands(get_command(app)):
        lines.append(f"command {words}")
        for option in command.params:
            if not option.hidden and option.opts[0].startswith("-"):
                lines += [f"option {words} {name}" for name in option.opts + option.secondary_opts]
    return sorted(lines)


def test_keys_commands_and_options_change_on_purpose_only() -> None:
    frozen, now = set(FROZEN.read_text().splitlines()), set(interface())
    differences = [f"- {line}" for line in sorted(frozen - now)]
    differences += [f"+ {line}" for line in sorted(now - frozen)]
    assert not differences, "\n".join([HOW_TO_CHANGE, *differences])


def test_the_frozen_list_is_sorted_and_has_every_line_once() -> None:
    lines = FROZEN.read_text().splitlines()
    assert lines == sorted(set(lines))


def test_descriptions_stand_alone() -> None:
    bad = [f"{name}: {text}" for name, text in descriptions() if NEEDS_A_NEIGHBOUR.match(text)]
    assert not bad, "\n".join(bad)


@pytest.mark.parametrize("text", ["of each label", "then dim", "dense values likewise"])
def test_half_sentences_are_recognised(text: str) -> None:
    assert NEEDS_A_NEIGHBOUR.match(text)

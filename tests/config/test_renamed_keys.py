"""Old names of keys and values: each is read as the new one, and one line says what to write."""

from pathlib import Path
from typing import Any

import pytest
from config_models import errors, models, resolve, write

from shoal.config import dump, load
from shoal.config.keys import KEYS, SECTIONS, value_of
from shoal.config.renamed_keys import FORMER_UNITS, RENAMED_KEYS, RENAMED_VALUES, find_renamed
from shoal.config.sizes import read_size, write_size

__all__ = ["write"]  # a fixture

SHARDED = {"strategy.name": "sharded"}
SERVERS = {"strategy.name": "ps", "strategy.ps.addresses": ["127.0.0.1:7000"]}

# old key -> (a value that is not its default, what else the config says, the value under the new)
OLD_KEYS: dict[str, tuple[Any, dict[str, Any], Any]] = {
    "run.tensorboard": (False, {}, []),
    "data.planted.users": (50, {}, 50),
    "data.clicks.planted.slots": (3, {}, 3),
    "rows.decay.rate": (0.5, {}, 0.5),
    "start.decay.after": (4, {}, 4),
    "start.words": ("folder", {}, "folder"),
    "strategy.exchange": ("float16", SHARDED, "float16"),
    "strategy.ps.bfloat16": (True, SERVERS, "bfloat16"),
    "strategy.overlap": (False, SHARDED, False),
    "strategy.ps.ahead": (False, SERVERS, False),
    "launch.host": (1, {"launch.hosts": 2, "launch.world_size": 2, "launch.port": 7000}, 1),
}


def test_every_old_key_has_a_case_and_leads_to_a_key() -> None:
    covered = {old for old in RENAMED_KEYS for key in OLD_KEYS if f"{key}.".startswith(f"{old}.")}
    assert covered == set(RENAMED_KEYS)
    for old, renamed in RENAMED_KEYS.items():
        assert renamed.new in KEYS or renamed.new in SECTIONS, old
        assert old not in KEYS and old not in SECTIONS, old


@pytest.mark.parametrize("key", OLD_KEYS)
def test_an_old_key_resolves_to_the_new_one(key: str, write) -> None:
    value, others, expected = OLD_KEYS[key]
    found = find_renamed(key)
    assert found is not None
    new = found[0]
    resolved = resolve(**others, **{key: value})
    assert value_of(resolved.config, new) == expected
    (line,) = [note for note in resolved.notes if "old words" in note]
    assert f"{key}: write {new}" in line or f"write {new.rpartition('.')[0]}" in line
    # In sections of a file, and with the line that says so.
    nested: Any = value
    for part in reversed(key.split(".")):
        nested = {part: nested}
    text = "\n".join([f"{name}: {given}" for name, given in others.items()] + [f"{nested}"[1:-1]])
    from_file = load([write(text.replace("True", "true").replace("False", "false"))], models=models)
    assert value_of(from_file.config, new) == expected
    assert any("old words" in note for note in from_file.notes)


@pytest.mark.parametrize(
    ("key", "old", "new"),
    [(key, *names) for key, values in RENAMED_VALUES.items() for names in values.items()],
)
def test_an_old_value_resolves_to_the_new_one(key: str, old: str, new: str) -> None:
    resolved = resolve(f"--{key}={old}")
    assert value_of(resolved.config, key) == new
    assert resolved.notes == [
        f"command line: old words, read in this release: {key}={old}: write {new}"
    ]


def test_the_new_key_may_not_stand_beside_the_old_one() -> None:
    values = {"strategy.exchange": "bfloat16", "strategy.wire_dtype": "float16", **SHARDED}
    (error,) = errors(**values)
    assert "strategy.wire_dtype is set twice" in error


def test_two_old_keys_became_one(write) -> None:
    """A dumped config of an earlier release has both: the one at its default gives way."""
    text = "strategy: {name: ps, exchange: float32, overlap: true, "
    text += "ps: {addresses: ['h:1'], bfloat16: true, ahead: false}}"
    strategy = load([write(text)], models=models).config.strategy
    assert (strategy.wire_dtype, strategy.prefetch) == ("bfloat16", False)
    text = "strategy: {name: sharded, exchange: float16, overlap: false, "
    text += "ps: {bfloat16: false, ahead: true}}"
    strategy = load([write(text)], models=models).config.strategy
    assert (strategy.wire_dtype, strategy.prefetch) == ("float16", False)


def test_a_wrong_value_under_an_old_key_names_the_new_one() -> None:
    (error,) = errors(**{"strategy.exchange": "int8", **SHARDED})
    assert "strategy.wire_dtype: given int8" in error and "float32, bfloat16, float16" in error


# Sizes --------------------------------------------------------------------------------------------

BYTES = {"GiB": 1 << 30, "MiB": 1 << 20, "B": 1}


@pytest.mark.parametrize("key", FORMER_UNITS)
def test_a_plain_number_keeps_its_old_unit(key: str, tmp_path: Path) -> None:
    unit = FORMER_UNITS[key]
    others = {**SHARDED, "rows.tiers.ssd": str(tmp_path), "rows.tiers.host": "1GB"}
    others.pop(key, None)
    resolved = resolve(**others, **{key: 4096})
    assert value_of(resolved.config, key) == 4096 * BYTES[unit]
    new = f"{key}={write_size(4096 * BYTES[unit])}"
    assert [note for note in resolved.notes if key in note] == [
        f"python: old words, read in this release: {key}: write {new}"
    ]
    assert KEYS[key].is_size


def test_every_size_says_what_a_plain_number_was() -> None:
    assert {key for key, entry in KEYS.items() if entry.is_size} == set(FORMER_UNITS)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"strategy.memory": "12 parsecs"}, "'12 parsecs' is no size"),
        ({"strategy.memory": 0}, "allowed: a size such as 60GB or 256KiB above 0"),
        ({"strategy.replicate_below": -1}, "allowed: a size such as 60GB or 256KiB"),
        ({"strategy.replicate_below": True}, "allowed: a size such as 60GB or 256KiB"),
        ({"rows.admission.bloom_counters": "1TiB"}, "256KiB, below 64GiB"),
        ({"rows.admission.bloom_counters": 0.5}, "256KiB, below 64GiB"),
    ],
)
def test_what_is_no_size_is_refused(values: dict[str, Any], expected: str) -> None:
    (error,) = errors(**SHARDED, **values)
    assert expected in error


def test_a_dumped_size_is_text_and_reads_back(write) -> None:
    values = {**SHARDED, "strategy.memory": "2GiB", "strategy.replicate_below": 0}
    config = resolve(**values, **{"rows.admission.bloom_counters": "1001B"}).config
    text = dump(config)
    assert "memory: 2GiB" in text and "replicate_below: 0\n" in text and ": 1001B" in text
    again = load([write(text)], models=models)
    assert again.config == config and not [note for note in again.notes if "old words" in note]


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1024, 1 << 20, 60 * 10**9, 3 << 29, 123456789])
def test_a_size_is_written_exactly(count: int) -> None:
    assert read_size(write_size(count)) == count

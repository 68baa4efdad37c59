"""From the sources of a config to values by dotted key, each checked and with its place."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shoal.config.dialect import Dialect
from shoal.config.errors import nearest
from shoal.config.keys import KEYS, SECTIONS, Key, allowed, describe_value
from shoal.config.renamed_keys import (
    FORMER_UNITS,
    REMOVED_KEYS,
    RemovedKey,
    RenamedKey,
    current_value,
    find_renamed,
)
from shoal.config.sizes import UNITS, write_size
from shoal.config.sources import BARE, Layer, Origin
from shoal.config.yaml_io import inline

NUMBER = re.compile(r"\s*\d+(?:\.\d+)?\s*")
ALIKE = 0.7  # of so many keys one that is less alike was not meant
# Options of commands for which a config has no key. The command line itself stands far above here.
COMMANDS = {
    name: f"--{name}, an option of `shoal launch`"
    for name in ("worker_num", "server_num", "workers", "servers", "role", "index")
} | {"resume": "--resume, an option of `shoal train` and `shoal launch`"}


@dataclass(frozen=True)
class Value:
    """A value with its place. An implied one gives way to a spelled-out one of its source."""

    value: Any
    origin: Origin
    implied: bool = False
    per_process: bool = False
    entries: bool = False  # some entries of a mapping: the others stay as weaker sources have them


class ConfigReader:
    """Turns layers into values by dotted key, and collects what is wrong with them."""

    def __init__(
        self,
        model: str,
        options: dict[str, Key] | None,
        dialects: Sequence[Dialect],
        errors: list[str],
    ):
        self.model = model
        self.options = options or {}
        self.dialects = dialects
        self.keys = KEYS | self.options
        self.layer = Layer()
        self.layer_values: dict[str, Value] = {}
        self.options_known = options is not None
        self.words = dict(COMMANDS)
        for dialect in dialects:
            self.words |= dialect.words()
        self.errors = errors
        self.notes: list[str] = []
        self.old_words: dict[str, str] = {}  # of this layer: key as written -> what to write now

    def read(self, layer: Layer) -> dict[str, Value]:
        """All values of one source. Setting the same key twice in it is an error."""
        self.layer, self.layer_values, self.old_words = layer, {}, {}
        for key, value in layer.values.items():
            try:
                self._top(key, value)
            except ValueError as error:
                self._error((key,), f"{error}")
        if self.old_words:
            changes = "; ".join(f"{old}: write {new}" for old, new in self.old_words.items())
            self.notes.append(f"{layer.origins[()]}: old words, read in this release: {changes}")
        return self.layer_values

    def _top(self, key: str, value: Any) -> None:
        """Decides whose key it is: another tool's, Shoal's, or a flat option of the model."""
        is_option = f"model.{key}" in self.options
        theirs = next((one for one in self.dialects if one.knows(key, self.layer)), None)
        if theirs and is_option and not theirs.row(key).targets:
            theirs = None  # a key that sets nothing gives way to the option of its name
        if theirs:
            self._foreign(theirs, key, value)
        elif key in SECTIONS or "." in key:
            self._native(key, value, (key,))
        elif is_option:
            self._set(f"model.{key}", value, self.layer.origin((key,)), key)
        elif self.options_known:
            self._error((key,), self._unknown(key, value))
        # Else it may be an option of the model that could not be found: that error stands already.

    def _unknown(self, key: str, value: Any) -> str:
        """The error for an unknown key at the top, with the key that was probably meant."""
        if isinstance(value, dict):
            for dialect in self.dialects:
                if section := nearest(key, dialect.sections, ALIKE):
                    return (
                        f"unknown key {key}; did you mean {section}, a section of {dialect.tool}'s?"
                    )
        text = unknown(key, self.options, self.words)
        if "did you mean" in text:
            return text
        tools = ", ".join(dialect.tool for dialect in self.dialects)
        names = ", ".join(name[6:] for name in self.options) or "none"
        return (
            f"unknown key {key}: neither a key of Shoal nor one of another tool ({tools}), nor an "
            f"option of {self.model} (its options: {names})"
        )

    def _native(self, key: str, value: Any, path: tuple[str, ...]) -> None:
        """A key of the schema: sections are walked down to the keys that hold values."""
        if renamed := find_renamed(key):
            self._renamed(key, *renamed, value, path)
            return
        if removed := REMOVED_KEYS.get(key):
            self._removed(key, removed, value, path)
            return
        entry = self.keys.get(key)
        section = SECTIONS.get(key) or (entry.section if entry else None)
        if section and isinstance(value, dict) and value:
            for name, inner in value.items():
                self._native(f"{key}.{name}", inner, (*path, name))
        elif entry:
            self._set(key, value, self.layer.origin(path), path[0])
        elif section and isinstance(value, str) and f"{key}.name" in KEYS:
            self._native(f"{key}.name", value, path)  # `model: BPR`, `strategy: ddp`
        elif section:
            if value not in (None, {}):
                shown = "no value" if value is BARE else describe_value(value)
                keys = ", ".join(section.model_fields).replace("options", "its options")
                self._error(path, f"{key}: given {shown}; it is a section of {keys}")
        elif above := self._mapping_above(key):
            self._set_entry(above, key, value, path)
        elif self.options_known or not key.startswith("model."):
            self._error(path, unknown(key, self.options, self.words))

    def _renamed(
        self, key: str, new: str, renamed: RenamedKey, value: Any, path: tuple[str, ...]
    ) -> None:
        """An old key: read as the one that it is called now, and noted."""
        if new in SECTIONS:
            self.old_words[key] = new
            self._native(new, value, path)
            return
        converted = renamed.convert(value)
        shown = f"={inline(converted)}" if converted is not value else ""
        self.old_words[key] = f"{new}{shown}"
        implied = bool(value == renamed.gives_way)
        self._set(new, converted, self.layer.origin(path), path[0], implied)

    def _removed(self, key: str, removed: RemovedKey, value: Any, path: tuple[str, ...]) -> None:
        """A key that is gone: noted where it says what holds anyway, else refused with advice."""
        if value == removed.default:
            self.old_words[key] = f"nothing, it is always {removed.default}"
        else:
            self._error(path, f"{key}: given {inline(value)}. {removed.advice}")

    def _with_unit(self, key: str, value: Any) -> Any:
        """A size that is written as a plain number, in bytes of the unit that it used to be in."""
        unit = FORMER_UNITS.get(key)
        if unit is None:
            return value
        if isinstance(value, str) and NUMBER.fullmatch(value):
            value = float(value)
        if type(value) not in (int, float) or not 0 < value < float("inf"):
            return value
        size = value * UNITS[unit.removesuffix("B").upper()]
        if unit == "B" and size != int(size):
            return value  # refused: there is no part of a byte
        self.old_words[key] = f"{key}={write_size(round(size))}"
        return round(size)

    def _mapping_above(self, key: str) -> str | None:
        """The key of a mapping that a dotted key reaches into."""
        while key := key.rpartition(".")[0]:
            if key in self.keys:
                return key if self.keys[key].is_mapping else None
        return None

    def _set_entry(self, above: str, key: str, value: Any, path: tuple[str, ...]) -> None:
        """One entry of a mapping: `data.files.inter`, `train.optimizer.rows.name`."""
        typed = self.layer.names.get(path[0], path[0]) if key == path[0] else key
        names = typed[len(above) + 1 :].split(".")  # as typed: they may be names of columns
        entry = self.keys[above]
        for place, name in enumerate(names):
            try:
                inner = entry.entry(name, ".".join([above, *names[:place]]))
            except ValueError as error:
                return self._error(path, f"{error}")
            if inner is None:
                return self._error(path, unknown(key, self.options, self.words))
            entry = inner
        origin = self.layer.origin(path)
        checked = self._checked(entry, f"{above}.{'.'.join(names)}", value, origin, path[0])
        if checked is not BARE:
            for name in reversed(names):
                checked = {name: checked}
            self._put(above, Value(checked, origin, entries=True))

    def _foreign(self, dialect: Dialect, key: str, value: Any) -> None:
        """A key of another tool, or a section of such keys."""
        for name, inner, path in dialect.leaves(key, value, self.layer):
            try:
                self._translate(dialect, name, inner, path)
            except ValueError as error:
                self._error(path, f"{error}")

    def _translate(self, dialect: Dialect, name: str, value: Any, path: tuple[str, ...]) -> None:
        row = dialect.row(name)
        place = self.layer.origin(path)
        origin = Origin(place.source, place.line, row.key, dialect.tool)
        if value is BARE:
            if not (row.targets and KEYS.get(row.targets[0], Key(str)).is_switch):
                raise ValueError(f"has no value; write --{row.key}=VALUE")
            value = True
        try:
            translation = row.translate(value, dialect.context)
        except ValueError as error:
            raise ValueError(f"{dialect.tool} key {row.key}: {error}") from None
        self.notes += [f"{place}: {note}" for note in translation.notes]
        for key, translated in translation.values.items():
            self._set(key, translated, origin, path[0])
        for key, translated in translation.implied.items():
            self._set(key, translated, origin, path[0], implied=True)
        for key in translation.per_process & self.layer_values.keys():
            self.layer_values[key] = replace(self.layer_values[key], per_process=True)

    def _set(self, key: str, value: Any, origin: Origin, top: str, implied: bool = False) -> None:
        """Checks a value against its type and keeps it."""
        if (now := current_value(key, value)) != value:
            self.old_words[f"{key}={value}"] = now
            value = now
        value = self._with_unit(key, value)
        checked = self._checked(self.keys[key], key, value, origin, top)
        if checked is not BARE:
            self._put(key, Value(checked, origin, implied))

    def _checked(self, entry: Key, key: str, value: Any, origin: Origin, top: str) -> Any:
        """The value as its type wants it; BARE where it is wrong, which is reported."""
        if value is BARE:
            if not entry.is_switch:
                self.errors.append(f"{origin}: {key} has no value; write --{top}=VALUE")
                return BARE
            value = True
        # On a command line all is text: what YAML takes for a number may be meant as a name.
        text = self.layer.texts.get(top)
        if entry.is_text and text is not None and not isinstance(value, str):
            value = None if value is None and entry.is_optional else text
        try:
            value = entry.check(value, key)
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{key}: given {describe_value(value)}; allowed: a finite number")
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                bits = value.bit_length()  # too many for a float, perhaps, and for str
                raise ValueError(f"{key}: given a number of {bits} bits; allowed: 64 bits")
        except ValueError as error:
            self.errors.append(f"{origin}: {error}")
            return BARE
        return value

    def _put(self, key: str, new: Value) -> None:
        old = self.layer_values.get(key)
        if old is None or old.implied:
            self.layer_values[key] = new
        elif (old.entries or new.entries) and not _common(old.value, new.value):
            self.layer_values[key] = replace(old, value=merged(old.value, new.value))
        elif not new.implied:
            self.errors.append(
                f"{new.origin}: {key} is set twice, first at {old.origin}; keep one of them"
            )

    def _error(self, path: tuple[str, ...], text: str) -> None:
        self.errors.append(f"{self.layer.origin(path)}: {text}")


def merged(weaker: Any, stronger: dict[str, Any]) -> dict[str, Any]:
    """A mapping with some of its entries replaced; those that are mappings, entry by entry."""
    result = dict(weaker) if isinstance(weaker, dict) else {}
    for name, value in stronger.items():
        result[name] = merged(result.get(name), value) if isinstance(value, dict) else value
    return result


def _common(first: Any, second: Any) -> bool:
    """Whether both set the same entry."""
    if not isinstance(first, dict) or not isinstance(second, dict):
        return True
    return any(_common(first[name], second[name]) for name in first.keys() & second.keys())


def unknown(key: str, options: Mapping[str, Key], other_words: Mapping[str, str]) -> str:
    """The error for an unknown key, with the key that was probably meant."""
    above = section = key.rpartition(".")[0]
    while above:
        if above in KEYS:
            return f"unknown key {key}; {above} holds one value: {allowed(KEYS[above].kind)}"
        above = above.rpartition(".")[0]
    keys = [*KEYS, *SECTIONS, *options]
    if suggestion := _meant(key, keys, other_words):
        return f"unknown key {key}; did you mean {suggestion}?"
    if section not in SECTIONS:
        tops = ", ".join(name for name in SECTIONS if "." not in name)
        return f"unknown key {key}; the sections are: {tops}"
    siblings = [name.rpartition(".")[2] for name in keys if name.rpartition(".")[0] == section]
    return f"unknown key {key}; keys of {section} are: {', '.join(siblings)}"


def _meant(key: str, keys: list[str], other_words: Mapping[str, str]) -> str | None:
    """How the nearest key is shown: of one section before another, of a few parts before more."""
    section, _, last = key.rpartition(".")
    if section and section not in SECTIONS:  # else the section alone would make keys alike
        whole = {name: name for name in keys} | dict(other_words)
        if match := nearest(key, whole, ALIKE):
            return whole[match]
    order = {name: name.rpartition(".")[0] != section for name in keys}
    top = key.partition(".")[0] + "."
    ends: dict[str, str] = {}
    # Of several of a name, one of this section, one below the same top, or else the shallowest.
    for name in sorted(keys, key=lambda n: (order[n], not n.startswith(top), n.count("."))):
        ends.setdefault(name.rpartition(".")[2], name)
    if not section:
        ends |= other_words
    return ends.get(nearest(last, ends, ALIKE) or "")

"""From the sources of a config to values by dotted key, each checked and with its place."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shoal.config.dialect import Dialect
from shoal.config.errors import nearest
from shoal.config.keys import KEYS, SECTIONS, Key, allowed, given
from shoal.config.sources import BARE, Layer, Origin

ALIKE = 0.7  # of so many keys one that is less alike was not meant
# Options of commands for which a config has no key. The command line itself stands far above here.
COMMANDS = {
    name: f"--{name}, an option of `shoal launch`"
    for name in ("worker_num", "server_num", "workers", "servers", "role", "index")
} | {"resume": "--resume, an option of `shoal train` and `shoal launch`"}

# Keys of 0.1, which run folders still have, each with the key of now and its value there.
FORMER: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "run.tensorboard": ("run.trackers", lambda on: ["tensorboard"] if on else []),
}


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
        self.model, self.options, self.dialects = model, options or {}, dialects
        self.keys = KEYS | self.options
        self.layer = Layer()
        self.found: dict[str, Value] = {}
        self.options_known = options is not None
        self.words = dict(COMMANDS)
        for dialect in dialects:
            self.words |= dialect.words()
        self.errors = errors
        self.notes: list[str] = []

    def read(self, layer: Layer) -> dict[str, Value]:
        """All values of one source. Setting the same key twice in it is an error."""
        self.layer, self.found = layer, {}
        for key, value in layer.values.items():
            try:
                self._top(key, value)
            except ValueError as error:
                self._error((key,), f"{error}")
        return self.found

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
        """Says that nobody knows a key at the top, and which was meant."""
        if isinstance(value, dict):
            for dialect in self.dialects:
                if found := nearest(key, dialect.sections, ALIKE):
                    return (
                        f"unknown key {key}; did you mean {found}, a section of {dialect.tool}'s?"
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
        if key in FORMER:
            key, now = FORMER[key]
            value = now(value) if isinstance(value, bool) or value is BARE else value
        one = self.keys.get(key)
        section = SECTIONS.get(key) or (one.section if one else None)
        if section and isinstance(value, dict) and value:
            for name, inner in value.items():
                self._native(f"{key}.{name}", inner, (*path, name))
        elif one:
            self._set(key, value, self.layer.origin(path), path[0])
        elif section and isinstance(value, str) and f"{key}.name" in KEYS:
            self._native(f"{key}.name", value, path)  # `model: BPR`, `strategy: ddp`
        elif section:
            if value not in (None, {}):
                shown = "no value" if value is BARE else given(value)
                keys = ", ".join(section.model_fields).replace("options", "its options")
                self._error(path, f"{key}: given {shown}; it is a section of {keys}")
        elif above := self._mapping_above(key):
            self._set_entry(above, key, value, path)
        elif self.options_known or not key.startswith("model."):
            self._error(path, unknown(key, self.options, self.words))

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
        one = self.keys[above]
        for place, name in enumerate(names):
            try:
                inner = one.entry(name, ".".join([above, *names[:place]]))
            except ValueError as error:
                return self._error(path, f"{error}")
            if inner is None:
                return self._error(path, unknown(key, self.options, self.words))
            one = inner
        origin = self.layer.origin(path)
        said = self._checked(one, f"{above}.{'.'.join(names)}", value, origin, path[0])
        if said is not BARE:
            for name in reversed(names):
                said = {name: said}
            self._put(above, Value(said, origin, entries=True))

    def _foreign(self, dialect: Dialect, key: str, value: Any) -> None:
        """A key of another tool, or a section of such keys."""
        for name, said, path in dialect.leaves(key, value, self.layer):
            try:
                self._translate(dialect, name, said, path)
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
        for key, said in translation.values.items():
            self._set(key, said, origin, path[0])
        for key, said in translation.implied.items():
            self._set(key, said, origin, path[0], implied=True)
        for key in translation.per_process & self.found.keys():
            self.found[key] = replace(self.found[key], per_process=True)

    def _set(self, key: str, value: Any, origin: Origin, top: str, implied: bool = False) -> None:
        """Checks a value against its type and keeps it."""
        said = self._checked(self.keys[key], key, value, origin, top)
        if said is not BARE:
            self._put(key, Value(said, origin, implied))

    def _checked(self, one: Key, key: str, value: Any, origin: Origin, top: str) -> Any:
        """The value as its type wants it; BARE where it is wrong, which is reported."""
        if value is BARE:
            if not one.is_switch:
                self.errors.append(f"{origin}: {key} has no value; write --{top}=VALUE")
                return BARE
            value = True
        # On a command line all is text: what YAML takes for a number may be meant as a name.
        text = self.layer.texts.get(top)
        if one.is_text and text is not None and not isinstance(value, str):
            value = None if value is None and one.is_optional else text
        try:
            value = one.check(value, key)
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{key}: given {given(value)}; allowed: a finite number")
            if isinstance(value, int) and not -(2**63) <= value < 2**63:
                bits = value.bit_length()  # too many for a float, perhaps, and for str
                raise ValueError(f"{key}: given a number of {bits} bits; allowed: 64 bits")
        except ValueError as error:
            self.errors.append(f"{origin}: {error}")
            return BARE
        return value

    def _put(self, key: str, new: Value) -> None:
        old = self.found.get(key)
        if old is None or old.implied:
            self.found[key] = new
        elif (old.entries or new.entries) and not _common(old.value, new.value):
            self.found[key] = replace(old, value=merged(old.value, new.value))
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


def _common(one: Any, other: Any) -> bool:
    """Whether both set the same entry."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return True
    return any(_common(one[name], other[name]) for name in one.keys() & other.keys())


def unknown(key: str, options: Mapping[str, Key], others: Mapping[str, str]) -> str:
    """Says that a key is unknown, and which was meant."""
    above = section = key.rpartition(".")[0]
    while above:
        if above in KEYS:
            return f"unknown key {key}; {above} holds one value: {allowed(KEYS[above].kind)}"
        above = above.rpartition(".")[0]
    known = [*KEYS, *SECTIONS, *options]
    if meant := _meant(key, known, others):
        return f"unknown key {key}; did you mean {meant}?"
    if section not in SECTIONS:
        tops = ", ".join(name for name in SECTIONS if "." not in name)
        return f"unknown key {key}; the sections are: {tops}"
    beside = [name.rpartition(".")[2] for name in known if name.rpartition(".")[0] == section]
    return f"unknown key {key}; keys of {section} are: {', '.join(beside)}"


def _meant(key: str, known: list[str], others: Mapping[str, str]) -> str | None:
    """How the nearest key is shown: of one section before another, of a few parts before more."""
    section, _, last = key.rpartition(".")
    if section and section not in SECTIONS:  # else the section alone would make keys alike
        whole = {name: name for name in known} | dict(others)
        if found := nearest(key, whole, ALIKE):
            return whole[found]
    order = {name: name.rpartition(".")[0] != section for name in known}
    top = key.partition(".")[0] + "."
    ends: dict[str, str] = {}
    # Of several of a name, one of this section, one below the same top, or else the shallowest.
    for name in sorted(known, key=lambda n: (order[n], not n.startswith(top), n.count("."))):
        ends.setdefault(name.rpartition(".")[2], name)
    if not section:
        ends |= others
    return ends.get(nearest(last, ends, ALIKE) or "")

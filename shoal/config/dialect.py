"""What a dialect is: a tool's name, a table of its keys, and help with their spelling.

Whoever has one registers it: `register` takes a class from anywhere, and shoal.DIALECTS names those
that come with the package. This room imports none of them by name.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import shoal
from shoal.config.sources import Layer, Origin
from shoal.config.yaml_io import inline

Named = tuple[Any, Origin]  # a model as a source names it, and where


@dataclass
class Translation:
    """What one key of another tool sets here."""

    values: dict[str, Any] = field(default_factory=dict)  # dotted key -> value
    # What the key only implies; an explicit value of the same source wins.
    implied: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    per_process: set[str] = field(default_factory=set)  # keys to multiply by the processes


@dataclass(frozen=True)
class Row:
    """One key: what it sets, how it is read, and the rule in words (for the docs)."""

    key: str
    targets: tuple[str, ...]
    rule: str
    read: Callable[..., Translation]
    with_context: bool = False  # `read` takes the dialect's context, then the value

    def translate(self, value: Any, context: Any = None) -> Translation:
        """What the key sets here; ValueError where it cannot be honoured."""
        # `None` on a command line is Python's in these tools; YAML alone would read it as text.
        value = None if value == "None" else value
        return self.read(context, value) if self.with_context else self.read(value)


class Dialect:
    """The keys of one tool, as the sources of one config (weakest first) use them.

    A table of keys is all that most have; a dialect overrides what else it needs.
    """

    tool = ""  # its name in messages
    table: Sequence[Row] = ()
    values: Mapping[str, Any] = {}  # what holds in the tool where nothing is given
    note = ""  # a line for the log where those hold
    kind = "general"  # of the chosen model: general, sequential or clicks
    sections: Sequence[str] = ()  # keys at the top that hold a mapping of its keys

    def __init__(self, sources: Sequence[Layer]):
        self.sources = sources
        self.model = ""
        self.options: Collection[str] | None = ()  # model.KEY; None: there is no such model
        self.rows = {row.key: row for row in self.table}
        self.context: Any = None  # what keys depend on besides their own values

    def name_model(self, named: Named | None) -> Named | None:
        """The model that is meant, from what the sources name (None: nothing)."""
        return named

    def meet(self, model: str, options: Collection[str] | None) -> None:
        """The model is chosen: what a key means may depend on it."""
        self.model, self.options = model, options

    def reads(self, source: Layer) -> bool:
        """Whether a source is written for the tool; its keys are read there alone."""
        return True

    @property
    def used(self) -> bool:
        """Whether any source is written for the tool."""
        return any(map(self.reads, self.sources))

    def defaults(self) -> Mapping[str, Any]:
        """`values`, where a source is written for the tool."""
        return self.values if self.used else {}

    def knows(self, key: str, source: Layer) -> bool:
        """Whether a key at the top of a source is the tool's."""
        return key in self.rows and self.reads(source)

    def leaves(
        self, key: str, value: Any, source: Layer
    ) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
        """(the tool's name of a key, its value, the keys that lead to it) of all below `key`."""
        yield key, value, (key,)

    def row(self, name: str) -> Row:
        """How a key is read; ValueError if the tool has no such key."""
        return self.rows[name]

    def words(self) -> Mapping[str, str]:
        """Words that may be meant by an unknown key, each with how it is shown."""
        return self.shown(self.rows.values()) if self.used else {}

    def shown(self, rows: Iterable[Row]) -> dict[str, str]:
        """The keys of a table as `words`, with what each stands for."""
        targets = {row.key: ", ".join(row.targets) for row in rows}
        return {
            key: f"{key} ({self.tool}'s spelling of {names})" if names else key
            for key, names in targets.items()
        }

    @classmethod
    def table_text(cls, head: str) -> str:
        """The table of keys as Markdown, for the docs."""
        heads = [head, *(["default"] if cls.values else []), "here", "how it is read"]
        lines = [heads, ["---"] * len(heads)]
        for row in cls.table:
            default = f"`{inline(cls.values[row.key])}`" if row.key in cls.values else "–"
            targets = ", ".join(f"`{target}`" for target in row.targets) or "–"
            lines.append([f"`{row.key}`", *([default] if cls.values else []), targets, row.rule])
        return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


# The registry ------------------------------------------------------------------------------------

# By name: a class, or `module:class`, which is imported when a config is read. Of two dialects that
# know a key the first one reads it.
registered: dict[str, type[Dialect] | str] = {**shoal.DIALECTS}


def register(name: str, dialect: type[Dialect]) -> None:
    """Add a dialect, ahead of those that are registered."""
    remaining = {one: kept for one, kept in registered.items() if one != name}
    registered.clear()
    registered.update({name: dialect, **remaining})


def listen(sources: Sequence[Layer]) -> list[Dialect]:
    """Every registered dialect, given every source of a config."""
    return [_class_of(one)(sources) for one in registered.values()]


def _class_of(dialect: type[Dialect] | str) -> type[Dialect]:
    if not isinstance(dialect, str):
        return dialect
    module, _, name = dialect.partition(":")
    dialect_class: type[Dialect] = getattr(import_module(module), name)
    return dialect_class


# Kinds of rows -----------------------------------------------------------------------------------


def same(key: str, target: str, rule: str = "the same") -> Row:
    """The value as it is."""
    return Row(key, (target,), rule, lambda value: Translation({target: value}))


def read_as(key: str, target: str, convert: Callable[[Any], Any], rule: str) -> Row:
    """One value, converted; a ValueError of `convert` refuses it."""
    return Row(key, (target,), rule, lambda value: Translation({target: convert(value)}))


def only(key: str, harmless: Sequence[Any], reason: str) -> Row:
    """Sets nothing: only values that change nothing are accepted, others are refused."""

    def read(value: Any) -> Translation:
        # 0 == False in Python; here a number is not a truth value.
        if any(type(value) is type(ok) and value == ok for ok in harmless):
            return Translation()
        raise ValueError(f"{inline(value)} is refused: {reason}")

    accepted = ", ".join(f"`{inline(value)}`" for value in harmless)
    return Row(key, (), f"only {accepted}: {reason}", read)


def free(key: str, reason: str, note: bool = False) -> Row:
    """Sets nothing and changes nothing, whatever its value; `note` says so in the log."""
    notes = [f"{key} has no effect: {reason}"] if note else []
    return Row(key, (), f"any value, no effect: {reason}", lambda _: Translation(notes=[*notes]))


def per_process(key: str, target: str, rule: str) -> Row:
    """A size of one process, which the number of processes multiplies."""
    return Row(
        key, (target,), rule, lambda value: Translation({target: value}, per_process={target})
    )


def given_only(key: str, target: str, rule: str) -> Row:
    """The value as it is; null and empty text set nothing."""

    def read(value: Any) -> Translation:
        if isinstance(value, list):
            raise ValueError(f"given {inline(value)}; it is one folder, file or pattern")
        return Translation() if value in (None, "") else Translation({target: value})

    return Row(key, (target,), rule, read)


def refused(key: str, reason: str) -> Row:
    """Never accepted."""

    def read(value: Any) -> Translation:
        raise ValueError(f"is refused: {reason}")

    return Row(key, (), f"refused: {reason}", read)

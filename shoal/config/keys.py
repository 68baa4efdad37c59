"""Every key of the schema by its dotted name, the check of its value, and its type in words."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from typing_extensions import is_typeddict

from shoal.config.errors import ConfigError, did_you_mean
from shoal.config.schema import Config, Section
from shoal.config.section import Choices, ReadBy
from shoal.config.sizes import ItemCount, SizeBelow, write_size
from shoal.config.yaml_io import inline, read

MISSING = object()
M = TypeVar("M")


@dataclass(frozen=True)
class Key:
    """One key that holds a value: its type, its default and what it does."""

    kind: Any  # its type, with the bounds, as Annotated
    default: Any = MISSING
    description: str | None = None

    def check(self, value: Any, key: str) -> Any:
        """The value as its type wants it (a whole number becomes a float); else ValueError."""
        bare = _bare(self.kind)[0]
        if get_origin(bare) is tuple and isinstance(value, list):
            value = tuple(value)  # YAML has no tuples
        try:
            checked = self._adapter.validate_python(value)
        except ValidationError as error:
            if isinstance(value, dict):
                for name, inner in value.items():  # name the entry that is wrong, if one alone is
                    if entry := self.entry(name, key):
                        entry.check(inner, f"{key}.{name}")
            reasons = [
                detail["ctx"]["error"]
                for detail in error.errors()
                if detail["type"] == "value_error"
            ]
            why = reasons[0] if reasons else f"allowed: {allowed(self.kind)}{_remedy(value, bare)}"
            raise ValueError(f"{key}: given {describe_value(value)}; {why}") from None
        return checked.model_dump() if isinstance(checked, Section) else checked

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        # A TypedDict has its own config, and pydantic takes no second one.
        config = None if is_typeddict(self.kind) else ConfigDict(strict=True)
        return TypeAdapter(self.kind, config=config)

    def entry(self, name: str, key: str) -> Key | None:
        """What stands under a name in the mapping that this key holds; None: it holds none.

        ValueError where the mapping knows its names, and this is none of them.
        """
        entries = _entries(self.kind, [name])
        if entries is None:
            return None
        if name not in entries:
            hint = did_you_mean(name, entries)
            raise ValueError(f"unknown key {key}.{name}; allowed: {', '.join(entries)}{hint}")
        return Key(entries[name])

    def mark(self, mark: type[M]) -> M | None:
        """What the key declares about itself: ReadBy, NeedsTrust."""
        return next((one for one in _bare(self.kind)[1] if isinstance(one, mark)), None)

    @property
    def is_size(self) -> bool:
        """Whether it is a size of memory, which is written with its unit."""
        marks = [mark for part in (self.kind, *_parts(self.kind)) for mark in _bare(part)[1]]
        return any(isinstance(mark, SizeBelow) for mark in marks)

    def written(self, value: Any) -> str:
        """The value as a config has it, on one line."""
        if self.is_size and value:
            return write_size(value)
        return inline(list(value) if isinstance(value, tuple) else value)

    @property
    def is_switch(self) -> bool:
        """Whether it may be true or false, so that `--key` alone means true."""
        return bool in {_bare(part)[0] for part in _parts(self.kind)}

    @property
    def is_mapping(self) -> bool:
        """Whether it may hold a mapping, whose entries dotted keys reach."""
        return _entries(self.kind, []) is not None

    @property
    def section(self) -> type[Section] | None:
        """The section that it holds where it is not null: train.negatives."""
        return _section_of(_bare(self.kind)[0])

    @property
    def is_text(self) -> bool:
        """Whether the type is text, or text or null."""
        parts = {_bare(part)[0] for part in _parts(self.kind)}
        return parts in ({str}, {str, types.NoneType})

    @property
    def is_optional(self) -> bool:
        """Whether null is allowed."""
        return types.NoneType in _parts(self.kind)


def _walk(section: type[Section], prefix: str = "") -> Iterator[tuple[str, type[Section] | Key]]:
    """(dotted key, the section or the key itself) of everything below `prefix`."""
    for name, field in section.model_fields.items():
        key, kind = prefix + name, field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            yield key, kind
            yield from _walk(kind, key + ".")
        else:
            yield key, typed(field, section.read_by)


def _section_of(kind: Any) -> type[Section] | None:
    for part in _parts(kind):
        if isinstance(part, type) and issubclass(part, Section):
            return part
    return None


def typed(field: FieldInfo, *marks: ReadBy | None) -> Key:
    """A field of a section as a key; `marks` stand behind its own."""
    kind: Any = field.annotation
    if metadata := [*field.metadata, *filter(None, marks)]:
        kind = Annotated[(kind, *metadata)]
    default = field.get_default(call_default_factory=True)
    plain = default.model_dump() if isinstance(default, Section) else default
    return Key(kind, plain, field.description)


# `model.options` is no key: the options of the chosen model stand in its place, see `options_of`.
_ALL = {key: one for key, one in _walk(Config) if key != "model.options"}
SECTIONS = {key: one for key, one in _ALL.items() if not isinstance(one, Key)}
KEYS = {key: one for key, one in _ALL.items() if isinstance(one, Key)}


def value_of(config: Config, key: str) -> Any:
    """The value under a dotted key."""
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def options_of(options: type) -> dict[str, Key]:
    """The keys `model.KEY` of a model, from the dataclass of its options."""
    hints = typing.get_type_hints(options, include_extras=True)
    leaves = {}
    for field in dataclasses.fields(options):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if default is dataclasses.MISSING:
            default = MISSING
        leaves[f"model.{field.name}"] = Key(hints[field.name], default)
    assert "model.name" not in leaves, f"{options.__qualname__}: an option must not be called name"
    return leaves


def _entries(kind: Any, names: Iterable[str]) -> dict[str, Any] | None:
    """Name -> type of a mapping's entries (of `names`, where any is allowed); None: no mapping."""
    for part in (_bare(one)[0] for one in _parts(kind)):
        if is_typeddict(part):
            hints = typing.get_type_hints(part, include_extras=True)
            needed = (typing.Required, typing.NotRequired)
            return {n: get_args(t)[0] if get_origin(t) in needed else t for n, t in hints.items()}
        if get_origin(part) is dict:
            key_type, inner = get_args(part)
            return dict.fromkeys(
                get_args(key_type) if get_origin(key_type) is Literal else names, inner
            )
    if section := _section_of(kind):
        return {name: typed(field).kind for name, field in section.model_fields.items()}
    return None


def describe_value(value: Any) -> str:
    """The value as it would be written, and its type in words."""
    names = {bool: "true or false", int: "whole number", float: "number", str: "text"}
    names |= {list: "list", tuple: "list", dict: "mapping", types.NoneType: "null"}
    kind = names.get(type(value))
    if kind is None:
        return f"an object of Python type {type(value).__name__}"
    text = inline(list(value) if isinstance(value, tuple) else value) if kind else repr(value)
    text = text if len(text) <= 80 else text[:77] + "..."
    return text if value is None else f"{text} ({kind})"


def allowed(kind: Any, bounds: Sequence[Any] = ()) -> str:
    """The allowed values of a type in words, e.g. `a whole number ≥ 1 or null`."""
    kind, own_bounds = _bare(kind)
    bounds = [*bounds, *own_bounds]
    for bound in bounds:
        if isinstance(bound, Choices | ItemCount | SizeBelow):
            return str(bound)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(allowed(part, bounds) for part in arguments)
    if origin is Literal:
        return "one of " * (len(arguments) > 1) + ", ".join(map(str, arguments))
    if origin in (list, tuple):
        return f"a {_size(bounds)}list of {_plural(arguments[0])}"
    if origin is dict:
        return f"a {_size(bounds)}mapping of {_plural(arguments[0])} to {_plural(arguments[1])}"
    if (entries := _entries(kind, [])) is not None:
        return f"a mapping of {', '.join(entries)}"
    if kind is str and _size(bounds):
        return "one character" if _size(bounds) == "1-element " else "text that is not empty"
    return str(WORDS.get(kind, kind)) + (_range(bounds) if kind in (int, float) else "")


WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    types.NoneType: "null",
    Any: "anything",
    dict: "a mapping",
    list: "a list",
}
PLURALS = {int: "whole numbers", float: "numbers", str: "texts", bool: "true or false"}


def _plural(kind: Any) -> str:
    kind, bounds = _bare(kind)
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    if kind in PLURALS:
        return PLURALS[kind] + _range(bounds)
    text = allowed(kind)
    for singular, plural in (("a mapping", "mappings"), ("a list", "lists")):
        text = plural + text.removeprefix(singular) if text.startswith(singular) else text
    return text


def _range(bounds: Sequence[Any]) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    limits = [
        (sign, getattr(bound, name, None)) for bound in bounds for name, sign in signs.items()
    ]
    parts = [f"{sign} {_number(bound)}" for sign, bound in limits if bound is not None]
    return " " + " and ".join(parts) if parts else ""


def _number(bound: float) -> str:
    """Whole ones in full: 1099511627776, and 0.5."""
    return str(int(bound)) if bound == int(bound) else f"{bound:g}"


def _size(bounds: Sequence[Any]) -> str:
    """How many entries or letters there must be, where that is stated."""
    low = [one.min_length for one in bounds if getattr(one, "min_length", None) is not None]
    high = [one.max_length for one in bounds if getattr(one, "max_length", None) is not None]
    if not low:
        return ""
    if not high:
        return "non-empty "
    return f"{low[0]}-element " if low == high else f"{low[0]}- to {high[0]}-element "


def _parts(kind: Any) -> tuple[Any, ...]:
    """The types of a union; else the type alone."""
    kind = _bare(kind)[0]
    return get_args(kind) if get_origin(kind) in (typing.Union, types.UnionType) else (kind,)


def _bare(kind: Any) -> tuple[Any, list[Any]]:
    """A type without its Annotated wrapping, and what stood there: bounds and marks."""
    if get_origin(kind) is not Annotated:
        return kind, []
    kind, *extras = get_args(kind)
    bounds: list[Any] = []
    for extra in extras:
        bounds += extra.metadata if isinstance(extra, FieldInfo) else [extra]
    return kind, bounds


def _remedy(value: Any, kind: Any) -> str:
    """A hint where the mistake is plain from the value."""
    kinds = {_bare(part)[0] for part in _parts(kind)}
    choices = [name for part in kinds if get_origin(part) is Literal for name in get_args(part)]
    if choices and isinstance(value, str):
        return did_you_mean(value, map(str, choices))
    if str in kinds and isinstance(value, bool | int | float | list):
        return "; put it in quotes if text is meant"
    if isinstance(value, str) and {int, float, bool} & kinds and _is_plain(value):
        return "; leave out the quotes"
    if int in kinds and isinstance(value, float) and value.is_integer():
        return f"; write {int(value)}"
    return ""


def _is_plain(text: str) -> bool:
    """Whether the text would be a number, true or false without its quotes."""
    try:
        return isinstance(read(text, "")[0], bool | int | float)
    except ConfigError:
        return False

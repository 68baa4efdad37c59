"""What the schema allows: its keys by dotted name, checks of one value, and how errors say it."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from typing_extensions import is_typeddict

from shoal.config.choices import Choices
from shoal.config.errors import ConfigError, did_you_mean
from shoal.config.schema import Config, Section
from shoal.config.yaml_io import inline, read

MISSING = object()


@dataclass(frozen=True)
class RowEngine:
    """One key that holds a value: its type, its bounds and how to make its default."""

    type: Any  # with the bounds, as Annotated
    default: Any = MISSING
    description: str | None = None

    def check(self, value: Any, key: str) -> Any:
        """The value as its type wants it (a whole number becomes a float); else ValueError."""
        bare = _bare(self.type)[0]
        if get_origin(bare) is tuple and isinstance(value, list):
            value = tuple(value)  # YAML has no tuples
        try:
            return self._adapter.validate_python(value)
        except ValidationError as error:
            if isinstance(value, dict):
                _check_entries(bare, value, key)
            said = [one["ctx"]["error"] for one in error.errors() if one["type"] == "value_error"]
            remedy = f"; {said[0]}" if said else _remedy(value, bare)
            for one in _bare(self.type)[1]:
                if isinstance(one, Choices):
                    remedy = did_you_mean(str(value), one.names)
            raise ValueError(
                f"{key}: given {given(value)}; allowed: {allowed(self.type)}{remedy}"
            ) from None

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        # A TypedDict has a config of its own, and pydantic takes no second one.
        config = None if is_typeddict(self.type) else ConfigDict(strict=True)
        return TypeAdapter(self.type, config=config)

    def entry(self, name: str, key: str) -> RowEngine | None:
        """What stands under a name in the mapping that this key holds; None: it holds none.

        ValueError where the mapping knows its names, and this is none of them.
        """
        bare = _bare(self.type)[0]
        for part in (bare, *get_args(bare)):
            if is_typeddict(part):
                hints = _hints(part)
                if name not in hints:
                    hint = did_you_mean(name, hints)
                    raise ValueError(f"unknown key {key}.{name}; allowed: {', '.join(hints)}{hint}")
                return RowEngine(hints[name])
            if get_origin(part) is dict:
                return RowEngine(get_args(part)[1])
        return None

    @property
    def is_switch(self) -> bool:
        """Whether it is true or false, so that `--key` alone means true."""
        return _bare(self.type)[0] is bool

    @property
    def is_mapping(self) -> bool:
        """Whether it may hold a mapping, whose entries dotted keys reach."""
        bare = _bare(self.type)[0]
        return any(is_typeddict(p) or get_origin(p) is dict for p in (bare, *get_args(bare)))

    @property
    def is_text(self) -> bool:
        """Whether the type is text, or text or null."""
        bare = _bare(self.type)[0]
        return bare is str or set(get_args(bare)) == {str, types.NoneType}

    @property
    def is_optional(self) -> bool:
        """Whether null is allowed."""
        return types.NoneType in get_args(_bare(self.type)[0])


def _walk(section: type[Section], prefix: str) -> Iterator[tuple[str, type[Section] | None, Any]]:
    """(dotted key, section type or None for a leaf, field) of everything below `prefix`."""
    for name, field in section.model_fields.items():
        key, inner = prefix + name, _section_of(field.annotation)
        yield key, inner, field
        if inner is not None:
            yield from _walk(inner, key + ".")


def _section_of(annotation: Any) -> type[Section] | None:
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, Section):
            return kind
    return None


def _leaf(field: FieldInfo) -> RowEngine:
    kind: Any = field.annotation
    if field.metadata:
        kind = Annotated[(kind, *field.metadata)]
    return RowEngine(kind, field.get_default(call_default_factory=True), field.description)


# `model.options` is no key: the options of the chosen model stand in its place, see `options_of`.
_ALL = [row for row in _walk(Config, "") if row[0] != "model.options"]
SECTIONS: dict[str, type[Section]] = {key: section for key, section, _ in _ALL if section}
LEAVES: dict[str, RowEngine] = {key: _leaf(field) for key, section, field in _ALL if not section}
# Sections that may be null, such as train.negatives.
OPTIONAL = {
    key for key, section, field in _ALL if section and types.NoneType in get_args(field.annotation)
}


def options_of(options: type) -> dict[str, RowEngine]:
    """The keys `model.KEY` of a model, from the dataclass of its options."""
    hints = typing.get_type_hints(options, include_extras=True)
    leaves = {}
    for field in dataclasses.fields(options):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if default is dataclasses.MISSING:
            default = MISSING
        leaves[f"model.{field.name}"] = RowEngine(hints[field.name], default)
    assert "model.name" not in leaves, f"{options.__qualname__}: an option must not be called name"
    return leaves


def _check_entries(kind: Any, value: dict[str, Any], key: str) -> None:
    """ValueError that names the first wrong entry of a mapping; nothing if each alone is right."""
    for part in (kind, *get_args(kind)):
        if is_typeddict(part):
            entries = _hints(part)
        elif get_origin(part) is dict:
            names, inner = get_args(part)
            # A mapping with names of its own choosing has the same type for all.
            chosen = get_args(names) if get_origin(names) is Literal else value
            entries = dict.fromkeys(chosen, inner)
        else:
            continue
        for name, said in value.items():
            if name not in entries:
                hint = did_you_mean(name, entries)
                raise ValueError(f"unknown key {key}.{name}; allowed: {', '.join(entries)}{hint}")
            RowEngine(entries[name]).check(said, f"{key}.{name}")


def _hints(mapping: type) -> dict[str, Any]:
    """Name -> type of a mapping's entries, whether they must be given or not."""
    found = typing.get_type_hints(mapping, include_extras=True)
    needed = (typing.Required, typing.NotRequired)
    return {n: get_args(t)[0] if get_origin(t) in needed else t for n, t in found.items()}


def given(value: Any) -> str:
    """The value as it would be written, and its type in words."""
    names = {bool: "true or false", int: "whole number", float: "number", str: "text"}
    names |= {list: "list", tuple: "list", dict: "mapping", types.NoneType: "null"}
    kind = names.get(type(value))
    if kind is None:
        return f"an object of Python type {type(value).__name__}"
    text = inline(list(value) if isinstance(value, tuple) else value) if kind else repr(value)
    text = text if len(text) <= 80 else text[:77] + "..."
    return text if value is None else f"{text} ({kind})"


def allowed(kind: Any) -> str:
    """The allowed values of a type in words, e.g. `a whole number ≥ 1 or null`."""
    kind, bounds = _bare(kind)
    for bound in bounds:
        if isinstance(bound, Choices):
            return str(bound)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_bounded(part, bounds) for part in arguments)
    return _bounded(kind, bounds)


def _bounded(kind: Any, bounds: list[Any]) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if is_typeddict(kind):
        return f"a mapping of {', '.join(typing.get_type_hints(kind))}"
    if origin in (list, tuple):
        return f"a {_size(bounds)}list of {_plural(arguments[0])}"
    if origin is dict:
        return f"a mapping of {_plural(arguments[0])} to {_plural(arguments[1])}"
    simple = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "text",
        types.NoneType: "null",
        None: "null",
        Any: "anything",
        dict: "a mapping",
        list: "a list",
    }
    if kind not in simple:
        return allowed(kind) if origin else getattr(kind, "__name__", str(kind))
    return simple[kind] + (_range(bounds) if kind in (int, float) else "")


def _range(bounds: list[Any]) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    parts = [
        f"{sign} {_number(getattr(bound, name))}"
        for bound in bounds
        for name, sign in signs.items()
        if getattr(bound, name, None) is not None
    ]
    return " " + " and ".join(parts) if parts else ""


def _number(bound: float) -> str:
    """Whole ones in full: 1099511627776, and 0.5."""
    return str(int(bound)) if bound == int(bound) else f"{bound:g}"


def _size(bounds: list[Any]) -> str:
    low = [bound.min_length for bound in bounds if hasattr(bound, "min_length")]
    high = [bound.max_length for bound in bounds if hasattr(bound, "max_length")]
    return f"{low[0]}-element " if low and low == high else ""


def _plural(kind: Any) -> str:
    kind = _bare(kind)[0]
    simple = {int: "whole numbers", float: "numbers", str: "texts", bool: "true or false"}
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    if is_typeddict(kind):
        return f"mappings of {', '.join(typing.get_type_hints(kind))}"
    if get_origin(kind) is list:
        return f"lists of {_plural(get_args(kind)[0])}"
    return simple.get(kind) or allowed(kind)


def _bare(kind: Any) -> tuple[Any, list[Any]]:
    """A type without its Annotated wrapping, and the bounds that stood there."""
    if get_origin(kind) is not Annotated:
        return kind, []
    kind, *extras = get_args(kind)
    bounds: list[Any] = []
    for extra in extras:
        bounds += extra.metadata if isinstance(extra, FieldInfo) else [extra]
    return kind, bounds


def _remedy(value: Any, kind: Any) -> str:
    """A hint where the mistake is plain from the value."""
    kinds = {kind, *get_args(kind)}
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

"""The config as text: YAML for people and for the run's folder, a page of keys, a JSON schema."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter

from shoal.config.errors import did_you_mean
from shoal.config.keys import KEYS, Key, allowed, typed
from shoal.config.loading import Resolved
from shoal.config.schema import Config, Section


def dump(config: Config) -> str:
    """YAML that loads to the same values."""
    return "".join(f"{text}\n" for text, _ in _lines(config))


def show(resolved: Resolved) -> str:
    """The config as YAML, with the origin of every value in a comment behind it."""
    origins = resolved.origins
    lines = list(_lines(resolved.config))
    # Longer values do not push the column of comments further right.
    widths = [len(text) for text, key in lines if key and len(text) <= 60]
    column = max(widths, default=0)
    shown = ""
    for text, key in lines:
        if key:
            origin = origins.get(key) or origins[key.rpartition(".")[0]]  # of train.negatives
            text = f"{text:<{column}}  # {' '.join(origin.split())}"
        shown += f"{text}\n"
    return shown


def _lines(section: Section, prefix: str = "") -> Iterator[tuple[str, str | None]]:
    """(line of YAML, dotted key if the line holds a value)"""
    indent = "  " * prefix.count(".")
    for name in type(section).model_fields:
        key, value = prefix + name, getattr(section, name)
        if key == "model.options":
            for option, setting in value.items():
                yield f"{indent}{option}: {Key(Any).written(setting)}", f"model.{option}"
        elif isinstance(value, Section):
            yield f"{indent}{name}:", None
            yield from _lines(value, key + ".")
        else:
            yield f"{indent}{name}: {_written(key, section, value)}", key


def _written(key: str, section: Section, value: Any) -> str:
    """The value of a key; `section` has it, perhaps in the place of a null (train.negatives)."""
    name = key.rpartition(".")[2]
    entry = KEYS.get(key) or typed(type(section).model_fields[name])
    return entry.written(value)


def key_page() -> str:
    """Every key with its default, what it may be and what it does: docs/reference/keys.md."""
    lines = [
        "# Every key of a config",
        "",
        "For those who set something. [Configs](config.md) describes how a key is given, in a file "
        "or on the command line; `shoal config keys` prints this page, `shoal config keys WORD` "
        "the keys with that word in their name or text. Options of a model (`model.KEY`) are in "
        "[every model](every_model.md), and `shoal models NAME` prints them.",
    ]
    section = ""
    for key, entry in _documented():
        if (top := key.partition(".")[0]) != section:
            section = top
            lines += ["", f"## {section}", "", "| key | default | allowed | what it does |"]
            lines += ["| --- | --- | --- | --- |"]
        meaning = re.sub(r"docs/reference/(\w+)\.md", r"[\1](\1.md)", entry.description or "")
        meaning = re.sub(r"(?<!`)\\(?!`)", r"`\\`", meaning)  # bare, it would escape what follows
        cells = [f"`{entry.written(entry.default)}`", allowed(entry.kind), meaning]
        lines.append(" | ".join([f"| `{key}`", *cells]) + " |")
    return "".join(f"{line}\n" for line in lines)


def keys_with(word: str) -> str:
    """The keys that have a word in their name or text, two lines each; ValueError if none has."""
    lines = [
        f"{key}: {entry.written(entry.default)}  # {allowed(entry.kind)}\n  {entry.description}\n"
        for key, entry in _documented()
        if word.lower() in f"{key} {entry.description}".lower()
    ]
    if not lines:
        hint = did_you_mean(word, [part for key, _ in _documented() for part in key.split(".")])
        raise ValueError(
            f"no key has {word!r} in its name or text; `shoal config keys` prints all, and "
            f"`shoal models NAME` the options of a model{hint}"
        )
    return "".join(lines)


def _documented() -> Iterator[tuple[str, Key]]:
    """Every key; of one that holds a section or null, those of the section."""
    for key, entry in KEYS.items():
        if entry.section is None:
            yield key, entry
        else:
            for name, field in entry.section.model_fields.items():
                yield f"{key}.{name}", typed(field)


def json_schema(model_options: Mapping[str, type]) -> dict[str, Any]:
    """JSON schema of a config file in sections; the options of a model stand beside its name."""
    schema = Config.model_json_schema()
    definitions = schema["$defs"]
    name = definitions.pop("ModelSection")["properties"]["name"]
    forms: list[dict[str, Any]] = [{**name, "enum": sorted(model_options)}]
    anonymous: dict[str, Any] = {}  # without a name: any option, the command line names the model
    for model, options in sorted(model_options.items()):
        model_schema = TypeAdapter(options).json_schema()
        definitions |= model_schema.pop("$defs", {})
        properties = model_schema.get("properties", {})
        anonymous |= properties
        forms.append(
            {
                "title": model,
                "type": "object",
                "properties": {"name": {"const": model}, **properties},
                "required": ["name"],
                "additionalProperties": False,
            }
        )
    forms.append({"type": "object", "properties": anonymous, "additionalProperties": False})
    yours = {"type": "string", "pattern": ".:.", "description": "FILE.py:Class of your own"}
    forms += [yours, {"type": "object", "properties": {"name": yours}, "required": ["name"]}]
    schema["properties"]["model"] = {
        "description": "the model: its name, or a mapping of its name and options",
        "anyOf": forms,
    }
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Shoal config"
    return schema


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """{"a": {"b": 1}} -> {"a.b": 1}"""
    result: dict[str, Any] = {}
    for key, value in values.items():
        inner = isinstance(value, dict) and value
        result |= flat(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return result

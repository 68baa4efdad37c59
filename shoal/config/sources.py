"""Sources of a config: files, a Python mapping and the command line, each read as a Layer."""

import numbers
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.config.errors import ConfigError
from shoal.config.yaml_io import read, read_file

BARE = object()  # the value of `--key` when nothing follows it


@dataclass(frozen=True)
class Origin:
    """Where a value stands: a file and line, the command line, Python, or a default."""

    source: str
    line: int | None = None
    dialect_key: str | None = None  # the key of another tool that was translated
    dialect: str = ""  # the name of that tool

    def __str__(self) -> str:
        text = self.source if self.line is None else f"{self.source}:{self.line}"
        return f"{text} ({self.dialect} key {self.dialect_key})" if self.dialect_key else text


DEFAULT = Origin("default")


@dataclass
class Layer:
    """The values of one source, as written: nested, dotted or flat."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[tuple[str, ...], Origin] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)  # command line: the value as typed
    names: dict[str, str] = field(default_factory=dict)  # command line: the key as typed
    file: str | Path | None = None

    def origin(self, path: tuple[str, ...]) -> Origin:
        """Where the value under these keys stands."""
        while path not in self.origins:
            path = path[:-1]
        return self.origins[path]

    def model_name(self) -> tuple[Any, Origin] | None:
        """The model that this source names, in any of its spellings."""
        for path in (("model",), ("model", "name"), ("model.name",)):
            value: Any = self.values
            for key in path:
                value = value.get(key) if isinstance(value, dict) else None
            if value is not None and not isinstance(value, dict):
                text = self.texts.get(path[0], value)  # --model=5 is a name too
                return value if isinstance(value, str) else text, self.origin(path)
        return None


def from_file(path: str | Path) -> Layer:
    """A config file."""
    values, lines = read_file(path)
    origins = {keys: Origin(str(path), line) for keys, line in lines.items()}
    return Layer(values, {(): Origin(str(path)), **origins}, file=path)


def from_python(values: Mapping[str, Any], source: str = "python") -> Layer:
    """A mapping from Python; tuples, numpy numbers and paths become plain values."""
    return Layer({str(key): plain(value) for key, value in values.items()}, {(): Origin(source)})


def plain(value: Any) -> Any:
    """The value in the types that YAML knows."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, bool) or type(value) in (int, float, str):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Path | str):
        return str(value)
    return value


def join_values(words: Sequence[str]) -> Iterator[str]:
    """Words of a command line; the value that follows a key without `=` becomes `--key=value`."""
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if re.fullmatch(r"--?\w[^=]*", word) and rest:
            is_key = rest[0].startswith("--") or (
                word.startswith("--") and re.match(r"[A-Za-z_][\w.-]*=", rest[0])
            )
            word = word if is_key else f"{word}={rest.pop(0)}"
        yield word


def from_overrides(overrides: Sequence[str]) -> Layer:
    """Words of a command line: `--key=value`, `key=value`, `--key value`, `--flag`."""
    layer, errors = Layer(origins={(): Origin("command line")}), []
    for word in join_values(overrides):
        name, equals, text = word.removeprefix("--").partition("=")
        if not name or name.startswith("-") or not (word.startswith("--") or equals):
            errors.append(f"command line {word}: not an override; write --section.key=value")
            continue
        key = name.replace("-", "_")
        value = _parse(text) if equals else BARE
        if key in layer.values and layer.values[key] != value:
            errors.append(f"command line {word}: {key} is given twice with different values")
            continue
        layer.values[key] = value
        layer.origins[(key,)] = Origin(f"command line {word}")
        layer.names[key] = name
        if equals:
            layer.texts[key] = text
    if errors:
        raise ConfigError(errors)
    return layer


def _parse(text: str) -> Any:
    """The value as YAML; text without quotes stays as it is, `#` and `,` and all."""
    try:
        value = read(text, "command line")[0]
    except ConfigError:
        return text
    word = text.strip()
    if isinstance(value, str) and word[:1] not in ("'", '"'):
        return text
    return text if value is None and word.startswith("#") else value

"""YAML and TOML in, with the line of every key; YAML out, each value on one line.

Only plain data is read: null, true and false, numbers, text, lists and mappings. Of the traps of
YAML 1.1 these are gone: `1e-3` is a number, `12:30` and `2020-01-01` are text, `010` is not 8, and
a key that stands twice in a mapping is an error. Aliases are counted as what they stand for: a text
of few bytes cannot become a config of millions of values.
"""

import json
import re
import tomllib
from pathlib import Path
from typing import Any, NoReturn

import yaml

from shoal.config.errors import ConfigError, did_you_mean

FLOAT = re.compile(
    r"""^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?
        |[-+]?(?:[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)
        |[-+]?\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?
        |[-+]?\.(?:inf|Inf|INF)
        |\.(?:nan|NaN|NAN))$""",
    re.X,
)
INT = re.compile(r"^(?:[-+]?0|[-+]?[1-9][0-9_]*|0x[0-9a-fA-F_]+)$")
PREFIX = "tag:yaml.org,2002:"
PLAIN = {PREFIX + name for name in ("null", "bool", "int", "float", "str", "seq", "map")}

TABLE = re.compile(r"\s*\[([^\[\]]+)\]")  # of TOML
KEY = re.compile(r"""\s*["']?([\w.-]+)["']?\s*=""")

SUFFIXES = (".yaml", ".yml", ".toml")  # of config files
MOST_BYTES = 1 << 20  # of a text: the parser needs seconds for more

Path_ = tuple[str, ...]  # the keys that lead to a value; of an entry of a list its place, from 0


class _Loader(yaml.SafeLoader):
    """The safe loader with the resolvers stated above."""


class _Dumper(yaml.SafeDumper):
    """Quotes whatever either our loader or a plain YAML 1.1 loader would take for another type."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regexp) for tag, regexp in pairs if tag in (PREFIX + "null", PREFIX + "bool")]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(PREFIX + "float", FLOAT, list("-+0123456789."))
    _class.add_implicit_resolver(PREFIX + "int", INT, list("-+0123456789"))


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    # Escapes keep text with line breaks or tabs on one line, where a comment can follow it.
    style = None if text.isprintable() else '"'
    return dumper.represent_scalar(PREFIX + "str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def read(text: str, place: str) -> tuple[Any, dict[Path_, int]]:
    """The data in a YAML text and the line of every key; `place` names the text in errors."""
    loader = None
    if len(text) > MOST_BYTES:
        raise ConfigError(f"{place}: has {len(text)} characters; at most {MOST_BYTES} are read")
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        lines: dict[Path_, int] = {}
        return (None if node is None else _Builder(loader, lines, place).build(node, ())), lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{place}:{mark.line + 1}" if mark else place
        problem = error.problem or error.context or "unreadable"
        remedy = "; indent with spaces, YAML knows no tabs" if "'\\t'" in problem else ""
        raise ConfigError(f"{where}: not valid YAML: {problem}{remedy}") from None
    except yaml.YAMLError as error:  # a character that no YAML text may hold
        raise ConfigError(f"{place}: not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise ConfigError(f"{place}: nested too deep, or an alias (*) contains itself") from None
    finally:
        if loader is not None:
            loader.dispose()


def read_file(path: str | Path) -> tuple[dict[str, Any], dict[Path_, int]]:
    """The mapping in a YAML or TOML file and the line of every key; empty: an empty mapping."""
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        neighbours = [one.name for one in Path(path).parent.glob("*") if one.is_file()]
        configs = [name for name in neighbours if Path(name).suffix in SUFFIXES]
        hint = did_you_mean(Path(path).name, configs or neighbours)
        raise ConfigError(f"{path}: no such config file{hint}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{path}: cannot be read: {reason}") from None
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{path}: a config has at most {MOST_BYTES} bytes, this file has more")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text (byte {error.start})") from None
    if Path(path).suffix == ".toml":
        return read_toml(text, str(path))
    values, lines = read(text, str(path))
    if values is None:
        return {}, {}
    if not isinstance(values, dict):
        is_json = Path(path).suffix == ".json"
        raise ConfigError(
            f"{path}:1: a config is a mapping such as `train: {{epochs: 5}}`, this file holds "
            f"{'a list' if isinstance(values, list) else repr(values)[:200]}"
            + ("; rows of data go into FILE.jsonl, an object on every line" * is_json)
        )
    return values, lines


class _Builder:
    """Turns nodes into data. What an alias stands for is built, and counted, once more."""

    def __init__(self, loader: _Loader, lines: dict[Path_, int], place: str):
        self.loader = loader
        self.lines = lines
        self.place = place
        self.count = 0

    def build(self, node: yaml.Node, path: Path_) -> Any:
        """The data of a node, which stands under the keys `path`."""
        self.count += 1
        if self.count > 100_000:
            raise ConfigError(
                f"{self.place}: a config has at most 100,000 values, with those that aliases repeat"
            )
        if node.tag not in PLAIN:
            self.refuse(node, f"tag {node.tag.replace(PREFIX, '!!')} is not allowed")
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [
                self.entry(child, (*path, str(place))) for place, child in enumerate(node.value)
            ]
        try:
            return self.loader.construct_object(node)
        except (ValueError, KeyError):
            self.refuse(node, f"{node.value!r} is no {node.tag[len(PREFIX) :]}")

    def entry(self, node: yaml.Node, path: Path_) -> Any:
        """An entry of a list."""
        self.lines[path] = node.start_mark.line + 1
        return self.build(node, path)

    def mapping(self, node: yaml.MappingNode, path: Path_) -> dict[str, Any]:
        """Its keys must be text, and differ."""
        data: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if key_node.tag != PREFIX + "str":
                self.refuse(key_node, f"a key must be text, given {key!r}; put it in quotes")
            if key == "<<":
                self.refuse(
                    key_node,
                    "merge keys (<<) are not supported; give several files instead, later ones win",
                )
            if key in data:
                self.refuse(key_node, f"key {key} appears twice, first in line {lines[key]}")
            lines[key] = self.lines[(*path, key)] = key_node.start_mark.line + 1
            data[key] = self.build(value_node, (*path, key))
        return data

    def refuse(self, node: yaml.Node, text: str) -> NoReturn:
        raise ConfigError(f"{self.place}:{node.start_mark.line + 1}: {text}")


def read_toml(text: str, place: str) -> tuple[dict[str, Any], dict[Path_, int]]:
    """The mapping in a TOML text and the line of every key: some tools write configs so."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = re.search(r"at line (\d+)", str(error))
        where = f"{place}:{match[1]}" if match else place
        raise ConfigError(f"{where}: not valid TOML: {error}") from None
    except RecursionError:
        raise ConfigError(f"{place}: nested too deep") from None
    lines: dict[Path_, int] = {}
    table: Path_ = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if match := TABLE.match(line):
            table = tuple(part.strip(" \"'") for part in match[1].split("."))
            lines.setdefault(table, number)
        elif match := KEY.match(line):
            lines.setdefault((*table, *match[1].split(".")), number)
    return _as_yaml(values), lines


def _as_yaml(value: Any) -> Any:
    """The types that YAML has too: dates and times are text."""
    if isinstance(value, dict):
        return {key: _as_yaml(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_as_yaml(inner) for inner in value]
    return value if isinstance(value, bool | int | float | str) else str(value)


def inline(value: Any) -> str:
    """The value as YAML on one line."""
    if value is None or type(value) in (bool, int):
        return json.dumps(value)  # most are, and yaml is slow
    if type(value) is list:
        return f"[{', '.join(map(inline, value))}]"
    text = yaml.dump(
        [value],
        Dumper=_Dumper,
        default_flow_style=True,
        width=float("inf"),
        allow_unicode=True,
        sort_keys=False,
    )
    return text.strip()[1:-1]

"""Spaces: which keys of a config a search may change, and to what.

train.optimizer.lr: {low: 1e-4, high: 1e-1, log: true}
model.embedding_size: [32, 64, 128]
model.n_layers: {low: 1, high: 4}
model.dropout_prob: {low: 0.0, high: 0.5, step: 0.1}

A list is a choice. A range of whole numbers gives whole numbers. RecBole's files
(`learning_rate loguniform -8,0`) are read too.
"""

import ast
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from shoal.config import ConfigError, Resolved
from shoal.config.yaml_io import inline, read, read_file

RECBOLE = re.compile(r"(\S+)\s+(choice|uniform|quniform|loguniform)\s+(\S.*)")
FIELDS = ("low", "high", "step", "log")
MOST_OF_A_GRID = 1_000_000
LARGEST = 1e100  # of a range

# Given values by key, the config with them; ConfigError where it refuses one.
Resolve = Callable[[dict[str, Any]], Resolved]


@dataclass(frozen=True)
class Parameter:
    """One key that is searched: a choice, or a range."""

    key: str
    choices: tuple[Any, ...] = ()
    low: float = 0
    high: float = 0
    step: float | None = None
    log: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether a range gives whole numbers: all that it states are."""
        return all(isinstance(one, int) for one in (self.low, self.high, self.step or 1))

    @property
    def extremes(self) -> tuple[Any, ...]:
        """Values that stand for all others, to check them against the config."""
        return self.choices or (self.low, self.high)

    @property
    def steps(self) -> list[Any]:
        """All values, for a grid; ValueError where there is no end of them."""
        if self.choices:
            return list(self.choices)
        step = self.step or 1
        return [_rounded(self.low + number * step) for number in range(self.num_steps)]

    @property
    def num_steps(self) -> int:
        """How many values there are; ValueError where there is no end of them."""
        if self.choices:
            return len(self.choices)
        step = self.step or (1 if self.is_whole else None)
        if step is None or self.log:
            raise ValueError(
                f"{self.key} is a range without steps; for a grid give a list of values, or "
                "{low: 0.1, high: 0.5, step: 0.1}"
            )
        return math.floor((self.high - self.low) / step + 1e-9) + 1

    def text(self) -> str:
        """The parameter as it stands in a file, on the right of its key."""
        if self.choices:
            return inline(list(self.choices))
        parts = [f"low: {inline(self.low)}", f"high: {inline(self.high)}"]
        parts += [f"step: {inline(self.step)}"] if self.step is not None else []
        parts += ["log: true"] if self.log else []
        return f"{{{', '.join(parts)}}}"


def read_space(source: str | Path | dict[str, Any]) -> list[Parameter]:
    """The parameters that a file or a mapping lists; ConfigError lists all that is wrong."""
    if isinstance(source, dict):
        place, entries = "space", dict(_flat(source))
    else:
        place, entries = str(source), _read_entries(Path(source))
    errors, parameters = [], []
    for key, spec in entries.items():
        try:
            parameters.append(spec if isinstance(spec, Parameter) else _parameter(key, spec))
        except ValueError as error:
            errors.append(f"{place}: {key}: {error}")
    if not entries:
        errors.append(
            f"{place}: names no key to search; `shoal models NAME --space` prints a space to begin"
        )
    if errors:
        raise ConfigError(errors)
    return parameters


def space_text(space: list[Parameter]) -> str:
    """The space as YAML, which reads as the same."""
    return "".join(f"{one.key}: {one.text()}\n" for one in space)


def checked(space: list[Parameter], resolve: Resolve) -> list[Parameter]:
    """The space with the keys' own names; ConfigError where the config refuses a value.

    A key of another tool is found by what it changes: `learning_rate` is train.optimizer.lr.
    """
    errors: list[str] = []
    named: list[Parameter] = []
    for parameter in space:
        resolved = None
        for value in parameter.extremes:
            try:
                resolved = resolve({parameter.key: value})
            except ConfigError as error:
                errors += [text for text in error.errors if text not in errors]
        if resolved is not None:
            named.append(
                replace(parameter, key=_own_name(parameter.key, parameter.extremes[-1], resolved))
            )
    keys = [parameter.key for parameter in named]
    errors += [f"{key} is in the space twice" for key in sorted(set(keys)) if keys.count(key) > 1]
    if errors:
        raise ConfigError(errors)
    return named


def value_in(resolved: Resolved, key: str) -> Any:
    """The value that the config has under a key of a space; None where it has none."""
    *sections, last = key.split(".")
    inner: Any = resolved.config.model_dump()
    if sections == ["model"] and last != "name":
        sections.append("options")
    for part in (*sections, last):
        inner = inner.get(part) if isinstance(inner, dict) else None
    return inner


def grid(space: list[Parameter]) -> list[dict[str, Any]]:
    """Every combination, the last key changing first; ValueError where there are too many."""
    count = math.prod(one.num_steps for one in space)
    if count > MOST_OF_A_GRID:
        raise ValueError(f"the grid has {count} points; name fewer values, or --sampler tpe")
    values = [one.steps for one in space]
    return [dict(zip([one.key for one in space], point)) for point in product(*values)]


def _own_name(key: str, value: Any, resolved: Resolved) -> str:
    """The config key that another tool's key sets, if it is a single one with the same value."""
    mark = f" key {key})"
    set_by = [name for name, origin in resolved.origins.items() if origin.endswith(mark)]
    if len(set_by) == 1 and value_in(resolved, set_by[0]) == value:
        return set_by[0]
    options = resolved.config.model.options
    return f"model.{key}" if "." not in key and key in options else key


def _read_entries(path: Path) -> dict[str, Any]:
    """Key -> its entry in a file."""
    if path.suffix not in (".yaml", ".yml", ".toml"):
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            lines = []  # reported below, in the words for any config file
        kept = [line.partition("#")[0].strip() for line in lines]
        if any(RECBOLE.fullmatch(line) for line in kept):
            return dict(_recbole(kept, path))
    return dict(_flat(read_file(path)[0]))


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key -> list or range, of nested mappings."""
    for key, value in values.items():
        if isinstance(value, dict) and value and not set(value) & set(FIELDS):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _parameter(key: str, spec: Any) -> Parameter:
    if isinstance(spec, list | tuple):
        if not spec:
            raise ValueError("an empty list leaves nothing to choose")
        if any(spec.count(one) > 1 for one in spec):
            raise ValueError(f"{inline(list(spec))} has a value twice")
        return Parameter(key, tuple(spec))
    if not isinstance(spec, dict) or not {"low", "high"} <= set(spec):
        raise ValueError(
            f"given {inline(spec)}; write a list of values, or {{low: 1e-4, high: 1e-1, log: true}}"
        )
    if unknown := set(spec) - set(FIELDS):
        raise ValueError(f"unknown {min(unknown)}; allowed: {', '.join(FIELDS)}")
    low, high = spec["low"], spec["high"]
    step, log = spec.get("step"), spec.get("log", False)
    numbers = (low, high) if step is None else (low, high, step)
    if any(type(one) not in (int, float) or not abs(one) < LARGEST for one in numbers):
        raise ValueError(f"given {inline(spec)}; low, high and step are numbers")
    if not isinstance(log, bool):
        raise ValueError(f"log is {inline(log)}; it is true or false")
    if low >= high:
        raise ValueError(f"low {inline(low)} is not below high {inline(high)}")
    if step is not None and (step <= 0 or step > high - low):
        raise ValueError(f"step {inline(step)} does not fit between low and high")
    if log and (low <= 0 or step is not None):
        raise ValueError("log needs low above 0, and no step")
    return Parameter(key, low=low, high=high, step=step, log=log)


def _recbole(lines: list[str], path: Path) -> Iterator[tuple[str, Parameter]]:
    """Lines such as `embedding_size choice [64,96,128]`, of RecBole's hyper-parameter files."""
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        match = RECBOLE.fullmatch(line)
        try:
            if match is None:
                raise ValueError("write KEY choice|uniform|quniform|loguniform VALUES")
            yield match[1], _recbole_parameter(*match.groups())
        except (ValueError, SyntaxError, TypeError) as error:
            text = "cannot be read" if isinstance(error, SyntaxError) else error
            raise ConfigError(f"{path}:{number}: {line}: {text}") from None


def _recbole_parameter(key: str, kind: str, text: str) -> Parameter:
    if kind == "choice":
        values = ast.literal_eval(text)
        # It evaluates texts such as '[64, 64]' once more.
        return _parameter(key, [read(v, key)[0] if isinstance(v, str) else v for v in values])
    numbers = [float(part) for part in text.split(",")]
    if len(numbers) != (3 if kind == "quniform" else 2):
        raise ValueError(f"{kind} has {'low,high,step' if kind == 'quniform' else 'low,high'}")
    if kind == "loguniform":  # powers of e
        low, high = map(math.exp, numbers)
        return _parameter(key, {"low": low, "high": high, "log": True})
    if kind == "quniform" and all(one.is_integer() for one in numbers):
        numbers = [int(one) for one in numbers]
    return _parameter(key, dict(zip(("low", "high", "step"), numbers)))


def _rounded(value: float) -> float:
    """0.30000000000000004 -> 0.3"""
    return value if isinstance(value, int) else float(f"{value:.12g}")

"""Files that a run leaves behind, which a stranger may have written.

Every reader of result.json, metrics.jsonl and the like uses these functions: a file has a bounded
size, is no link, and each of its values is used only as the type that it must have.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shoal.config.sizes import items_of
from shoal.config.train_section import AUTO
from shoal.files.durable import open_regular

MOST_BYTES = 64 << 20  # of a file of JSON
LARGEST = 1e100  # a number that can still be drawn, squared and summed
MOST_WHOLE = 1 << 53  # a count that floats still distinguish from the next one


def text_of(path: Path) -> str:
    """A file's text; ValueError where it is longer than any that a run writes."""
    with open_regular(path, links=False) as file:
        if os.fstat(file.fileno()).st_size > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES >> 20} MiB")
        return file.read(MOST_BYTES).decode("utf-8", errors="replace")


def parse_object(text: str | bytes) -> dict[str, Any]:
    """The object that a text of JSON holds; ValueError where it holds none."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("it holds no object of JSON")
    return value


def same_settings(kept: Any, wanted: Any) -> bool:
    """Whether a run's config, as its folder keeps it, is the config that is wanted.

    What is `auto` in one of them, or a number of items, is decided by the data, and may be
    anything in the other.
    """
    if AUTO in (kept, wanted) or any(items_of(size) is not None for size in (kept, wanted)):
        return True
    if isinstance(kept, Mapping) and isinstance(wanted, Mapping):
        keys = kept.keys() | wanted.keys()
        return all(same_settings(kept.get(key), wanted.get(key)) for key in keys)
    return bool(kept == wanted)


def objects(text: str) -> Iterator[dict[str, Any]]:
    """The object of each line; an empty one where a line holds none, as one that was torn."""
    for line in text.splitlines():
        try:
            yield parse_object(line)
        except ValueError:
            yield {}


def read_object(path: Path) -> dict[str, Any]:
    """The object that a file of JSON holds; an empty one where it cannot be read."""
    try:
        return parse_object(text_of(path))
    except (OSError, ValueError):
        return {}


def read_list(path: Path) -> list[Any]:
    """The list that a file of JSON holds; an empty one where it cannot be read."""
    try:
        value = json.loads(text_of(path))
    except (OSError, ValueError, RecursionError):
        return []
    return value if isinstance(value, list) else []


def mapping(values: dict[str, Any], key: str) -> dict[str, Any]:
    """A mapping within a mapping; empty where it is none."""
    value = values.get(key)
    return value if isinstance(value, dict) else {}


def number(value: Any) -> float | None:
    """A finite number that can be drawn; None for anything else.

    >>> number(0.5), number(10**400), number("0.5"), number(True), number(float("nan"))
    (0.5, None, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < LARGEST and math.isfinite(value) else None


def whole(value: Any) -> int | None:
    """A count, such as an epoch; None for anything else.

    >>> whole(3), whole(3.0), whole(-1), whole(10**400), whole("3")
    (3, None, None, None, None)
    """
    return value if type(value) is int and 0 <= value <= MOST_WHOLE else None


def numbers(values: Any) -> dict[str, float]:
    """The entries of a mapping that are finite numbers."""
    entries = {k: number(v) for k, v in values.items()} if isinstance(values, dict) else {}
    return {str(k): v for k, v in entries.items() if v is not None}


def metrics_of(result: dict[str, Any], part: str) -> dict[str, float]:
    """The metrics of a part of result.json, best_valid or test.

    A metric may be NaN, where training diverged; what is no number is left out.
    """
    values = mapping(result, part)
    return {name: float(value) for name, value in values.items() if _is_metric(value)}


def read_result(path: Path) -> dict[str, Any]:
    """The content of result.json, an empty mapping where there is none.

    ValueError names the file where it is damaged: metrics of both parts must be numbers.
    """
    if not path.exists():
        return {}
    try:
        result = parse_object(text_of(path))
        for part in ("best_valid", "test"):
            wrong = [name for name, v in mapping(result, part).items() if not _is_metric(v)]
            if wrong or not isinstance(result.get(part), dict):
                raise ValueError(f"{'.'.join([part, *wrong[:1]])} is not what a run writes")
        return result
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(
            f"cannot use {path}: {why}; remove that run's folder to train it again"
        ) from None


def _is_metric(value: Any) -> bool:
    """True for a float, or a whole number that a float can stand for."""
    return isinstance(value, float) or (type(value) is int and abs(value) < LARGEST)

"""Old names of keys and of their values, and what each is called now. Nothing else knows them.

An old name works for one release: the config is read as if it had the new one, and the log has a
line that says so. A run folder of an earlier release is opened in the same way.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from shoal.config.sources import BARE

UNCHANGED = object()  # RenamedKey.gives_way: no value does


def _same(value: Any) -> Any:
    return value


def _switch(on: Any, off: Any) -> Callable[[Any], Any]:
    """How `true`, `false` and a bare `--key` of a former switch are written now."""

    def convert(value: Any) -> Any:
        if value is True or value is BARE:
            return on
        return off if value is False else value

    return convert


@dataclass(frozen=True)
class RenamedKey:
    """What an old key is called now, and how its values are written there.

    Where two old keys became one, a config may hold both: `gives_way` is the value of this one that
    lets the other decide.
    """

    new: str
    convert: Callable[[Any], Any] = _same
    gives_way: Any = UNCHANGED


# Keys and whole sections; what stands below a section moves with it.
RENAMED_KEYS: dict[str, RenamedKey] = {
    "run.tensorboard": RenamedKey("run.trackers", _switch(["tensorboard"], [])),
    "launch.host": RenamedKey("launch.host_index"),
    "data.planted": RenamedKey("data.synthetic"),
    "data.clicks.planted": RenamedKey("data.clicks.synthetic"),
    "rows.decay": RenamedKey("rows.counter_decay"),
    "start.decay": RenamedKey("start.value_decay"),
    "start.words": RenamedKey("start.vocabulary"),
    "strategy.exchange": RenamedKey("strategy.wire_dtype", gives_way="float32"),
    "strategy.ps.bfloat16": RenamedKey(
        "strategy.wire_dtype", _switch("bfloat16", "float32"), gives_way=False
    ),
    "strategy.overlap": RenamedKey("strategy.prefetch", _switch(True, False), gives_way=True),
    "strategy.ps.ahead": RenamedKey("strategy.prefetch", _switch(True, False), gives_way=True),
}

# Key -> old value -> what it is called now.
RENAMED_VALUES: dict[str, Mapping[str, str]] = {
    "data.name": {"planted": "synthetic", "planted_clicks": "synthetic_clicks"},
    "data.format": {"planted": "synthetic", "planted_clicks": "synthetic_clicks"},
}


@dataclass(frozen=True)
class RemovedKey:
    """A key that is gone: the value under which a config still means what it did, and advice."""

    default: Any
    advice: str


REMOVED_KEYS: dict[str, RemovedKey] = {
    "strategy.backend": RemovedKey(
        "native",
        "TorchRec's tables are no backend any more: leave the key out. Shoal's own tables have the "
        "same numbers, read the same checkpoints, and have every optimizer and placement",
    ),
}

# Sizes that were plain numbers, each with the unit it was in. A size is text with a unit now.
FORMER_UNITS: dict[str, str] = {
    "strategy.memory": "GiB",
    "strategy.replicate_below": "MiB",
    "rows.tiers.gpu": "B",
    "rows.tiers.host": "B",
    "rows.admission.bloom_counters": "B",
}


def find_renamed(key: str) -> tuple[str, RenamedKey] | None:
    """What a dotted key is called now, and the entry of the table that renames it or its section.

    >>> find_renamed("rows.decay.every")[0]
    'rows.counter_decay.every'
    """
    above, below = key, ""
    while above:
        if renamed := RENAMED_KEYS.get(above):
            return renamed.new + below, renamed
        above, _, last = above.rpartition(".")
        below = f".{last}{below}"
    return None


def current_value(key: str, value: Any) -> Any:
    """The value under its name of now."""
    names = RENAMED_VALUES.get(key, {})
    return names.get(value, value) if isinstance(value, str) else value

"""Trust: the config of a run folder may be somebody else's, and may name code and places to write.

Such keys declare it in the schema (`NeedsTrust`); they are used only where the user agrees.
tests/config/test_trust.py walks the schema, so that no new key of free text is forgotten.
"""

from collections.abc import Iterator
from pathlib import Path

from shoal.config.errors import ConfigError
from shoal.config.keys import KEYS, value_of
from shoal.config.loading import Resolved
from shoal.config.schema import Config
from shoal.config.section import RUN, WRITTEN, NeedsTrust
from shoal.config.sources import Origin
from shoal.config.yaml_io import inline

RUNS = [key for key, one in KEYS.items() if one.mark(NeedsTrust) == RUN]
WRITES = [key for key, one in KEYS.items() if one.mark(NeedsTrust) == WRITTEN]
REMEDY = (
    "A run folder's config names code to run or a place to write to: if you know where the folder "
    "comes from, add --trust (in Python: trust=True). Commands that take keys, such as train and "
    "eval, take your own value instead (--KEY=VALUE)"
)


def check_trusted(resolved: Resolved, file: str | Path) -> None:
    """Refuse code and places that `file`, the config of a run folder, names; the user may."""
    refused = [
        _line(origin, key, value, use)
        for key, value, use in _asking(resolved.config)
        if (origin := resolved.origins[key]).startswith(str(file))
    ]
    if refused:
        raise ConfigError(f"{'; '.join(refused)}. {REMEDY}")


def check_code_trusted(key: str, name: str, origin: Origin, file: str | Path) -> None:
    """The same of a custom model and of a plugin, before its file is run."""
    if origin.source == str(file):
        raise ConfigError(f"{_line(str(origin), key, name, 'which would be run')}. {REMEDY}")


def _asking(config: Config) -> Iterator[tuple[str, object, str]]:
    """(key, value, what happens with it) of every key that would be run or written to."""
    for key in (*RUNS, *WRITES):
        value = value_of(config, key)
        unused = (
            value == KEYS[key].default
            or (key == "run.root" and config.run.output is not None)
            or (key == "run.trackers" and not any(":" in one for one in config.run.trackers))
            or (key == "strategy.ps.addresses" and not config.launch.servers)  # to connect to
        )
        if not unused:
            yield key, value, (RUN if key in RUNS else WRITTEN).use


def _line(origin: str, key: str, value: object, use: str) -> str:
    return f"{origin}: {key} is {inline(value)[:500]}, {use}"

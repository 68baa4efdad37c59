"""Trust: a config may name code to run and places to write to.

Your own config may name any. The config of a run folder may be somebody else's: what it names is
used only where the user agrees.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from shoal.config.errors import ConfigError
from shoal.config.key_applicability import value_of
from shoal.config.keys import LEAVES
from shoal.config.resolved import Resolved
from shoal.config.schema import Config
from shoal.config.sources import Origin
from shoal.config.yaml_io import inline

# A program, or a Python file. PaddleRec's reader paths become these.
RUNS = ("data.clicks.pipe_command", "data.clicks.custom", "run.plugins")
# Folders, object stores, and sockets of servers. tests/config/test_trust.py walks the schema:
# a new key with free text stands here, or there among those that are read or name no place.
WRITES = (
    "run.output",
    "run.root",
    "checkpoint.copy_to",
    "rows.tiers.ssd",
    "strategy.ps.addresses",
)
REMEDY = (
    "A run folder's config names code to run or a place to write to: give the key yourself "
    "(--KEY=VALUE), or, if you know where the folder comes from, --trust (in Python: trust=True)"
)
LONGEST = 500  # letters of a value that the message shows


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
            value == LEAVES[key].default
            or (key == "run.root" and config.run.output is not None)
            or (key == "strategy.ps.addresses" and not config.launch.servers)  # to connect to
        )
        if not unused:
            yield key, value, "which would be run" if key in RUNS else "which would be written to"


def _line(origin: str, key: str, value: object, use: str) -> str:
    return f"{origin}: {key} is {inline(value)[:LONGEST]}, {use}"

"""Trust: a config may name code to run. One's own may; one that came with a run folder must ask."""

from __future__ import annotations

from pathlib import Path

from shoal.config.errors import ConfigError
from shoal.config.resolved import Resolved
from shoal.config.schema import Config
from shoal.config.sources import Origin
from shoal.config.yaml_io import inline

# Keys whose value is run: a program, or a Python file. PaddleRec's reader paths become these.
CODE_KEYS = ("data.clicks.pipe_command", "data.clicks.custom")
REMEDY = (
    "A run folder's config names code; if you know where the folder comes from, say --trust (in "
    "Python: trust=True)"
)
LONGEST = 500  # letters of a value that the message shows


def code_keys(config: Config) -> list[tuple[str, str]]:
    """The keys of a config that name code to run, with their values."""
    found = []
    for key in CODE_KEYS:
        value = config
        for name in key.split("."):
            value = getattr(value, name)
        if value is not None:
            found.append((key, str(value)))
    return found


def check_trusted(resolved: Resolved, file: str | Path) -> None:
    """Refuse code that `file`, the config of a run folder, names; the user may name some."""
    told = [
        _tell(origin, key, value)
        for key, value in code_keys(resolved.config)
        if (origin := resolved.origins[key]).startswith(str(file))
    ]
    if told:
        raise ConfigError(f"{'; '.join(told)}. {REMEDY}")


def check_model_trusted(name: str, origin: Origin, file: str | Path) -> None:
    """The same of a model of somebody's own, before its file is run for its options."""
    if origin.source == str(file):
        raise ConfigError(f"{_tell(str(origin), 'model.name', name)}. {REMEDY}")


def _tell(origin: str, key: str, value: str) -> str:
    return f"{origin}: {key} is {inline(value)[:LONGEST]}, which would be run"

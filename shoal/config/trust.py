"""Trust: the config of a run folder may be somebody else's, and may name code and places to write.

Such keys declare it in the schema (`NeedsTrust`); they are used only where the user agrees.
tests/config/test_trust.py walks the schema, so that no new key of free text is forgotten.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.config.encode_section import names_own_encoder
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
    "The config of a run folder, or of a search, names code to run or a place to write to: if you "
    "know where the folder comes from, add --trust (in Python: trust=True). Commands that take "
    "keys, such as train and eval, take your own value instead (--KEY=VALUE)"
)

# Key -> values that need no trust, because the user's own config names them as well.
OwnValues = Mapping[str, Sequence[Any]]


def check_trusted(
    resolved: Resolved, file: str | Path, user_values: OwnValues | None = None, places: bool = True
) -> None:
    """Refuse code and places that `file`, which somebody else may have written, names.

    places: also where it names a place to write to, not only code.
    """
    refused = [
        _line(origin, key, value, use)
        for key, value, use in _asking(resolved.config)
        if (origin := resolved.origins[key]).startswith(str(file))
        and (places or key in RUNS)
        and value not in (user_values or {}).get(key, ())
    ]
    if refused:
        raise ConfigError(f"{'; '.join(refused)}. {REMEDY}")


def check_code_trusted(key: str, name: str, origin: Origin) -> None:
    """Refuse a custom model, a metric or a plugin that such a file names, before it is run."""
    raise ConfigError(f"{_line(str(origin), key, name, 'which would be run')}. {REMEDY}")


def check_kept_code(file: Path, key: str, text: bytes) -> None:
    """Refuse the copy of a custom model or metric that a run keeps, where it is another text."""
    if file.is_file() and file.read_bytes() != text:
        problem = f"{file}: {key} has another text here, which would be run"
        raise ConfigError(f"{problem}. {REMEDY}")


def names_code(config: Config) -> bool:
    """Whether a config names code of its own, so that its copy in a folder needs trust."""
    names = (config.model.name, *config.eval.metrics)
    keys = any(key in RUNS for key, *_ in _asking(config))
    return keys or bool(config.run.plugins) or any(":" in name for name in names)


def own_values(config: Config) -> dict[str, list[Any]]:
    """The code and the places that a config names itself."""
    values = {key: [value_of(config, key)] for key in (*RUNS, *WRITES)}
    names = {"model.name": [config.model.name], "eval.metrics": list(config.eval.metrics)}
    return {**values, **names, "run.plugins": list(config.run.plugins)}


def _asking(config: Config) -> Iterator[tuple[str, object, str]]:
    """(key, value, what happens with it) of every key that would be run or written to."""
    for key in (*RUNS, *WRITES):
        value = value_of(config, key)
        unused = (
            value == KEYS[key].default
            or (key == "run.root" and config.run.output is not None)
            or (key == "run.trackers" and not any(":" in one for one in config.run.trackers))
            or (key == "data.encode" and not names_own_encoder(config.data.encode or {}))
            or (key == "strategy.ps.addresses" and not config.launch.servers)  # to connect to
        )
        if not unused:
            yield key, value, (RUN if key in RUNS else WRITTEN).use


def _line(origin: str, key: str, value: object, use: str) -> str:
    return f"{origin}: {key} is {inline(value)[:500]}, {use}"

"""The file of versions: YAML, read strictly. docs/reference/serving.md describes its keys.

Every error names the file, the line and the key. Paths are relative to the file's folder.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.config.errors import ConfigError, did_you_mean
from shoal.config.yaml_io import Path_, read_file

KEYS = ("versions", "shadow")
VERSION_KEYS = ("artifact", "share")
MOST_VERSIONS = 16  # each is a model in memory
ROUNDING = 1e-6  # of the sum of shares
ENDINGS = (".yaml", ".yml")


@dataclass(frozen=True)
class VersionsFile:
    """What the file of versions says.

    shares  artifact, as the file has it -> its share of users
    shadow  an artifact that answers nobody; None: there is none
    """

    path: Path
    shares: Mapping[str, float]
    shadow: str | None = None

    def folder(self, artifact: str) -> Path:
        """The folder of an artifact that the file names; where a link leads to."""
        return (self.path.parent / artifact).resolve()

    def artifacts(self) -> list[str]:
        """Every artifact that the file names, with the shadow."""
        return [*self.shares, *([] if self.shadow is None else [self.shadow])]


def is_versions_file(path: str | Path) -> bool:
    """Whether this names a file of versions, and not an artifact or a folder of them."""
    return Path(path).is_file() or (Path(path).suffix in ENDINGS and not Path(path).exists())


def choose(shares: Mapping[str, float], key: str) -> str:
    """The version of a key, by the key alone; each version has its share of keys.

    Rendezvous hashing: every version draws a number for the key, smaller where its share is larger,
    and the smallest wins. A share that grows takes keys from the others and moves no other key.

    >>> choose({"monday": 0.9, "tuesday": 0.1}, "196")
    'monday'
    >>> moved = [key for key in map(str, range(1000))
    ...          if choose({"a": 0.9, "b": 0.1}, key) != choose({"a": 0.8, "b": 0.2}, key)]
    >>> {choose({"a": 0.8, "b": 0.2}, key) for key in moved}, 80 < len(moved) < 120
    ({'b'}, True)
    """

    def distance(artifact: str) -> float:
        text = f"{artifact}\0{key}".encode("utf-8", "surrogatepass")
        number = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
        return -math.log((number + 1) / 2**64) / shares[artifact]

    return min((artifact for artifact in shares if shares[artifact] > 0), key=distance)


def read_versions(path: str | Path) -> VersionsFile:
    """The file of versions; ConfigError names everything that is wrong with it."""
    if Path(path).exists() and not Path(path).is_file():
        raise ConfigError(f"{path} is no regular file; put the file of versions there")
    values, lines = read_file(path)
    return _Reader(Path(path), values, lines).read()


class _Reader:
    """Checks the values of a file, and collects what is wrong with them."""

    def __init__(self, path: Path, values: dict[str, Any], lines: Mapping[Path_, int]):
        self.path = path
        self.values = values
        self.lines = lines
        self.errors: list[str] = []

    def read(self) -> VersionsFile:
        """The file's contents; raises every error."""
        if "retrieve" in self.values:
            raise ConfigError(
                f"{self.path} is the file of a pipeline; `shoal pipeline serve {self.path}` "
                "serves it"
            )
        self._check_keys(self.values, KEYS, ())
        shares = self._shares()
        shadow = self.values.get("shadow")
        if shadow is not None:
            self._check_artifact(shadow, ("shadow",))
        if self.errors:
            raise ConfigError(self.errors)
        return VersionsFile(self.path, shares, shadow)

    def _shares(self) -> dict[str, float]:
        entries = self.values.get("versions")
        if not isinstance(entries, list) or not 0 < len(entries) <= MOST_VERSIONS:
            self._error(
                ("versions",),
                f"must be a list of 1 to {MOST_VERSIONS} versions, each on a line such as "
                "`- {artifact: exported/monday, share: 0.9}`",
            )
            return {}
        shares: dict[str, float] = {}
        for number, entry in enumerate(entries):
            place = ("versions", str(number))
            if not isinstance(entry, dict):
                self._error(place, f"must have the keys {' and '.join(VERSION_KEYS)}")
                continue
            self._check_keys(entry, VERSION_KEYS, place)
            artifact: Any = entry.get("artifact")
            share: Any = entry.get("share")
            if not self._check_artifact(artifact, (*place, "artifact")):
                continue
            is_number = isinstance(share, int | float) and not isinstance(share, bool)
            if not is_number or not 0 <= share <= 1:
                shown = "nothing" if share is None else repr(share)[:80]
                self._error((*place, "share"), f"must be a number from 0 to 1, given {shown}")
                continue
            if artifact in shares:
                self._error((*place, "artifact"), f"{artifact} is another version already")
            shares[artifact] = float(share)
        total = math.fsum(shares.values())
        if not self.errors and abs(total - 1) > ROUNDING:
            self._error(("versions",), f"shares must sum to 1, these sum to {total:.6g}")
        return shares

    def _check_artifact(self, artifact: Any, place: Path_) -> bool:
        is_name = isinstance(artifact, str) and 0 < len(artifact) <= 4096 and "\0" not in artifact
        if not is_name:
            self._error(place, "must be the folder of an artifact, such as exported/monday")
        elif "://" in artifact:
            self._error(place, f"{artifact!r} is a URL; copy the artifact here and name its folder")
            return False
        return is_name

    def _check_keys(self, values: Mapping[str, Any], allowed: Iterable[str], place: Path_) -> None:
        for key in values:
            if key not in allowed:
                hint = did_you_mean(key[:80], allowed)
                text = f"unknown key; the keys here are: {', '.join(allowed)}{hint}"
                self._error((*place, key[:80]), text)

    def _error(self, place: Path_, text: str) -> None:
        """Collect an error about the value at these keys."""
        nearest = place
        while nearest and nearest not in self.lines:
            nearest = nearest[:-1]
        line = f":{self.lines[nearest]}" if nearest else ""
        keys = "".join(f"[{key}]" if key.isdigit() else f".{key}" for key in place)
        self.errors.append(f"{self.path}{line}: {keys.removeprefix('.')}: {text}")

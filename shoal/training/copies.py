"""Copies: the checkpoints of a run in an object store (s3://, gs://, ...) besides, through fsspec.

    URL/step-000000120/     the files of a checkpoint, its manifest last: one without is not there

The thread that has committed a checkpoint brings the copies up to date: what is new is sent, what
the run keeps no longer is removed. A run that is resumed in a folder without checkpoints fetches
them, and verifies them like its own.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

from shoal.config.errors import did_you_mean
from shoal.data.sources.files import SCHEMES
from shoal.training.committed import MANIFEST, manifest_value
from shoal.training.snapshot import CheckpointError
from shoal.world.durable import is_plain_name

KEY = "checkpoint.copy_to"
WRITTEN = sorted({*SCHEMES} - {"http", "https", "hf"})  # where a run may write
STEP = re.compile(r"step-\d{9,}")
log = logging.getLogger("shoal")


class Copies:
    """The checkpoints of a run below a URL."""

    def __init__(self, url: str):
        self.url = url
        scheme = url.partition("://")[0].lower()
        if "://" not in url or scheme not in WRITTEN:
            raise ValueError(
                f"{KEY}: {url} is no place for copies; it is a URL that begins with one of "
                f"{', '.join(f'{one}://' for one in WRITTEN)}{did_you_mean(scheme, WRITTEN)}"
            )
        try:
            from fsspec.core import url_to_fs

            self._system: Any
            self._system, root = url_to_fs(url)
        except (ImportError, OSError, ValueError) as error:
            raise ValueError(
                f"{KEY}: {url}: {error}; `make extras EXTRAS=remote` in the clone installs fsspec; "
                "its scheme may need more (s3fs, gcsfs, ...)"
            ) from error
        self._root = root.rstrip("/")

    def committed(self) -> list[str]:
        """Names of the checkpoints that are there in full, newest first."""
        if not self._system.exists(self._root):
            return []
        self._system.invalidate_cache()
        names = [one.rstrip("/").rpartition("/")[2] for one in self._system.ls(self._root, False)]
        steps = [name for name in names if STEP.fullmatch(name)]
        return sorted((one for one in steps if self._has(one)), reverse=True)

    def claim(self) -> None:
        """Before a run begins: refuse a place that holds the checkpoints of another."""
        try:
            found = self.committed()
        except Exception as error:  # of libraries of others, whatever it is
            raise CheckpointError(self._unread(error)) from error
        if found:
            raise CheckpointError(
                f"{KEY}: {self.url} holds checkpoints of a run already ({found[0]}): name another "
                "place, or go on with that run (--resume)"
            )

    def update(self, committed: list[Path]) -> None:
        """Send what is new among the run's checkpoints, and remove the others.

        A store that cannot be reached does not end the run: the next checkpoint tries again.
        """
        try:
            there = self.committed()
            for path in committed[::-1]:  # what a delta builds upon comes before it
                if path.name not in there:
                    self._send(path)
            for name in {*there} - {path.name for path in committed}:
                self._remove(name)
        except Exception as error:  # likewise
            what = str(error) or type(error).__name__
            log.warning("checkpoints are not copied to %s: %s; the next one is", self.url, what)

    def fetch(self, folder: Path) -> None:
        """Copy what is there into a folder without checkpoints."""
        try:
            names = self.committed()
            for name in names[::-1]:
                self._get(name, folder)
        except Exception as error:  # likewise; a run must not begin anew because of it
            raise CheckpointError(self._unread(error)) from error
        if names:
            log.info("fetched %d checkpoints from %s", len(names), self.url)

    def _unread(self, error: Exception) -> str:
        what = str(error) or type(error).__name__
        return f"{KEY}: cannot read checkpoints of {self.url}: {what}"

    def _has(self, name: str) -> bool:
        return bool(self._system.isfile(f"{self._root}/{name}/{MANIFEST}"))

    def _send(self, path: Path) -> None:
        place = f"{self._root}/{path.name}"
        self._system.makedirs(place, exist_ok=True)
        for name in [*(manifest_value(path, "files") or {}), MANIFEST]:
            self._system.put_file(str(path / name), f"{place}/{name}")

    def _remove(self, name: str) -> None:
        self._system.rm_file(f"{self._root}/{name}/{MANIFEST}")
        self._system.rm(f"{self._root}/{name}", recursive=True)

    def _get(self, name: str, folder: Path) -> None:
        hidden = folder / f".{name}.new"
        hidden.mkdir(parents=True, exist_ok=True)
        for file in self._system.ls(f"{self._root}/{name}", False):
            plain = file.rpartition("/")[2]
            if is_plain_name(plain):
                self._system.get_file(file, str(hidden / plain))
        hidden.rename(folder / name)

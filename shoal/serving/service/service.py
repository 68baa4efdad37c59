"""Service: the model that is served now, and the newer one that takes its place.

ARTIFACT is an artifact, or a folder of artifacts, of which the last by name is served. When another
is there (a new one in the folder, a link that points elsewhere, a folder that was replaced) it is
loaded and checked next to the old one; then new batches go to it. Requests that are being answered
keep the model they began with, so none is lost. The model is in memory: its files may be replaced,
cut or removed meanwhile.

One that cannot be loaded is passed over, counted and logged, and tried again when one of its files
changes: files that are being copied may come in any order.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.serving.artifact import files
from shoal.serving.artifact.artifact import DELTAS, Artifact
from shoal.serving.artifact.trial_run import try_apart

log = logging.getLogger("shoal")
State = tuple[Any, ...]  # of the files of an artifact


@dataclass
class RefusedArtifact:
    """An artifact that could not be loaded, as it was then."""

    state: State
    why: str
    again: float  # when it is tried again though nothing has changed
    reported: bool


class Service:
    """A model in service."""

    def __init__(self, path: str | Path, state_bytes: int = 0, batch_size: int = 0):
        """state_bytes: so much is kept of histories between requests; batch_size: so many requests
        are answered together at most, for which a model is prepared."""
        self.path = Path(path)
        self.state_bytes = state_bytes
        self.batch_size = batch_size
        self.reloads = self.failures = 0
        self.refused: dict[Path, RefusedArtifact] = {}
        model = self._newest(None)
        if model is None:
            raise ValueError(next(iter(self.refused.values())).why)
        self.model = model
        self.since = time.time()
        self._report()

    def refresh(self) -> bool:
        """Take a newer artifact, if there is one; True if one was taken."""
        model = None
        try:
            model = self._newest(self.model)
        except Exception as error:  # such as a folder that cannot be read
            self._refuse(self.path, (), error)
        if model is not None:
            self.model = model
            self.since = time.time()
            self.reloads += 1
            log.info("now serving %s", model.folder)
        self._report()
        return model is not None

    def _newest(self, served: Artifact | None) -> Artifact | None:
        """The newest artifact that can be loaded; None where that is served already."""
        folders = self._folders()
        self.refused = {path: one for path, one in self.refused.items() if path in folders}
        for folder in folders:
            state, before = state_of(folder), self.refused.get(folder)
            if before is None or before.state != state or time.monotonic() > before.again:
                try:
                    stated = files.read_manifest(folder)["sha256"]
                    if served is not None and served.manifest["sha256"] == stated:
                        return None
                    model = load(folder, state, self.batch_size)
                    model.keep_histories(self.state_bytes)
                    return model
                except Exception as error:
                    self._refuse(folder, state, error)
            if served is not None and served.folder == folder:
                return None  # it is being replaced: none before it is taken instead
        return None

    def _folders(self) -> list[Path]:
        """The folders that may be served, the newest first."""
        if (self.path / files.MANIFEST).exists():
            return [self.path.resolve()]
        # (An artifact that is being written has a manifest too, under a hidden name.)
        manifests = sorted(self.path.glob("[!.]*/manifest.json")) if self.path.is_dir() else []
        if not manifests:
            raise ValueError(files.no_artifact(self.path))
        return [one.parent.resolve() for one in reversed(manifests)]

    def _refuse(self, folder: Path, state: State, error: Exception) -> None:
        artifact_fault = isinstance(
            error, ValueError
        )  # else the machine's, which may pass in a minute
        why = str(error) if artifact_fault else f"cannot load {folder}: {error!r}"
        again = math.inf if artifact_fault else time.monotonic() + 60.0
        before = self.refused.get(folder)
        repeated = before is not None and before.why == why  # while it is copied, likely
        self.refused[folder] = RefusedArtifact(state, why, again, repeated)

    def _report(self) -> None:
        """Count and log what could not be loaded, each reason once."""
        for refused in self.refused.values():
            if not refused.reported:
                refused.reported = True
                self.failures += 1
                served = self.model.folder
                log.warning(
                    "%s; serving %s; it is tried again when it changes", refused.why, served
                )

    def kept(self) -> dict[str, int]:
        """Figures of the kept histories, for /metrics."""
        kept = self.model.kept_histories
        if kept is None:
            return {}
        return {
            "state_bytes": kept.bytes,
            "states": len(kept),
            "state_requests_total": kept.requests,
            "state_hits_total": kept.hits,
        }

    def watch(self, seconds: float, stop: threading.Event) -> None:
        """Look for a newer artifact every so often, until `stop`."""
        while not stop.wait(seconds):
            self.refresh()


def load(folder: Path, state: State, batch_size: int) -> Artifact:
    """The model of an artifact whose files were in this state, all of it in memory."""
    with files.private():
        model = Artifact(folder)
        try_apart(model)
        model.prepare(batch_size)
    if state_of(folder) != state:
        raise ValueError(f"{folder} changed while it was loaded")
    return model


def state_of(folder: Path) -> State:
    """Names, sizes and times of an artifact's files and of those of the artifacts below a delta."""
    below: list[str] = []
    with suppress(Exception):  # what cannot be read yet names nothing
        base = files.read_json(folder, files.SIGNATURE, files.read_manifest(folder))["base"]
        below = list(files.chain(folder, base["name"], DELTAS))
    return tuple(_facts(folder.parent / name) for name in (folder.name, *below))


def _facts(folder: Path) -> State:
    with suppress(OSError), os.scandir(folder) as entries:
        stats = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
        return tuple(
            sorted((n, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for n, s in stats)
        )
    return ()

"""Service: the model that is served now, and the newer one that takes its place.

ARTIFACT is an artifact, or a folder of artifacts, of which the last by name is served. When another
is there (a new one in the folder, a link that points elsewhere, a folder that was replaced) it is
loaded and checked beside the old one; then new batches go to it. Requests that are being answered
keep the model they began with, so none is lost. One that is damaged is passed over, and told.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shoal.runs.artifact import files
from shoal.runs.artifact.loaded import Artifact
from shoal.runs.artifact.trial import try_apart
from shoal.runs.serving import questions

log = logging.getLogger("shoal")
ANSWERS: dict[str, Callable[[Artifact, Sequence[Any]], list[Any]]] = {
    "recommend": questions.answer_recommend,
    "score": questions.answer_score,
    "similar": questions.answer_similar,
    "predict": questions.answer_predict,
}


class Service:
    """A model in service."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.reloads = self.failures = 0
        self.refused: str | None = None  # the artifact that could not be loaded
        self.model = self._load(self._newest())
        self.since = time.time()

    def _newest(self) -> Path:
        """The folder to serve now."""
        if (self.path / files.MANIFEST).exists():
            return self.path.resolve()
        # (An artifact that is being written has a manifest too, under a hidden name.)
        found = sorted(self.path.glob("[!.]*/manifest.json")) if self.path.is_dir() else []
        if not found:
            raise ValueError(
                f"{self.path} is no artifact and holds none; `shoal export RUN --to DIR` makes one"
            )
        return found[-1].parent.resolve()

    def _load(self, folder: Path) -> Artifact:
        model = Artifact(folder)
        try_apart(model)
        if model.kind == "retrieval":  # before the first request, not at its cost
            model.prepare()
        return model

    def refresh(self) -> bool:
        """Take a newer artifact, if there is one; whether it was taken."""
        try:
            folder = self._newest()
            stated = files.read_manifest(folder)["sha256"]
        except ValueError as error:
            return self._refuse(str(error))
        if stated in (self.model.manifest["sha256"], self.refused):
            return False
        try:
            model = self._load(folder)
        except ValueError as error:
            self.refused = stated
            return self._refuse(str(error))
        self.model, self.since = model, time.time()
        self.reloads += 1
        self.refused = None
        log.info("now serving %s", folder)
        return True

    def _refuse(self, why: str) -> bool:
        self.failures += 1
        log.warning("%s; going on with %s", why, self.model.folder)
        return False

    def watch(self, seconds: float, stop: threading.Event) -> None:
        """Look for a newer artifact every so often, until told to stop."""
        while not stop.wait(seconds):
            self.refresh()

    def answer(self, kind: str, asked: Sequence[Any]) -> list[Any]:
        """Answers of one batch, all by the same model."""
        model = self.model
        name = model.folder.name
        found = ANSWERS[kind](model, asked)
        return [one if isinstance(one, Exception) else {**one, "artifact": name} for one in found]

"""Service: the artifact that is served now, and the newer one that takes its place.

ARTIFACT is an artifact, or a folder of artifacts, of which the last by name is served. Another one
may come as a new artifact in the folder, a link that points elsewhere, or a folder that is replaced
(live.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from shoal.serving.artifact import files
from shoal.serving.artifact.artifact import DELTAS, Artifact
from shoal.serving.artifact.trial_run import try_apart
from shoal.serving.items.live_items import LiveItems
from shoal.serving.service.live import LiveService, State, state_of_folder
from shoal.serving.service.statistics import Count


class Service(LiveService[Artifact]):
    """A model in service."""

    def __init__(
        self,
        path: str | Path,
        state_bytes: int = 0,
        batch_size: int = 0,
        items: LiveItems | None = None,
    ):
        """state_bytes: so much is kept of histories between requests; batch_size: so many requests
        are answered together at most, for which a model is prepared."""
        self.state_bytes = state_bytes
        self.batch_size = batch_size
        super().__init__(path, items)

    def places(self) -> list[Path]:
        return artifact_places(self.path)

    def state(self, place: Path) -> State:
        return state_of(place)

    def is_served(self, place: Path, state: State) -> bool:
        return self.model.manifest["sha256"] == files.read_manifest(place)["sha256"]

    def place_in_service(self) -> Path:
        return self.model.folder

    def load(self, place: Path, state: State) -> Artifact:
        with files.private():
            model = Artifact(place)
            make_ready([model], self.batch_size)
        if state_of(place) != state:
            raise ValueError(f"{place} changed while it was loaded")
        model.keep_histories(self.state_bytes)
        return model

    def artifacts(self) -> list[Artifact]:
        return [self.model]

    def with_posted(self, model: Artifact) -> Artifact:
        return model if self.items is None else self.items.brought_up(model)

    def counts(self) -> dict[str, Count]:
        """Figures of the kept histories."""
        kept = self.model.kept_histories
        if kept is None:
            return {}
        return {
            "state_bytes": kept.bytes,
            "states": len(kept),
            "state_requests_total": kept.requests,
            "state_hits_total": kept.hits,
        }


def artifact_places(path: Path) -> list[Path]:
    """The artifact at a path, or those in a folder of artifacts, the last by name first."""
    if (path / files.MANIFEST).exists():
        return [path.resolve()]
    # (An artifact that is being written has a manifest too, under a hidden name.)
    manifests = sorted(path.glob("[!.]*/manifest.json")) if path.is_dir() else []
    if not manifests:
        raise ValueError(files.no_artifact(path))
    return [manifest.parent.resolve() for manifest in reversed(manifests)]


def make_ready(artifacts: Sequence[Artifact], batch_size: int) -> None:
    """Try artifacts that are to be served, and do now what would be done at first use."""
    try_apart(*artifacts)
    for artifact in artifacts:
        artifact.prepare(batch_size)


def state_of(folder: Path) -> State:
    """Names, sizes and times of an artifact's files and of those of the artifacts below a delta."""
    below: list[str] = []
    with suppress(Exception):  # what cannot be read yet names nothing
        base = files.read_json(folder, files.SIGNATURE, files.read_manifest(folder))["base"]
        below = list(files.chain(folder, base["name"], DELTAS))
    return tuple(state_of_folder(folder.parent / name) for name in (folder.name, *below))

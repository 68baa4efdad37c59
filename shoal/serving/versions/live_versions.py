"""The versions that are in service, and those that take their place when their file changes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal.serving.artifact import files
from shoal.serving.artifact.artifact import GRAPHS, Artifact
from shoal.serving.items.live_items import LiveItems
from shoal.serving.service.live import LiveService, State, state_of_file
from shoal.serving.service.service import make_ready, state_of
from shoal.serving.service.statistics import Count
from shoal.serving.versions.file import VersionsFile, choose, read_versions
from shoal.serving.versions.shadow import Shadow, ShadowCounts


@dataclass(frozen=True)
class Versions:
    """Artifacts that share the users, and a shadow, all loaded.

    artifacts  what the file calls an artifact -> the artifact
    """

    file: VersionsFile
    artifacts: Mapping[str, Artifact]
    shadow: Shadow | None = None

    def choose(self, key: str) -> Artifact:
        """The artifact that answers a key."""
        return self.artifacts[choose(self.file.shares, key)]

    def largest(self) -> Artifact:
        """The artifact with the largest share."""
        return self.artifacts[max(self.file.shares, key=self.file.shares.__getitem__)]

    def shares(self) -> dict[str, float]:
        """Name of each artifact -> its share."""
        shares = self.file.shares
        return {artifact.folder.name: shares[name] for name, artifact in self.artifacts.items()}


class LiveVersions(LiveService[Versions]):
    """Versions in service: their file and their artifacts are looked at again and again.

    state_bytes: so much is kept of histories between requests, of all versions together.
    batch_size: so many requests are answered together at most.
    """

    def __init__(
        self,
        path: str | Path,
        state_bytes: int = 0,
        batch_size: int = 0,
        items: LiveItems | None = None,
    ):
        self.state_bytes = state_bytes
        self.batch_size = batch_size
        self.shadow_counts: dict[str, ShadowCounts] = {}  # by the name of the shadow's artifact
        self._served: Versions | None = None
        self._state: State = ()
        super().__init__(path, items)

    def places(self) -> list[Path]:
        return [self.path]

    def state(self, place: Path) -> State:
        state: list[State] = [state_of_file(place)]
        with suppress(Exception):  # what cannot be read yet names nothing
            file = read_versions(place)
            folders = [file.folder(name) for name in file.artifacts()]
            state += [(str(folder), state_of(folder)) for folder in folders]
        return tuple(state)

    def is_served(self, place: Path, state: State) -> bool:
        return state == self._state

    def place_in_service(self) -> Path:
        return self.path

    def load(self, place: Path, state: State) -> Versions:
        file = read_versions(place)
        with files.private():
            artifacts = self._artifacts(file)
        for artifact in artifacts.values():
            kept, most_bytes = artifact.kept_histories, self.state_bytes // len(artifacts)
            if kept is None:
                artifact.keep_histories(most_bytes)
            else:  # in service already: what it has learned stays
                kept.most_bytes = most_bytes
        shadow = self._shadow(file, next(iter(artifacts.values())))
        if self.state(place) != state:
            self._end(shadow)
            raise ValueError(f"{place} changed while it was loaded")
        self._state = state
        self._served = Versions(file, artifacts, shadow)
        return self._served

    def artifacts(self) -> list[Artifact]:
        return list(self.model.artifacts.values())

    def has_items(self) -> dict[str, Any]:
        counts = [(one.folder.name, len(one.items) - 1) for one in self.artifacts()]
        return {"versions": [{"artifact": name, "items": count} for name, count in counts]}

    def with_posted(self, model: Versions) -> Versions:
        if self.items is not None:
            brought_up = {name: self.items.brought_up(one) for name, one in model.artifacts.items()}
            if any(one is not model.artifacts[name] for name, one in brought_up.items()):
                model = self._served = replace(model, artifacts=brought_up)
        return model

    def refresh(self) -> bool:
        before = self.model.shadow
        is_newer = super().refresh()
        if before is not self.model.shadow:
            self._end(before)
        return is_newer

    def close(self) -> None:
        """End the shadow."""
        if self.model.shadow is not None:
            self.model.shadow.close()

    def counts(self) -> dict[str, Count]:
        """Shares, figures of the shadow and of the kept histories."""
        versions = self.model
        counts: dict[str, Count] = {"version_share": versions.shares()}
        for field in ShadowCounts.fields() if self.shadow_counts else ():
            counts[f"shadow_{field}_total"] = {
                name: getattr(shadow, field) for name, shadow in self.shadow_counts.items()
            }
        histories = [artifact.kept_histories for artifact in versions.artifacts.values()]
        kept = [one for one in histories if one is not None]
        if kept:
            counts |= {
                "state_bytes": sum(one.bytes for one in kept),
                "states": sum(len(one) for one in kept),
                "state_requests_total": sum(one.requests for one in kept),
                "state_hits_total": sum(one.hits for one in kept),
            }
        return counts

    def _artifacts(self, file: VersionsFile) -> dict[str, Artifact]:
        """The artifacts of a file; those that are in service already are not loaded again."""
        in_service = [] if self._served is None else self._served.artifacts.values()
        loaded = {(one.folder, one.manifest["sha256"]): one for one in in_service}
        artifacts: dict[str, Artifact] = {}
        places: dict[str, str] = {}  # name of an artifact -> where the file has it
        for name in file.shares:
            folder = file.folder(name)
            if folder.name in places:
                raise ValueError(
                    f"{file.path}: {places[folder.name]} and {name} are both called {folder.name}, "
                    "as answers would name them; rename one of the folders"
                )
            places[folder.name] = name
            artifact = loaded.get((folder, files.read_manifest(folder)["sha256"]))
            artifacts[name] = Artifact(folder) if artifact is None else artifact
        check_alike(list(artifacts.values()))
        new = [one for one in artifacts.values() if one not in loaded.values()]
        make_ready(new, self.batch_size)
        return artifacts

    def _shadow(self, file: VersionsFile, version: Artifact) -> Shadow | None:
        """The shadow of a file: the one that is there where it is the same."""
        if file.shadow is None:
            return None
        folder = file.folder(file.shadow)
        sha256 = files.read_manifest(folder)["sha256"]
        current = None if self._served is None else self._served.shadow
        if current is not None and (current.folder, current.sha256) == (folder, sha256):
            return current
        counts = self.shadow_counts.setdefault(folder.name, ShadowCounts())
        items = None if self.items is None else self.items.folder
        shadow = Shadow(folder, sha256, counts, self.batch_size, items)
        try:
            shadow.start()
            if group_of(shadow.kind) != group_of(version.kind):
                raise ValueError(differ(shadow.folder, shadow.kind, version.folder, version.kind))
        except BaseException:
            shadow.close()
            raise
        return shadow

    def _end(self, shadow: Shadow | None) -> None:
        """End a shadow that is not in service any more."""
        if shadow is not None and (self._served is None or shadow is not self._served.shadow):
            shadow.close()


def check_alike(artifacts: list[Artifact]) -> None:
    """Refuse versions that are asked different questions."""
    first = artifacts[0]
    for other in artifacts[1:]:
        if group_of(other.kind) != group_of(first.kind):
            raise ValueError(differ(other.folder, other.kind, first.folder, first.kind))


def group_of(kind: str) -> str:
    """What an artifact of this kind is asked: `clicks`, `module`, or items for somebody."""
    return kind if kind in GRAPHS else "items"


def differ(folder: Path, kind: str, other_folder: Path, other_kind: str) -> str:
    """The error text for two versions that cannot take each other's questions."""
    return (
        f"{folder} ({kind}) and {other_folder} ({other_kind}) are asked different questions; "
        "versions and their shadow must be models of one task"
    )

"""Live: what a service answers with now, and the newer one that takes its place.

Files are looked at every so often. Where others are there, they are loaded and checked next to the
old ones; then new batches go to them. Requests that are being answered keep what they began with,
so none is lost. What is served is in memory: its files may be replaced, cut or removed meanwhile.

What cannot be loaded is passed over, counted and logged, and tried again when one of its files
changes: files that are being copied may come in any order.

Where new items are taken (serving/items), what is in service has those of their folder, and so has
what takes its place.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from shoal.serving.artifact.artifact import Artifact
from shoal.serving.artifact.new_items import NewItems
from shoal.serving.items.live_items import LiveItems
from shoal.serving.service.statistics import Count

log = logging.getLogger("shoal")
State = tuple[Any, ...]  # of files: names, sizes and times
Served = TypeVar("Served")


@dataclass
class RefusedFiles:
    """What could not be loaded, as it was then."""

    state: State
    why: str
    again: float  # when it is tried again though nothing has changed
    reported: bool


class LiveService(Generic[Served]):
    """What is in service. Subclasses say where it may be, and load it."""

    model: Served

    def __init__(self, path: str | Path, items: LiveItems | None = None):
        """items: the folder of new items; None: none are taken."""
        self.path = Path(path)
        self.items = items
        self.num_posted = 0  # new items that were posted here
        self.reloads = self.failures = 0
        self._changing = threading.Lock()
        self._items_error = ""
        self.refused: dict[Path, RefusedFiles] = {}
        model = self._newest(is_serving=False)
        if model is None:
            raise ValueError(next(iter(self.refused.values())).why)
        if items is not None:
            items.folder.read()
        self.model = self.with_posted(model)
        self.since = time.time()
        self._report()

    # ---- what subclasses say ---------------------------------------------------------------------

    def places(self) -> list[Path]:
        """Where something may be that can be served, the newest first."""
        raise NotImplementedError

    def state(self, place: Path) -> State:
        """Names, sizes and times of all files of a place."""
        raise NotImplementedError

    def is_served(self, place: Path, state: State) -> bool:
        """Whether the files of a place are those that are in service."""
        raise NotImplementedError

    def place_in_service(self) -> Path:
        """Where what is in service was loaded from."""
        raise NotImplementedError

    def load(self, place: Path, state: State) -> Served:
        """Load a place, whose files must still be in this state afterwards."""
        raise NotImplementedError

    def counts(self) -> dict[str, Count]:
        """Further figures for /metrics."""
        return {}

    def artifacts(self) -> list[Artifact]:
        """The artifacts in service, which take new items."""
        raise NotImplementedError  # each service that takes new items says which

    def with_posted(self, model: Served) -> Served:
        """The model with all items that were read from the folder of new items."""
        return model

    # ---- looking for a newer one -----------------------------------------------------------------

    def refresh(self) -> bool:
        """Take what is newer, if there is such; True if it was taken."""
        model = None
        try:
            model = self._newest(is_serving=True)
        except Exception as error:  # such as a folder that cannot be read
            self._refuse(self.path, (), error)
        if model is not None:
            with self._changing:
                self.model = self.with_posted(model)
            self.since = time.time()
            self.reloads += 1
            log.info("now serving %s", self.place_in_service())
        self.catch_up()
        self._report()
        return model is not None

    # ---- new items -------------------------------------------------------------------------------

    def add(self, new: NewItems) -> None:
        """Take new items: they are on the disk, and in service, when this returns."""
        assert self.items is not None
        with self._changing, self.items.folder.writing():
            self.items.folder.read()
            self.model = self.with_posted(self.model)
            self.items.check(self.artifacts(), new)
            self.items.folder.write(new)
            self.model = self.with_posted(self.model)
            self.num_posted += len(new.ids)

    def catch_up(self) -> None:
        """Take the items that others have written into the folder."""
        if self.items is None:
            return
        try:
            with self._changing:
                try:
                    self.items.folder.read()
                finally:  # those before one that is damaged
                    self.model = self.with_posted(self.model)
            self._items_error = ""
        except Exception as error:
            if self._items_error != str(error):
                self._items_error = str(error)
                self.failures += 1
                log.warning("%s; its items are not in service", error)

    def has_items(self) -> dict[str, Any]:
        """How many items there are, as the answer to new ones says."""
        (artifact,) = self.artifacts()
        return {"items": len(artifact.items) - 1, "artifact": artifact.folder.name}

    def items_counts(self) -> dict[str, Count]:
        """Figures of new items, by artifact."""
        if self.items is None:
            return {}
        artifacts = self.artifacts()
        return {
            "items_posted_total": self.num_posted,
            "added_items": {one.folder.name: one.num_added for one in artifacts},
            "left_out_items": {one.folder.name: self.items.left_out(one) for one in artifacts},
        }

    def watch(
        self, seconds: float, stop: threading.Event, then: Callable[[], None] = lambda: None
    ) -> None:
        """Look for what is newer every so often, until `stop`; then: called where it was found."""
        while not stop.wait(seconds):
            if self.refresh():
                then()

    def _newest(self, is_serving: bool) -> Served | None:
        """The newest that can be loaded; None where that is served already."""
        places = self.places()
        self.refused = {path: refused for path, refused in self.refused.items() if path in places}
        for place in places:
            state, before = self.state(place), self.refused.get(place)
            if before is None or before.state != state or time.monotonic() > before.again:
                try:
                    if is_serving and self.is_served(place, state):
                        return None
                    return self.load(place, state)
                except Exception as error:
                    self._refuse(place, state, error)
            if is_serving and self.place_in_service() == place:
                return None  # it is being replaced: none before it is taken instead
        return None

    def _refuse(self, place: Path, state: State, error: Exception) -> None:
        # What the files say is wrong stays so until they change; the rest may pass in a minute.
        is_files_fault = isinstance(error, ValueError)
        why = str(error) if is_files_fault else f"cannot load {place}: {error!r}"
        again = math.inf if is_files_fault else time.monotonic() + 60.0
        before = self.refused.get(place)
        repeated = before is not None and before.why == why  # while it is copied, likely
        self.refused[place] = RefusedFiles(state, why, again, repeated)

    def _report(self) -> None:
        """Count and log what could not be loaded, each reason once."""
        for refused in self.refused.values():
            if not refused.reported:
                refused.reported = True
                self.failures += 1
                log.warning(
                    "%s; serving %s; it is tried again when it changes",
                    refused.why,
                    self.place_in_service(),
                )


def state_of_folder(folder: Path) -> State:
    """Names, sizes and times of a folder's files; nothing where it cannot be read."""
    with suppress(OSError), os.scandir(folder) as entries:
        return tuple(sorted((entry.name, *_facts(entry.path, links=False)) for entry in entries))
    return ()


def state_of_tree(folder: Path) -> State:
    """Names, sizes and times of a folder's files, and of those of the folders in it."""
    return tuple(
        (name, state_of_folder(Path(name)))
        for name, _, _ in sorted(os.walk(folder), key=lambda entry: entry[0])
    )


def state_of_file(file: Path) -> State:
    """Size and times of a file, or of that which a link leads to; nothing where there is none."""
    with suppress(OSError):
        return _facts(file)
    return ()


def _facts(path: str | Path, links: bool = True) -> State:
    facts = os.stat(path, follow_symlinks=links)
    return facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns

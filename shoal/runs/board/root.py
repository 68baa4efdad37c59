"""Root: the runs below a folder. No file outside it is read, whatever links lie in it.

Whoever asks names a run by its key, which is looked up among those that were found: no request
holds a path.
"""

import hashlib
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INSIDE = ("checkpoints", "model", "tensorboard", "evaluation", "wandb")  # of a run: no runs there
DEEPEST = 6
MOST_RUNS = 5_000
MOST_BYTES = 16 << 20  # of a file


@dataclass(frozen=True)
class FoundRun:
    """A run's folder: its name below the root, and the key by which pages ask for it."""

    parts: tuple[str, ...]

    @property
    def key(self) -> str:
        return hashlib.sha256(os.fsencode("/".join(self.parts))).hexdigest()[:16]

    @property
    def name(self) -> str:
        """As people read it: bytes that are no text are marked."""
        text = "/".join(self.parts) or "."
        return os.fsencode(text).decode("utf-8", "replace")


class Root:
    """A folder that holds runs, or is one."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if not self.path.is_dir():
            raise ValueError(
                f"there is no folder {self.path}; name the one that holds runs (run.root), or "
                "train first"
            )
        self._known: dict[tuple[str, ...], tuple[Any, Any]] = {}  # file: its state, what it holds
        self._lock = threading.Lock()

    def runs(self) -> dict[str, FoundRun]:
        """All runs by key, at most so many."""
        found: dict[str, FoundRun] = {}
        for one in self._walk():
            found[one.key] = one
            if len(found) == MOST_RUNS:
                break
        with self._lock:
            gone = {parts for parts in self._known if FoundRun(parts[:-1]).key not in found}
            for parts in gone:
                del self._known[parts]
        return found

    def folder(self, run: FoundRun) -> Path:
        return self.path.joinpath(*run.parts)

    def read(self, run: FoundRun, name: str, parse: Callable[[bytes], Any]) -> Any:
        """What a file of a run holds, parsed again when it has changed; None: it cannot be read."""
        parts = (*run.parts, name)
        try:
            with self._opened(parts) as file:
                now = os.fstat(file)
                state = (now.st_mtime_ns, now.st_size, now.st_ino)
                with self._lock:
                    known = self._known.get(parts)
                if known is not None and known[0] == state:
                    return known[1]
                if not stat.S_ISREG(now.st_mode) or now.st_size > MOST_BYTES:
                    return None
                found = parse(_whole(file))
        except (OSError, ValueError, RecursionError):
            return None
        with self._lock:
            self._known[parts] = state, found
        return found

    def changed(self, run: FoundRun, name: str) -> float | None:
        """When a file of a run was written."""
        try:
            with self._opened((*run.parts, name)) as file:
                return os.fstat(file).st_mtime
        except OSError:
            return None

    @contextmanager
    def _opened(self, parts: tuple[str, ...]) -> Iterator[int]:
        """A file below the root, folder by folder, none of which may be a link."""
        *folders, name = parts
        above = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for one in folders:
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                below = os.open(one, flags, dir_fd=above)
                os.close(above)
                above = below
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = os.open(name, flags, dir_fd=above)
        finally:
            os.close(above)
        try:
            yield file
        finally:
            os.close(file)

    def _walk(self) -> Iterator[FoundRun]:
        for at, folders, files, _ in os.fwalk(self.path, follow_symlinks=False):
            parts = Path(os.path.relpath(at, self.path)).parts
            folders[:] = sorted(
                one for one in folders if not one.startswith(".") and one not in INSIDE
            )
            if len(parts) >= DEEPEST:
                folders.clear()
            # (A study of `shoal tune` has a config too; its trials are the runs.)
            if "config.yaml" in files and "space.yaml" not in files:
                yield FoundRun(parts)


def _whole(file: int) -> bytes:
    pieces = []
    while piece := os.read(file, 1 << 20):
        pieces.append(piece)
        if len(pieces) > MOST_BYTES >> 16:  # it grows while it is read
            break
    return b"".join(pieces)

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

from shoal.files.folders import opened_folder

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
        """The path for people to read: bytes that are no text are marked."""
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
        self._cache: dict[tuple[str, ...], tuple[Any, Any]] = {}  # file: its state, what it holds
        self._lock = threading.Lock()

    def runs(self) -> dict[str, FoundRun]:
        """Key -> run, at most MOST_RUNS of them."""
        runs_by_key: dict[str, FoundRun] = {}
        for run in self._walk():
            runs_by_key[run.key] = run
            if len(runs_by_key) == MOST_RUNS:
                break
        with self._lock:
            stale = {parts for parts in self._cache if FoundRun(parts[:-1]).key not in runs_by_key}
            for parts in stale:
                del self._cache[parts]
        return runs_by_key

    def folder(self, run: FoundRun) -> Path:
        """Path of a run, to show to people; its files are opened by `opened` alone."""
        return self.path.joinpath(*run.parts)

    @contextmanager
    def opened(self, run: FoundRun) -> Iterator[Path]:
        """A path of a run's folder that stays this very folder, whatever is put in its place.

        It leads to the descriptor that was opened folder by folder, none of them a link.
        """
        with opened_folder(self.path, *run.parts) as handle:
            yield Path(f"/proc/self/fd/{handle}")

    def read(self, run: FoundRun, name: str, parse: Callable[[bytes], Any]) -> Any:
        """What a file of a run holds, parsed again when it has changed; None: it cannot be read."""
        parts = (*run.parts, name)
        try:
            with self._opened(parts) as file:
                status = os.fstat(file)
                state = (status.st_mtime_ns, status.st_size, status.st_ino)
                with self._lock:
                    cached = self._cache.get(parts)
                if cached is not None and cached[0] == state:
                    return cached[1]
                if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
                    return None
                content = parse(_whole(file))
        except (OSError, ValueError, RecursionError):
            return None
        with self._lock:
            self._cache[parts] = state, content
        return content

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
        with opened_folder(self.path, *folders) as folder:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            file = os.open(name, flags, dir_fd=folder)
        try:
            yield file
        finally:
            os.close(file)

    def _walk(self) -> Iterator[FoundRun]:
        for at, folders, files, _ in os.fwalk(self.path, follow_symlinks=False):
            parts = Path(os.path.relpath(at, self.path)).parts
            folders[:] = sorted(
                folder for folder in folders if not folder.startswith(".") and folder not in INSIDE
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

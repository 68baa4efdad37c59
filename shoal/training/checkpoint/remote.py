"""Copies: the checkpoints of a run in an object store (s3://, gs://, ...) besides, through fsspec.

    URL/step-000000120/             the files of a checkpoint, its manifest last: one without is
                                    not there
    RUN/checkpoints/copied.json     what this run has sent, by the SHA-256 of its manifest

The thread that has committed a checkpoint brings the copies up to date: what is new is sent, and
what this run has sent and keeps no longer is removed. Nothing else there is changed: a place with
checkpoints of another run is refused. A run that is resumed in a folder without checkpoints fetches
them, and verifies them like its own; from then on they are its own.

Of calls into fsspec only paths are positional: what follows them has another order in each store.
"""

import hashlib
import json
import logging
import re
from pathlib import Path
from typing import Any

from shoal import how_to_install
from shoal.config.errors import did_you_mean
from shoal.data.sources.files import SCHEMES
from shoal.files.durable import is_plain_name, open_regular, replace_durably
from shoal.training.checkpoint.reading import MANIFEST, MANIFEST_BYTES, manifest_value
from shoal.training.checkpoint.snapshot import CheckpointError

KEY = "checkpoint.copy_to"
WRITTEN = sorted({*SCHEMES} - {"http", "https", "hf"})  # where a run may write
STEP = re.compile(r"step-\d{9,}")
log = logging.getLogger("shoal")


class Copies:
    """The checkpoints of a run, which are in `folder`, below a URL."""

    def __init__(self, url: str, folder: Path):
        self.url, self.folder = url, folder
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
                f"{KEY}: {url}: {error}; this needs fsspec ({how_to_install('remote')}), and its "
                "scheme may need more (s3fs, gcsfs, ...)"
            ) from error
        self._root = root.rstrip("/")
        if url.lower().startswith("file://"):
            self._refuse_run_folders()
        self._arrived: dict[str, str] = {}  # name -> digest of what is there, as of the last update
        self.problem: str | None = None  # of the last update; None: everything arrived

    def _refuse_run_folders(self) -> None:
        """Refuse a folder of this machine in which a run keeps its own checkpoints, or this one."""
        place = Path(self._root).resolve()
        own = self.folder.resolve()
        for folder in (place, *place.parents):
            if folder == own or (folder / "config.yaml").is_file():
                raise ValueError(
                    f"{KEY}: {self.url} is in the folder of a run, {folder}: copies there would "
                    "protect nothing, or stand among the checkpoints of another run; name a place "
                    "outside"
                )

    def committed(self) -> list[str]:
        """Names of the checkpoints that are there in full, newest first."""
        self._system.invalidate_cache()
        if not self._system.exists(self._root):
            return []
        entries = self._system.ls(self._root, detail=False)
        names = [entry.rstrip("/").rpartition("/")[2] for entry in entries]
        steps = [name for name in names if STEP.fullmatch(name)]
        return sorted((one for one in steps if self._has(one)), reverse=True)

    def claim(self, committed: list[Path]) -> None:
        """Before a run trains: refuse a place that holds the checkpoints of another.

        committed: the checkpoints that the run has. A new one has none, and must reach the place.
        """
        try:
            self._there(committed)
        except CheckpointError:
            raise
        except Exception as error:  # of libraries of others, whatever it is
            if not committed:
                raise CheckpointError(self._unread(error)) from error

    def update(self, committed: list[Path]) -> None:
        """Send what is new among the run's checkpoints, and remove what it sent and has no more.

        A store that cannot be reached does not end the run: the next checkpoint tries again.
        """
        try:
            self._arrived, digests = self._there(committed), _digests(committed)
            for path in committed[::-1]:  # what a delta builds upon comes before it
                if path.name in digests and self._arrived.get(path.name) != digests[path.name]:
                    self._send(path, digests[path.name])
                    self._arrived[path.name] = digests[path.name]
            for name in sorted({*self._sent()} - {path.name for path in committed}):
                self._remove(name)
            self.problem = None
        except Exception as error:  # a copy that fails must not end the run
            self.problem = str(error) or type(error).__name__
            log.warning(
                "checkpoints are not copied to %s: %s; the next one tries again",
                self.url,
                self.problem,
            )

    def finish(self, committed: list[Path]) -> list[str]:
        """At the end of a run: names of checkpoints that did not arrive, after one more try.

        committed: the checkpoints that the run has. `problem` has the reason of a failure.
        """
        if self.problem is not None or self._missing(committed):
            self.update(committed)
        return self._missing(committed)

    def _missing(self, committed: list[Path]) -> list[str]:
        digests = _digests(committed)
        return sorted(name for name in digests if self._arrived.get(name) != digests[name])

    def fetch(self) -> None:
        """Copy what is there into the run's folder, which has no checkpoints, and own it."""
        try:
            names = self.committed()
            for name in names[::-1]:
                self._get(name)
            if names:
                self._write_sent(_digests([self.folder / name for name in names]))
        except Exception as error:  # a copy that fails must not restart the run
            raise CheckpointError(self._unread(error)) from error
        if names:
            log.info("fetched %d checkpoints from %s", len(names), self.url)

    def _there(self, committed: list[Path]) -> dict[str, str]:
        """Name -> digest of this run's checkpoints there; refuses those of another run.

        What this run has sent, or has itself byte by byte, is its own.
        """
        remote_digests = {name: self._digest_there(name) for name in self.committed()}
        local_digests, sent = _digests(committed), self._sent()
        for name, digest in remote_digests.items():
            if digest not in (sent.get(name), local_digests.get(name)):
                raise CheckpointError(
                    f"{KEY}: {self.url} holds checkpoints of another run ({name}), which stay as "
                    "they are: name another place, or continue that run (--resume in a new folder)"
                )
        if remote_digests.items() - sent.items():
            self._write_sent({**sent, **remote_digests})
        return remote_digests

    def _unread(self, error: Exception) -> str:
        reason = str(error) or type(error).__name__
        return f"{KEY}: cannot read checkpoints of {self.url}: {reason}"

    # ---- what was sent --------------------------------------------------------------------------

    @property
    def _record(self) -> Path:
        return self.folder / "copied.json"

    def _sent(self) -> dict[str, str]:
        """Name -> SHA-256 of the manifest, of checkpoints that this run has begun to send."""
        try:
            with open_regular(self._record, links=False) as file:
                record = json.loads(file.read(MANIFEST_BYTES))
            sent = record["sent"] if record["url"] == self.url else {}
            return {str(name): str(digest) for name, digest in sent.items() if STEP.fullmatch(name)}
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return {}  # then nothing there is ours

    def _write_sent(self, sent: dict[str, str]) -> None:
        record = {"url": self.url, "sent": sent}
        replace_durably(self._record, (json.dumps(record, indent=1) + "\n").encode())

    # ---- files there ----------------------------------------------------------------------------

    def _has(self, name: str) -> bool:
        return bool(self._system.isfile(f"{self._root}/{name}/{MANIFEST}"))

    def _digest_there(self, name: str) -> str:
        data = self._system.cat_file(f"{self._root}/{name}/{MANIFEST}", start=0, end=MANIFEST_BYTES)
        return hashlib.sha256(data).hexdigest()

    def _send(self, path: Path, digest: str) -> None:
        place = f"{self._root}/{path.name}"
        if self._has(path.name):  # another state of this step, of a run that went back behind it
            self._system.rm_file(f"{place}/{MANIFEST}")
        self._write_sent({**self._sent(), path.name: digest})
        self._system.makedirs(place, exist_ok=True)
        for name in [*(manifest_value(path, "files") or {}), MANIFEST]:
            self._system.put_file(str(path / name), f"{place}/{name}")

    def _remove(self, name: str) -> None:
        place = f"{self._root}/{name}"
        if self._has(name):
            self._system.rm_file(f"{place}/{MANIFEST}")
        if self._system.exists(place):
            self._system.rm(place, recursive=True)
        self._write_sent({one: digest for one, digest in self._sent().items() if one != name})

    def _get(self, name: str) -> None:
        hidden = self.folder / f".{name}.new"
        hidden.mkdir(parents=True, exist_ok=True)
        for file in self._system.ls(f"{self._root}/{name}", detail=False):
            plain = file.rpartition("/")[2]
            if is_plain_name(plain):
                self._system.get_file(file, str(hidden / plain))
        hidden.rename(self.folder / name)


def _digests(committed: list[Path]) -> dict[str, str]:
    """Name -> SHA-256 of the manifest, of checkpoints here; damaged ones may have none."""
    manifests = {path.name: path / MANIFEST for path in committed}
    return {
        name: hashlib.sha256(file.read_bytes()).hexdigest()
        for name, file in manifests.items()
        if file.is_file()
    }

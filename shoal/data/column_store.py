"""Where columns are kept: flat files of a folder, memory-mapped, or the memory of this process.

A file holds one array without a header; what it is stands in a JSON document beside it: type and
segments, each with its length and SHA-256. A file only ever grows. What lies behind the segments
that the document names does not exist for a reader, so writing the document is what commits.

Code that writes columns takes a place, a folder's path or a Memory, and need not know which.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shoal.data.dataset import Column, Ragged
from shoal.files.durable import is_plain_name, no_links, open_regular, replace_durably
from shoal.files.folders import inner_folder, remove_folder

EVERYTHING = 1 << 62  # bytes of memory: all is in one piece
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
CHUNK = 1 << 20  # rows at a time where rows are passed over
DOCUMENT_BYTES = 1 << 26  # most that a document may have


class DamagedFolder(ValueError):
    """A prepared folder that is not as it was written."""


@dataclass
class Stored:
    """One array: its file, its type, and its segments (length, SHA-256)."""

    file: str
    dtype: str
    segments: list[tuple[int, str]] = field(default_factory=list)

    @classmethod
    def from_entry(cls, entry: dict[str, Any]) -> Stored:
        """The array that an entry of the document names."""
        lengths, digests = zip(*entry["segments"]) if entry["segments"] else ((), ())
        if not all(type(one) is int and one >= 0 for one in lengths) or sum(lengths) >= 1 << 60:
            raise DamagedFolder(f"{entry['file']!r} cannot hold parts of {lengths} numbers")
        segments = list(zip(lengths, map(str, digests), strict=True))
        return cls(str(entry["file"]), str(entry["dtype"]), segments)

    def entry(self) -> dict[str, Any]:
        """The entry of the document for this array."""
        segments = [list(segment) for segment in self.segments]
        return {"file": self.file, "dtype": self.dtype, "segments": segments}

    def __len__(self) -> int:
        return sum(length for length, _ in self.segments)


class Memory(dict[str, np.ndarray]):
    """Arrays by name, in place of the files of a folder."""


Place = Path | Memory


class Gatherer:
    """Collects the parts of an array; `close` puts the whole into a Memory."""

    def __init__(self, memory: Memory, stored: Stored):
        self.memory, self.stored = memory, stored
        self.parts: list[np.ndarray] = []

    def write(self, values: np.ndarray) -> None:
        """Add values at the end."""
        self.parts.append(values.astype(self.stored.dtype, copy=False))

    def close(self) -> None:
        """Join the parts and put the array into the memory."""
        whole = self.parts[0] if len(self.parts) == 1 else np.concatenate(self.parts or [_NONE])
        self.memory[self.stored.file] = whole.astype(self.stored.dtype, copy=False)
        self.stored.segments.append((len(whole), ""))


_NONE = np.empty(0)


class Appender:
    """Writes one more segment of an array; `close` makes it known to `stored`."""

    def __init__(self, folder: Path, stored: Stored):
        self.stored, self.dtype = stored, np.dtype(stored.dtype)
        start = len(stored) * self.dtype.itemsize
        self.file = open(folder / stored.file, "r+b" if start else "wb", opener=no_links)  # noqa: SIM115
        self.file.truncate(start)  # what an interrupted append left
        self.file.seek(start)
        self.digest, self.length = hashlib.sha256(), 0

    def write(self, values: np.ndarray) -> None:
        """Add values at the end."""
        data = np.ascontiguousarray(values, dtype=self.dtype).data
        self.file.write(data)
        self.digest.update(data)
        self.length += len(values)

    def close(self) -> None:
        """Name the segment in `stored`; `sync` waits until the disk has it."""
        self.file.close()
        self.stored.segments.append((self.length, self.digest.hexdigest()))


def append_to(place: Place, stored: Stored) -> Appender | Gatherer:
    """The writer of one more segment of an array in a place."""
    return Gatherer(place, stored) if isinstance(place, Memory) else Appender(place, stored)


def write_array(place: Place, name: str, values: np.ndarray, dtype: str) -> Stored:
    """A whole array as a file of one segment."""
    stored = Stored(name, dtype)
    writer = append_to(place, stored)
    writer.write(values)
    writer.close()
    return stored


def map_array(place: Place, stored: Stored) -> np.ndarray:
    """The array; that of a file is memory-mapped: all processes of a host share its pages."""
    if isinstance(place, Memory):
        return place[stored.file]
    path, dtype, length = place / stored.file, np.dtype(stored.dtype), len(stored)
    if not is_plain_name(stored.file) or dtype.kind not in "iuf":
        raise DamagedFolder(f"{stored.file!r} of {stored.dtype!r} is no file of numbers")
    try:
        with open_regular(path, links=False) as file:
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise DamagedFolder(f"{path}: {error.strerror}") from error
    if size < length * dtype.itemsize:
        raise DamagedFolder(f"{path} has {size} bytes, not {length * dtype.itemsize}")
    if length == 0:
        return np.empty(0, dtype)
    # Copy on write: torch takes it without a copy, and nothing written to it reaches the file.
    return np.asarray(np.memmap(path, dtype, mode="c", shape=(length,)))


def sync(folder: Path, arrays: list[Stored]) -> None:
    """Wait until the disk has the files of arrays."""
    for file in {one.file for one in arrays}:
        with open(folder / file, "rb") as opened:
            os.fsync(opened.fileno())


def check_arrays(folder: Path, arrays: list[Stored], whole: bool = False) -> bool:
    """Whether the bytes were compared with their checksums: where they are few, or for `whole`."""
    for stored in arrays:
        map_array(folder, stored)  # whether it is there and long enough
    total = sum(len(stored) * np.dtype(stored.dtype).itemsize for stored in arrays)
    if total > 1 << 30 and not whole:
        return False
    for stored in arrays:
        _check(folder, stored)
    return True


def _check(folder: Path, stored: Stored) -> None:
    itemsize = np.dtype(stored.dtype).itemsize
    with open_regular(folder / stored.file, links=False) as file:
        for length, expected_digest in stored.segments:
            digest, remaining = hashlib.sha256(), length * itemsize
            while remaining and (data := file.read(min(remaining, 1 << 24))):
                digest.update(data)
                remaining -= len(data)
            if remaining or digest.hexdigest() != expected_digest:
                raise DamagedFolder(f"{folder / stored.file} does not match its checksum")


@contextmanager
def filled_folder(folder: Path, is_whole: Callable[[], bool]) -> Iterator[Path]:
    """A hidden folder to fill, which becomes `folder` at the end: in full, or not at all.

    Of several writers at once the first to finish wins; is_whole: whether `folder` is not damaged.
    """
    inner_folder(folder.parent.parent, folder.parent.name)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent))
    lock = os.open(work, FOLDER_FLAGS)
    try:
        with suppress(OSError):  # some remote disks lock no folders
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield work
        if folder.exists() and not is_whole():
            remove_folder(folder.parent.parent, folder.parent.name, folder.name)
        try:
            work.rename(folder)
        except OSError:
            if not is_whole():
                raise
    finally:
        os.close(lock)
        shutil.rmtree(work, ignore_errors=True)


def is_being_filled(work: Path) -> bool:
    """Whether a process holds the lock of a hidden folder of `filled_folder`."""
    lock = os.open(work, FOLDER_FLAGS)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # some remote disks lock no folders
        return False
    finally:
        os.close(lock)
    return False


def write_document(path: Path, body: dict[str, Any]) -> None:
    """A JSON document with its own checksum; a reader sees the old or the new one."""
    text = json.dumps({"sha256": _checksum(body), "body": body}, ensure_ascii=False, indent=1)
    replace_durably(path, text.encode())


def read_document(path: Path, version: int) -> dict[str, Any]:
    """The body of a document."""
    try:
        with open_regular(path, links=False) as file:
            text = file.read(DOCUMENT_BYTES + 1)
        if len(text) > DOCUMENT_BYTES:
            raise DamagedFolder(f"{path} has more than {DOCUMENT_BYTES} bytes")
        stored = json.loads(text)
        body = stored["body"]
        if stored["sha256"] != _checksum(body):
            raise DamagedFolder(f"{path} does not match its checksum")
        if body["version"] != version:
            raise DamagedFolder(f"{path} has version {body['version']}, not {version}")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, DamagedFolder):
            raise
        raise DamagedFolder(f"{path}: {type(error).__name__}: {error}") from error
    return body


def all_stored(manifest: Any) -> list[Stored]:
    """Every array that a document names."""
    if not isinstance(manifest, dict):
        return []
    if "segments" in manifest:
        return [Stored.from_entry(manifest)]
    return [stored for part in manifest.values() for stored in all_stored(part)]


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


# ---- passing over columns ------------------------------------------------------------------------


def chunks(rows: int) -> Iterator[slice]:
    """All rows, some at a time."""
    for start in range(0, rows, CHUNK):
        yield slice(start, min(start + CHUNK, rows))


def kept_values(
    column: Column, keep: np.ndarray | None
) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    """Values of the rows that are kept, some rows at a time; of lists also how long each is."""
    for part in chunks(len(column)):
        if not isinstance(column, Ragged):
            yield column[part] if keep is None else column[part][keep[part]], None
            continue
        offsets = column.offsets[part.start : part.stop + 1]
        values, lengths = column.values[offsets[0] : offsets[-1]], np.diff(offsets)
        if keep is not None:
            values, lengths = values[np.repeat(keep[part], lengths)], lengths[keep[part]]
        yield values, lengths


def count_ids(ids: np.ndarray, size: int, keep: np.ndarray | None = None) -> np.ndarray:
    """How often each id below `size` stands in a mapped column (in the rows that are kept)."""
    counts = np.zeros(size, dtype=np.int64)
    for part in chunks(len(ids)):
        part_ids = ids[part] if keep is None else ids[part][keep[part]]
        counts += np.bincount(part_ids, minlength=size)
    return counts

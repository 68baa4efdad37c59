"""RowRecords: rows on a disk or in host memory, as records of one size.

A place is the number of a record, counted over all segments: files of so many records each, mapped
into memory. Places that are free are written to again.

    record   id | values, state ... | checksum          int64 words

The files are scratch: what counts is a checkpoint. They lie in a separate folder, which is
removed at the end of the process; folders of processes that were killed are removed by the next.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from shoal.kernels.common.rules import INCREMENT, signed


class RowRecords:
    """Records of `words` int64 each, in a folder or in host memory; words: without the checksum."""

    def __init__(self, folder: Path | None, name: str, words: int, segment_rows: int | None = None):
        self.name, self.words = name, words
        self.segment_rows = segment_rows or max(1, (64 << 20) // (8 * (words + 1)))  # of 64 MiB
        self.folder: Path | None = None  # None: segments are in host memory, without files
        if folder is not None:
            self.folder, lock = _own_folder(folder)
            self._remove = weakref.finalize(self, _remove_folder, self.folder, lock)
        generator = torch.Generator().manual_seed(words)
        top = 1 << 62
        self.weights = torch.randint(-top, top, (words,), generator=generator) | 1
        self.segments: list[Tensor] = []  # each [segment_rows, words + 1], mapped
        self._free: Tensor  # places of unused records
        self._end: int  # places were never used from here on
        self.clear()

    def __len__(self) -> int:
        """The number of records in use."""
        return self._end - len(self._free)

    @property
    def bytes(self) -> int:
        """On the disk, or in host memory."""
        return len(self.segments) * self.segment_rows * 8 * (self.words + 1)

    def put(self, records: Tensor) -> Tensor:
        """Write records [n, words]; their places [n], ascending."""
        count = len(records)
        cut = max(0, len(self._free) - count)
        again, self._free = self._free[cut:], self._free[:cut]
        new = torch.arange(self._end, self._end + count - len(again))
        self._end += len(new)
        while len(self.segments) * self.segment_rows < self._end:
            self._open_segment()
        places = torch.cat([again.sort().values, new])
        sums = self._sums(records, places)
        for number, start, stop in _runs(places, self.segment_rows):
            segment_places = places[start:stop] - number * self.segment_rows
            segment = self.segments[number]
            segment[segment_places] = torch.cat([records[start:stop], sums[start:stop, None]], 1)
        return places

    def peek(self, places: Tensor) -> Tensor:
        """Records with their checksums [n, words + 1], not checked."""
        order = places.argsort()
        ascending = places[order]
        out = torch.empty(len(places), self.words + 1, dtype=torch.int64)
        for number, start, stop in _runs(ascending, self.segment_rows):
            segment_places = ascending[start:stop] - number * self.segment_rows
            out[order[start:stop]] = self.segments[number].index_select(0, segment_places)
        return out

    def read(self, places: Tensor) -> Tensor:
        """Records [n, words] at places [n]; a damaged one is refused."""
        records = self.peek(places)
        wrong = self._sums(records[:, :-1], places) != records[:, -1]
        if bool(wrong.any()):
            place = int(places[wrong][0])
            raise ValueError(
                f"table {self.name!r}: record {place} of its rows in {self.folder or 'host memory'}"
                " is damaged (its checksum does not fit): look after that disk, and resume from "
                "the last checkpoint, which does not depend on these files"
            )
        return records[:, :-1]

    def free(self, places: Tensor) -> None:
        """Records at distinct places [n] are needed no longer."""
        self._free = torch.cat([self._free, places])

    def clear(self) -> None:
        """No record is needed any longer."""
        self._free, self._end = torch.empty(0, dtype=torch.int64), 0

    def close(self) -> None:
        """Remove the folder."""
        self.segments = []
        if self.folder is not None:
            self._remove()

    def _sums(self, records: Tensor, places: Tensor) -> Tensor:
        """Odd weights: no change of one word goes unseen, and of several hardly any."""
        return (records * self.weights).sum(1) + places * signed(INCREMENT)

    def _open_segment(self) -> None:
        size = self.segment_rows * (self.words + 1)
        if self.folder is None:
            pinned = torch.cuda.is_available()  # a GPU reads such memory faster
            memory = torch.empty(size, dtype=torch.int64, pin_memory=pinned)
            self.segments.append(memory.view(self.segment_rows, self.words + 1))
            return
        path = self.folder / f"{len(self.segments)}.rows"
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            os.posix_fallocate(file, 0, 8 * size)  # a full disk is an error here, not a signal
        except OSError as error:
            path.unlink()
            raise ValueError(
                f"table {self.name!r}: no room for {8 * size >> 20} MiB more of its rows in "
                f"{self.folder} ({error.strerror}): set rows.tiers.ssd to a larger disk, or raise "
                "rows.tiers.host"
            ) from None
        finally:
            os.close(file)
        mapped = torch.from_file(str(path), shared=True, size=size, dtype=torch.int64)
        self.segments.append(mapped.view(self.segment_rows, self.words + 1))


def distinct(ids: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct ones of ids [n], ascending, and where each stands first."""
    ascending, order = ids.sort(stable=True)
    new = torch.ones_like(ids, dtype=torch.bool)
    torch.ne(ascending[1:], ascending[:-1], out=new[1:])
    return ascending[new], order[new]


def _runs(ascending: Tensor, segment_rows: int) -> Iterator[tuple[int, int, int]]:
    """Per segment: its number, and start and stop of the ascending places that lie in it."""
    if not len(ascending):
        return
    first, last = (int(ascending[k]) // segment_rows for k in (0, -1))
    edges = torch.arange(first, last + 2) * segment_rows
    cuts = torch.searchsorted(ascending, edges).tolist()
    for number, start, stop in zip(range(first, last + 1), cuts, cuts[1:]):
        if start < stop:
            yield number, start, stop


def _own_folder(parent: Path) -> tuple[Path, int]:
    """A new folder and the lock that this process holds; folders without a lock are removed."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for other in parent.glob("shoal-rows-*"):
            try:
                lock = os.open(other / "lock", os.O_RDWR)
            except OSError:  # being made, being removed, or another user's
                continue
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(other, ignore_errors=True)
            except BlockingIOError:
                pass
            finally:
                os.close(lock)
        while True:
            folder = Path(tempfile.mkdtemp(prefix="shoal-rows-", dir=parent))
            lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.fstat(lock).st_nlink:
                return folder, lock
            os.close(lock)  # another process locked it first, and has removed the folder
    except OSError as error:
        raise ValueError(
            f"rows.tiers.ssd: given {str(parent)!r}, where no file can be written "
            f"({error.strerror}); name a folder on a local disk"
        ) from None


def _remove_folder(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)

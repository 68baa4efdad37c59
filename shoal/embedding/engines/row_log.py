"""RowLog: rows on a disk, as records of one size that are only ever appended.

A place is the number of a record, counted over all segments: files of so many records each, mapped
into memory. A record never changes; who needs it no longer says so (`kill`), and a segment more
than half of whose records are dead is copied by its owner and its file removed (`sparse`, `drop`).

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

SEGMENT_BYTES = 64 << 20
ODD = 0x9E3779B97F4A7C15 - (1 << 64)


class RowLog:
    """Records of `words` int64 each, in a folder or in host memory; words: without the checksum."""

    def __init__(self, folder: Path | None, name: str, words: int, segment_rows: int | None = None):
        self.name, self.words = name, words
        self.segment_rows = segment_rows or max(1, SEGMENT_BYTES // (8 * (words + 1)))
        self.folder: Path | None = None  # None: segments are in host memory, without files
        if folder is not None:
            self.folder, lock = _own_folder(folder)
            self._remove = weakref.finalize(self, _remove_folder, self.folder, lock)
        generator = torch.Generator().manual_seed(words)
        top = 1 << 62
        self.weights = torch.randint(-top, top, (words,), generator=generator) | 1
        self.segments: dict[int, Tensor] = {}  # number -> [segment_rows, words + 1], mapped
        self.live: dict[int, int] = {}
        self.next = 0  # the place of the record that is appended next

    def __len__(self) -> int:
        """Records that somebody needs."""
        return sum(self.live.values())

    @property
    def bytes(self) -> int:
        """On the disk, or in host memory."""
        return len(self.segments) * self.segment_rows * 8 * (self.words + 1)

    def append(self, records: Tensor) -> Tensor:
        """Write records [n, words]; their places [n]."""
        places = torch.arange(self.next, self.next + len(records))
        sums = self._sums(records, places)
        done = 0
        while done < len(records):
            number, at = divmod(self.next, self.segment_rows)
            if number not in self.segments:
                self._open_segment(number)
            count = min(len(records) - done, self.segment_rows - at)
            part = self.segments[number][at : at + count]
            part[:, :-1] = records[done : done + count]
            part[:, -1] = sums[done : done + count]
            self.live[number] += count
            self.next += count
            done += count
        return places

    def snapshot(self) -> dict[int, Tensor]:
        """The segments as they are: a thread may read from them while others are dropped."""
        return dict(self.segments)

    def read(self, places: Tensor, segments: dict[int, Tensor] | None = None) -> Tensor:
        """Records [n, words] at places [n]; a damaged one is refused."""
        segments = self.segments if segments is None else segments
        order = places.argsort()
        ascending = places[order]
        out = torch.empty(len(places), self.words, dtype=torch.int64)
        for number, start, stop in _runs(ascending, self.segment_rows):
            at = ascending[start:stop] - number * self.segment_rows
            found = segments[number].index_select(0, at)
            wrong = self._sums(found[:, :-1], ascending[start:stop]) != found[:, -1]
            if bool(wrong.any()):
                place = int(ascending[start:stop][wrong][0])
                where = self.folder or "host memory"
                raise ValueError(
                    f"table {self.name!r}: record {place} of its rows in {where} is damaged "
                    "(its checksum does not fit): look after that disk, and resume from the last "
                    "checkpoint, which does not hang on these files"
                )
            out[order[start:stop]] = found[:, :-1]
        return out

    def kill(self, places: Tensor) -> None:
        """Records at distinct places [n] are needed no longer."""
        ascending = places.sort().values
        for number, start, stop in _runs(ascending, self.segment_rows):
            self.live[number] -= stop - start

    def sparse(self) -> Iterator[tuple[int, Tensor]]:
        """Full segments more than half dead: number, and the id of each record [segment_rows]."""
        for number in list(self.segments):
            full = (number + 1) * self.segment_rows <= self.next
            if full and 2 * self.live[number] < self.segment_rows:
                yield number, self.segments[number][:, 0]

    def drop(self, number: int) -> None:
        """Remove a segment none of whose records is needed."""
        assert self.live[number] == 0
        del self.segments[number], self.live[number]
        if self.folder is not None:
            _file(self.folder, number).unlink()

    def clear(self) -> None:
        """Remove everything."""
        for number in list(self.segments):
            self.live[number] = 0
            self.drop(number)
        self.next = -(-self.next // self.segment_rows) * self.segment_rows

    def close(self) -> None:
        """Remove the folder."""
        self.segments = {}
        if self.folder is not None:
            self._remove()

    def _sums(self, records: Tensor, places: Tensor) -> Tensor:
        """Odd weights: no change of one word goes unseen, and of several hardly any."""
        return (records * self.weights).sum(1) + places * ODD

    def _open_segment(self, number: int) -> None:
        size = self.segment_rows * (self.words + 1)
        self.live[number] = 0
        if self.folder is None:
            pinned = torch.cuda.is_available()  # a GPU reads such memory faster
            made = torch.empty(size, dtype=torch.int64, pin_memory=pinned)
            self.segments[number] = made.view(self.segment_rows, self.words + 1)
            return
        path = _file(self.folder, number)
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
        self.segments[number] = mapped.view(self.segment_rows, self.words + 1)


def _file(folder: Path, number: int) -> Path:
    return folder / f"{number}.rows"


def distinct(ids: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct ones of ids [n], ascending, and where each stands first."""
    ascending, order = ids.sort(stable=True)
    new = torch.ones_like(ids, dtype=torch.bool)
    torch.ne(ascending[1:], ascending[:-1], out=new[1:])
    return ascending[new], order[new]


def _runs(ascending: Tensor, segment_rows: int) -> Iterator[tuple[int, int, int]]:
    """Of ascending places: the segment, and which of them lie in it, start to stop."""
    if not len(ascending):
        return
    first, last = (int(ascending[k]) // segment_rows for k in (0, -1))
    edges = torch.arange(first, last + 2) * segment_rows
    cuts = torch.searchsorted(ascending, edges).tolist()
    for number, start, stop in zip(range(first, last + 1), cuts, cuts[1:]):
        if start < stop:
            yield number, start, stop


def _own_folder(parent: Path) -> tuple[Path, int]:
    """A new folder and the lock that says that its process lives; those without one are removed."""
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
            made = Path(tempfile.mkdtemp(prefix="shoal-rows-", dir=parent))
            lock = os.open(made / "lock", os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.fstat(lock).st_nlink:
                return made, lock
            os.close(lock)  # another process locked it first, and has removed the folder
    except OSError as error:
        raise ValueError(
            f"rows.tiers.ssd: given {str(parent)!r}, where no file can be written "
            f"({error.strerror}); name a folder on a local disk"
        ) from None


def _remove_folder(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)

"""Journal: what changed a server since its last checkpoint, in files that only its user can read.

    CHECKPOINTS/journal/SERVER-NUMBER     a segment; another one begins with every save

A segment is records, each a head with checksums and some frames:

    requests    of workers, as they came: first every worker's hello, then what changed the server
    STATE       what the server was when the segment began, less its rows; not in a run's first
    FILES       the files of rows of the save that the segment began with, once they are written

A request is written before it is answered. What a process has written survives its end, however
that comes; a host that goes down may lose the last seconds, of pushes alone (the rest is synced).
A record that was being written when the process was killed is shorter than its head says, and was
never answered: it is cut off. Anything else that does not fit its checksum is an error. A record's
checksum goes on from that of the record before, so that none can be left out or changed places.
"""

from __future__ import annotations

import json
import os
import re
import stat
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

from shoal.ps.wire import MOST_FRAMES, Kind, WireError, parse_header, parse_json

FOLDER = "journal"
HEAD = struct.Struct(f"<4sHHI{MOST_FRAMES}Q")  # magic, kind, frames, their checksum, their sizes
CHECK = struct.Struct("<I")  # of the head
MAGIC = b"SHJ1"
REQUEST, STATE, FILES = 1, 2, 3
Rows = list[tuple[str, dict[str, Any]]]  # folder -> file -> bytes and checksum; base first


class Record(NamedTuple):
    """A part of a journal."""

    what: int
    frames: list[memoryview]


class Journal:
    """The journal of one server."""

    def __init__(self, root: Path, index: int):
        """root: the server's folder."""
        self.root, self.index = root, index
        place = root / FOLDER
        root.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            place.mkdir(0o700)
        self._folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._file = -1  # of the segment that is written, and that segment's
        self._number = self._size = self._check = 0
        self._saving: tuple[str, bool] | None = None  # the save that it began with, until FILES
        self._replaced = False  # whether it may take the place of those before it
        self.rows: Rows | None = []  # the rows of the last save whose files are known
        self.written: dict[str, Any] = {}  # save -> files, of a journal that is read
        # What an earlier process of this server has left, and whom it tells of: worker and session.
        self.found = bool(self._numbers())
        self.sessions = {one for number in self._numbers() for one in self._sessions_in(number)}

    # ---- writing --------------------------------------------------------------------------------

    def append(self, what: int, frames: Sequence[Any], durable: bool = False) -> None:
        """Add a record; durable: it is on disk afterwards."""
        if self._file < 0:
            self.begin([])
        check = self._check
        for frame in frames:
            check = zlib.crc32(frame, check)
        sizes = [len(frame) for frame in frames]
        head = HEAD.pack(MAGIC, what, len(sizes), check, *sizes, *[0] * (MOST_FRAMES - len(sizes)))
        parts = [head + CHECK.pack(zlib.crc32(head)), *frames]
        try:
            _write(self._file, [memoryview(part) for part in parts if len(part)])
            if durable:
                os.fsync(self._file)
        except OSError:  # a part of it is worse than nothing
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise
        self._check, self._size = check, self._size + HEAD.size + CHECK.size + sum(sizes)

    def begin(self, records: Sequence[tuple[int, Sequence[Any]]]) -> None:
        """Begin a segment with some records: it is there with all of them, or not at all."""
        before, numbers = self._file, self._numbers()
        self._number = numbers[-1] + 1 if numbers else 1
        name = self._name(self._number)
        new = f"{name}.new"
        with suppress(FileNotFoundError):
            os.unlink(new, dir_fd=self._folder)
        self._file = self._open(new, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL)
        self._check, self._size = _seed(name), 0
        for what, frames in records:
            self.append(what, frames)
        os.fsync(self._file)
        os.rename(new, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        os.fsync(self._folder)
        if before >= 0:
            os.close(before)

    def save(self, name: str, delta: bool) -> None:
        """A save has begun: its files are told by `files`."""
        if self._saving is not None:  # the files of the one before never came
            self.rows = None
        self._saving, self._replaced = (name, delta), False

    def files(self, files: dict[str, Any]) -> None:
        """The rows of the last save are written; what comes again is known."""
        if self._saving is None:
            return
        name, delta = self._saving
        self._saving = None
        if not delta:
            self.rows = []
        if self.rows is not None:  # else it lacks what it builds upon, and nothing begins with it
            self.rows = [*self.rows, (name, files)]
            self.append(FILES, [json.dumps({"rows": self.rows}).encode()], durable=True)
            self._replaced = True

    def tidy(self) -> None:
        """Remove the segments that the newest one has replaced, once its save is committed."""
        if self._replaced and self._is_committed(self.rows):
            self._replaced = False
            self._remove(self._numbers()[:-1])

    def discard(self) -> None:
        """Forget what is there: it is of another run, or the run is over."""
        self.found = False
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
        self._remove(self._numbers())

    def close(self) -> None:
        """Write no more; what is there stays."""
        for handle in (self._file, self._folder):
            if handle >= 0:
                os.close(handle)
        self._file = self._folder = -1

    # ---- reading --------------------------------------------------------------------------------

    def replay(self) -> Iterator[Record]:
        """Every record that counts, oldest first; after the last one, writing goes on behind it.

        `rows` are those to begin with, before the first record.
        """
        self.found = False
        numbers = self._numbers()
        for number in numbers[self._first(numbers) :]:
            self._number, self._check, self._size = number, _seed(self._name(number)), 0
            with self._read(number) as file:
                for what, sizes, check in self._heads(file, number, number == numbers[-1]):
                    frames = [memoryview(bytearray(file.read(size))) for size in sizes]
                    for frame in frames:
                        self._check = zlib.crc32(frame, self._check)
                    if self._check != check:
                        raise self._damaged(number, "a record fails its checksum")
                    self._size = file.tell()
                    if what == FILES:
                        self.rows, self._saving = _parse_rows(frames[0]), None
                        self._replaced = True
                    yield Record(what, frames)
        self._file = self._open(self._name(numbers[-1]), os.O_WRONLY | os.O_APPEND)
        os.ftruncate(self._file, self._size)

    def _first(self, numbers: list[int]) -> int:
        """Which of the segments to begin with: the newest one whose save is committed."""
        self.rows, begin = [], None
        for place in reversed(range(len(numbers))):
            number, rows, first = numbers[place], None, True
            for what, frame in self._skim(number, place == len(numbers) - 1):
                first = first and what != STATE
                if what == FILES:
                    rows = _parse_rows(frame)
                    self.written[rows[-1][0]] = rows[-1][1]
            if begin is None and (first or (rows is not None and self._is_committed(rows))):
                begin, self.rows = place, rows or []
        if begin is None:
            raise WireError(f"{self.root}/{FOLDER} goes on from a checkpoint that is gone")
        return begin

    def committed(self, name: str) -> str:
        """What the folder of a save is called when it is committed: .NAME.new becomes NAME."""
        hidden = name.startswith(".") and name.endswith(".new")
        return name[1 : -len(".new")] if hidden else name

    def _is_committed(self, rows: Rows | None) -> bool:
        return rows is not None and (self.root / self.committed(rows[-1][0])).is_dir()

    def _sessions_in(self, number: int) -> Iterator[tuple[int, int]]:
        with suppress(WireError, OSError):  # it is told when it is replayed, and forgotten else
            for what, frame in self._skim(number, True):
                if what == REQUEST and (header := parse_header(frame)).kind == Kind.HELLO:
                    yield header.worker, header.session

    def _skim(self, number: int, last: bool) -> Iterator[tuple[int, memoryview]]:
        """Kind and first frame of every record; the others are passed over."""
        with self._read(number) as file:
            for what, sizes, _ in self._heads(file, number, last):
                yield what, memoryview(file.read(sizes[0]))
                file.seek(sum(sizes[1:]), os.SEEK_CUR)

    def _heads(
        self, file: BufferedReader, number: int, last: bool
    ) -> Iterator[tuple[int, list[int], int]]:
        """Kind, sizes of frames and checksum of every whole record, whose frames are read next."""
        total = os.fstat(file.fileno()).st_size
        while (left := total - file.tell()) > 0:
            data = file.read(HEAD.size + CHECK.size)
            if len(data) == HEAD.size + CHECK.size:
                magic, what, count, check, *sizes = HEAD.unpack_from(data)
                (own,) = CHECK.unpack_from(data, HEAD.size)
                if own != zlib.crc32(data[: HEAD.size]) or magic != MAGIC:
                    raise self._damaged(number, "the head of a record fails its checksum")
                if what not in (REQUEST, STATE, FILES) or not 1 <= count <= MOST_FRAMES:
                    raise self._damaged(number, f"a record of kind {what} and {count} frames")
                if sum(sizes[:count]) <= left - len(data):
                    yield what, sizes[:count], check
                    continue
            if not last:
                raise self._damaged(number, "it was cut")
            return  # this record was being written when the process was killed

    def _damaged(self, number: int, how: str) -> WireError:
        return WireError(f"{self.root}/{FOLDER}/{self._name(number)} is damaged: {how}")

    # ---- files ----------------------------------------------------------------------------------

    def _name(self, number: int) -> str:
        return f"{self.index:03d}-{number:06d}"

    def _numbers(self) -> list[int]:
        """Of this server's segments, ascending."""
        found = [re.fullmatch(r"(\d{3,})-(\d{6,})", name) for name in os.listdir(self._folder)]
        return sorted(int(one[2]) for one in found if one and int(one[1]) == self.index)

    def _read(self, number: int) -> BufferedReader:
        return open(self._open(self._name(number), os.O_RDONLY), "rb")

    def _open(self, name: str, flags: int) -> int:
        # Without waiting: to open a pipe would take until somebody is at its other end.
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        handle = os.open(name, flags, 0o600, dir_fd=self._folder)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise WireError(f"{self.root}/{FOLDER}/{name} is no regular file")
        return handle

    def _remove(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            with suppress(FileNotFoundError):
                os.unlink(self._name(number), dir_fd=self._folder)


def _seed(name: str) -> int:
    """What the checksums of a segment begin with: none passes for another."""
    return zlib.crc32(name.encode())


def _parse_rows(frame: memoryview) -> Rows:
    rows = parse_json(frame).get("rows")
    if not isinstance(rows, list) or not rows:
        raise WireError("a journal's rows are a list of folders and files")
    for one in rows:
        if not isinstance(one, list) or len(one) != 2 or not isinstance(one[0], str):
            raise WireError("a journal's rows are a list of folders and files")
    return [(name, files) for name, files in rows]


def _write(file: int, parts: list[memoryview]) -> None:
    """All of the parts; the system may take a part of them at a time."""
    while parts:
        done = os.writev(file, parts)
        while parts and done >= len(parts[0]):
            done -= len(parts.pop(0))
        if done:
            parts[0] = parts[0][done:]

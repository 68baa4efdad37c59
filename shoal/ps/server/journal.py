"""Journal: what changed a server since its last checkpoint, in files that only its user can read.

    CHECKPOINTS/journal/SERVER-NUMBER     a segment; another one begins with every save

A segment is records:

    requests    of workers, as they came: first every worker's hello, then what changed the server
    STATE       what the server was when the segment began, less its rows; not in a run's first
    FILES       the files of rows of the save that the segment began with, once they are written

A request is written before it is answered. What a process has written survives its end, however
that comes; a host that goes down may lose the last seconds, of pushes alone (the rest is synced).

A record is a head with checksums and some frames. Its checksum continues from that of the record
before, and the first one's from the name of the segment, so that none can be left out or change
places. A record that was being written when its process was killed is shorter than its head says:
it was never answered, and is cut off. Anything else that does not fit its checksum is an error.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from io import BufferedReader
from itertools import pairwise
from pathlib import Path
from typing import Any

from shoal.ps.server.folder import open_inside
from shoal.ps.wire import MOST_FRAMES, Kind, WireError, json_frame, parse_header, parse_json

HEAD = struct.Struct(f"<4sHHI{MOST_FRAMES}Q")  # magic, kind, frames, their checksum, their sizes
CHECK = struct.Struct("<I")  # of the head
MAGIC = b"SHJ1"
REQUEST, STATE, FILES = 1, 2, 3
FOLDER = "journal"
SEGMENT = re.compile(r"(\d{3,})-(\d{6,})")  # its server and number
Rows = list[tuple[str, dict[str, Any]]]  # folder -> file -> bytes and checksum; base first


class Journal:
    """The journal of one server."""

    def __init__(self, root: Path | None, index: int):
        """root: the server's folder; None: no journal is kept."""
        self.on, self.root, self.index = root is not None, root or Path(), index
        self._folder = -1
        if self.on:
            with suppress(FileNotFoundError):  # it is made when there is something to write
                self._enter()
        self._file = -1  # the segment that is written, its size and its last checksum:
        self._size = self._check = 0
        self._saving: tuple[str, bool] | None = None  # the save that it began with, until FILES
        self._replaced = False  # whether it may take the place of those before it
        self.rows: Rows | None = []  # the rows of the last save whose files are known
        self.written: dict[str, Any] = {}  # save -> files, of a journal that is read
        # Whether an earlier process of this server left segments, and of which sessions.
        self.has_earlier = bool(self._numbers())
        self.sessions = {one for number in self._numbers() for one in self._sessions_in(number)}

    # ---- writing --------------------------------------------------------------------------------

    def append(self, kind: int, frames: Sequence[Any], durable: bool = False) -> None:
        """Add a record; durable: it is on disk afterwards."""
        if self._file < 0:
            self.begin([])
        check = checked(frames, self._check)
        try:
            size = write(self._file, kind, frames, check)
            if durable:
                os.fsync(self._file)
        except OSError:  # a part of it is worse than nothing
            with suppress(OSError):
                os.ftruncate(self._file, self._size)
            raise
        self._check, self._size = check, self._size + size

    def begin(self, records: Sequence[tuple[int, Sequence[Any]]]) -> None:
        """Begin a segment with some records: it is there with all of them, or not at all."""
        if self._folder < 0:
            self.root.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                (self.root / FOLDER).mkdir(0o700)
            self._enter()
        before, name = self._file, self._name(max(self._numbers(), default=0) + 1)
        new = f"{name}.new"
        with suppress(FileNotFoundError):
            os.unlink(new, dir_fd=self._folder)
        self._file = self._open(new, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL)
        self._check, self._size = first_check(name), 0
        for kind, frames in records:
            self.append(kind, frames)
        os.fsync(self._file)
        os.rename(new, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        os.fsync(self._folder)
        if before >= 0:
            os.close(before)

    def save(self, name: str, delta: bool) -> None:
        """Record that a save has begun; `files` reports its files later."""
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
            self.append(FILES, [json_frame({"rows": self.rows})], durable=True)
            self._replaced = True

    def tidy(self) -> None:
        """Remove the segments that the newest one has replaced, once its save is committed."""
        if self._replaced and self._is_committed(self.rows):
            self._replaced = False
            self._remove(self._numbers()[:-1])

    def discard(self) -> None:
        """Remove the journal: it belongs to another run, or the run is over."""
        self.has_earlier = False
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
        self._remove(self._numbers())

    @property
    def place(self) -> Path:
        """The folder of all servers' segments."""
        return self.root / FOLDER

    def end(self) -> None:
        """The run is over: nothing stays, and the last server removes the folder."""
        self.discard()
        if self.on:
            with suppress(OSError):  # others still have segments there, or it never was
                os.rmdir(self.place)

    def close(self) -> None:
        """Write no more; what is there stays."""
        for handle in (self._file, self._folder):
            if handle >= 0:
                os.close(handle)

    # ---- reading --------------------------------------------------------------------------------

    def replay(self) -> Iterator[tuple[int, list[memoryview]]]:
        """Yield kind and frames of every valid record, from the save whose files `rows` names.

        After the last one, writing continues behind it.
        """
        self.has_earlier = False
        numbers = self._numbers()
        numbers = numbers[self._first(numbers) :]
        for before, number in pairwise([numbers[0] - 1, *numbers]):
            name = self._name(number)
            if number != before + 1:
                raise WireError(f"the journal's {self._name(before + 1)} is missing")
            self._check, self._size = first_check(name), 0
            with self._read(number) as file:
                for kind, sizes, check in heads(file, name, number == numbers[-1]):
                    frames = [memoryview(bytearray(file.read(size))) for size in sizes]
                    self._check = checked(frames, self._check)
                    if self._check != check:
                        raise damaged(name, "a record fails its checksum")
                    self._size = file.tell()
                    if kind == FILES:
                        self.rows, self._saving = _parse_rows(frames[0]), None
                        self._replaced = True
                    yield kind, frames
        self._file = self._open(self._name(numbers[-1]), os.O_WRONLY | os.O_APPEND)
        os.ftruncate(self._file, self._size)

    def _first(self, numbers: list[int]) -> int:
        """The segment to begin with: the newest one whose save is committed."""
        self.rows, begin = [], None
        for place in reversed(range(len(numbers))):
            number, rows, first = numbers[place], None, True
            for kind, frame in self._skim(number, place == len(numbers) - 1):
                first = first and kind != STATE
                if kind == FILES:
                    rows = _parse_rows(frame)
                    self.written[rows[-1][0]] = rows[-1][1]
            if begin is None and (first or (rows is not None and self._is_committed(rows))):
                begin, self.rows = place, rows or []
        if begin is None:
            raise WireError(
                f"{self.root}/{FOLDER} goes on from a checkpoint, or a segment, that is gone"
            )
        return begin

    def _is_committed(self, rows: Rows | None) -> bool:
        return bool(rows and (self.root / committed(rows[-1][0])).is_dir())

    def _sessions_in(self, number: int) -> Iterator[tuple[int, int]]:
        with suppress(WireError, OSError):  # a replay reports it; otherwise it is ignored
            for kind, frame in self._skim(number, True):
                if kind == REQUEST and (header := parse_header(frame)).kind == Kind.HELLO:
                    yield header.worker, header.session

    def _skim(self, number: int, last: bool) -> Iterator[tuple[int, memoryview]]:
        """Kind and first frame of every record; the others are passed over."""
        with self._read(number) as file:
            for kind, sizes, _ in heads(file, self._name(number), last):
                yield kind, memoryview(file.read(sizes[0]))
                file.seek(sum(sizes[1:]), os.SEEK_CUR)

    # ---- files ----------------------------------------------------------------------------------

    def _enter(self) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        self._folder = os.open(self.root / FOLDER, flags)

    def _listed(self) -> list[tuple[int, int, str]]:
        """Server, number and name of every segment, ascending."""
        names = os.listdir(self._folder) if self._folder >= 0 else []
        matches = [SEGMENT.fullmatch(name) for name in names]
        return sorted((int(one[1]), int(one[2]), one[0]) for one in matches if one)

    def _name(self, number: int) -> str:
        return f"{self.index:03d}-{number:06d}"

    def _numbers(self) -> list[int]:
        """The numbers of this server's segments, ascending."""
        return [number for server, number, _ in self._listed() if server == self.index]

    def _read(self, number: int) -> BufferedReader:
        return open(self._open(self._name(number), os.O_RDONLY), "rb")

    def _open(self, name: str, flags: int) -> int:
        return open_inside(self.root / FOLDER, self._folder, name, flags, 0o600)

    def _remove(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            for name in (self._name(number), f"{self._name(number + 1)}.new"):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=self._folder)


def committed(name: str) -> str:
    """The name of a save's folder once it is committed: .NAME.new becomes NAME."""
    hidden = name.startswith(".") and name.endswith(".new")
    return name[1 : -len(".new")] if hidden else name


def _parse_rows(frame: memoryview) -> Rows:
    rows = parse_json(frame).get("rows")
    pairs: list[Any] = rows if isinstance(rows, list) else []
    good = [isinstance(one, list) and len(one) == 2 and isinstance(one[0], str) for one in pairs]
    if not good or not all(good):
        raise WireError("a journal's rows must be a list of folders and their files")
    return [(name, files) for name, files in pairs]


# ---- records ------------------------------------------------------------------------------------


def first_check(name: str) -> int:
    """The initial checksum of a segment."""
    return zlib.crc32(name.encode())


def checked(frames: Sequence[Any], check: int) -> int:
    """The checksum of a record, after the one before it."""
    for frame in frames:
        check = zlib.crc32(frame, check)
    return check


def write(file: int, kind: int, frames: Sequence[Any], check: int) -> int:
    """Write a record at the end of a file; its bytes."""
    sizes = [len(frame) for frame in frames]
    head = HEAD.pack(MAGIC, kind, len(sizes), check, *sizes, *[0] * (MOST_FRAMES - len(sizes)))
    parts = [head + CHECK.pack(zlib.crc32(head)), *frames]
    remaining = [memoryview(part) for part in parts if len(part)]
    while remaining:  # the system may take a part of it at a time
        done = os.writev(file, remaining)
        while remaining and done >= len(remaining[0]):
            done -= len(remaining.pop(0))
        if done:
            remaining[0] = remaining[0][done:]
    return HEAD.size + CHECK.size + sum(sizes)


def heads(file: BufferedReader, name: str, last: bool) -> Iterator[tuple[int, list[int], int]]:
    """Kind, sizes of frames and checksum of every whole record; the caller reads the frames.

    last: the file may end with a part of a record.
    """
    total = os.fstat(file.fileno()).st_size
    while (remaining := total - file.tell()) > 0:
        data = file.read(HEAD.size + CHECK.size)
        if len(data) == HEAD.size + CHECK.size:
            magic, kind, count, check, *sizes = HEAD.unpack_from(data)
            (stored_check,) = CHECK.unpack_from(data, HEAD.size)
            if stored_check != zlib.crc32(data[: HEAD.size]) or magic != MAGIC:
                raise damaged(name, "the head of a record fails its checksum")
            if kind not in (REQUEST, STATE, FILES) or not 1 <= count <= MOST_FRAMES:
                raise damaged(name, f"a record of kind {kind} and {count} frames")
            if sum(sizes[:count]) <= remaining - len(data):
                yield kind, sizes[:count], check
                continue
        if not last:
            raise damaged(name, "it was cut")
        return


def damaged(name: str, reason: str) -> WireError:
    return WireError(f"the journal's {name} is damaged: {reason}")

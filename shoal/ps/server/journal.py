"""Journal: what changed a server since its last checkpoint, in files that only its user can read.

    CHECKPOINTS/journal/SERVER-NUMBER     a segment; another one begins with every save

A segment is records:

    requests    of workers, as they came: first every worker's hello, then what changed the server
    STATE       what the server was when the segment began, less its rows; not in a run's first
    FILES       the files of rows of the save that the segment began with, once they are written

A request is written before it is answered. What a process has written survives its end, however
that comes; a host that goes down may lose the last seconds, of pushes alone (the rest is synced).
A record that was being written was never answered: it is cut off. Anything else that does not fit
its checksum is an error.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from shoal.ps.server import records
from shoal.ps.server.records import FILES, REQUEST, STATE, checked, first_check
from shoal.ps.wire import Kind, WireError, parse_header, parse_json

FOLDER = "journal"
SEGMENT = re.compile(r"(\d{3,})-(\d{6,})")  # its server and number
Rows = list[tuple[str, dict[str, Any]]]  # folder -> file -> bytes and checksum; base first


class Journal:
    """The journal of one server."""

    def __init__(self, root: Path, index: int):
        """root: the server's folder."""
        self.root, self.index = root, index
        self._folder = -1
        with suppress(FileNotFoundError):  # it is made when there is something to write
            self._enter()
        self._file = -1  # the segment that is written, its size and its last checksum:
        self._size = self._check = 0
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
        check = checked(frames, self._check)
        try:
            size = records.write(self._file, what, frames, check)
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

    def sweep(self, servers: int) -> None:
        """Remove what a run with more than so many servers has left."""
        for server, _, name in self._listed():
            if server >= servers:
                os.unlink(name, dir_fd=self._folder)

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

    # ---- reading --------------------------------------------------------------------------------

    def replay(self) -> Iterator[tuple[int, list[memoryview]]]:
        """Kind and frames of every record that counts, from the save on whose files `rows` names.

        After the last one, writing goes on behind it.
        """
        self.found = False
        numbers = self._numbers()
        for number in numbers[self._first(numbers) :]:
            name = self._name(number)
            self._check, self._size = first_check(name), 0
            with self._read(number) as file:
                for what, sizes, check in records.heads(file, name, number == numbers[-1]):
                    frames = [memoryview(bytearray(file.read(size))) for size in sizes]
                    self._check = checked(frames, self._check)
                    if self._check != check:
                        raise records.damaged(name, "a record fails its checksum")
                    self._size = file.tell()
                    if what == FILES:
                        self.rows, self._saving = _parse_rows(frames[0]), None
                        self._replaced = True
                    yield what, frames
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

    def _is_committed(self, rows: Rows | None) -> bool:
        return bool(rows) and (self.root / committed(rows[-1][0])).is_dir()  # type: ignore[index]

    def _sessions_in(self, number: int) -> Iterator[tuple[int, int]]:
        with suppress(WireError, OSError):  # it is told when it is replayed, and forgotten else
            for what, frame in self._skim(number, True):
                if what == REQUEST and (header := parse_header(frame)).kind == Kind.HELLO:
                    yield header.worker, header.session

    def _skim(self, number: int, last: bool) -> Iterator[tuple[int, memoryview]]:
        """Kind and first frame of every record; the others are passed over."""
        with self._read(number) as file:
            for what, sizes, _ in records.heads(file, self._name(number), last):
                yield what, memoryview(file.read(sizes[0]))
                file.seek(sum(sizes[1:]), os.SEEK_CUR)

    # ---- files ----------------------------------------------------------------------------------

    def _enter(self) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        self._folder = os.open(self.root / FOLDER, flags)

    def _listed(self) -> list[tuple[int, int, str]]:
        """Server, number and name of every segment, ascending."""
        names = os.listdir(self._folder) if self._folder >= 0 else []
        found = [SEGMENT.fullmatch(name) for name in names]
        return sorted((int(one[1]), int(one[2]), one[0]) for one in found if one)

    def _name(self, number: int) -> str:
        return f"{self.index:03d}-{number:06d}"

    def _numbers(self) -> list[int]:
        """Of this server's segments, ascending."""
        return [number for server, number, _ in self._listed() if server == self.index]

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


def committed(name: str) -> str:
    """What the folder of a save is called when it is committed: .NAME.new becomes NAME."""
    hidden = name.startswith(".") and name.endswith(".new")
    return name[1 : -len(".new")] if hidden else name


def _parse_rows(frame: memoryview) -> Rows:
    rows = parse_json(frame).get("rows")
    pairs: list[Any] = rows if isinstance(rows, list) else []
    good = [isinstance(one, list) and len(one) == 2 and isinstance(one[0], str) for one in pairs]
    if not good or not all(good):
        raise WireError("a journal's rows must be a list of folders and their files")
    return [(name, files) for name, files in pairs]

"""Durable: files that are on disk when a call returns, and what they must be when read again."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any

# What the system answers to a write alone, so that the file can only be the one that is written.
OF_WRITES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
OF_LIBRARIES = re.compile(r"\(os error (\d+)\)")  # an error of the system inside a library's own
SHORT = re.compile(r"\d+ requested and \d+ written")  # numpy's, without the cause


@contextmanager
def written(path: str | Path) -> Iterator[None]:
    """Context that writes `path`: a full disk raises an OSError with the path.

    The system names a file that cannot be opened, but not one that cannot be written to.
    """
    try:
        yield
    except Exception as error:
        number = error.errno if isinstance(error, OSError) else None
        if match := OF_LIBRARIES.search(str(error)):
            number = int(match[1])
        elif isinstance(error, OSError) and number is None and SHORT.search(str(error)):
            number = errno.ENOSPC
        if number not in OF_WRITES or getattr(error, "filename", None) is not None:
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def open_regular(path: str | Path, links: bool = True, folder: int | None = None) -> BufferedReader:
    """Open a file to read it. A pipe or a device is refused at once, where reading it might never
    end; with links=False a link is, too. folder: an open folder that the path begins in.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW)
    try:
        handle = os.open(path, flags, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP and not links:
            raise OSError(errno.ELOOP, "is a link, not a file", str(path)) from None
        raise
    try:
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):
            reason = "is a folder" if stat.S_ISDIR(mode) else "is no regular file"
            raise OSError(errno.EINVAL, reason, str(path))
        return open(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def no_links(path: str, flags: int) -> int:
    """An opener for `open` that refuses a link: who made a folder would choose what is written."""
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "is a link, not a file", str(path)) from None
        raise


def is_plain_name(name: object) -> bool:
    """Whether a name stands for a file of a folder itself, and nothing above or below it."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\\0")


def count(path: Path, max_bytes: int | None = None) -> dict[str, Any]:
    """Bytes and checksum of a file, of which only a part is in memory at a time.

    A file of more than `max_bytes` bytes is not read: its checksum is empty.
    """
    with open_regular(path, links=False) as file:
        size = os.fstat(file.fileno()).st_size
        if max_bytes is not None and size > max_bytes:
            return {"bytes": size, "sha256": ""}
        digest = hashlib.file_digest(file, "sha256")
        return {"bytes": file.tell(), "sha256": digest.hexdigest()}


def write_counted(path: Path, data: bytes) -> dict[str, Any]:
    """Write a file durably; its bytes and checksum."""
    write_durably(path, data)
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def write_durably(path: Path, data: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with written(path), open(path, "wb", buffering=0, opener=no_links) as file:
        write_all(file, data)
        os.fsync(file.fileno())


def replace_durably(path: Path, data: bytes) -> None:
    """Replace a file so that a reader sees the old or the new one, never a part.

    One process at a time does it, and writes over what one that was killed has left.
    """
    hidden = path.with_name(f".{path.name}.new")
    try:
        with sole_holder(hidden) as file:
            try:
                os.ftruncate(file.fileno(), 0)
                write_all(file, data)
                os.fsync(file.fileno())
                os.replace(hidden, path)
            except OSError:
                hidden.unlink(missing_ok=True)
                raise
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def write_all(file: FileIO, data: bytes) -> None:
    """Write all of it; the system may take a part at a time."""
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[file.write(remaining) :]


@contextmanager
def sole_holder(path: Path, wait: bool = True) -> Iterator[FileIO]:
    """A file that no other process holds meanwhile, to be written or to be a lock.

    wait: until another one lets it go; else BlockingIOError where one holds it. The system lets it
    go where its holder dies. The holder may remove or rename it.
    """
    while True:
        with open(path, "ab", buffering=0, opener=no_links) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise
            except OSError:  # a file system without locks
                pass
            is_there = False
            with suppress(FileNotFoundError):  # the earlier holder has removed or renamed it
                status = os.stat(path, follow_symlinks=False)
                is_there = os.path.samestat(os.fstat(file.fileno()), status)
            if is_there:
                yield file
                return


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names of a folder's files."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

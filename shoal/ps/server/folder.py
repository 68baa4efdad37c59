"""Folder: the one place where a server writes and reads files.

The user who starts a server names the folder; workers can only name entries of it. Nothing there
is followed if it is a link, nothing is replaced, and only regular files are read.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from shoal.ps.wire import WireError


class Folder:
    """A folder inside a server's own, open: `with opened(root, name) as folder`."""

    def __init__(self, path: Path, handle: int, again: bool = False):
        """again: files of an earlier process that was killed are written anew."""
        self.path, self.handle, self.again = path, handle, again

    def write(self, name: str, data: bytes) -> dict[str, Any]:
        """Write a new file durably; its bytes and checksum."""
        if self.again:
            with suppress(FileNotFoundError):
                os.unlink(plain(name), dir_fd=self.handle)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open(open_inside(self.path, self.handle, plain(name), flags), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def read(self, name: str) -> bytes:
        """The bytes of a regular file."""
        with open(open_inside(self.path, self.handle, plain(name), os.O_RDONLY), "rb") as file:
            return file.read()


def open_inside(path: Path, folder: int, name: str, flags: int, mode: int = 0o666) -> int:
    """A descriptor of a regular file in an open folder, of this path; a link is not followed."""
    # Without waiting: to open a pipe would block until its other end is open.
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(name, flags, mode, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise WireError(f"{path / name} is no regular file")
    return handle


def plain(name: str) -> str:
    """The name of something that lies in a folder itself; anything else is refused."""
    if name in ("", ".", "..") or "/" in name or not name.isprintable():
        raise WireError(f"{name[:100]!r} is no plain name of a file")
    return name


@contextmanager
def opened(root: Path | None, name: str, again: bool = False) -> Iterator[Folder]:
    """The folder of this name inside the server's folder."""
    if root is None:
        raise WireError("this server has no folder for checkpoints: start it with --folder=DIR")
    above = handle = -1
    try:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        above = os.open(root, flags)
        handle = os.open(plain(name), flags | os.O_NOFOLLOW, dir_fd=above)
        yield Folder(root / name, handle, again)
    finally:
        for descriptor in (handle, above):
            if descriptor >= 0:
                os.close(descriptor)

"""Folders inside a folder that another user may have made: opened without following a link.

The folder that a user names (`--output runs/x`) may itself be a link, to a larger disk for example.
Its content may have been made by another user: were a link there followed, they would
choose whose files are written or deleted.

What is promised:
- A name inside that is a link, or no folder, is refused with one error before anything is changed.
- Every part of the path is opened from the part above it (openat with O_NOFOLLOW), so no part can
  be exchanged for a link between a check and its use. `remove_folder` deletes by these descriptors.
- `inner_folder` returns a path for what can only write to paths (TensorBoard, Polars). Whoever may
  write to the folder while the command runs could still put a link there after the check; files
  are therefore opened with `no_links` (shoal.files.durable) as well.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@contextmanager
def opened_folder(
    root: str | Path, *names: str, make: bool = False, mode: int = 0o777
) -> Iterator[int]:
    """A descriptor of the folder ROOT/NAME/…, none of whose names is a link.

    make: folders that are absent are made, with this mode. OSError names what cannot be opened.
    """
    place = Path(root)
    if make:
        place.mkdir(parents=True, exist_ok=True)
    handle = os.open(place, FOLDER)
    try:
        for name in names:
            place = place / name
            below = _open_below(handle, name, place, make, mode)
            os.close(handle)
            handle = below
        yield handle
    finally:
        os.close(handle)


def _open_below(above: int, name: str, place: Path, make: bool, mode: int = 0o777) -> int:
    """Open the folder `name` of an open folder; place: its whole path, for errors."""
    if name in ("", ".", "..") or "/" in name:
        raise OSError(errno.EINVAL, "is not the name of a folder in the one above it", str(place))
    if make:
        with suppress(FileExistsError):
            os.mkdir(name, mode, dir_fd=above)
    try:
        return os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=above)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and os.path.islink(place):
            raise OSError(errno.ELOOP, "is a link, not a folder", str(place)) from None
        raise OSError(error.errno, os.strerror(error.errno or 0), str(place)) from None


def inner_folder(root: str | Path, *names: str, make: bool = True, mode: int = 0o777) -> Path:
    """The path ROOT/NAME/… of a folder to write in, none of whose names is a link.

    make: folders that are absent are made; otherwise they may be absent.
    """
    try:
        with opened_folder(root, *names, make=make, mode=mode):
            pass
    except FileNotFoundError:
        if make:
            raise
    return Path(root, *names)


def remove_folder(root: str | Path, *names: str) -> None:
    """Delete the folder ROOT/NAME/… with all it holds; nothing happens where there is none."""
    *above, last = names
    with suppress(FileNotFoundError), opened_folder(root, *above) as handle:
        os.close(_open_below(handle, last, Path(root, *names), make=False))
        shutil.rmtree(last, dir_fd=handle)

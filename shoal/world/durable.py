"""Durable: files that are on disk when a call returns, and what they must be when read again."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any


def count(path: Path) -> dict[str, Any]:
    """Bytes and checksum of a file, of which only a part is in memory at a time."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
        return {"bytes": file.tell(), "sha256": digest.hexdigest()}


def write_counted(path: Path, data: bytes) -> dict[str, Any]:
    """Write a file durably; its bytes and checksum."""
    write_durably(path, data)
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def write_durably(path: Path, data: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_durably(path: Path, data: bytes) -> None:
    """Replace a file so that a reader sees the old or the new one, never a part."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write_durably(hidden, data)
        os.replace(hidden, path)
    except OSError as error:
        hidden.unlink(missing_ok=True)
        raise ValueError(f"cannot write {path}: {error.strerror}; make room or fix it") from error


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the names of a folder's files."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

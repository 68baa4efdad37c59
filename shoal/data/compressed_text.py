"""Files of text as they are, or packed by gzip or zstd: their first bytes say so, not their names.

How long compressed text may become is bounded (shoal/data/bounds.py): a few bytes can then not
fill memory or a disk.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from shoal import how_to_install
from shoal.data.bounds import EXPANSION, most_bytes
from shoal.files.durable import open_regular

MAGIC = b"\x1f\x8b"  # no text begins with these
ZSTD = b"\x28\xb5\x2f\xfd"
PACKED = (".gz", ".zst")
# Packed bytes that are unpacked at a time. Four bytes of zstd may stand for a block of 128 KiB, so
# they become 32 MiB at most.
ZSTD_BYTES = 1 << 10


def is_packed(path: Path) -> bool:
    """Whether a file must be unpacked to be read."""
    with open_regular(path) as source:
        return source.read(len(ZSTD)).startswith((MAGIC, ZSTD))


@contextmanager
def open_text(path: Path) -> Iterator[BinaryIO]:
    """The bytes of the text in a file."""
    with open_regular(path) as source:
        begins = source.read(len(ZSTD))
        source.seek(0)
        if begins == ZSTD:
            with _zstd(source, path) as text:
                yield text
            return
        if not begins.startswith(MAGIC):
            yield source
            return
        try:
            with gzip.open(source) as text:
                most = most_bytes(os.fstat(source.fileno()).st_size)
                yield cast(BinaryIO, BoundedFile(text, most, str(path)))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(
                f"{path} cannot be unpacked: {str(error).rstrip('.')}; it is damaged or not whole: "
                "fetch or write it again (`gzip -t` checks a file)"
            ) from error


@contextmanager
def _zstd(source: BinaryIO, path: Path) -> Iterator[BinaryIO]:
    try:
        import zstandard
    except ImportError as error:
        raise ValueError(
            f"{path} is packed by zstd, and reading it needs a package: {how_to_install('zstd')}; "
            "or unpack it (unzstd)"
        ) from error
    most = most_bytes(os.fstat(source.fileno()).st_size)
    try:
        with io.BufferedReader(Unzstd(source, zstandard.ZstdDecompressor)) as text:
            yield cast(BinaryIO, BoundedFile(text, most, str(path)))
    except (zstandard.ZstdError, EOFError) as error:
        raise ValueError(
            f"{path} cannot be unpacked: {error}; it is damaged or not whole: fetch or write it "
            "again (`zstd -t` checks a file)"
        ) from error


class Unzstd(io.RawIOBase):
    """The text of a zstd file, read on; a file that ends within a frame is an error."""

    def __init__(self, source: BinaryIO, decompressor: Any):
        self.source, self.decompressor = source, decompressor
        self.seek(0)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, position: int, whence: int = 0) -> int:
        """Go to the beginning, the only place that can be sought."""
        assert position == whence == 0
        self.source.seek(0)
        self.frame, self.held, self.at = self.decompressor().decompressobj(), memoryview(b""), 0
        return 0

    def tell(self) -> int:
        return self.at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer with the next bytes; returns how many, 0 at the end."""
        while not self.held:
            packed = self.frame.unused_data if self.frame.eof else b""
            packed = packed or self.source.read(ZSTD_BYTES)
            if not packed:
                if not self.frame.eof:
                    raise EOFError("it ends within a frame")
                return 0
            if self.frame.eof:
                self.frame = self.decompressor().decompressobj()
            self.held = memoryview(self.frame.decompress(packed))
        size = min(len(buffer), len(self.held))
        buffer[:size], self.held = self.held[:size], self.held[size:]
        self.at += size
        return size


class BoundedFile(io.RawIOBase):
    """A file that is read up to a position; beyond it is an error."""

    def __init__(self, source: Any, most: int, name: str):
        self.source = source
        self.most = most
        self.name = name

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes."""
        return self._checked(self.source.read(self._allowed(size)))

    def readline(self, size: int | None = -1) -> bytes:
        """A line, or the first `size` bytes of it."""
        return self._checked(self.source.readline(self._allowed(-1 if size is None else size)))

    def _allowed(self, size: int) -> int:
        remaining = max(0, self.most - self.source.tell()) + 1
        return remaining if size < 0 else min(size, remaining)

    def seek(self, position: int, whence: int = 0) -> int:
        """Go to a position."""
        return self.source.seek(position, whence)

    def _checked(self, data: bytes) -> bytes:
        if self.source.tell() > self.most:
            raise ValueError(
                f"{self.name} unpacks to more than {self.most} bytes, {EXPANSION} times its own; "
                "no text shrinks so much: unpack it yourself (gunzip) if it is sound"
            )
        return data


def packed_or_not(path: Path) -> Path:
    """The file of that name; where there is none, the one that ends in .gz or .zst besides."""
    if not path.exists():
        for ending in PACKED:
            if (packed := path.with_name(path.name + ending)).exists():
                return packed
    return path


def plain_name(path: Path) -> Path:
    """The name that a file would have unpacked."""
    return path.with_suffix("") if path.suffix in PACKED else path

"""Raw files within bounds: text opened, packed or not, and the memory that a file may ask for.

Text may be packed by gzip or zstd: its first bytes say so, not its name. A table may be as large as
memory allows: what is bounded is how much more than its own size a file becomes. Real tables hold
something new in every row, so they shrink to a third or a twentieth; a file that claims 60 million
rows in 367 KB was made to fill memory. SECURITY.md lists these bounds.
"""

from __future__ import annotations

import gzip
import io
import logging
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from shoal import how_to_install
from shoal.config.data_section import MOST_COLUMNS
from shoal.files.durable import open_regular
from shoal.kernels.host_memory import free_memory

logger = logging.getLogger(__name__)

EXPANSION = 200  # times the size of a file that its content may take; gzip's most is 1032
EXPANSION_FREE = 64 << 20  # bytes that any file may become
VALUE_BYTES = 8  # a value of Parquet or Arrow in memory: what columns of numbers and ids take
LONGEST_LINE = 16 << 20  # bytes: what a reader of lines holds is bounded by it
MOST_LOADED = 8192  # columns of a table that are read: each becomes files of a cache and arrays
MOST_DEPTH = 64  # levels of lists and objects inside each other, in JSON, Parquet and Arrow


def most_bytes(size: int) -> int:
    """The bytes that a file of `size` bytes may become in memory.

    >>> most_bytes(1_000) == 64 << 20, most_bytes(1 << 30) == 200 << 30
    (True, True)
    """
    return max(EXPANSION_FREE, EXPANSION * size)


def check_expansion(name: str | Path, size: int, content: int, content_name: str) -> None:
    """Refuse a file whose content takes too many times its size; content_name: for errors."""
    if content > (most := most_bytes(size)):
        raise ValueError(
            f"{name} has {size:,} bytes and would become {content:,} in memory ({content_name}); "
            "at most "
            f"{most:,} are read, {EXPANSION} times the file or 64 MiB, because no real table "
            "shrinks so much. If it is sound, read fewer of its columns (data.load.inter), or "
            "write it as csv"
        )


def check_memory(name: str | Path, size: int, factor: int, reads_all: bool) -> None:
    """Refuse a file that cannot fit into memory, and warn where its rows may not.

    factor: bytes of memory for a byte of the file, about. reads_all: the file is held whole.
    """
    free = free_memory()
    remedy = (
        "`shoal prepare FILE --to DIR` reads it in parts, in the memory of --memory, and "
        "`shoal train --data.path=DIR` trains from that folder"
    )
    if reads_all and size > free.num_bytes:
        raise ValueError(f"{name} has {size / 1e9:.1f} GB, and {free} of memory: {remedy}")
    if factor * size > free.num_bytes:
        logger.warning(
            "%s may take about %.1f GB of memory, and %s: should this process be killed, %s",
            name,
            factor * size / 1e9,
            free,
            remedy,
        )


def check_columns(name: str | Path, count: int) -> None:
    """Refuse a table with too many columns."""
    if count > MOST_COLUMNS:
        raise ValueError(
            f"{name} has {count:,} columns; at most {MOST_COLUMNS:,} are read: write a file with "
            "those that are needed, and put many numbers of a row into one column of lists"
        )


def check_loaded_columns(name: str | Path, suffix: str, count: int) -> None:
    """Refuse to read too many columns of a table; suffix: of the table in data.load."""
    if count > MOST_LOADED:
        raise ValueError(
            f"{name}: {count:,} columns would be read; at most {MOST_LOADED:,} are: name those "
            f"that are needed (data.load.{suffix}), or put many numbers of a row into one column "
            "of lists"
        )


def check_line(name: str | Path, length: int) -> None:
    """Refuse a line of text that is too long."""
    if length > LONGEST_LINE:
        raise ValueError(
            f"{name}: a line has more than {LONGEST_LINE} bytes; is it text with a row on "
            "every line?"
        )


def check_depth(name: str | Path, depth: int) -> None:
    """Refuse values that are nested too deep."""
    if depth > MOST_DEPTH:
        raise ValueError(
            f"{name} holds lists or objects {depth:,} levels deep; at most {MOST_DEPTH} are read: "
            "write the values that are needed as columns of their own"
        )


# ---- text, packed or not -------------------------------------------------------------------------

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

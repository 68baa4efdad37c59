"""Files of text as they are, or compressed by gzip: what their first bytes say, not their names.

Compressed text may be at most EXPANSION times as long as its file, or EXPANSION_FREE bytes where
that is more: a few bytes can then not fill memory or a disk.
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

from shoal.world.durable import open_regular

MAGIC = b"\x1f\x8b"  # no text begins with these
EXPANSION = 200  # logs and ratings shrink to a third or a twentieth; gzip's most is 1032
EXPANSION_FREE = 64 << 20  # bytes


@contextmanager
def open_text(path: Path) -> Iterator[BinaryIO]:
    """The bytes of the text in a file."""
    with open_regular(path) as source:
        packed = source.read(len(MAGIC)) == MAGIC
        source.seek(0)
        if not packed:
            yield source
            return
        try:
            with gzip.open(source) as text:
                most = longest_text(os.fstat(source.fileno()).st_size)
                yield cast(BinaryIO, Bounded(text, most, str(path)))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(
                f"{path} cannot be unpacked: {str(error).rstrip('.')}; it is damaged or not whole: "
                "fetch or write it again (`gzip -t` checks a file)"
            ) from error


def longest_text(packed: int) -> int:
    """Bytes that so many compressed ones may become."""
    return max(EXPANSION_FREE, EXPANSION * packed)


class Bounded(io.RawIOBase):
    """A file that is read up to a position; beyond it is an error."""

    def __init__(self, source: Any, most: int, name: str):
        self.source, self.most, self.name = source, most, name

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes."""
        left = max(0, self.most - self.source.tell()) + 1
        return self._checked(self.source.read(left if size < 0 else min(size, left)))

    def readline(self, size: int | None = -1) -> bytes:
        """A line, or the first `size` bytes of it."""
        left = max(0, self.most - self.source.tell()) + 1
        return self._checked(
            self.source.readline(left if size is None or size < 0 else min(size, left))
        )

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
    """The file of that name; where there is none, the one that ends in .gz besides if there is."""
    packed = path.with_name(f"{path.name}.gz")
    return packed if not path.exists() and packed.exists() else path


def plain_name(path: Path) -> Path:
    """The name that a file would have unpacked."""
    return path.with_suffix("") if path.suffix == ".gz" else path

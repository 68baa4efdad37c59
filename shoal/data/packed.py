"""Files of text as they are, or compressed by gzip: what their first bytes say, not their names."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

MAGIC = b"\x1f\x8b"  # no text begins with these


@contextmanager
def open_text(path: Path) -> Iterator[BinaryIO]:
    """The bytes of the text in a file."""
    with open(path, "rb") as source:
        packed = source.read(len(MAGIC)) == MAGIC
        source.seek(0)
        if not packed:
            yield source
            return
        try:
            with gzip.open(source) as text:
                yield cast(BinaryIO, text)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(
                f"{path} cannot be unpacked: {str(error).rstrip('.')}; it is damaged or not whole: "
                "fetch or write it again (`gzip -t` checks a file)"
            ) from error


def packed_or_not(path: Path) -> Path:
    """The file of that name; where there is none, the one that ends in .gz besides if there is."""
    packed = path.with_name(f"{path.name}.gz")
    return packed if not path.exists() and packed.exists() else path


def plain_name(path: Path) -> Path:
    """The name that a file would have unpacked."""
    return path.with_suffix("") if path.suffix == ".gz" else path

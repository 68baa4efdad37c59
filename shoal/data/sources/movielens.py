"""MovieLens as GroupLens publishes it: u.data, ratings.dat or ratings.csv, unpacked or zipped."""

from __future__ import annotations

import lzma
import struct
import zipfile
import zlib
from pathlib import Path

from shoal.config.schema import DataSection
from shoal.data.packed import longest_text, packed_or_not, plain_name
from shoal.data.raw import Raw, RawTable, interaction_columns
from shoal.data.sources.delimited import Layout, clean, join, parse, read_bytes

SEPARATORS = {"u.data": "\t", "ratings.dat": "::", "ratings.csv": ","}
# What zipfile raises about damaged archives, and about those that it cannot unpack (of a kind of
# compression that it does not know: NotImplementedError).
UNREADABLE = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError),
    *(NotImplementedError, RuntimeError, UnicodeDecodeError, struct.error, IndexError),
)
_CSV_HEADER = ["userId", "movieId", "rating", "timestamp"]


def locate(config: DataSection) -> Path | None:
    """The ratings file or the archive that holds it; None where there is neither."""
    folder, stem = config.folder, config.stem
    for place in (folder, folder / stem, Path(config.path)):
        for name in SEPARATORS:
            if (file := packed_or_not(place / name)).is_file():
                return file
    for archive in (folder.with_name(f"{stem}.zip"), folder / f"{stem}.zip"):
        if archive.is_file():
            return archive
    return None


def find(config: DataSection) -> Path:
    """As locate, but an error where there is nothing."""
    found = locate(config)
    if found is None:
        raise ValueError(
            f"no MovieLens ratings for {config.stem!r}: looked for {', '.join(SEPARATORS)} in "
            f"{config.folder} and for {config.folder}.zip; fetch them with `shoal data fetch "
            f"{config.stem}`"
        )
    return found


def read(config: DataSection) -> Raw:
    """Interactions with user, item, rating and time, named as in data.fields."""
    path = find(config)
    name, where, data = plain_name(path).name, str(path), b""
    if path.suffix == ".zip":
        name, data = _read_archive(path)
        where = f"{path}:{name}"
    else:
        data = read_bytes(path)
    kinds, load = interaction_columns(config, where)
    first_line = 1
    if name == "ratings.csv":
        head, _, data = data.partition(b"\n")
        first_line = 2
        if head.decode(errors="replace").split(",") != _CSV_HEADER:
            raise ValueError(
                f"{where}, line 1: {head[:80]!r} where {','.join(_CSV_HEADER)} was expected; "
                "is this a MovieLens file? Other data can be given as atomic files"
            )
    layout = Layout(kinds, load, SEPARATORS[name], " ", first_line, frozenset(load))
    parsed = parse(data, layout, where)
    columns = {field: join([parsed[field]], kinds[field]) for field in load}
    return Raw(RawTable(where, {field: kinds[field] for field in load}, columns))


def _read_archive(path: Path) -> tuple[str, bytes]:
    """Name and text of the ratings file in an archive, at its top or one folder down."""
    try:
        with zipfile.ZipFile(path) as archive:
            for name in SEPARATORS:
                for member in archive.infolist():
                    inner = member.filename
                    if inner.rpartition("/")[2] == name and inner.count("/") <= 1:
                        _check_size(member, path)
                        return name, clean(archive.read(member))
    except UNREADABLE as error:
        raise ValueError(
            f"cannot read {path}: {error or type(error).__name__}; remove it and fetch it again "
            f"with `shoal data fetch {path.stem}`"
        ) from error
    raise ValueError(f"{path} holds none of {', '.join(SEPARATORS)}; is it a MovieLens archive?")


def _check_size(member: zipfile.ZipInfo, path: Path) -> None:
    most = longest_text(path.stat().st_size)
    if member.file_size > most:
        raise ValueError(
            f"{path}:{member.filename} unpacks to {member.file_size} bytes; of an archive of this "
            f"size at most {most} are read"
        )

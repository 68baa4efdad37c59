"""MovieLens as GroupLens publishes it: u.data, ratings.dat or ratings.csv, unpacked or zipped."""

from __future__ import annotations

import lzma
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from shoal.config.schema import DataSection
from shoal.data.bounded_files import most_bytes, packed_or_not, plain_name
from shoal.data.raw_columns import Raw
from shoal.data.sources.csv import CellFormat, CellHeader, CellText
from shoal.data.sources.source import Source
from shoal.data.sources.tables import Part, TableHeader, interaction_columns, read_table
from shoal.data.sources.text import BOM, first_line

SEPARATORS = {"u.data": "\t", "ratings.dat": "::", "ratings.csv": ","}
MOVIES = {
    "u.item": "|",
    "movies.dat": "::",
    "movies.csv": ",",
}  # in the same folder: movie, title, more
# What zipfile raises about damaged archives, and about those that it cannot unpack (of a kind of
# compression that it does not know: NotImplementedError).
UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    OSError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    UnicodeDecodeError,
    struct.error,
    IndexError,
)
QUOTED = re.compile(r'^(\d+),(?:"((?:[^"\n]|"")*)"|([^",\n]*)),', re.MULTILINE)  # movie, title
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


class MovieLens(Source):
    """Interactions with user, item, rating and time, named as in data.fields."""

    name = "movielens"

    def matches(self, config: DataSection) -> bool:
        return locate(config) is not None

    def files(self, config: DataSection) -> list[Path]:
        path = locate(config)
        if path is None:
            raise ValueError(
                f"no MovieLens ratings for {config.stem!r}: neither {', '.join(SEPARATORS)} in "
                f"{config.folder} nor {config.folder}.zip; `shoal data fetch` gets them"
            )
        return [path]

    def read(self, config: DataSection) -> Raw:
        (path,) = self.files(config)
        form = Ratings(plain_name(path).name)
        if path.suffix == ".zip":
            form = Ratings(*_read_archive(path))
        table, _, bad = read_table(config, "inter", [path], form)
        return Raw(table, left_out={"data.bad_rows": bad} if bad else {})


class Ratings(CellText):
    """Ratings as text. name: of the file, which says how it is laid out; body: in an archive."""

    def __init__(self, name: str, body: bytes | None = None):
        self.file, self.body = name, body
        self.has_header = name == "ratings.csv"
        self.first_row = 1 + self.has_header

    def reads(self, path: Path) -> bool:
        return plain_name(path).name == self.file

    def header(self, path: Path, config: DataSection) -> CellHeader:
        where = str(path) if self.body is None else f"{path}:{self.file}"
        kinds, _ = interaction_columns(config, where)
        if self.has_header:
            head = (
                first_line(path, config.encoding)
                if self.body is None
                else self._first().decode(errors="replace")
            )
            if head.split(",") != _CSV_HEADER:
                raise ValueError(
                    f"{where}, line 1: {head[:80]!r} where {','.join(_CSV_HEADER)} was expected; "
                    "is this a MovieLens file? Other data can be given as atomic files"
                )
        cells = CellFormat(SEPARATORS[self.file], quote=None)
        return CellHeader(list(kinds), kinds, where, cells)

    def parts(self, path: Path, header: TableHeader, memory: int) -> Iterator[Part]:
        if self.body is None:
            yield from super().parts(path, header, memory)
            return
        start = len(self._first()) + 1 if self.has_header else 0
        yield Part(path, start, len(self.body), len(self.body), self.body[start:])

    def _first(self) -> bytes:
        """The first line of what an archive holds."""
        return (self.body or b"").partition(b"\n")[0]


RATINGS = [Ratings("u.data"), Ratings("ratings.dat")]


def titles(config: DataSection) -> dict[str, str]:
    """Movie -> its title, of the file in the folder of the ratings; empty where there is none."""
    ratings = locate(config)
    if ratings is None:
        return {}
    if ratings.suffix == ".zip":
        name, body = _find_in_archive(ratings, MOVIES) or ("", b"")
    else:
        candidates = (ratings.with_name(name) for name in MOVIES)
        file = next((one for one in candidates if one.is_file()), None)
        name, body = ("", b"") if file is None else (file.name, file.read_bytes())
    if name == "movies.csv":
        matches = QUOTED.findall(body.decode("utf-8", "replace"))
        return {movie: (quoted or title).replace('""', '"') for movie, quoted, title in matches}
    lines = body.decode("latin-1").splitlines()
    cells = [line.split(MOVIES[name]) for line in lines]
    return {row[0]: row[1] for row in cells if len(row) > 1}


def _read_archive(path: Path) -> tuple[str, bytes]:
    """Name and text of the ratings file in an archive."""
    member = _find_in_archive(path, SEPARATORS)
    if member is None:
        raise ValueError(
            f"{path} holds none of {', '.join(SEPARATORS)}; is it a MovieLens archive?"
        )
    return member


def _find_in_archive(path: Path, names: Iterable[str]) -> tuple[str, bytes] | None:
    """Name and text of the first of these files, at the top of an archive or one folder down."""
    try:
        with zipfile.ZipFile(path) as archive:
            for name in names:
                for member in archive.infolist():
                    inner = member.filename
                    if inner.rpartition("/")[2] == name and inner.count("/") <= 1:
                        most = most_bytes(path.stat().st_size)
                        if member.file_size > most:
                            raise ValueError(
                                f"{path}:{inner} unpacks to {member.file_size} bytes; of an "
                                f"archive of this size at most {most} are read"
                            )
                        return name, archive.read(member).removeprefix(BOM).replace(b"\r\n", b"\n")
    except UNREADABLE as error:
        raise ValueError(
            f"cannot read {path}: {error or type(error).__name__}; remove it and fetch it again "
            f"with `shoal data fetch {path.stem}`"
        ) from error
    return None

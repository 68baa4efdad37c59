"""Atomic files: NAME.inter, NAME.user, NAME.item, NAME.kg, NAME.link, NAME.net and others.

Tab-separated text whose first line is `name:type` for every column; the types are token,
token_seq, float and float_seq.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast, get_args

import numpy as np

from shoal.config.errors import did_you_mean
from shoal.config.schema import DataSection
from shoal.data.bounded_files import packed_or_not
from shoal.data.dataset import FieldType
from shoal.data.raw_columns import Raw
from shoal.data.sources.csv import CellFormat, CellHeader, CellText
from shoal.data.sources.source import Source
from shoal.data.sources.tables import read_table
from shoal.data.sources.text import first_line

_TYPES = list(get_args(FieldType))
PARTS_OF = {
    2: (0, 2),
    3: (0, 1, 2),
}  # splits of pre-split files, by their number: of two, none is valid


def files(config: DataSection) -> dict[str, list[Path]]:
    """suffix -> the files to read: one each, one a part for the interactions of pre-split data."""
    folder, name = config.folder, config.stem
    suffixes = ["inter", *(config.load or {}), *(config.unload or {}), *config.extra_suffixes]
    paths_by_suffix = {}
    for suffix in dict.fromkeys(suffixes):
        if suffix != "inter" and (config.load or {}).get(suffix) == []:
            continue
        stems = [name]
        if suffix == "inter" and config.presplit is not None:
            stems = [f"{name}.{part}" for part in config.presplit]
        paths_by_suffix[suffix] = [packed_or_not(folder / f"{stem}.{suffix}") for stem in stems]
        for path in paths_by_suffix[suffix]:
            if not path.exists():
                have = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
                raise ValueError(
                    f"{path} does not exist; {folder} holds "
                    f"{', '.join(n for n in have if n[0] != '.') or 'nothing'}"
                    f"{did_you_mean(path.name, have)}"
                )
    return paths_by_suffix


class Atomic(Source):
    """Files of one name in a folder."""

    name = "atomic"

    def matches(self, config: DataSection) -> bool:
        stems = [config.stem, *(f"{config.stem}.{part}" for part in config.presplit or [])]
        return any(packed_or_not(config.folder / f"{stem}.inter").exists() for stem in stems)

    def files(self, config: DataSection) -> list[Path]:
        return [path for paths in files(config).values() for path in paths]

    def read(self, config: DataSection) -> Raw:
        tables, parts, left_out = {}, None, {}
        for suffix, paths in files(config).items():
            tables[suffix], owner, bad = read_table(config, suffix, paths, ATOMIC)
            if suffix == "inter":
                left_out = {"data.bad_rows": bad} if bad else {}
                if config.presplit is not None:
                    parts = np.array(PARTS_OF[len(paths)])[owner]
        return Raw(tables.pop("inter"), tables, parts, left_out)


class AtomicText(CellText):
    """Text whose header has types."""

    name = "atomic"
    endings = (".inter", ".user", ".item")

    def header(self, path: Path, config: DataSection) -> CellHeader:
        types = read_header(first_line(path, config.encoding), config.separator, str(path))
        cells = CellFormat(config.separator, quote=None)
        return CellHeader(list(types), types, cells=cells)


ATOMIC = AtomicText()


def read_header(text: str, separator: str, where: str) -> dict[str, FieldType]:
    """name -> type, of the first line of a file."""
    header: dict[str, FieldType] = {}
    for cell in text.split(separator):
        name, colon, kind = cell.partition(":")
        if not colon or not name or kind not in _TYPES:
            problem = f"has no type: {cell!r}" if not colon else f"has the type {kind!r}: {cell!r}"
            raise ValueError(
                f"{where}, line 1: column {name or cell!r} {problem}; write name:type with a type "
                f"of {', '.join(_TYPES)}, columns separated by {separator!r} (data.separator)"
                f"{did_you_mean(kind, _TYPES)}"
            )
        if name in header:
            raise ValueError(
                f"{where}, line 1: column {name!r} appears twice; rename or remove one"
            )
        header[name] = cast(FieldType, kind)
    return header

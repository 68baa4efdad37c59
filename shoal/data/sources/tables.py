"""Tables as people have them: csv, Parquet, Arrow, JSON lines; any number of files for each.

Names and types of columns come from the files and the config: what is declared is checked, the rest
is guessed. What is wrong is told with the file and the line, or left out and counted
(data.bad_rows: skip).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shoal.config.schema import DataSection
from shoal.data.packed import plain_name
from shoal.data.raw import Raw, RawTable
from shoal.data.sources.files import find_files
from shoal.data.sources.source import Source
from shoal.data.sources.table import FORMATS, read_table

PARTS = ("train", "valid", "test")


def files(config: DataSection) -> dict[str, list[Path]]:
    """suffix -> the files of each table; interactions are `inter`, or train, valid and test."""
    wanted = config.files or beside(config)
    if not wanted:
        raise ValueError(
            f"data.format {config.format} needs data.files, as in "
            "data.files={inter: ratings.csv, item: books.parquet} (a click log is named by "
            "data.clicks.train)"
        )
    parts = [part for part in PARTS if part in wanted]
    if ("inter" in wanted) == bool(parts) or (parts and len(parts) < 3):
        raise ValueError(
            f"data.files names {', '.join(wanted)}; name inter, or all of train, valid and test, "
            "and besides user, item and others as there are"
        )
    return {
        suffix: find_files(pattern, config.path, f"data.files.{suffix}")
        for suffix, pattern in wanted.items()
        if (config.load or {}).get(suffix) != []
    }


def beside(config: DataSection) -> dict[str, str]:
    """Files named inter, user and item in the folder of the data set, whatever their format."""
    folder = config.folder
    found: dict[str, str] = {}
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            stem = plain_name(path).stem
            known = any(form.reads(path) for form in FORMATS.values())
            if known and stem in ("inter", *PARTS, "user", "item"):
                found.setdefault(stem, str(path.resolve()))
    return found if {"inter", "train"} & found.keys() else {}


class Tables(Source):
    """Tables that data.files names, or of the names inter, user and item in a folder."""

    name = "tables"

    def found(self, config: DataSection) -> bool:
        return bool(beside(config))

    def files(self, config: DataSection) -> list[Path]:
        return [path for paths in files(config).values() for path in paths]

    def read(self, config: DataSection) -> Raw:
        found = files(config)
        tables: dict[str, RawTable] = {}
        parts, bad = None, 0
        for suffix in [s for s in found if s not in PARTS]:
            tables[suffix], _, skipped = read_table(config, suffix, found[suffix])
            bad += skipped if suffix == "inter" else 0
        if "train" in found:
            every = [path for part in PARTS for path in found[part]]
            tables["inter"], owner, bad = read_table(config, "inter", every)
            parts = np.repeat(np.arange(3), [len(found[part]) for part in PARTS])[owner]
        left_out = {"data.bad_rows": bad} if bad else {}
        return Raw(tables.pop("inter"), tables, parts, left_out)

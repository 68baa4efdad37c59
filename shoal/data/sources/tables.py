"""Tables as people have them: csv, Parquet, Arrow, JSON lines; any number of files for each.

Names and types of columns come from the files and the config: what is declared is checked, the rest
is guessed. Errors name the file and the line, or bad rows are left out and counted
(data.bad_rows: skip).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from shoal.config.schema import DataSection
from shoal.data.compressed_text import plain_name
from shoal.data.raw_columns import Raw, RawTable
from shoal.data.sources.files import find_files
from shoal.data.sources.source import Source
from shoal.data.sources.table import FORMATS, read_table

PARTS = ("train", "valid", "test")


def files(config: DataSection) -> dict[str, list[Path]]:
    """suffix -> the files of each table; interactions are `inter`, or train, valid and test."""
    patterns = config.files or named_tables(config)
    if not patterns:
        raise ValueError(
            f"data.format {config.format} needs data.files, as in "
            "data.files={inter: ratings.csv, item: books.parquet} (a click log is named by "
            "data.clicks.train)"
        )
    parts = [part for part in PARTS if part in patterns]
    if ("inter" in patterns) == bool(parts) or (parts and len(parts) < 3):
        raise ValueError(
            f"data.files names {', '.join(patterns)}; name inter, or all of train, valid and test, "
            "and besides user, item and others as there are"
        )
    return {
        suffix: find_files(pattern, config.path, f"data.files.{suffix}")
        for suffix, pattern in patterns.items()
        if (config.load or {}).get(suffix) != []
    }


def named_tables(config: DataSection) -> dict[str, str]:
    """Files named inter, user and item in the folder of the data set, whatever their format."""
    folder = config.folder
    paths: dict[str, str] = {}
    if folder.is_dir():
        for path in sorted(folder.iterdir()):
            stem = plain_name(path).stem
            is_table = any(form.reads(path) for form in FORMATS.values())
            if is_table and stem in ("inter", *PARTS, "user", "item"):
                paths.setdefault(stem, str(path.resolve()))
    return paths if {"inter", "train"} & paths.keys() else {}


class Tables(Source):
    """Tables that data.files names, or of the names inter, user and item in a folder."""

    name = "tables"

    def matches(self, config: DataSection) -> bool:
        return bool(named_tables(config))

    def files(self, config: DataSection) -> list[Path]:
        return [path for paths in files(config).values() for path in paths]

    def read(self, config: DataSection) -> Raw:
        paths_by_suffix = files(config)
        tables: dict[str, RawTable] = {}
        parts, bad = None, 0
        for suffix in [s for s in paths_by_suffix if s not in PARTS]:
            tables[suffix], _, skipped = read_table(config, suffix, paths_by_suffix[suffix])
            bad += skipped if suffix == "inter" else 0
        if "train" in paths_by_suffix:
            split_paths = [path for part in PARTS for path in paths_by_suffix[part]]
            tables["inter"], owner, bad = read_table(config, "inter", split_paths)
            parts = np.repeat(np.arange(3), [len(paths_by_suffix[part]) for part in PARTS])[owner]
        left_out = {"data.bad_rows": bad} if bad else {}
        return Raw(tables.pop("inter"), tables, parts, left_out)

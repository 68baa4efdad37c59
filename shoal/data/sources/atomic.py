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
from shoal.data.dataset import FieldType
from shoal.data.packed import packed_or_not
from shoal.data.raw import Raw, RawTable, choose_columns
from shoal.data.sources.delimited import Layout, join, parse, read_bytes

_TYPES = list(get_args(FieldType))
PARTS_OF = {
    2: (0, 2),
    3: (0, 1, 2),
}  # phases of pre-split files, by their number: of two, none is valid


def files(config: DataSection) -> dict[str, list[Path]]:
    """suffix -> the files to read: one each, one a part for the interactions of pre-split data."""
    folder, name = config.folder, config.stem
    wanted = ["inter", *(config.load or {}), *(config.unload or {}), *config.extra_suffixes]
    found = {}
    for suffix in dict.fromkeys(wanted):
        if suffix != "inter" and (config.load or {}).get(suffix) == []:
            continue
        stems = [name]
        if suffix == "inter" and config.presplit is not None:
            stems = [f"{name}.{part}" for part in config.presplit]
        found[suffix] = [packed_or_not(folder / f"{stem}.{suffix}") for stem in stems]
        for path in found[suffix]:
            if not path.exists():
                have = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
                raise ValueError(
                    f"{path} does not exist; {folder} holds "
                    f"{', '.join(n for n in have if n[0] != '.') or 'nothing'}"
                    f"{did_you_mean(path.name, have)}"
                )
    return found


def read(config: DataSection) -> Raw:
    """All files that the config asks for."""
    tables = {}
    parts = None
    for suffix, paths in files(config).items():
        tables[suffix], rows = read_table(config, suffix, paths)
        if suffix == "inter" and config.presplit is not None:
            parts = np.repeat(PARTS_OF[len(rows)], rows)
    return Raw(tables.pop("inter"), tables, parts)


def read_table(config: DataSection, suffix: str, paths: list[Path]) -> tuple[RawTable, list[int]]:
    """One table of one or several files with the same columns, and the rows of each file."""
    kinds: dict[str, FieldType] = {}
    pieces = []
    rows = []
    for path in paths:
        where = str(path)
        data = read_bytes(path)
        first, _, body = data.partition(b"\n")
        header = read_header(first, config.separator, where)
        load = choose_columns(config, suffix, list(header), where)
        if not load:
            raise ValueError(f"data.load.{suffix} leaves no column of {where}; name some")
        ids = {"inter": [config.fields.user, config.fields.item]}.get(suffix, [])
        ids += {"user": [config.fields.user], "item": [config.fields.item]}.get(suffix, [])
        _check_ids(ids, header, load, suffix, where)
        required = set(ids)
        if suffix == "inter":  # a missing rating or time is an error, never an invented value
            required |= {name for name in load if header[name] == "float"}
        if kinds and {name: header[name] for name in load} != kinds:
            raise ValueError(
                f"{where}: its columns {list(header)} are not those of {paths[0]}; "
                "the parts of pre-split data must have the same header"
            )
        kinds = {name: header[name] for name in load}
        layout = Layout(
            header, load, config.separator, config.seq_separator, 2, frozenset(required)
        )
        piece = parse(body, layout, where)
        pieces.append(piece)
        counts = piece[load[0]]
        rows.append(len(counts.values if counts.offsets is None else counts.offsets[1:]))
    columns = {name: join([piece[name] for piece in pieces], kinds[name]) for name in kinds}
    return RawTable(" + ".join(map(str, paths)), kinds, columns), rows


def read_header(line: bytes, separator: str, where: str) -> dict[str, FieldType]:
    """name -> type, of the first line of a file."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}, line 1: no UTF-8; save the file as UTF-8") from error
    if not text.strip():
        raise ValueError(
            f"{where} is empty; its first line must name the columns, e.g. "
            "user_id:token, item_id:token, separated by data.separator"
        )
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


def _check_ids(
    ids: list[str], header: dict[str, FieldType], load: list[str], suffix: str, where: str
) -> None:
    for name in ids:
        if name not in header:
            raise ValueError(
                f"{where}, line 1: no column {name!r}; it has {', '.join(header)}; name the id "
                f"columns in data.fields.user and data.fields.item{did_you_mean(name, header)}"
            )
        if name not in load:
            raise ValueError(
                f"data.load leaves out {name!r} of {where}, which is needed; "
                f"add it to data.load.{suffix} or take it out of data.unload.{suffix}"
            )
        if header[name] != "token":
            raise ValueError(
                f"{where}, line 1: the id column {name!r} has type {header[name]}; "
                f"write {name}:token"
            )

"""Data that is given beside a config: a file or a folder in place of what the config names."""

from __future__ import annotations

import codecs
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from shoal.config import Resolved
from shoal.config.data_section import DataSection, FieldsSection
from shoal.config.errors import did_you_mean
from shoal.config.schema import CLICK_FORMATS
from shoal.data.clicks.formats import looks_like
from shoal.data.packed import open_text
from shoal.data.prepared.named import data_values, holds_log
from shoal.data.sources.roles import NAMES, need_roles, roles_of, shown
from shoal.data.sources.table import columns_of, format_of
from shoal.data.sources.text import TextFormat
from shoal.models import find

SHEETS = (".xlsx", ".xls", ".ods")
ENCODINGS = ("utf-8", "cp1252", "latin-1")  # the last reads any bytes
LOOK_BYTES = 1 << 28  # of a text, to find its encoding


def with_data(resolved: Resolved, path: str | Path) -> Resolved:
    """The same config for the data in a file or a folder; columns are found by their names."""
    place, config = Path(path), resolved.config
    check_there(place)
    clicks = find(config.model.name).kind == "clicks"
    log = holds_log(config.data)
    if clicks and place.is_file():
        with suppress(ValueError):
            log = log or looks_like(place) in CLICK_FORMATS
    values = data_values(place, config.data, clicks, log)
    resolved = resolved.with_values(values, f"data {path}")
    return with_columns(resolved, place) if values.get("data.files") else resolved


def check_there(path: Path) -> None:
    """Refuse a file of data that is not there, or that no format reads."""
    if not path.exists():
        beside = [one.name for one in path.parent.glob("*") if one.is_file()]
        hint = did_you_mean(path.name, beside)
        raise ValueError(f"there is no file or folder {path} to read data from{hint}")
    if path.suffix in SHEETS:
        raise ValueError(f"{path} is a spreadsheet: save it as csv there, and give {path.stem}.csv")


def encoding_of(path: Path) -> str:
    """The first of ENCODINGS that reads a text."""
    if not isinstance(format_of(path, DataSection()), TextFormat):
        return ENCODINGS[0]
    with open_text(path) as source:
        begins = source.read(2)
    if begins in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16"
    for encoding in ENCODINGS[:-1]:
        decoder = codecs.getincrementaldecoder(encoding)()
        with suppress(UnicodeDecodeError), open_text(path) as source:
            for _ in range(LOOK_BYTES >> 20):
                block = source.read(1 << 20)
                decoder.decode(block, final=not block)
                if not block:
                    break
            return encoding
    return ENCODINGS[-1]


def _with_encoding(resolved: Resolved, path: Path) -> Resolved:
    """The same with data.encoding as the text is, where the config does not say it."""
    if resolved.origins["data.encoding"] != "default":
        return resolved
    encoding = encoding_of(path)
    if encoding == resolved.config.data.encoding:
        return resolved
    resolved = resolved.with_values({"data.encoding": encoding}, f"the bytes of {path}")
    note = f"{path}: not UTF-8, read as {encoding}; change with --data.encoding=NAME"
    return replace(resolved, read_notes=[*resolved.read_notes, note])


def with_columns(resolved: Resolved, path: Path, known: tuple[str, ...] = ()) -> Resolved:
    """The same with data.encoding and data.fields of a table; known: columns found without."""
    resolved = _with_encoding(resolved, path)
    columns = columns_of(path, resolved.config.data)
    return guess_columns(resolved, columns, str(path), known=known)


def guess_columns(
    resolved: Resolved,
    columns: list[str],
    where: str,
    flag: str = "--{}=NAME",
    known: tuple[str, ...] = (),
) -> Resolved:
    """The same with data.fields by the names of columns, where the config does not say them.

    A note says what was guessed. where: whose columns they are; flag: how one says otherwise.
    """
    data, clicks = resolved.config.data, find(resolved.config.model.name).kind == "clicks"
    roles = {
        role: own
        for role in FieldsSection.model_fields
        if (own := getattr(data.fields, role)) in columns
        or resolved.origins[f"data.fields.{role}"] != "default"
    }
    guessed = {
        role: name
        for role, name in roles_of(columns, clicks and data.threshold is None).items()
        if role not in roles and name not in (*known, *roles.values())
    }
    roles |= guessed
    roles = {role: roles[role] for role in NAMES if role in roles}
    if not known:
        need_roles(where, columns, roles, flag)
    if not guessed:
        return resolved
    values = {f"data.fields.{role}": name for role, name in guessed.items()}
    resolved = resolved.with_values(values, f"the columns of {where}")
    note = f"{where}: by the names of its columns, {shown(roles, flag)}"
    return replace(resolved, read_notes=[*resolved.read_notes, note])

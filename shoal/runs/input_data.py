"""Data that is given beside a config: a file or a folder in place of what the config names."""

from __future__ import annotations

import codecs
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from shoal.clicks.formats import looks_like
from shoal.config import Resolved
from shoal.config.data_section import DataSection, FieldsSection
from shoal.config.errors import did_you_mean
from shoal.config.schema import CLICK_FORMATS, ModelSection
from shoal.config.yaml_io import inline
from shoal.data.bounded_files import open_text, plain_name
from shoal.data.loading.location import data_values, holds_log
from shoal.data.sources.files import find_files, is_remote
from shoal.data.sources.roles import NAMES, need_roles, roles_of, shown
from shoal.data.sources.tables import columns_of, format_of
from shoal.data.sources.text import TextFormat
from shoal.models import find

SHEETS = (".xlsx", ".xls", ".ods")
ENCODINGS = ("utf-8", "cp1252", "latin-1")  # the last reads any bytes
LOOK_BYTES = 1 << 28  # of a text, to find its encoding


OPTION = "--{}=NAME"  # of a command: how a person names a column
KEY = "`data.fields.{}: NAME`"  # the same, in a file of configs


def with_data(resolved: Resolved, path: str | Path, flag: str = OPTION) -> Resolved:
    """The config for the data in a file or a folder; columns are found by their names.

    path: also the URL of a file, of which a copy is read. flag: how messages name a column, OPTION
    or KEY.
    """
    url, config = (str(path) if is_remote(path) else None), resolved.config
    place = Path(path) if url is None else _copy_of(url)
    check_there(place)
    clicks = find(config.model.name).kind == "clicks"
    log = holds_log(config.data)
    if clicks and place.is_file():
        with suppress(ValueError):
            log = log or looks_like(place) in CLICK_FORMATS
    values = data_values(place, config.data, clicks, log, url)
    resolved = resolved.with_values(values, f"data {path}")
    return with_columns(resolved, place, flag=flag) if values.get("data.files") else resolved


def _copy_of(url: str) -> Path:
    """The copy of one remote file."""
    files = find_files(url, ".", "data")
    if len(files) != 1 or plain_name(files[0]).suffix == ".inter":
        name = plain_name(files[0]).stem if len(files) == 1 else "NAME"
        raise ValueError(
            f"{url} is no single table: name its folder with --data.path=URL --data.name={name}, "
            "or several files with --data.files.inter=URL"
        )
    return files[0]


def check_there(path: Path) -> None:
    """Refuse a file of data that is not there, or that no format reads."""
    if not path.exists():
        neighbours = [one.name for one in path.parent.glob("*") if one.is_file()]
        hint = did_you_mean(path.name, neighbours)
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
    """The config with data.encoding as the text is, where it does not say it."""
    if resolved.origins["data.encoding"] != "default":
        return resolved
    encoding = encoding_of(path)
    if encoding == resolved.config.data.encoding:
        return resolved
    resolved = resolved.with_values({"data.encoding": encoding}, f"the bytes of {path}")
    note = f"{path}: not UTF-8, read as {encoding}; change with --data.encoding=NAME"
    return replace(resolved, read_notes=[*resolved.read_notes, note])


def with_columns(
    resolved: Resolved, path: Path, known_columns: tuple[str, ...] = (), flag: str = OPTION
) -> Resolved:
    """The config with data.encoding and data.fields of a table.

    known_columns: those whose roles need no guess. flag: how messages name a column.
    """
    resolved = _with_encoding(resolved, path)
    columns = columns_of(path, resolved.config.data)
    return guess_columns(resolved, columns, str(path), flag, known_columns)


def guess_columns(
    resolved: Resolved,
    columns: list[str],
    where: str,
    flag: str = OPTION,
    known_columns: tuple[str, ...] = (),
) -> Resolved:
    """The config with data.fields by the names of columns, where it does not say them.

    A note reports what was guessed. where: the table, for messages; flag: the option that names
    a column. known_columns: those whose roles need no guess.
    """
    data, clicks = resolved.config.data, find(resolved.config.model.name).kind == "clicks"
    column_by_role = {role: getattr(data.fields, role) for role in FieldsSection.model_fields}
    named = {
        role for role in column_by_role if resolved.origins[f"data.fields.{role}"] != "default"
    }
    for role in ("user", "item"):
        column = column_by_role[role]
        if role in named and column not in columns:
            origin = resolved.origins[f"data.fields.{role}"]
            raise ValueError(
                f"{where} has no column {column!r} ({origin}); it has {', '.join(columns)}; "
                f"say which is the {role} with {flag.format(role)}"
                f"{did_you_mean(column, columns)}"
            )
    roles = {
        role: column
        for role, column in column_by_role.items()
        if column in columns or role in named
    }
    guessed = {
        role: name
        for role, name in roles_of(columns, clicks and data.threshold is None).items()
        if role not in roles and name not in (*known_columns, *roles.values())
    }
    roles |= guessed
    roles = {role: roles[role] for role in NAMES if role in roles}
    if not known_columns:
        need_roles(where, columns, roles, flag)
    notes = []
    if guessed:
        values = {f"data.fields.{role}": name for role, name in guessed.items()}
        resolved = resolved.with_values(values, f"the columns of {where}")
        by_name = {role: column for role, column in roles.items() if role not in named}
        notes.append(f"{where}: by the names of its columns, {shown(by_name, flag)}")
    if "rating" in roles and not clicks and _reads_no_ratings(resolved.config.data):
        notes.append(_unread_rating(resolved.config.model, roles["rating"]))
    return replace(resolved, read_notes=[*resolved.read_notes, *notes])


def _reads_no_ratings(data: DataSection) -> bool:
    return data.threshold is None and not data.filter.values and data.sample_weight is None


def _unread_rating(model: ModelSection, column: str) -> str:
    """A line about ratings that a model which ranks items does not look at."""
    title, column = model.title, inline(column)
    weights = ""
    if find(model.name).reads_weights:
        weights = f"; data.sample_weight={column} makes rows count by it"
    return (
        f"{title} does not read {column}: every row is something that the user took, also where "
        f"the rating is low or negative; --data.filter.values='{{{column}: \"[4,inf)\"}}' keeps "
        f"high ones alone{weights}"
    )

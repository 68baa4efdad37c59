"""The config that reads a public data set by its name, where its files are in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.config.data_section import DataSection
from shoal.data.bounded_files import open_text
from shoal.data.prepared import dataset as prepared
from shoal.data.sources import SOURCES
from shoal.data.sources.files import is_remote
from shoal.data.sources.published import PUBLIC_SETS, Form, find_file
from shoal.data.sources.tables import named_tables

HEADER_BYTES = 1 << 12
CLICKS = "clicks."


def published_values(data: DataSection) -> dict[str, Any]:
    """Keys and values that read the set that data.name names; none where it is another's data.

    Data that a config describes itself (data.files, data.format, data.clicks), prepared folders,
    atomic files and tables in the folder are read as they are.
    """
    name = data.name
    if name not in PUBLIC_SETS or is_remote(data.path) or _is_described(data):
        return {}
    is_other = SOURCES["atomic"].matches(data) or "inter" in named_tables(data)
    if is_other or prepared.find(data) is not None or not data.folder.is_dir():
        return {}
    is_begun = False
    for form in PUBLIC_SETS[name].forms:
        paths = {role: find_file(data.folder, file) for role, file in form.files.items()}
        if all(paths.values()) and _has_header(form, paths):
            return _values(form, {role: str(path) for role, path in paths.items()}, data.path)
        is_begun |= any(paths.values())
    if is_begun:
        raise ValueError(describe_absent(name, data.folder))
    return {}


def describe_absent(name: str, folder: Path) -> str:
    """What a person does who names a public set whose files are not in its folder."""
    chosen = PUBLIC_SETS[name]
    forms = [
        " and ".join(form.files.values()) + f" with the header {form.header}" * bool(form.header)
        for form in chosen.forms
    ]
    files = " or ".join(dict.fromkeys(forms))
    remedy = f"`shoal data fetch {name}` gets them" if chosen.downloads else chosen.by_hand
    return f"{folder} does not hold the files of {name} ({files}); {remedy}"


def _is_described(data: DataSection) -> bool:
    clicks = data.clicks
    is_log = any((clicks.train, clicks.valid, clicks.test))
    is_own = data.files is not None or data.presplit is not None
    return is_own or data.format != "auto" or is_log


def _has_header(form: Form, paths: Mapping[str, Path | None]) -> bool:
    """Whether the first line of the first file is that of this form."""
    if not form.header:
        return True
    path = next(iter(paths.values()))
    assert path is not None, "all files of the form are there"
    with open_text(path) as source:
        first = source.readline(HEADER_BYTES)
    return form.header.encode() in first


def _values(form: Form, paths: Mapping[str, str], root: str) -> dict[str, Any]:
    """The form's values, and its files below data.path."""
    values = dict(form.values)
    files = {role: str(Path(path).relative_to(root)) for role, path in paths.items()}
    tables = {role: path for role, path in files.items() if not role.startswith(CLICKS)}
    if tables:
        values["data.files"] = tables
    return values | {f"data.{role}": path for role, path in files.items() if role not in tables}

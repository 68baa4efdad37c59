"""Which raw files `shoal prepare` is given, and how each is read: by its name and first line."""

from __future__ import annotations

import glob
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from shoal.config.errors import did_you_mean
from shoal.config.schema import DataSection
from shoal.data.dataset import FieldType
from shoal.data.filters import SIDES
from shoal.data.packed import LONGEST_LINE, open_text, plain_name
from shoal.data.parquet_counts import check_counts
from shoal.data.prepared.inputs import Input
from shoal.data.raw import RawTable, choose_columns
from shoal.data.sources import atomic, tables
from shoal.data.sources.atomic import read_header
from shoal.data.sources.delimited import Layout
from shoal.data.sources.files import find_files
from shoal.data.sources.quotes import Cells
from shoal.data.sources.text import cells_of, first_line
from shoal.data.sources.typed import declared_types, guess_type

if TYPE_CHECKING:
    import polars as pl

MOVIELENS = {"u.data": "\t", "ratings.dat": "::"}
SUFFIXES = (".inter", ".csv", ".tsv", ".txt", ".parquet")
# Columns of published files, by what they are here.
ALIASES = {"book_id": "item", "userId": "user", "movieId": "item"}
SAMPLE_BYTES = 1 << 16


def expand(names: list[str]) -> list[Path]:
    """Files, the files of folders, and those that patterns stand for, sorted by name in each."""
    found: list[Path] = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            some = [p for p in sorted(path.iterdir()) if plain_name(p).suffix in SUFFIXES]
        elif path.exists():
            some = [path]
        else:
            some = [Path(one) for one in sorted(glob.glob(name))]
        if not some:
            raise ValueError(
                f"{name} is no file, no folder with {', '.join(SUFFIXES)} files and no pattern of "
                "files; name the raw files to prepare"
            )
        found += some
    if len(set(found)) < len(found):
        twice = next(path for path in found if found.count(path) > 1)
        raise ValueError(f"{twice} is named twice; its rows would count twice: name it once")
    return found


def side_files(config: DataSection) -> dict[str, list[Path]]:
    """Those that data.files names."""
    said = config.files or {}
    other = [suffix for suffix in said if suffix not in SIDES]
    if other:
        raise ValueError(
            f"data.files names {', '.join(other)}; `shoal prepare` takes user and item from there, "
            "and interactions as INPUT"
        )
    return {s: find_files(path, config.path, f"data.files.{s}") for s, path in said.items()}


def sort_out(paths: list[Path], config: DataSection) -> tuple[list[Path], dict[str, list[Path]]]:
    """Files of interactions, and side files by whose they are."""
    found: dict[str, list[Path]] = {}
    named = {path: suffix for suffix, some in side_files(config).items() for path in some}
    inter = []
    for path in paths:
        suffix = named.get(path) or plain_name(path).suffix.removeprefix(".")
        if suffix in SIDES:
            found.setdefault(suffix, []).append(path)
        else:
            inter.append(path)
    return inter, found


def read_sides(found: dict[str, list[Path]], config: DataSection) -> dict[str, RawTable]:
    """The tables of side files."""
    return {
        suffix: atomic.read_table(config, suffix, paths)[0]
        if plain_name(paths[0]).suffix == f".{suffix}"
        else tables.read_side(config, suffix, paths)
        for suffix, paths in found.items()
    }


def is_table(path: Path) -> bool:
    """Whether a file names its columns without their types: csv, Parquet."""
    plain = plain_name(path)
    return plain.name not in MOVIELENS and plain.suffix in SUFFIXES[1:]


def open_input(
    path: Path, config: DataSection, known: Mapping[str, FieldType] = MappingProxyType({})
) -> Input:
    """How a file is read, from its name and its first line; known: types that a folder has."""
    found = _open(path, config, known)
    found.ids = frozenset((config.fields.user, config.fields.item))
    found.skip = config.bad_rows == "skip"
    return found


def _open(path: Path, config: DataSection, known: Mapping[str, FieldType]) -> Input:
    name = plain_name(path).name
    if name in MOVIELENS:
        fields = config.fields
        types: dict[str, FieldType] = {fields.user: "token", fields.item: "token"}
        types |= {fields.rating: "float", fields.time: "float"}
        chosen = _chosen(config, list(types), str(path))
        layout = Layout(types, chosen, MOVIELENS[name], " ", 1, frozenset(types))
        return Input(path, {n: types[n] for n in chosen}, {n: n for n in chosen}, layout, False)
    if plain_name(path).suffix == ".inter":
        return _atomic(path, config)
    if path.suffix == ".parquet":
        import polars as pl

        check_counts(path)
        try:
            schema = pl.read_parquet_schema(path)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise ValueError(f"{path} is no Parquet file: {error}") from error
        return _named(path, list(schema), config, None, known, pl.DataFrame(schema=schema))
    head = first_line(path, config.encoding)
    cells = cells_of(head, config)
    names = cells.header(head, path)
    return _named(path, names, config, cells, known, _sample(path, names, cells, config.encoding))


def _atomic(path: Path, config: DataSection) -> Input:
    head = first_line(path)
    header = read_header(head.encode(), config.separator, str(path))
    chosen = _chosen(config, list(header), str(path))
    needed = {config.fields.user, config.fields.item}  # other tokens may be missing
    needed |= {name for name in chosen if header[name] == "float"}
    layout = Layout(header, chosen, config.separator, config.seq_separator, 2, frozenset(needed))
    return Input(path, {n: header[n] for n in chosen}, {n: n for n in chosen}, layout)


def _named(
    path: Path,
    names: list[str],
    config: DataSection,
    cells: Cells | None,
    known: Mapping[str, FieldType],
    sample: pl.DataFrame,
) -> Input:
    """A file whose first line, or schema, names columns without types; sample: its first rows."""
    fields = config.fields
    roles = {fields.user: "user", fields.item: "item", fields.rating: "rating", fields.time: "time"}
    columns: dict[str, str] = {}
    for own in names:
        role = roles.get(own) or ALIASES.get(own)
        field = getattr(fields, role) if role else own
        if field not in columns or own == field:
            columns[field] = own
    for role in ("user", "item"):
        wanted = getattr(fields, role)
        if wanted not in columns:
            raise ValueError(
                f"{path}: no column {wanted!r}; it has {', '.join(names)}; name the id columns "
                f"with --data.fields.user and --data.fields.item{did_you_mean(wanted, names)}"
            )
    said = (config.load or {}).get("inter") or (config.unload or {}).get("inter")
    declared, _ = declared_types(config, "inter")
    usual = [name for name in columns if name in declared]
    chosen = _chosen(config, list(columns), str(path)) if said else usual
    types = {
        name: declared.get(name) or known.get(name) or guess_type(name, sample[columns[name]])
        for name in chosen
    }
    layout = None
    if cells is not None:
        of_own = {columns[name]: kind for name, kind in types.items()}
        kinds: dict[str, FieldType] = {own: of_own.get(own, "token") for own in names}
        needed = {columns[name] for name, kind in types.items() if kind == "float"}
        needed |= {columns[fields.user], columns[fields.item]}
        load = [columns[name] for name in chosen]
        how = (cells.separator, config.seq_separator, 2, frozenset(needed))
        layout = Layout(kinds, load, *how)
    own_names = {name: columns[name] for name in chosen}
    return Input(path, types, own_names, layout, cells=cells, encoding=config.encoding)


def _sample(path: Path, names: list[str], cells: Cells, encoding: str) -> pl.DataFrame:
    """The first rows of text, to guess the types of columns that nobody declared."""
    import polars as pl

    with open_text(path) as source:
        source.readline(LONGEST_LINE)
        lines = source.read(SAMPLE_BYTES).decode(encoding, errors="replace").splitlines()
    text = "\n".join(lines[: -1 if len(lines) > 1 else None])
    rows = [row for _, row in cells.rows(text.encode(), len(names)) if isinstance(row, list)]
    whole = [row for row in rows if len(row) == len(names)]
    return pl.DataFrame(whole, dict.fromkeys(names, pl.String), orient="row")


def _chosen(config: DataSection, available: list[str], where: str) -> list[str]:
    """The columns to load; those of users and items must be among them."""
    chosen = choose_columns(config, "inter", available, where)
    for needed in (config.fields.user, config.fields.item):
        if needed not in chosen:
            raise ValueError(
                f"{where}: no column {needed!r} among {', '.join(chosen)}; name the id columns in "
                "data.fields.user and data.fields.item, and load them"
            )
    return chosen

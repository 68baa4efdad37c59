"""A prepared folder as a data set: columns on disk, shared by all processes of a host.

    manifest.json     what is here: fields, counts, checksums, options, inputs, the command
    column-N.bin      a field of the interactions in the order of the files, ids in 32 bits; of
                      lists also where each ends (column-N-ends.bin)
    side-*.bin        what is known of users and items, by id (sides.py)
    words-N.bin       the words of an id field, and where each ends (ends-N.bin)
    views/KEY/        rows by split, and items by user (views.py)

Only numpy is needed to read it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np

from shoal.config.schema import PREPARED, DataSection, SplitSection
from shoal.config.yaml_io import inline
from shoal.data.column_store import (
    DamagedFolder,
    all_stored,
    check_arrays,
    map_array,
    read_document,
)
from shoal.data.dataset import Dataset
from shoal.data.manifest import Manifest, check_columns, parts_of, words_of
from shoal.data.prepared import views
from shoal.data.prepared.engine import LocalEngine
from shoal.data.sources.files import places_of
from shoal.data.split import SPLITS, decide_split

logger = logging.getLogger(__name__)

VERSION = 2
MANIFEST = PREPARED
# What preparation decides: a run has it as the folder was made, or refuses to start.
DECIDED = ("fields", "filter", "threshold", "load", "unload", "cells")
COMMAND = "shoal prepare INPUT... --to DIR"


def find(config: DataSection) -> Path | None:
    """The prepared folder that a config names: data.path/data.name, or data.path itself."""
    for folder in (config.folder, Path(config.path)):
        if (folder / MANIFEST).is_file():
            return folder
    return None


def find_log(pattern: str | None, root: str) -> Path | None:
    """The prepared folder that data.clicks.train (or valid, test) names; None: it names files."""
    places = [] if pattern is None else places_of(pattern, root)
    return next((folder for folder in places if (folder / MANIFEST).is_file()), None)


def open_prepared(config: DataSection, seed: int) -> Dataset:
    """The data set of a prepared folder, split as data.split says."""
    folder = find(config)
    if folder is None:
        raise ValueError(
            f"no prepared folder: neither {config.folder} nor {config.path} has a "
            f"{MANIFEST}; make one with `shoal prepare INPUT... --to DIR` and set data.path=DIR"
        )
    with manifest_of(folder) as document:
        if "layout" in document:
            raise ValueError(
                f"{folder} holds a click log, not interactions; read it with a click model and "
                f"data.clicks.train={folder}"
            )
        _check_options(folder, document["options"], config)
        _check_bytes(folder, document)
        return _open(folder, document, config, seed)


@contextmanager
def manifest_of(folder: Path) -> Iterator[dict[str, Any]]:
    """What a prepared folder says of itself; where that is wrong, one error says so."""
    try:
        yield read_document(folder / MANIFEST, VERSION)
    except (DamagedFolder, LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{folder} is damaged: {error}; prepare it again, into another folder: {COMMAND}"
        ) from error


def _check_options(folder: Path, folder_options: Mapping[str, Any], config: DataSection) -> None:
    """Refuse a config that asks for what the folder was not made with; defaults ask for nothing."""
    config_options, unsaid = config.model_dump(), DataSection().model_dump()
    for key in DECIDED:
        nested = isinstance(unsaid[key], dict)
        chosen, default, was = (
            options[key] if nested else {"": options.get(key)}
            for options in (config_options, unsaid, folder_options)
        )
        for name, value in chosen.items():
            if value not in (default[name], was.get(name)):
                raise ValueError(
                    f"data.{f'{key}.{name}'.rstrip('.')} is {inline(value)}, and {folder} was "
                    f"prepared with {inline(was.get(name))}: leave it out, or prepare another"
                )
    refuse_absent(config)


def refuse_absent(config: DataSection) -> None:
    """Refuse options that no prepared folder has."""
    options, unsaid = config.model_dump(), DataSection().model_dump()
    for key in ("normalize", "presplit", "extra_suffixes"):
        if options[key] != unsaid[key]:
            raise ValueError(
                f"data.{key} is {inline(options[key])}, which a prepared folder does not have: "
                "leave it out, or train from the files themselves"
            )


def _check_bytes(folder: Path, document: dict[str, Any]) -> None:
    """Compare files with their checksums, and ids with the words they number."""
    if not check_arrays(folder, all_stored(document)):
        logger.info(
            "%s is large: its checksums are not compared at every start; "
            "`shoal prepare --check --to %s` does",
            folder,
            folder,
        )
        return
    check_columns(folder, Manifest.from_document(document))


def view_of(
    folder: Path,
    document: dict[str, Any],
    split: SplitSection,
    seed: int,
    memory: int = 1 << 31,
    engine: LocalEngine | None = None,
    final_folder: Path | None = None,
) -> views.View:
    """The rows of a folder split, in parts of so much memory where that was not done before.

    final_folder: where a folder that is still being written will be, for the log.
    """
    manifest = Manifest.from_document(document)
    fields, columns = manifest.fields, manifest.columns
    split = decide_split(split, fields["time"] in columns)
    place = folder / "views" / views.view_key(document["interactions"], split, seed)
    rows = manifest.rows
    sizes = (len(manifest.words[fields["user"]]), len(manifest.words[fields["item"]]))
    view = views.open_view(place, rows, sizes)
    if view is None:
        title = final_folder or folder
        logger.info("%s is split for the first time as data.split says; it is kept", title)
        names = {side: fields[side] for side in ("user", "item", "time")}
        if split.order == "file" or fields["time"] not in columns:
            del names["time"]
        arrays = {side: map_array(folder, columns[name].values) for side, name in names.items()}
        views.make_view(place, arrays, sizes, split, seed, memory, engine or LocalEngine())
        view = views.open_view(place, rows, sizes)
        if view is None:
            raise DamagedFolder(f"{place} is not what was written there")
    return view


def _open(folder: Path, document: dict[str, Any], config: DataSection, seed: int) -> Dataset:
    try:
        view = view_of(folder, document, config.split, seed)
    except OSError as error:
        raise ValueError(
            f"{folder} cannot be written ({error.strerror}), and the split of a prepared folder is "
            "kept there; make room, or let `shoal prepare` make it, with the same data.split and "
            "run.seed"
        ) from error
    manifest = Manifest.from_document(document)
    return Dataset(
        name=document["name"],
        pairs=view.pairs,
        vocab=cast(dict[str, np.ndarray], words_of(folder, manifest)),
        splits={split: view.arrays[f"rows-{split}"] for split in SPLITS},
        digests={"interactions": document["interactions"], "splits": view.splits},
        kept=view.arrays,
        **parts_of(folder, manifest, config),
    )

"""The cache of preparation: a folder of columns next to the raw files.

Its name is a hash of the files and of the options that decide what is stored.

A folder is written under a temporary name and committed by rename, so it is there in full or not at
all; every file is checked against the manifest on load, the manifest against its own SHA-256, and
ids against the vocabularies that they number.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.config.schema import DataSection
from shoal.data.column_store import (
    DamagedFolder,
    Stored,
    all_stored,
    check_arrays,
    filled_folder,
    map_array,
    read_document,
    write_document,
)
from shoal.data.columns import Manifest
from shoal.data.manifest import check_columns, check_range
from shoal.data.pairs import SPLITS
from shoal.files.folders import inner_folder, remove_folder

logger = logging.getLogger(__name__)

VERSION = 8  # of the format and of preparation: raise it when either changes what is stored
MANIFEST = "manifest.json"


def cache_folder(files: list[Path], config: DataSection, seed: int) -> Path:
    """Where the data set prepared from these files is kept."""
    options = config.model_dump(
        exclude={"path", "synthetic", "random", "max_len", "cache", "format"}
    )
    split = config.split
    if config.presplit is None and split.order in ("random", "auto") and split.seed is None:
        options["seed"] = seed
    states = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    text = json.dumps([VERSION, states, options], sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    return files[0].parent / ".shoal" / f"{config.title}-{key}"


def read_cache(folder: Path) -> Manifest | None:
    """The manifest of a cache folder; None (and a warning) when it is damaged."""
    if not folder.is_dir():
        return None
    try:
        return check_cache(folder)
    except DamagedFolder as damage:
        logger.warning("cache %s is damaged (%s); preparing the data again", folder, damage)
        return None


def check_cache(folder: Path) -> Manifest:
    """The manifest of a folder that is as it was written; else DamagedFolder."""
    try:
        manifest = read_document(folder / MANIFEST, VERSION)
        check_arrays(folder, all_stored(manifest), whole=True)
        check_columns(folder, manifest)
        if set(manifest["splits"]) != set(SPLITS):
            raise DamagedFolder(f"the splits are {', '.join(manifest['splits'])}")
        for split, entry in manifest["splits"].items():
            rows = map_array(folder, Stored.from_entry(entry))
            check_range(f"rows of {split}", rows, 0, manifest["rows"])
        return manifest
    except DamagedFolder:
        raise
    except Exception as error:  # whatever an author can write into it
        raise DamagedFolder(f"{type(error).__name__}: {error}") from error


def write_cache(folder: Path, write: Callable[[Path], dict[str, Any]]) -> Manifest | None:
    """Have `write` fill a folder and return its manifest; None where no cache can be kept."""
    try:
        inner_folder(folder.parent.parent, folder.parent.name)
        for leftover in folder.parent.glob(".*.tmp"):  # left by writers that were killed
            with suppress(OSError):
                if time.time() - leftover.stat().st_mtime > 24 * 3600:
                    remove_folder(folder.parent.parent, folder.parent.name, leftover.name)
        with filled_folder(folder, lambda: read_cache(folder) is not None) as work:
            write_document(work / MANIFEST, {"version": VERSION, **write(work)})
        return check_cache(folder)
    except (OSError, DamagedFolder) as error:
        logger.info("no cache in %s (%s); the data is prepared on every run", folder.parent, error)
        return None

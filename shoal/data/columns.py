"""A prepared Dataset on disk: one .npy per column, memory-mapped, and a JSON manifest.

It serves as the cache of preparation. A folder is written under a temporary name and committed by
rename, so it is there in full or not at all; every file is checked against the manifest on load,
the manifest against its own SHA-256, and ids against the vocabularies that they number.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from shoal.config.schema import DataSection
from shoal.data.dataset import Column, Columns, Dataset, Ragged
from shoal.data.pairs import Pairs, counts_of
from shoal.world.durable import is_plain_name, open_regular

logger = logging.getLogger(__name__)

VERSION = 5  # of the format and of preparation: raise it when either changes what is stored
MANIFEST = "manifest.json"


class DamagedColumns(ValueError):
    """A stored data set that is not as it was written."""


def cache_folder(files: list[Path], config: DataSection, seed: int) -> Path:
    """Where the data set prepared from these files is kept: beside them, under a hash of it all."""
    options = config.model_dump(exclude={"path", "planted", "random", "max_len", "cache", "format"})
    if config.presplit is None and config.split.order == "random":
        options["seed"] = seed
    states = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    # Not sort_keys: the order of data.filter.values decides which error is given, nothing else.
    text = json.dumps([VERSION, states, options], sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    return files[0].parent / ".shoal" / f"{config.title}-{key}"


def load(folder: Path) -> Dataset | None:
    """The data set stored in a cache folder; None (and a warning) when it is damaged."""
    if not folder.is_dir():
        return None
    try:
        return open_columns(folder)
    except DamagedColumns as damage:
        logger.warning("cache %s is damaged (%s); preparing the data again", folder, damage)
        return None


def keep(folder: Path, dataset: Dataset) -> Dataset:
    """Store in a cache folder and return it memory-mapped; where that fails, as it was given."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        save_columns(folder, dataset)
        return open_columns(folder)
    except (OSError, DamagedColumns) as error:
        logger.info("no cache in %s (%s); the data is prepared on every run", folder.parent, error)
        return dataset


def save_columns(folder: Path, dataset: Dataset) -> None:
    """Write a data set; of several writers at once the first to finish wins."""
    for left in folder.parent.glob("*.tmp"):  # of writers that were killed
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > 24 * 3600:
                shutil.rmtree(left)
    temporary = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".tmp", dir=folder.parent))
    try:
        _write(temporary, dataset)
        try:
            temporary.rename(folder)
        except OSError:
            try:
                open_columns(folder)  # another process was first
            except DamagedColumns:
                aside = temporary.with_suffix(".damaged.tmp")
                folder.rename(aside)
                temporary.rename(folder)
                shutil.rmtree(aside, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def open_columns(folder: Path) -> Dataset:
    """Read a stored data set; columns are memory-mapped and read-only."""
    try:
        with open_regular(folder / MANIFEST, links=False) as file:
            stored = json.loads(file.read())
        body = stored["body"]
        if stored["sha256"] != _checksum(_json(body)):
            raise DamagedColumns(f"{MANIFEST} does not match its checksum")
        if body["version"] != VERSION:
            raise DamagedColumns(f"{MANIFEST} has version {body['version']}, not {VERSION}")
        arrays = {name: _read_array(folder, name, entry) for name, entry in body["arrays"].items()}
        dataset = _assemble(body, arrays)
        _check_complete(dataset)
    except DamagedColumns:
        raise
    except Exception as error:  # whatever numpy raises about a header: it is prepared again
        raise DamagedColumns(f"{type(error).__name__}: {error}") from error
    return dataset


def _assemble(body: dict[str, Any], arrays: dict[str, np.ndarray]) -> Dataset:
    def table(entries: dict[str, Any]) -> Columns:
        return {
            name: arrays[e] if isinstance(e, str) else Ragged(arrays[e[0]], arrays[e[1]])
            for name, e in entries.items()
        }

    words = [_unpack_words(arrays[blob], arrays[ends]) for blob, ends in body["words"]]
    return Dataset(
        **body["names"],
        types=body["types"],
        inter=table(body["inter"]),
        users=table(body["users"]),
        items=table(body["items"]),
        extra={suffix: table(entries) for suffix, entries in body["extra"].items()},
        vocab={field: words[place] for field, place in body["vocab"].items()},
        splits={phase: arrays[name] for phase, name in body["splits"].items()},
        missing=body["missing"],
        left_out=counts_of(body["left_out"]),
        pairs=Pairs.of(body["pairs"]),
    )


def _check_complete(dataset: Dataset) -> None:
    """Refuse columns that do not belong together: ids without a word, lists that end elsewhere."""
    rows = dataset.num_inter
    sizes = {"inter": rows, "users": dataset.num_users, "items": dataset.num_items}
    for part in ("inter", "users", "items"):
        for name, column in getattr(dataset, part).items():
            if len(column) != sizes[part]:
                raise DamagedColumns(f"{part} {name} has {len(column)} rows, not {sizes[part]}")
    for columns in (dataset.inter, dataset.users, dataset.items, *dataset.extra.values()):
        for name, column in columns.items():
            _check_column(name, column, dataset)
    if set(dataset.splits) != {"train", "valid", "test"}:
        raise DamagedColumns(f"the phases are {', '.join(dataset.splits)}")
    for phase, chosen in dataset.splits.items():
        _check_range(f"rows of {phase}", chosen, rows)


def _check_column(name: str, column: Column, dataset: Dataset) -> None:
    values = column
    if isinstance(column, Ragged):
        values, offsets = column.values, column.offsets
        whole = len(offsets) > 0 and offsets[0] == 0 and offsets[-1] == len(values)
        if not whole or (np.diff(offsets) < 0).any():
            raise DamagedColumns(f"the lists of {name} do not lie within its values")
    if name in dataset.vocab:
        _check_range(f"ids of {name}", values, len(dataset.vocab[name]))  # type: ignore[arg-type]


def _check_range(what: str, values: np.ndarray, stop: int) -> None:
    if values.dtype != np.int64 or values.ndim != 1:
        raise DamagedColumns(f"{what} are {values.dtype} {values.shape}, not int64")
    if len(values) and not (values.min() >= 0 and values.max() < stop):
        raise DamagedColumns(f"{what} are not all below {stop}")


def _write(folder: Path, dataset: Dataset) -> None:
    arrays: dict[str, dict[str, Any]] = {}

    def put(array: np.ndarray) -> str:
        name = f"{len(arrays)}.npy"  # numbered: field names may hold any character
        array = np.ascontiguousarray(array)
        np.save(folder / name, array, allow_pickle=False)
        arrays[name] = {
            "dtype": array.dtype.str,
            "shape": list(array.shape),
            "sha256": _checksum(array),
        }
        return name

    def table(columns: Columns) -> dict[str, Any]:
        return {
            name: [put(c.values), put(c.offsets)] if isinstance(c, Ragged) else put(c)
            for name, c in columns.items()
        }

    # Fields may share one vocabulary: it is stored once, and shared again when loaded.
    distinct = {id(words): words for words in dataset.vocab.values()}
    place = {key: i for i, key in enumerate(distinct)}
    names = ("name", "user_field", "item_field", "time_field", "label_field")
    body = {
        "version": VERSION,
        "names": {name: getattr(dataset, name) for name in names},
        "types": dataset.types,
        "inter": table(dataset.inter),
        "users": table(dataset.users),
        "items": table(dataset.items),
        "extra": {suffix: table(columns) for suffix, columns in dataset.extra.items()},
        "words": [[put(a) for a in _pack_words(words)] for words in distinct.values()],
        "vocab": {field: place[id(words)] for field, words in dataset.vocab.items()},
        "splits": {phase: put(rows) for phase, rows in dataset.splits.items()},
        "missing": dataset.missing,
        "left_out": dataset.left_out,
        "pairs": asdict(dataset.counted()),
        "arrays": arrays,
    }
    text = json.dumps({"sha256": _checksum(_json(body)), "body": body}, ensure_ascii=False)
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def _read_array(folder: Path, name: str, entry: dict[str, Any]) -> np.ndarray:
    if not is_plain_name(name):
        raise DamagedColumns(f"{name!r} is no plain name")
    open_regular(folder / name, links=False).close()
    array = np.load(folder / name, mmap_mode="r", allow_pickle=False)
    if array.dtype.str != entry["dtype"] or list(array.shape) != entry["shape"]:
        raise DamagedColumns(f"{name} is {array.dtype.str} {array.shape}, not as written")
    if _checksum(array) != entry["sha256"]:
        raise DamagedColumns(f"{name} does not match its checksum")
    return array


def _pack_words(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Words as UTF-8, one after the other, and where each ends (in bytes)."""
    encoded = [word.encode() for word in words.tolist()]
    ends = np.cumsum([len(word) for word in encoded], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), dtype=np.uint8), ends


def _unpack_words(blob: np.ndarray, ends: np.ndarray) -> np.ndarray:
    _check_range("ends of words", ends, len(blob) + 1)
    words = np.empty(len(ends), dtype=object)
    stops = ends.tolist()
    starts = [0, *stops[:-1]]
    data = blob.tobytes()
    if data.isascii():  # bytes and characters coincide: decode once
        text = data.decode()
        words[:] = [text[a:b] for a, b in zip(starts, stops)]
    else:
        words[:] = [data[a:b].decode() for a, b in zip(starts, stops)]
    return words


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True).encode()


def _checksum(data: bytes | np.ndarray) -> str:
    return hashlib.sha256(data if isinstance(data, bytes) else data.data).hexdigest()

"""Views: how a prepared folder's rows are split, and each user's items in order.

    views/KEY/  rows-SPLIT    row numbers of a split, ascending
                user-SPLIT    ids of these rows, so that they are not gathered again
                item-SPLIT
                history-N     items of the first N splits by user, in order of time (or of the file)
                offsets-N     where each user's items begin [users + 1]
                seen          training pairs, user * items + item, ascending; what is no negative
                seen-starts   where each user's pairs begin [users + 1]

A view is a pure function of the columns and of data.split (and of the seed where the order is
random). It is made once, in a hidden folder that is renamed when it is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.config.schema import SplitSection
from shoal.data.column_store import (
    Appender,
    Stored,
    all_stored,
    check_arrays,
    chunks,
    count_ids,
    filled_folder,
    map_array,
    read_document,
    sync,
    write_array,
    write_document,
)
from shoal.data.dataset import Pairs, count_pairs
from shoal.data.prepared.engine import LocalEngine
from shoal.data.sampler import distinct
from shoal.data.split import SPLITS, split_of_rows, splits_in_order
from shoal.data.user_ranges import by_user

VERSION = 1
DOCUMENT = "view.json"
OF_SPLIT = {"rows": "<i8", "user": "<i4", "item": "<i4"}
STARTS = {"seen-starts": "seen", **{f"offsets-{n}": f"history-{n}" for n in (1, 2, 3)}}
TYPES = {
    **{f"{name}-{split}": dtype for name, dtype in OF_SPLIT.items() for split in SPLITS},
    **{f"history-{n}": "<i4" for n in (1, 2, 3)},
    **dict.fromkeys((*STARTS, "seen"), "<i8"),
}


def view_key(digest: str, section: SplitSection, seed: int) -> str:
    """The name of a view's folder."""
    # Without a seed that is null, as it was named before a split could have one of its own.
    options = section.model_dump(exclude_none=True, exclude={"targets", "pause"})  # of sessions
    identity: list[Any] = [VERSION, digest, options]
    if section.order == "random" and section.seed is None:
        identity.append(seed)
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


class View(NamedTuple):
    """The mapped arrays of a view, the digest of its splits, and what is in several of them."""

    arrays: dict[str, np.ndarray]
    splits: str
    pairs: Pairs


def open_view(folder: Path, rows: int, sizes: tuple[int, int]) -> View | None:
    """A view; None where there is none, or none that is whole.

    rows, sizes: numbers of rows, and of user ids and item ids.
    """
    with suppress(ValueError, LookupError, TypeError, AttributeError):
        body = read_document(folder / DOCUMENT, VERSION)
        stored = {name: Stored.from_entry(entry) for name, entry in body["arrays"].items()}
        compared = check_arrays(folder, list(stored.values()))
        arrays = {name: map_array(folder, one) for name, one in stored.items()}
        if _belongs(arrays, rows, sizes, compared):
            return View(arrays, str(body["splits"]), Pairs.from_entry(body["pairs"]))
    return None


def _belongs(arrays: dict[str, np.ndarray], rows: int, sizes: tuple[int, int], whole: bool) -> bool:
    """Whether arrays can be of such columns: a checksum is right wherever its author wanted it.

    Places in other arrays are followed as they are, so they are looked at always; the many ids only
    where all bytes were (`whole`).
    """
    below = {"rows": rows, "user": sizes[0], "item": sizes[1], "history": sizes[1]}
    for name, dtype in TYPES.items():
        array = arrays[name]
        limit = below.get(name.partition("-")[0])
        if array.dtype != np.dtype(dtype):
            return False
        if whole and limit and len(array) and not (array.min() >= 0 and array.max() < limit):
            return False
    for name, values in STARTS.items():
        starts = arrays[name]
        if len(starts) != sizes[0] + 1 or starts[0] != 0 or starts[-1] != len(arrays[values]):
            return False
        if (np.diff(starts) < 0).any():
            return False
    return all(
        len(arrays[f"rows-{split}"]) == len(arrays[f"{name}-{split}"])
        for split in SPLITS
        for name in ("user", "item")
    )


def make_view(
    folder: Path,
    columns: dict[str, np.ndarray],
    sizes: tuple[int, int],
    section: SplitSection,
    seed: int,
    memory: int,
    engine: LocalEngine,
) -> None:
    """Split the rows of mapped `columns`: user, item and, where there is one, time.

    sizes: numbers of user ids and of item ids.
    """
    rows = len(columns["user"])
    with filled_folder(folder, lambda: open_view(folder, rows, sizes) is not None) as work:
        body = _write(work, columns, sizes, section, seed, memory, engine)
        sync(work, all_stored(body))
        write_document(work / DOCUMENT, {"version": VERSION, **body})


def _write(
    work: Path,
    columns: dict[str, np.ndarray],
    sizes: tuple[int, int],
    section: SplitSection,
    seed: int,
    memory: int,
    engine: LocalEngine,
) -> dict[str, Any]:
    """Write the arrays of a view into `work`; the body of its document."""
    num_users, num_items = sizes
    users = columns["user"]
    counts = count_ids(users, num_users)
    splits = _reserve(work / "splits", len(users))
    # Whether the rows of each user are split by themselves, so that ranges of users are enough.
    by_user_alone = section.group_by == "user" and section.order != "random" and section.at is None
    if (section.order == "time" and "time" not in columns) or not by_user_alone:
        # At random, or over all users at once: the order of all rows is in memory.
        splits[:] = split_of_rows(section, seed, users, columns.get("time"))
    # One pass over ranges of users: the split of each row, histories, and training pairs.
    histories = [Appender(work, Stored(f"history-{n}", "<i4")) for n in (1, 2, 3)]
    lengths = [np.zeros(num_users, dtype=np.int64) for _ in histories]
    seen = Appender(work, Stored("seen", "<i8"))
    seen_counts = np.zeros(num_users, dtype=np.int64)
    ranges = (
        (span, part if by_user_alone else {**part, "split": splits[part["row"]]}, counts[span])
        for span, part in by_user(columns, "user", counts, memory // engine.width, work)
    )
    pairs = Pairs()
    sort = partial(_in_order, section=section)
    for (span, _, _), (row, split, owner, item) in engine.map(sort, ranges):
        splits[row] = split
        for n, (history, length) in enumerate(zip(histories, lengths)):
            history.write(item[split <= n])
            local_users = owner[split <= n] - span.start
            length[span] = np.bincount(local_users, minlength=span.stop - span.start)
        pairs += count_pairs(owner, item, split, num_items)
        trained = distinct(owner[split == 0].astype(np.int64) * num_items + item[split == 0])
        seen.write(trained)
        seen_counts += np.bincount(trained // num_items, minlength=num_users)
    # Where the pairs and the history of each user begin.
    arrays = {}
    seen.close()
    starts = np.concatenate([[0], np.cumsum(seen_counts)])
    arrays["seen"] = seen.stored
    arrays["seen-starts"] = write_array(work, "seen-starts", starts, "<i8")
    for n, (history, length) in enumerate(zip(histories, lengths), start=1):
        history.close()
        arrays[f"history-{n}"] = history.stored
        offsets = np.concatenate([[0], np.cumsum(length)])
        arrays[f"offsets-{n}"] = write_array(work, f"offsets-{n}", offsets, "<i8")
    arrays |= _write_splits(work, columns, splits)
    del splits
    (work / "splits").unlink()
    return {
        "arrays": {name: stored.entry() for name, stored in arrays.items()},
        "splits": _digest_of_splits(work, arrays),
        "pairs": asdict(pairs),
    }


def _digest_of_splits(work: Path, arrays: dict[str, Stored]) -> str:
    """SHA-256 of the rows of all splits: their numbers, and how many there are."""
    digest = hashlib.sha256()
    for split in SPLITS:
        stored = arrays[f"rows-{split}"]
        digest.update(np.int64(len(stored)).tobytes())
        rows = map_array(work, stored)
        for part in chunks(len(rows)):
            digest.update(rows[part].data)
    return digest.hexdigest()


def _in_order(
    task: tuple[slice, dict[str, np.ndarray], np.ndarray], section: SplitSection
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows of some users in order of user and time: their numbers, splits, users and items.

    task: which users, their rows, and how many each has. Phases are those of the rows, or split.
    """
    _, part, counts = task
    order = np.lexsort([part["time"], part["user"]] if "time" in part else [part["user"]])
    split = part["split"][order] if "split" in part else splits_in_order(section, counts)
    return part["row"][order], split, part["user"][order], part["item"][order]


def _reserve(path: Path, size: int) -> np.ndarray:
    """A byte per row, in a file that is there in full: a disk that fills up says so here."""
    with open(path, "wb") as file:
        if size:
            os.posix_fallocate(file.fileno(), 0, size)
    return np.memmap(path, np.uint8, mode="r+", shape=(size,)) if size else np.empty(0, np.uint8)


def _write_splits(
    work: Path, columns: dict[str, np.ndarray], splits: np.ndarray
) -> dict[str, Stored]:
    writers = {
        (name, split): Appender(work, Stored(f"{name}-{split}", dtype))
        for split in SPLITS
        for name, dtype in OF_SPLIT.items()
    }
    for part in chunks(len(splits)):
        users, items = columns["user"][part], columns["item"][part]
        for number, split in enumerate(SPLITS):
            rows = np.flatnonzero(splits[part] == number)
            writers["rows", split].write(rows + part.start)
            writers["user", split].write(users[rows])
            writers["item", split].write(items[rows])
    for writer in writers.values():
        writer.close()
    return {writer.stored.file: writer.stored for writer in writers.values()}

"""Multi-hot Criteo, as MLPerf's DLRM-DCNv2 reads it: three files of arrays for each day.

    day_0_sparse_multi_hot.npz   arrays "0" to "25", int32 [n, bag size]: ids from 0 in each slot
    day_0_dense.npy              float32 [n, 13], logarithms already
    day_0_labels.npy             [n] or [n, 1]: 0 or 1

The arrays stay in their files and are mapped; a batch copies its own rows alone. Nothing is
unpickled. Row 0 of a table belongs to no id, so id i of slot s becomes 1 + start of s + i.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from shoal.clicks.formats import ClickFormat, checked, numbered
from shoal.clicks.layout import Layout
from shoal.clicks.lines import BadLine, Block, Rows
from shoal.clicks.samples import Samples, join
from shoal.config.schema import ClicksSection
from shoal.data.batch import Batch

ENDING = "_sparse_multi_hot.npz"
ANY_ID = 1 << 32  # room of a slot in a table that grows
BLOCK_ROWS = 1 << 16


class MultiHot(ClickFormat):
    """Multi-hot Criteo; the sizes of bags are those of the arrays."""

    name = "multi_hot"
    is_log = True

    def layout(self, section: ClicksSection) -> Layout:
        slots = numbered("C", 26 if section.slots is None else section.slots)
        dense = numbered("I", 13 if section.dense is None else section.dense)
        label, rows = section.label or "label", section.rows
        if rows is None:
            return checked(Layout(slots, dense, label, slot_rows=(ANY_ID,) * len(slots)))
        if not isinstance(rows, list) or len(rows) != len(slots):
            raise ValueError(
                f"data.clicks.rows is {rows}; {self.name} files have ids of their own in each of "
                f"{len(slots)} slots: give a list of as many numbers, or leave it out (tables grow)"
            )
        return checked(Layout(slots, dense, label, 1 + sum(rows), slot_rows=tuple(rows)))

    def looks_so(self, file: Path, first: bytes) -> bool:
        return file.suffix in (".npz", ".npy")

    def count(self, file: Path) -> int:
        return len(Day(file))

    def blocks(self, file: Path, layout: Layout, separator: str) -> Iterator[Block]:
        day = Day(file, layout)
        for first in range(0, len(day), BLOCK_ROWS):
            yield DayBlock(day, first, min(BLOCK_ROWS, len(day) - first))

    def mapped(self, files: Sequence[Path], layout: Layout) -> Days:
        return Days([Day(file, layout) for file in files])


class Day:
    """The mapped arrays of one day."""

    def __init__(self, file: Path, layout: Layout | None = None):
        if not file.name.endswith(ENDING):
            raise ValueError(f"{file}: name the files with ids alone, such as day_*{ENDING}")
        self.name = str(file)
        begin = str(file)[: -len(ENDING)]
        self.labels = _map_npy(Path(f"{begin}_labels.npy"))
        if layout is None:
            return
        self.layout = layout
        self.dense = _map_npy(Path(f"{begin}_dense.npy"))
        self.ids = _map_npz(file, len(layout.slots))
        if self.labels.shape not in ((len(self),), (len(self), 1)):
            raise ValueError(f"{begin}_labels.npy: labels are [n], not {[*self.labels.shape]}")
        if self.dense.shape != (len(self), len(layout.dense)):
            raise ValueError(
                f"{begin}_dense.npy holds {[*self.dense.shape]} values, not {len(self)} rows (as "
                f"there are labels) of {len(layout.dense)} (data.clicks.dense)"
            )
        for slot, ids in enumerate(self.ids):
            if ids.ndim != 2 or len(ids) != len(self) or not ids.shape[1]:
                raise ValueError(
                    f"{file}: array {slot} is {[*ids.shape]}, not bags of {len(self)} rows (as "
                    "there are labels)"
                )
        self.bounds = np.cumsum([0, *(ids.shape[1] for ids in self.ids)])

    def __len__(self) -> int:
        return len(self.labels)

    def samples(self, rows: Rows) -> Samples:
        """The samples of `rows`; the index of a BadLine counts within them."""
        labels = np.asarray(self.labels[rows]).reshape(-1)
        _check((labels != 0) & (labels != 1), "a label is 0 or 1")
        dense = np.array(self.dense[rows], np.float32)  # a copy: the file stays as it is
        _check(~np.isfinite(dense).all(axis=1), "a dense value is no finite number")
        flat = np.empty((len(labels), int(self.bounds[-1])), np.int64)
        for slot, ids in enumerate(self.ids):
            part = ids[rows]
            if part.min(initial=0) < 0:
                _check((part < 0).any(axis=1), f"{self.layout.slots[slot]} has an id below 0")
            self.layout.place(part, slot, flat[:, self.bounds[slot] : self.bounds[slot + 1]])
        slots, places = len(self.ids), np.arange(len(labels))[:, None] * flat.shape[1]
        offsets = np.append((places + self.bounds[:-1]).reshape(-1), flat.size)
        return Samples(slots, labels.astype(np.float32), dense, flat.reshape(-1), offsets)


def _check(odd: np.ndarray | np.bool, why: str) -> None:
    if odd.any():
        raise BadLine(int(np.argmax(odd)), why)


class DayBlock(Block):
    """A block of rows of a day."""

    def __init__(self, day: Day, first: int, count: int):
        self.day = day
        self.first = first
        self.count = count
        self.name = day.name

    def __len__(self) -> int:
        return self.count

    def parse(self, rows: Rows) -> Samples:
        if isinstance(rows, np.ndarray) and len(rows) and (np.diff(rows) == 1).all():
            rows = slice(int(rows[0]), int(rows[-1]) + 1)
        if isinstance(rows, np.ndarray):
            return self.day.samples(self.first + rows)
        start, stop, _ = rows.indices(self.count)  # views, until they are converted
        return self.day.samples(slice(self.first + start, self.first + stop))

    def where(self, index: int) -> str:
        return f"row {self.first + index + 1}"

    def num_bytes(self, rows: Rows) -> int:
        row_bytes = 4 * (int(self.day.bounds[-1]) + self.day.dense.shape[1] + 1)
        return len(np.arange(self.count)[rows]) * row_bytes


class Days:
    """The samples of all days, one day after the other; a batch reads its own alone."""

    def __init__(self, days: list[Day]):
        self.blocks = [DayBlock(day, 0, len(day)) for day in days]
        self.ends = np.cumsum([0, *map(len, days)])

    def __len__(self) -> int:
        return int(self.ends[-1])

    def batch_of(self, rows: slice | np.ndarray) -> Batch:
        """The batch of the given samples, in the given order."""
        if isinstance(rows, slice):
            spans = [(max(rows.start, a), min(rows.stop, b), a) for a, b in pairwise(self.ends)]
            parts = [
                day.samples(slice(start - first, stop - first))
                for day, (start, stop, first) in zip(self.blocks, spans)
                if start < stop
            ]
            return join(parts).batch()
        owner = np.searchsorted(self.ends, rows, side="right") - 1
        order = np.argsort(owner, kind="stable")
        parts = [
            self.blocks[number].samples(rows[owner == number] - self.ends[number])
            for number in np.unique(owner)
        ]
        return join(parts).take(np.argsort(order)).batch()


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    """Errors of numpy and of zip archives in our words."""
    try:
        yield
    except FileNotFoundError:
        endings = f"{ENDING[1:]}, dense.npy, labels.npy"
        raise ValueError(f"there is no {file}: a day has files of {endings}") from None
    except Exception as error:  # numpy and zipfile raise many kinds, down to those of a tokenizer
        raise ValueError(f"{file} is no file of arrays that can be mapped: {error}") from None


def _map_npy(file: Path) -> np.ndarray:
    with _readable(file):
        array = np.load(file, mmap_mode="r", allow_pickle=False)
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "iuf" or not array.ndim:
            raise ValueError("it holds no array of numbers")
        return np.asarray(array)  # a view: memmap's own indexing is slow


def _map_npz(file: Path, slots: int) -> list[np.ndarray]:
    with _readable(file), zipfile.ZipFile(file) as archive, open(file, "rb") as source:
        names = sorted(archive.namelist(), key=lambda name: (len(name), name))
        if names != [f"{slot}.npy" for slot in range(slots)]:
            raise ValueError(
                f"it has {len(names)} arrays, not 0 to {slots - 1} (data.clicks.slots)"
            )
        return [_map_member(file, source, archive.getinfo(name)) for name in names]


def _map_member(file: Path, source: BinaryIO, member: zipfile.ZipInfo) -> np.ndarray:
    """One array of an archive that is not compressed, where it lies in the file."""
    if member.compress_type != zipfile.ZIP_STORED:
        raise ValueError("its arrays are compressed; write it with numpy.savez")
    source.seek(member.header_offset)
    local = source.read(30)  # its own header; the two numbers are the lengths of what follows
    if len(local) < 30 or local[:4] != b"PK\3\4":
        raise ValueError(f"{member.filename} has no header")
    begin = member.header_offset + 30 + sum(np.frombuffer(local[26:30], "<u2").tolist())
    source.seek(begin)
    version: Any = np.lib.format.read_magic(source)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"{member.filename} has format {version}")
    read = (np.lib.format.read_array_header_1_0, np.lib.format.read_array_header_2_0)
    shape, fortran, dtype = read[version == (2, 0)](source)
    if dtype not in (np.dtype("<i4"), np.dtype("<i8")) or fortran:
        raise ValueError(f"{member.filename} holds {dtype}; ids are int32, row after row")
    start = source.tell()
    size = dtype.itemsize * int(np.prod(shape, dtype=object)) if shape else 0
    if min(shape, default=0) < 0 or start + size > begin + member.file_size:
        raise ValueError(f"{member.filename} ends before its last row")
    if not size:
        return np.zeros(shape, dtype)
    return np.asarray(np.memmap(file, dtype, "r", start, shape))

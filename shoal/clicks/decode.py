"""Columns of a frame as samples of a click log, whatever file they were read of.

Columns of whole numbers hold ids as they stand; text is an id where it is a whole number, else it
is hashed with the number of the slot; lists hold several ids. An empty cell, or one that says n/a,
NULL, None or -, is the id 0, or the dense value 0. How else cells of text are read is found by a
sample of them (shoal/data/reading.py), and stands in the layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from shoal.clicks.layout import Layout
from shoal.clicks.lines import BadLine, show
from shoal.clicks.samples import Samples
from shoal.config.data_section import CellOptions
from shoal.data.random import hash64
from shoal.data.raw_columns import gather
from shoal.data.reading import NO_ID, filled, lists_of, numbers_of, reading_of

if TYPE_CHECKING:
    import polars as pl

LONGEST_NO_ID = max(map(len, NO_ID))  # bytes


def read_lines(
    data: np.ndarray,
    starts: np.ndarray,
    stops: np.ndarray,
    separator: int,
    names: list[str],
    columns: list[str],
) -> pl.DataFrame:
    """The `wanted` cells of lines, as text; each line must have as many as there are names."""
    import polars as pl

    if not len(starts):
        return pl.DataFrame(schema=dict.fromkeys(columns, pl.String))
    cuts = np.flatnonzero(data == separator)
    counts = np.searchsorted(cuts, stops) - np.searchsorted(cuts, starts)
    if len(odd := np.flatnonzero(counts != len(names) - 1)):
        index = int(odd[0])
        shown = show(data[starts[index] : stops[index]].tobytes())
        raise BadLine(index, f"has {counts[index] + 1} cells, not {len(names)}: {shown}")
    text = data.tobytes()
    if int((stops - starts).sum()) + len(starts) - 1 < len(text):  # blank lines, or \r
        text = b"\n".join(data[a:b].tobytes() for a, b in zip(starts.tolist(), stops.tolist()))
    try:
        text.isascii() or text.decode()
    except UnicodeDecodeError as error:
        index = text.count(b"\n", 0, error.start)
        raise BadLine(index, f"byte {text[error.start]:#04x} is not UTF-8") from None
    return pl.read_csv(
        text,
        has_header=False,
        separator=chr(separator),
        quote_char=None,
        schema=dict.fromkeys(names, pl.String),
        columns=[k for k, name in enumerate(names) if name in columns],
    )


def decode(frame: pl.DataFrame, layout: Layout, raw: bool = False) -> Samples:
    """The samples of a frame.

    raw: as Criteo has them. Dense values x are whole and become log(1 + max(x, 0)), and the text of
    any id is hashed, that of whole numbers too.
    """
    labels = _numbers(frame, [layout.label], whole=False, cells=layout.cells)
    empty = _empty(frame[layout.label]).to_numpy()[:, None]
    odd = ((labels != 0) & (labels != 1)) | empty
    _check(frame, [layout.label], odd, "a label is 0 or 1")
    dense = _numbers(frame, layout.dense, whole=raw, cells=layout.cells)
    if raw:
        dense = np.log1p(np.maximum(dense, 0))
    with np.errstate(over="ignore"):
        dense = dense.astype(np.float32)
    must = "it must be a whole number" if raw else "it must be a finite number"
    _check(frame, layout.dense, ~np.isfinite(dense), must)
    columns = _ids(frame, layout, raw)
    slots, labels = len(columns), labels[:, 0].astype(np.float32)
    if all(lengths is None for _, lengths in columns):
        ids = np.empty((len(frame), slots), np.int64)
        for k, (column, _) in enumerate(columns):
            ids[:, k] = column
        return Samples(slots, labels, dense, ids)
    list_lengths = [np.ones(len(frame), np.int64) if each is None else each for _, each in columns]
    ends = np.concatenate([[0], np.cumsum(np.concatenate(list_lengths))])
    order = np.arange(len(frame))[:, None] + len(frame) * np.arange(slots)
    flat = np.concatenate([ids for ids, _ in columns])
    values, offsets = gather(flat, ends, order.reshape(-1), 0)
    return Samples(slots, labels, dense, values, offsets)


def _empty(labels: pl.Series) -> pl.Series:
    """Which labels are missing."""
    import polars as pl

    return (filled(labels) if labels.dtype == pl.String else labels).is_null()


def _check(frame: pl.DataFrame, names: Sequence[str], odd: np.ndarray, remedy: str) -> None:
    """Raise about the first cell that is odd, if there is one; odd: [n, names]."""
    if odd.any():
        row, column = (int(place) for place in np.argwhere(odd)[0])
        value = frame[names[column]][row]
        shown = value if isinstance(value, int | float) else show((value or "").encode())
        raise BadLine(row, f"{names[column]} is {shown}; {remedy}")


def _plain_numbers(
    text: pl.Series, cells: Mapping[str, CellOptions], kind: type[pl.DataType]
) -> pl.Series:
    """Cells of text as numbers where they are, in the reading of their column; else as they stand.

    Words for nothing become null.
    """
    import polars as pl

    numbers = text.cast(kind, strict=False)
    if numbers.null_count() == text.null_count() and text.name not in cells:
        return numbers
    filled_text = filled(text)
    if text.name in cells:
        numbers = numbers_of(filled_text, reading_of(cells[text.name]))
    else:
        numbers = filled_text.cast(kind, strict=False)
    if numbers.null_count() == filled_text.null_count():
        return numbers
    # What is no number stays for the message about it.
    return filled_text.zip_with(numbers.is_null(), numbers.cast(pl.String))


def _numbers(
    frame: pl.DataFrame, names: Sequence[str], whole: bool, cells: Mapping[str, CellOptions]
) -> np.ndarray:
    """float64 [n, names]: 0 where a cell is empty, nan where text is no number (no whole one)."""
    import polars as pl

    columns = frame.select([*dict.fromkeys(names)])
    for name, dtype in columns.schema.items():
        if not dtype.is_numeric() and dtype not in (pl.Boolean, pl.String):
            raise ValueError(f"column {name} is {dtype}; it must hold numbers")
    kind = pl.Int64 if whole and pl.String in columns.schema.values() else pl.Float64
    for name, dtype in columns.schema.items():
        if dtype == pl.String:
            columns = columns.with_columns(_plain_numbers(columns[name], cells, kind))
    values = columns.cast(kind, strict=False).cast(pl.Float64).fill_null(float("nan")).to_numpy()
    values = np.where(columns.select(pl.all().is_null()).to_numpy(), 0.0, values)
    # A frame without columns has no rows either.
    values = values.reshape(len(frame), columns.width)
    return values[:, [columns.columns.index(name) for name in names]]


def _ids(
    frame: pl.DataFrame, layout: Layout, raw: bool
) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """The ids of every slot, one after the other, and how many each row has (None: one each)."""
    import polars as pl

    slot_columns: dict[int, tuple[np.ndarray, np.ndarray | None]] = {}
    texts: dict[int, pl.Series] = {}
    for slot, name in enumerate(layout.slots):
        series = frame[name]
        if series.dtype == pl.String and not raw:
            series = _words(series, layout.cells)
        listed = isinstance(series.dtype, pl.List)
        if listed:
            lengths = series.list.len().fill_null(0).to_numpy().astype(np.int64)
            series = series.filter(pl.Series(lengths > 0)).explode()
        if series.dtype.is_integer() and not raw:
            ids = _placed(series, layout, slot)
        elif series.dtype.is_integer() or series.dtype in (pl.String, pl.Categorical, pl.Enum):
            tokens = series.cast(pl.String).fill_null("")
            if not listed:
                texts[slot] = tokens
                continue
            ids = _of_text(tokens, np.full(len(tokens), slot), layout, raw)
        else:
            raise ValueError(
                f"column {name} is {series.dtype}; a slot holds whole numbers, text, or lists"
            )
        if listed:
            all_ids = np.zeros(int(np.maximum(lengths, 1).sum()), np.int64)
            all_ids[np.repeat(lengths > 0, np.maximum(lengths, 1))] = ids
            slot_columns[slot] = all_ids, np.maximum(lengths, 1)
        else:
            slot_columns[slot] = ids, None
    if texts:  # all at once: many short columns would cost more than their cells
        slots = np.repeat([*texts], len(frame))
        ids = _of_text(pl.concat([*texts.values()]), slots, layout, raw).reshape(len(texts), -1)
        slot_columns |= {slot: (slot_ids, None) for slot, slot_ids in zip(texts, ids)}
    return [slot_columns[slot] for slot in range(len(layout.slots))]


def _words(text: pl.Series, cells: Mapping[str, CellOptions]) -> pl.Series:
    """The text of a slot: lists where its cells are lists, null where one says there is nothing."""
    if text.name in cells:
        return lists_of(text, reading_of(cells[text.name]))
    nothing = text.str.len_bytes() <= LONGEST_NO_ID
    if not nothing.any():
        return text
    nothing = nothing & text.str.to_lowercase().is_in(NO_ID)
    return text.set(nothing, None) if nothing.any() else text


def _placed(series: pl.Series, layout: Layout, slot: int) -> np.ndarray:
    """Whole numbers of a slot as ids: 0 where a cell is empty."""
    ids = _whole(series).to_numpy().copy()
    if not layout.slot_rows:
        return layout.fold(ids)
    if ids.min(initial=0) < 0:
        raise ValueError(f"{series.name} has the id {ids.min()}; ids of this log are 0 or more")
    ids = layout.place(ids, slot)
    ids[series.is_null().to_numpy()] = 0
    return ids


def _whole(series: pl.Series) -> pl.Series:
    import polars as pl

    try:
        return series.cast(pl.Int64).fill_null(0)
    except pl.exceptions.InvalidOperationError:
        raise ValueError(f"column {series.name} has ids that do not fit 64 bits") from None


def _of_text(tokens: pl.Series, slots: np.ndarray, layout: Layout, raw: bool) -> np.ndarray:
    """int64 [n]: 0 where a token is empty, whole numbers as they are, other text hashed."""
    import polars as pl

    lengths = tokens.str.len_bytes().to_numpy().astype(np.int64)
    longest = 1 << 16  # bytes
    if len(long := np.flatnonzero(lengths > longest)):
        index = int(long[0])
        shown = show(tokens[index].encode())
        rows = int((slots == slots[0]).sum())
        raise BadLine(index % rows, f"a cell has more than {longest} bytes: {shown}")
    text = tokens.str.join("").item() or ""
    hashed = hash_tokens(text.encode(), lengths, slots)
    rows = layout.rows or 2**63 - 1
    ids = (hashed % np.uint64(max(rows - 1, 1))).astype(np.int64) + (rows > 1)
    ids[lengths == 0] = 0
    if raw:
        return ids
    whole = tokens.cast(pl.Int64, strict=False)
    sound = whole.is_not_null() & ~tokens.str.starts_with("+")
    return np.where(sound.to_numpy(), layout.fold(whole.fill_null(0).to_numpy()), ids)


def hash_tokens(text: bytes, lengths: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """uint64 [n], each a pure function of (slot, bytes of the token); they follow each other."""
    padded = text + bytes(8)
    # The eight bytes from every position on, little-endian.
    words = np.ndarray((len(text) + 1,), "<u8", padded, strides=(1,))
    starts = np.cumsum(lengths) - lengths
    state = hash64(slots, lengths)
    active = np.arange(len(lengths))
    for place in range(0, int(lengths.max(initial=0)), 8):
        active = active[lengths[active] > place]
        remaining = lengths[active] - place
        bits = np.uint64(8) * np.clip(8 - remaining, 0, 7).astype(np.uint64)  # of the tokens behind
        word = (words[starts[active] + place] << bits) >> bits
        state[active] = hash64(state[active], word)
    return state

"""Lines of slots: `click:0 dense_feature:0.5 dense_feature:0 1:737395 2:210498 ...`

Tokens KEY:VALUE with single spaces between them, in any order; spaces, tabs and returns at the end
of a line are passed over. A slot that comes several times has
several ids, in the order they came; one that does not come reads the id 0. A dense key comes
exactly as often as it has values. The native core finds the tokens; `parse_line` is the reference,
the fallback where there is no core, and what says what is wrong with a line.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np

from shoal.clicks.formats import LineFormat, checked, folded_below, numbered
from shoal.clicks.layout import Layout
from shoal.clicks.lines import BadLine, Parser, show
from shoal.clicks.samples import Samples
from shoal.config.errors import did_you_mean
from shoal.config.schema import ClicksSection
from shoal.kernels.core import has_core
from shoal.kernels.slots import parse_slots, slot_keys

LABEL, DENSE = "click", "dense_feature"
INTEGER = re.compile(rb"-?[0-9]+")
NUMBER = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class SlotFormat(LineFormat):
    """Lines of slots; the output of a user's program has this format, too."""

    name = "slots"
    is_log = True

    def layout(self, section: ClicksSection) -> Layout:
        """The columns that the config names; by default those of Criteo in this format."""
        slots = 26 if section.slots is None else section.slots
        width = 13 if section.dense is None else section.dense
        dense = (DENSE,) * width if isinstance(width, int) else tuple(width)
        others = isinstance(slots, list)
        label = section.label or LABEL
        return checked(Layout(numbered("", slots), dense, label, folded_below(section), others))

    def looks_so(self, file: Path, first: bytes) -> bool:
        return b":" in first.split(b" ")[0]

    def parser(self, layout: Layout, first: bytes, separator: str, name: str) -> Parser:
        """The parser of the native core if there is one, else that in Python."""
        return native_parser(layout) if has_core() else plain_parser(layout)


SLOTS = SlotFormat()


def plain_parser(layout: Layout) -> Parser:
    """The parser in Python, line by line: the reference of the native one."""

    def parse(data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> Samples:
        n, slots = len(starts), len(layout.slots)
        labels = np.zeros(n, np.float32)
        dense = np.zeros((n, len(layout.dense)), np.float32)
        lists: list[list[int]] = []
        for index, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist())):
            try:
                labels[index], dense[index], ids = parse_line(data[start:stop].tobytes(), layout)
            except ValueError as error:
                raise BadLine(index, str(error)) from None
            lists += ids
        return Samples.of_lists(slots, labels, dense, layout, lists)

    return parse


def native_parser(layout: Layout) -> Parser:
    """The parser of the native core, which lets other threads run meanwhile."""
    keys = slot_keys(layout.slots, layout.dense, layout.label, layout.others)
    slots = len(layout.slots)

    def parse(data: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> Samples:
        n = len(starts)
        data, starts, stops = map(np.ascontiguousarray, (data, starts, stops))
        labels = np.empty(n, np.float32)
        dense = np.empty((n, len(layout.dense)), np.float32)
        ids: np.ndarray = np.empty((n, slots), np.int64)
        lengths: np.ndarray | None = None
        parse_into = partial(parse_slots, keys, data, starts, stops, labels, dense)
        fault, repeated, used = parse_into(ids, lengths)
        if repeated:
            colons = int(np.count_nonzero(data == ord(":")))
            ids, lengths = np.empty(colons + n * slots, np.int64), np.empty(n * slots, np.int64)
            fault, _, used = parse_into(ids, lengths)
        if fault >= 0:
            try:
                parse_line(data[starts[fault] : stops[fault]].tobytes(), layout)
            except ValueError as error:
                raise BadLine(fault, str(error)) from None
            raise AssertionError("the native parser refused a line that is sound")
        if lengths is None:
            return Samples(slots, labels, dense, layout.fold(ids.reshape(-1)).reshape(n, slots))
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        return Samples(slots, labels, dense, layout.fold(ids[:used].copy()), offsets)

    return parse


def parse_line(line: bytes, layout: Layout) -> tuple[float, list[float], list[list[int]]]:
    """(label, dense values, a list of ids for each slot); ValueError says what is wrong."""
    label: float | None = None
    dense: dict[str, list[float]] = {name: [] for name in layout.dense}
    ids: dict[str, list[int]] = {name: [] for name in layout.slots}
    for token in line.rstrip(b" \t\r").split(b" "):
        key_bytes, colon, value = token.partition(b":")
        key = key_bytes.decode("utf-8", "replace")
        if not colon or not key:
            problem = "an empty token (a space too many)" if not token else f"found {show(token)}"
            raise ValueError(f"{problem}; tokens are KEY:VALUE with single spaces between them")
        if key in ids:
            ids[key].append(_id(key, value))
        elif key in dense:
            dense[key].append(_number(key, value))
        elif key == layout.label:
            if label is not None:
                raise ValueError(f"{key} comes twice")
            label = _number(key, value)
            if label not in (0.0, 1.0):
                raise ValueError(f"{key} is {show(value)}; a label is 0 or 1")
        elif not layout.others:
            raise ValueError(_unknown(key, layout))
    if label is None:
        raise ValueError(
            f"has no {layout.label}; every line has a label (its name: data.clicks.label)"
        )
    for name, count in Counter(layout.dense).items():
        if len(dense[name]) != count:
            raise ValueError(
                f"{name} comes {len(dense[name])} times, not {count}; data.clicks.dense says how "
                "many dense values a line has"
            )
    flat = [value for values in dense.values() for value in values]
    return label, flat, [slot_ids or [0] for slot_ids in ids.values()]


def _id(key: str, value: bytes) -> int:
    if not INTEGER.fullmatch(value):
        raise ValueError(f"slot {key} holds {show(value)}; an id is a whole number")
    number = int(value) if len(value) <= 20 else 2**64
    # More than 19 digits are refused even where they are zeros in front.
    if not -(2**63) <= number < 2**63 or len(value.lstrip(b"-")) > 19:
        raise ValueError(f"slot {key} holds {show(value)}, which does not fit 64 bits with a sign")
    return number


def _number(key: str, value: bytes) -> float:
    number = float(value) if NUMBER.fullmatch(value) else math.nan
    if not abs(number) < 3.4028235677973366e38:  # half a step above the largest float32
        raise ValueError(f"{key} is {show(value)}; it must be a finite number")
    return number


def _unknown(key: str, layout: Layout) -> str:
    keys = [*layout.slots, *dict.fromkeys(layout.dense), layout.label]
    slots = f"{layout.slots[0]} to {layout.slots[-1]}" if layout.slots else "none"
    return (
        f"unknown key {key!r}; slots are {slots}, dense values "
        f"{', '.join(dict.fromkeys(layout.dense)) or 'none'}, the label {layout.label}. Name them "
        "with data.clicks.slots, dense and label; a list of slots passes over the others"
        f"{did_you_mean(key, keys)}"
    )

"""A click log in one piece, cut into what trains, validates and tests: in the order of its rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from shoal.clicks.lines import Block, Rows
from shoal.clicks.log import ClickLog
from shoal.clicks.samples import HeldSamples, Samples
from shoal.data.dataset import SPLITS
from shoal.data.split import ratio_counts


class LogPart(ClickLog):
    """Samples `first` to `stop` - 1 of a log. counts: samples of each of its files."""

    def __init__(self, whole: ClickLog, counts: list[int], first: int, stop: int):
        super().__init__(whole.files, whole.form, whole.layout, None, whole.separator)
        ends = np.cumsum(counts).tolist()
        self.begins = dict(zip(whole.files, [0, *ends]))
        self.counts = dict(zip(whole.files, counts))
        self.first, self.stop = first, stop

    def mapped(self) -> HeldSamples | None:
        return None

    def count(self, file: Path) -> int:
        begin = self.begins[file]
        return max(0, min(self.stop, begin + self.counts[file]) - max(self.first, begin))

    def blocks(self, file: Path) -> Iterator[Block]:
        position = self.begins[file]
        for block in super().blocks(file):
            low, high = max(self.first - position, 0), min(self.stop - position, len(block))
            if low < high:
                yield block if high - low == len(block) else BlockPart(block, low, high)
            position += len(block)
            if position >= self.stop:
                return


class BlockPart(Block):
    """Samples `low` to `high` - 1 of a block."""

    def __init__(self, whole: Block, low: int, high: int):
        self.whole, self.low, self.high = whole, low, high
        self.name = whole.name

    def __len__(self) -> int:
        return self.high - self.low

    def parse(self, rows: Rows) -> Samples:
        return self.whole.parse(np.arange(self.low, self.high)[rows])

    def where(self, index: int) -> str:
        return self.whole.where(self.low + index)

    def num_bytes(self, rows: Rows) -> int:
        return self.whole.num_bytes(np.arange(self.low, self.high)[rows])


def cut_in_order(log: ClickLog, ratio: list[float]) -> dict[str, LogPart]:
    """Split -> its part of the log, where it has one: the first rows train, the last ones test."""
    counts = [log.count(file) or 0 for file in log.files]
    rows = sum(counts)
    valid, test = (int(count[0]) for count in ratio_counts(np.array([rows]), ratio))
    stops = [rows - valid - test, rows - test, rows]
    bounds = zip(SPLITS, [0, *stops], stops)
    return {split: LogPart(log, counts, a, b) for split, a, b in bounds if a < b}

"""Reading the files of a click log: once into memory (`load`), or in every epoch.

Stream      samples in the order of the files; a rank parses only its slice of every batch
SplitFiles  a worker's batches come from its own share of the files

As by InMemory (samples.py), every sample is given exactly once per epoch, for any number of ranks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice
from operator import itemgetter

import numpy as np

from shoal.clicks.layout import Layout
from shoal.clicks.lines import Block
from shoal.clicks.log import ClickLog
from shoal.clicks.samples import ClickReader, Samples, join
from shoal.data.batch import Batch
from shoal.data.features import Feature
from shoal.data.prefetch import ahead

log = logging.getLogger("shoal")

Span = tuple[Block, int, int]  # samples start to stop - 1 of a block


class Speed:
    """What a reader did and how long it took, summed over its threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.samples = self.bytes = 0
        self.seconds = 0.0

    def parse(self, spans: list[Span], layout: Layout) -> Samples:
        """The samples of the spans, on the clock."""
        begun = time.thread_time()
        parts, size = [], 0
        for block, block_spans in groupby(spans, key=itemgetter(0)):
            rows = np.concatenate([np.arange(start, stop) for _, start, stop in block_spans])
            if len(rows):
                parts.append(block.samples(rows))
                size += block.num_bytes(rows)
        result = join(parts) if parts else Samples.none(layout)
        seconds = time.thread_time() - begun
        with self.lock:
            self.samples += len(result)
            self.bytes += size
            self.seconds += seconds
        return result

    def report(self, title: str) -> None:
        """Log the figures under a title, and begin anew."""
        with self.lock:
            seconds = max(self.seconds, 1e-9)
            log.info(
                "%s: %d samples, %.1f MB; a thread parses %.0f samples/s, %.1f MB/s",
                title,
                self.samples,
                self.bytes / 1e6,
                self.samples / seconds,
                self.bytes / 1e6 / seconds,
            )
            self.samples = self.bytes = 0
            self.seconds = 0.0


def load(files: ClickLog, threads: int = 1, profile: bool = False) -> Samples:
    """All samples of the files, in order."""
    speed = Speed()
    spans = ([(block, 0, len(block))] for file in files.files for block in files.blocks(file))
    parts = list(ahead(lambda block_spans: speed.parse(block_spans, files.layout), spans, threads))
    parts = [part for part in parts if len(part)]
    if profile:
        speed.report("loaded")
    return join(parts) if parts else Samples.none(files.layout)


class Stream(ClickReader):
    """Samples in the order of the files, which are read on. `counts`: samples of each file.

    Lines are found first, so that a rank parses its own alone.
    """

    def __init__(
        self,
        files: ClickLog,
        batch_size: int,
        counts: list[int] | None,
        threads: int = 1,
        tile: int | None = None,
        profile: bool = False,
    ):
        super().__init__(files.layout, batch_size, tile=tile)
        self.files = files
        self.counts = counts
        self.threads = threads
        self.profile = profile
        self.known_samples = None if counts is None else sum(counts)
        self.speed = Speed()

    def batches(
        self, epoch: int, rank: int = 0, size: int = 1, start: int = 0, skip: int = 0
    ) -> Iterator[Batch]:
        """This rank's slices of the global batches start, start + 1, ...; the same every epoch."""

        def parse(parts: list[tuple[int, list[Span]]]) -> list[Batch]:
            samples = self.speed.parse([span for _, spans in parts for span in spans], self.layout)
            stops = np.cumsum([sum(b - a for _, a, b in spans) for _, spans in parts]).tolist()
            begins = [0, *stops]
            return [
                self.finish(samples.cut(begin, stop).batch(first))
                for (first, _), begin, stop in zip(parts, begins, stops)
            ]

        # Several batches are parsed at once: many small calls would cost more than the work.
        slices = self._slices(rank, size, start, skip)
        together = max(1, (1 << 14) * size // self.global_size(size))
        parts = iter(lambda: list(islice(slices, together)), [])
        for batches in ahead(parse, parts, self.threads):
            yield from batches
        if self.profile:
            self.speed.report(f"reader in epoch {epoch}")

    def _slices(
        self, rank: int, size: int, start: int, skip: int
    ) -> Iterator[tuple[int, list[Span]]]:
        """Where this rank's slice of every global batch begins in it, and its spans."""
        step = self.global_size(size)
        for spans in _cut(self._blocks(start * step + skip), step):
            low, high = self.cut(sum(stop - first for _, first, stop in spans), rank, size)
            yield low, _within(spans, low, high)

    def _blocks(self, skip: int) -> Iterator[Span]:
        """All blocks but the first `skip` samples. Files before them are not opened if counted."""
        for number, file in enumerate(self.files.files):
            if self.counts is not None and skip >= self.counts[number]:
                skip -= self.counts[number]
                continue
            num_read = 0
            for block in self.files.blocks(file):
                num_read += len(block)
                if skip < len(block):
                    yield block, skip, len(block)
                skip = max(0, skip - len(block))
            if self.counts is not None and num_read != self.counts[number]:
                raise ValueError(
                    f"{file} changed during the run: it had {self.counts[number]} samples and now "
                    f"has {num_read}; give the run files that nobody writes to"
                )


def _cut(blocks: Iterable[Span], step: int) -> Iterator[list[Span]]:
    """Spans of `step` samples together; the last may have fewer."""
    held: list[Span] = []
    missing = step
    for block, start, stop in blocks:
        while start < stop:
            end = min(stop, start + missing)
            held.append((block, start, end))
            missing -= end - start
            start = end
            if missing == 0:
                yield held
                held, missing = [], step
    if held:
        yield held


def _within(spans: list[Span], low: int, high: int) -> list[Span]:
    """Samples low to high - 1 of what the spans hold together."""
    result = []
    position = 0
    for block, start, stop in spans:
        first, last = max(low - position, 0), min(high - position, stop - start)
        if first < last:
            result.append((block, start + first, start + last))
        position += stop - start
    return result


class SplitFiles(ClickReader):
    """A worker's share of the files: `inner` reads them alone, in batches of the worker's share.

    Workers whose files end first go on with empty batches, so that all make as many steps.
    """

    def __init__(self, inner: ClickReader, worker: int, workers: int, num_batches: int | None):
        super().__init__(inner.layout, inner.batch_size * workers)
        self.inner = inner
        self.worker = worker
        self.workers = workers
        self._num_batches = num_batches

    def describe(self, features: Sequence[Feature]) -> None:
        super().describe(features)
        self.inner.describe(features)

    @property
    def num_batches(self) -> int | None:
        """The most that any worker has; None where that is known only at the end."""
        return self._num_batches

    def batches(
        self, epoch: int, rank: int = 0, size: int = 1, start: int = 0, skip: int = 0
    ) -> Iterator[Batch]:
        """This worker's batches start, start + 1, ... of an epoch."""
        assert (rank, size) == (self.worker, self.workers), "the files were split for another world"
        assert skip == 0, "as many workers give batches of the same size"
        number = start
        # Shares differ by one sample at most: so no two workers number a sample alike.
        first = self.worker * (self.inner.batch_size + 1)
        for batch in self.inner.batches(epoch, 0, 1, start):
            yield replace(batch, first=first)
            number += 1
        while self._num_batches is not None and number < self._num_batches:
            yield self.empty()
            number += 1


def share(batch_size: int, worker: int, workers: int) -> int:
    """Samples of a global batch that come from one worker's files."""
    count = batch_size * (worker + 1) // workers - batch_size * worker // workers
    if count == 0:
        raise ValueError(
            f"train.batch_size {batch_size} is below the {workers} processes; with "
            "data.clicks.split_files every process needs at least one sample of each batch"
        )
    return count

"""A reader that a user wrote: FILE.py[:CLASS], by default the class RecDataset.

    class RecDataset:
        def __init__(self, file_list, config): ...   # paths as str; the config by dotted keys
        def __iter__(self): ...                      # yields samples

A sample is a list of arrays: the label [1], the ids of slot 1, of slot 2, ..., and last, where
data.clicks.dense is not 0, the dense values. How many slots and dense values there are is said by
data.clicks.slots (26) and data.clicks.dense (13).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from shoal.clicks.layout import Layout
from shoal.clicks.samples import ClickReader, Samples
from shoal.config.plugins import load_code
from shoal.data.batch import Batch
from shoal.data.prefetch import ahead


def find_class(spec: str) -> type:
    """The class that FILE.py[:CLASS] names."""
    path, _, name = spec.partition(":")
    name = name or "RecDataset"
    module = load_code(path, "data.clicks.custom", "FILE.py[:CLASS]")
    chosen = getattr(module, name, None)
    if not isinstance(chosen, type):
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        raise ValueError(
            f"data.clicks.custom: {path} has no class {name}; its classes are "
            f"{', '.join(classes) or 'none'}"
        )
    return chosen


class Custom(ClickReader):
    """Batches of what the user's class yields. Every rank walks over all and keeps its slices."""

    def __init__(
        self,
        spec: str,
        files: list[Path],
        config: dict[str, Any],
        layout: Layout,
        batch_size: int,
        tile: int | None = None,
    ):
        super().__init__(layout, batch_size, tile=tile)
        self.spec = spec
        self.files = files
        self.config = config
        self.made_by = find_class(spec)

    def batches(
        self, epoch: int, rank: int = 0, size: int = 1, start: int = 0, skip: int = 0
    ) -> Iterator[Batch]:
        """This rank's slices of the global batches start, start + 1, ... of the samples."""
        step = self.global_size(size)
        samples = iter(self.made_by([str(file) for file in self.files], self.config))
        for _ in islice(samples, start * step + skip):
            pass

        def slices() -> Iterator[tuple[int, int, list[Any]]]:
            number = start * step + skip
            while step_samples := list(islice(samples, step)):
                low, high = self.cut(len(step_samples), rank, size)
                yield low, number, step_samples[low:high]
                number += len(step_samples)

        def columns(part: tuple[int, int, list[Any]]) -> Batch:
            first, number, step_samples = part
            return self.finish(self._columns(number + first, step_samples).batch(first))

        yield from ahead(columns, slices(), 1)

    def _columns(self, number: int, samples: list[Any]) -> Samples:
        layout, slots = self.layout, len(self.layout.slots)
        width = 1 + slots + bool(layout.dense)
        if not samples:
            return Samples.none(layout)
        for index, sample in enumerate(samples):
            if not isinstance(sample, list | tuple) or len(sample) != width:
                got = f"{len(sample)} arrays" if isinstance(sample, list | tuple) else repr(sample)
                raise self._wrong(
                    number + index, f"is {got[:80]}; a sample is a list of {width} arrays"
                )
        labels = np.array([_one(sample[0]) for sample in samples], np.float32)
        if len(odd := np.flatnonzero((labels != 0) & (labels != 1))):
            raise self._wrong(number + int(odd[0]), f"has label {labels[odd[0]]}; it is 0 or 1")
        dense = np.zeros((len(samples), len(layout.dense)), np.float32)
        if layout.dense:
            for index, sample in enumerate(samples):
                values = np.asarray(sample[-1], np.float32).reshape(-1)
                if len(values) != len(layout.dense) or not np.isfinite(values).all():
                    raise self._wrong(
                        number + index,
                        f"has dense values {values[:5]}…; they must be {len(layout.dense)} finite "
                        "numbers",
                    )
                dense[index] = values
        lists = [
            self._ids(s[1 + k], number + i) for i, s in enumerate(samples) for k in range(slots)
        ]
        return Samples.of_lists(slots, labels, dense, layout, lists)

    def _ids(self, value: Any, number: int) -> np.ndarray:
        ids = np.asarray(value).reshape(-1)
        if len(ids) == 0:
            return np.zeros(1, np.int64)
        if ids.dtype.kind not in "iu" or (ids.dtype.kind == "u" and ids.max() >= 2**63):
            raise self._wrong(number, f"has ids {ids[:5]}; ids are whole numbers of 64 bits")
        return ids.astype(np.int64)

    def _wrong(self, number: int, problem: str) -> ValueError:
        return ValueError(f"{self.spec}: sample {number + 1} {problem}")


def _one(value: Any) -> float:
    flat = np.asarray(value, np.float32).reshape(-1)
    return float(flat[0]) if len(flat) == 1 else np.nan

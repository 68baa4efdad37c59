"""Synthetic clicks written as multi-hot Criteo: `shoal data make`.

    train/day_0_…, train/day_1_…    as many days as asked for
    valid/day_2_…, test/day_3_…     a tenth of the training samples each

Samples are made some at a time, so memory does not grow with the days.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from shoal.clicks.multi_hot import ENDING
from shoal.clicks.synthetic import auc, bag_sizes, indices, synthetic_ids, synthetic_samples
from shoal.config.schema import SyntheticClicksSection
from shoal.data.dataset import Split
from shoal.files.durable import written

BLOCK_IDS = 1 << 22  # drawn at a time


def make_days(section: SyntheticClicksSection, folder: Path, days: int) -> dict[str, float]:
    """Write the log; the best possible AUC of valid and of test.

    >>> small = SyntheticClicksSection(samples=100, slots=2, ids_per_slot=[9, 5], bags=[3, 1])
    >>> best = make_days(small, Path("synthetic"), days=2)
    >>> sorted(best), np.load("synthetic/train/day_0_sparse_multi_hot.npz")["0"].shape
    (['test', 'valid'], (50, 3))
    """
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} has files already; name another folder with --to")
    train = indices(section, "train")
    if not 0 < days <= len(train):
        raise ValueError(f"--days is {days}; {len(train)} samples fill 1 to {len(train)} days")
    bounds = [len(train) * day // days for day in range(days + 1)]
    for day, (first, last) in enumerate(pairwise(bounds)):
        _write(section, train[first:last], folder / "train" / f"day_{day}")
    splits: tuple[Split, ...] = ("valid", "test")
    return {
        split: _write(section, indices(section, split), folder / split / f"day_{day}")
        for day, split in enumerate(splits, start=days)
    }


def _write(section: SyntheticClicksSection, index: range, begin: Path) -> float:
    """The three files of a day; its best possible AUC."""
    begin.parent.mkdir(parents=True, exist_ok=True)
    step = max(1, BLOCK_IDS // sum(bag_sizes(section)))
    blocks = [index[k : k + step] for k in range(0, len(index), step)]
    parts: list[tuple[np.ndarray, ...]] = []
    for block in blocks:
        drawn = synthetic_samples(section, np.asarray(block))
        parts.append((drawn.samples.labels, drawn.samples.dense, drawn.probabilities))
    labels, dense, probabilities = map(np.concatenate, zip(*parts))
    with written(begin.parent):
        np.save(f"{begin}_labels.npy", labels.astype(np.int32)[:, None])
        np.save(f"{begin}_dense.npy", dense)
        with zipfile.ZipFile(f"{begin}{ENDING}", "w", zipfile.ZIP_STORED) as archive:
            for slot, size in enumerate(bag_sizes(section)):
                ids = (synthetic_ids(section, np.asarray(block), slot) for block in blocks)
                with archive.open(f"{slot}.npy", "w", force_zip64=True) as out:
                    _save(out, len(index), size, ids)
    return auc(probabilities, labels)


def _save(out: Any, rows: int, width: int, parts: Iterator[np.ndarray]) -> None:
    """An array in numpy's format, part after part."""
    header = {"descr": "<i4", "fortran_order": False, "shape": (rows, width)}
    np.lib.format.write_array_header_1_0(out, header)
    for part in parts:
        out.write(part.astype("<i4").tobytes())

"""Random data: users and items drawn uniformly, one interaction per second. Nothing to learn.

For measuring speed at a given size. A pure function of its seed, so every rank sees the same.
"""

from __future__ import annotations

import numpy as np

from shoal.config.schema import DataSection
from shoal.data.random import hash64, uniform_below
from shoal.data.raw_columns import Raw, RawColumn, RawTable
from shoal.data.sources.source import Source
from shoal.data.sources.tables import interaction_columns


class Random(Source):
    """Users and items at random."""

    name = "random"

    def matches(self, config: DataSection) -> bool:
        return config.name == self.name and not config.folder.exists()

    def read(self, config: DataSection) -> Raw:
        """In order of time, with user, item, rating and time named as in data.fields."""
        section, fields = config.random, config.fields
        kinds, load = interaction_columns(config, "random data")
        rows = np.arange(section.interactions)
        columns = {
            fields.user: _drawn(section.seed, 0, rows, section.users),
            fields.item: _drawn(section.seed, 1, rows, section.items),
            fields.rating: RawColumn(np.full(len(rows), 5.0)),
            fields.time: RawColumn(rows.astype(np.float64)),
        }
        return Raw(
            RawTable("random data", {n: kinds[n] for n in load}, {n: columns[n] for n in load})
        )


def _drawn(seed: int, stream: int, rows: np.ndarray, count: int) -> RawColumn:
    names = np.arange(1, count + 1).astype(str).astype(object)
    return RawColumn(uniform_below(hash64(seed, stream, rows), count), names)

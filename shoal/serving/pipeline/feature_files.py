"""Features of a ranker from tables beside the pipeline: columns of users or of items.

A table has a row for each user (or item), its id in the first column; the other columns are read by
the click model. It is read again when its file changes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shoal.config.errors import did_you_mean
from shoal.data.ids import word_of
from shoal.serving.pipeline.items import read_items

if TYPE_CHECKING:
    import polars as pl

    from shoal.clicks.encoder import FeatureEncoder

log = logging.getLogger("shoal")
Key = Literal["user", "item"]
Row = dict[str, Any]
Stamp = tuple[int, int, int]  # of a file: when it was written, its size, its number on the disk


@dataclass
class FeatureFile:
    """A table of features by user or item.

    defaults  column -> what someone without a row has
    needed    columns that have no value of training and so need a row or a default
    """

    path: Path
    key: Key
    encoder: FeatureEncoder
    defaults: Mapping[str, Any] = field(default_factory=dict)
    items: Sequence[str] = ()  # of key item: those that may be ranked

    def __post_init__(self) -> None:
        features = [one for one in self.encoder.table.features if not one.cross]
        of_context = {feature.column for feature in features if feature.side == "context"}
        self._readable = of_context | {one.column for one in features if one.side == self.key}
        self._readable -= {*self.encoder.fields.values(), *self.encoder.histories}
        self._lock = threading.Lock()
        self._stamp = self._stamp_now()
        self._table, self._rows = self._read()
        self.columns = self._table.columns[1:]
        self.needed = [name for name in self.columns if name in of_context - {*self.defaults}]
        for name in self.defaults:
            if name not in self.columns:
                hint = did_you_mean(name, self.columns)
                raise ValueError(f"{self.path} has no column {name!r}, which has a default{hint}")
        self._check_items(self._rows)

    def rows(self, ids: Sequence[Any]) -> list[Row]:
        """The columns of each of these users or items; of one without a row the defaults alone."""
        self._refresh()
        with self._lock:
            table, rows = self._table, self._rows
        numbers = [None if name is None else rows.get(word_of(name)) for name in ids]
        has_row = [number for number in numbers if number is not None]
        values = iter(table[has_row].select(self.columns).to_dicts())
        defaults = dict(self.defaults)
        return [defaults if number is None else next(values) for number in numbers]

    def _read(self) -> tuple[pl.DataFrame, dict[str, int]]:
        """The table, and the row of each id."""
        table = read_items(self.path)
        for name in table.columns[1:]:
            if name not in self._readable:
                names = ", ".join(sorted(self._readable)) or "nothing"
                hint = did_you_mean(name, self._readable)
                raise ValueError(
                    f"{self.path}: the ranker reads no column {name!r} of a table by {self.key}; "
                    f"it may have {names}{hint}"
                )
        ids = table[table.columns[0]].to_list()
        return table, {word_of(name): row for row, name in enumerate(ids)}

    def _check_items(self, rows: Mapping[str, int]) -> None:
        """Refuse a table by item that lacks items whose columns have no default."""
        missing = [item for item in self.items if item not in rows] if self.needed else []
        if missing:
            raise ValueError(
                f"{self.path} has no row for {len(missing):,} items, such as {missing[0]!r}, and "
                f"no default for {self.needed[0]!r}"
            )

    def _stamp_now(self) -> Stamp | None:
        """What changes when the file does; None: it is not there."""
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _refresh(self) -> None:
        """Read the table again where its file has changed; one that cannot be read is not taken."""
        stamp = self._stamp_now()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            table, rows = self._read()
            if table.columns[1:] != self.columns:
                raise ValueError(f"{self.path} has other columns than before")
            self._check_items(rows)
        except (ValueError, OSError) as error:
            log.warning("%s; the rows from before are used", error)
            return
        with self._lock:
            self._table, self._rows = table, rows

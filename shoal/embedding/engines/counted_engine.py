"""CountedEngine: engines that count how often ids come (see shoal.embedding.rows.admission)."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator

import torch

from shoal.embedding.engines.row_engine import RowEngine
from shoal.embedding.engines.saved_rows import COUNTERS
from shoal.embedding.rows.admission import Filter, Pending, Shrink
from shoal.embedding.rows.store import CountedStore


class CountedEngine(RowEngine):
    """An engine whose ids have counters where its table has an admission."""

    @abstractmethod
    def decay(self, factor: float) -> None:
        """Multiply all counters, of rows and of ids without one."""

    def forget(self) -> None:
        if self.admission is None:
            super().forget()
            return
        self.shrink(Shrink(min_score=math.inf))
        self.decay(0.0)  # what a Bloom filter counted

    @abstractmethod
    def export_pending(self, chunk_rows: int = 1 << 20) -> Iterator[Pending]:
        """Counters of the ids without a row, in chunks of ascending id."""

    @abstractmethod
    def restore_pending(self, pending: Pending) -> None:
        """Take over counters of ids without a row."""

    def check_pending(self, pending: Pending) -> None:
        """Refuse counters that do not fit, before anything is changed."""
        self.check_counted("restore of counters")
        shape = (pending.ids.numel(),)
        parts = {key: (getattr(pending, key), shape, dtype) for key, dtype in COUNTERS.items()}
        self.check_chunk("counters'", pending.ids, parts)

    @property
    def filter_facts(self) -> tuple[int, int]:
        """Bytes and layout of the Bloom filter; (0, 0) where ids are counted exactly."""
        return 0, 0

    def export_filter(self, chunk_bytes: int = 1 << 28) -> Iterator[Filter]:
        """The Bloom filter in parts; none where ids are counted exactly."""
        return iter(())

    def restore_filter(self, part: Filter) -> None:
        """Take over a part of a Bloom filter; one that does not fit changes nothing."""
        self.check_counted("restore of counters")
        if not filter_fits(self, part):
            size, layout = self.filter_facts
            own_filter = (
                f"the table's has {size} of layout {layout}" if size else "the table has none"
            )
            raise ValueError(
                f"table {self.table.name!r}: a Bloom filter of {part.size} bytes of layout "
                f"{part.layout}, and {own_filter}: restore with the bloom_counters that wrote it"
            )


def filter_fits(store: CountedStore, part: Filter) -> bool:
    """Whether a part is of a Bloom filter like a store's; one that cannot be is refused."""
    counters, stop = part.counters, part.start + part.counters.numel()
    if counters.dtype != torch.uint8 or counters.dim() != 1 or not len(counters):
        raise ValueError(
            f"table {store.table.name!r}: a Bloom filter's counters are {counters.dtype} "
            f"{list(counters.shape)}; they must be torch.uint8 [n], n at least 1"
        )
    if not 0 <= part.start < stop <= part.size:
        raise ValueError(
            f"table {store.table.name!r}: bytes {part.start} to {stop} of a Bloom filter of "
            f"{part.size}"
        )
    same_cut = store.admission is not None and part.share[1] == store.admission.share[1]
    return same_cut and (part.size, part.layout) == store.filter_facts

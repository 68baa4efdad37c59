"""Admission: which ids of a growing table have a row, and which lose it again.

Most ids of a stream are seen once. An id without a row reads as its initial value, and its
gradients are dropped, until its score reaches the threshold:

    score = show_coefficient · (show − click) + click_coefficient · click

`show` counts how often the id was pushed, `click` adds up the clicks that came with it. With both
coefficients 1 the score is the count, and threshold=5 gives an id its row the fifth time it comes.
`decay` lets old counts fade; `shrink` drops rows.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from shoal.config.row_rules import RowRules

log = logging.getLogger("shoal")
Order = Literal["lfu", "lru"]
Share = tuple[int, int]  # which of how many stores that hold a table together
ALONE: Share = (0, 1)


@dataclass(frozen=True)
class Admission:
    """The rule by which an id gets a row. threshold=0: at once; rows only count for `shrink`.

    bloom_counters=N counts ids without a row in a counting Bloom filter of N bytes instead of
    exactly: less memory, some ids are admitted early, none late; clicks are then ignored until
    the row is there. Without the native core they are counted exactly all the same. N is rounded
    up to a multiple of 32. The filter belongs to one store of a table, named by `share`.
    """

    threshold: float = 0.0
    show_coefficient: float = 1.0
    click_coefficient: float = 1.0
    bloom_counters: int = 0
    share: Share = ALONE

    def __post_init__(self) -> None:
        for key in ("threshold", "show_coefficient", "click_coefficient", "bloom_counters"):
            if not getattr(self, key) >= 0:
                raise ValueError(f"admission: {key} is {getattr(self, key)}; it must be 0 or more")
        if self.bloom_counters and self.threshold > 255 * self.show_coefficient:
            raise ValueError(
                f"admission: threshold is {self.threshold}, but the counters of a Bloom filter end "
                "at 255; lower it, or set bloom_counters=0 to count exactly"
            )


@dataclass(frozen=True)
class Pending:
    """Counters of ids that have no row yet, as checkpoints hold them: ascending ids."""

    ids: Tensor  # [n] int64
    show: Tensor  # [n] float32
    click: Tensor  # [n] float32
    last_step: Tensor  # [n] int64


@dataclass(frozen=True)
class Filter:
    """A part of the Bloom filter that counts ids without a row, as checkpoints hold it.

    Its counters do not record ids, so it only fits a filter of the same size, layout and share.
    """

    counters: Tensor  # [n] uint8: bytes start to start + n of the filter
    start: int
    size: int  # bytes of the whole filter
    layout: int  # which bytes an id counts in: a number of the native core
    share: Share = ALONE  # whose filter it is


@dataclass(frozen=True)
class Shrink:
    """The rule for dropping rows: by score, norm and age, then by capacity.

    Rows with a lower score, a smaller L2 norm, or not pushed for more steps than max_age go; then,
    above capacity rows, the least frequent (lfu, by show) or the least recent (lru) ones.
    """

    min_score: float = 0.0
    min_norm: float = 0.0
    max_age: int | None = None
    capacity: int | None = None
    order: Order = "lfu"

    def __post_init__(self) -> None:
        if self.order not in ("lfu", "lru"):
            raise ValueError(f"shrink: order {self.order!r} is not known; known are lfu and lru")
        for key in ("min_score", "min_norm", "max_age", "capacity"):
            value = getattr(self, key)
            if value is not None and not value >= 0:
                raise ValueError(f"shrink: {key} is {value}; it must be 0 or more, or None")

    def needs_counters(self) -> bool:
        """Whether rows must carry counters for this."""
        return self.min_score > 0 or self.max_age is not None or self.capacity is not None


def admission_of(rules: RowRules | None, share: Share = ALONE) -> Admission | None:
    """The admission of one of the stores that hold a table together; None: no counters."""
    if rules is None or not rules.counted:
        return None
    settings = rules.admission.model_dump()
    settings["bloom_counters"] = -(-settings["bloom_counters"] // share[1])
    return Admission(**settings, share=share)


def shrink_of(rules: RowRules, shares: int = 1) -> Shrink:
    """The shrink rule of one of `shares` stores that hold a table together."""
    settings = rules.shrink.model_dump(exclude={"every"})
    if settings["capacity"] is not None:
        settings["capacity"] = -(-settings["capacity"] // shares)
    return Shrink(**settings)


def apply_row_rules(store: Any, rules: RowRules, shares: int = 1) -> bool:
    """After a push: let counts fade and rows go, when it is time; whether it was.

    The time is the store's own count of steps, so all stores of a table do it in the same one.
    """
    fades = rules.counter_decay.every > 0 and store.step % rules.counter_decay.every == 0
    drops = rules.shrink.every > 0 and rules.drops and store.step % rules.shrink.every == 0
    if fades:
        store.decay(rules.counter_decay.rate)
    if drops:
        num_dropped, step = store.shrink(shrink_of(rules, shares)), store.step
        log.info("table %s: %d rows dropped in step %d", store.table.name, num_dropped, step)
    return fades or drops

"""KeptHistories: what layers made of histories, so that a longer one costs what is new in it.

    first request    a b c      all three places are computed; a and b are kept
    next request     a b c d    c and d are computed; a, b and c are kept

The last place is not kept: it depends on when the next item is asked for. A history is found by its
items and times, whoever asks; another one shares nothing. One that is as long as a model reads is
not kept, since the next one begins elsewhere and every place has another position. The one that was
used longest ago leaves first when there are more bytes than allowed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.data.random import hash64
from shoal.runs.artifact.files import ArtifactError
from shoal.runs.artifact.operators.rule import TooLarge

# By field: new places behind kept ones -> [new places, width + dim].
Extend = Callable[[dict[str, Tensor]], Tensor]


@dataclass
class KeptHistory:
    """The first n places of a history: events [n, 3] (item, its time, the next one's), rows of
    n places or more."""

    events: np.ndarray
    rows: Tensor

    @property
    def bytes(self) -> int:
        return self.rows.nbytes + self.events.nbytes


class KeptHistories:
    """Keys and values of histories, of at most so many bytes."""

    def __init__(self, extend: Extend, width: int, max_len: int, most_bytes: int):
        self.extend, self.width, self.max_len, self.most_bytes = extend, width, max_len, most_bytes
        self.bytes = self.found = self.asked = 0
        self.places = 0  # that were computed
        self._step = 256  # places that are computed at a time
        self._kept: OrderedDict[int, KeptHistory] = OrderedDict()
        self._lock = threading.Lock()

    def queries(self, history: Tensor, times: Tensor | None) -> Tensor:
        """Query vectors [b, dim] of histories [b, l], left-aligned, 0 pads; times [b, l + 1]."""
        found = []
        for row, items in enumerate(history.numpy()):
            count = int(np.count_nonzero(items))
            when = None if times is None else times[row, : count + 1].numpy()
            found.append(self.query(items[:count], when))
        return torch.stack(found)

    def query(self, items: np.ndarray, times: np.ndarray | None) -> Tensor:
        """The query vector of a history of one item or more: items [l], times [l + 1] -> [dim]."""
        times = np.zeros(len(items) + 1, np.int64) if times is None else times
        events = np.stack([items, times[:-1], times[1:]], 1)
        keys = np.cumsum(hash64(*events.T, np.arange(len(events))), dtype=np.uint64)
        kept = self._take(events, keys)
        done = len(kept.events)
        rows = _longer(kept.rows, len(events), self.max_len)
        made = rows.new_empty(0, self.width)
        while done < len(events):
            stop = min(done + self._step, len(events))
            new = torch.from_numpy(events[done:stop])
            fields = dict(zip(("new", "taken", "asked"), (one.contiguous() for one in new.T)))
            fields["kept_taken"] = torch.from_numpy(times[:done].copy())
            try:
                made = self.extend({**fields, "kept": rows[:done]})
            except TooLarge as error:
                if self._step == 1:
                    raise ArtifactError(str(error)) from error
                self._step //= 2
                continue
            rows[done:stop] = made[:, : self.width]
            self.places += stop - done
            done = stop
        if 1 < len(events) < self.max_len:
            self._put(int(keys[-2]), KeptHistory(events[:-1], rows))
        return made[-1, self.width :]

    def _take(self, events: np.ndarray, keys: np.ndarray) -> KeptHistory:
        """The longest beginning that is kept. It is taken out: nobody else extends it meanwhile."""
        with self._lock:
            self.asked += 1
            for count in range(len(events) - 1, 0, -1):
                one = self._kept.get(int(keys[count - 1]))
                if one is not None and np.array_equal(one.events, events[:count]):
                    del self._kept[int(keys[count - 1])]
                    self.bytes -= one.bytes
                    self.found += 1
                    return one
        return KeptHistory(events[:0], torch.empty(0, self.width))

    def _put(self, key: int, one: KeptHistory) -> None:
        with self._lock:
            before = self._kept.pop(key, None)  # of another thread, or of an equal key
            self.bytes += one.bytes - (0 if before is None else before.bytes)
            self._kept[key] = one
            while self.bytes > self.most_bytes:
                _, oldest = self._kept.popitem(last=False)
                self.bytes -= oldest.bytes

    def __len__(self) -> int:
        return len(self._kept)


def _longer(rows: Tensor, count: int, most: int) -> Tensor:
    """With room for `count` rows and, where it must grow, for some that may follow."""
    if len(rows) >= count:
        return rows
    grown = torch.empty(min(most, count + max(8, count // 4)), rows.shape[1])
    grown[: len(rows)] = rows
    return grown

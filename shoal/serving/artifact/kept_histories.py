"""KeptHistories: what layers made of histories, so that a longer one costs what is new in it.

    first request    a b c      all three places are computed; a and b are kept
    next request     a b c d    c and d are computed; a, b and c are kept

The last place is not kept: it depends on when the next item is asked for. A history is found by its
items and times, whoever asks; another one shares nothing. One that is as long as a model reads is
not kept, since the next one begins elsewhere and every place has another position. The one that was
used longest ago leaves first when there are more bytes than allowed.

New places are computed for one history at a time; whole histories are computed together, in one
batch, which costs each of them less. So a history is extended only where that is cheaper, by costs
that are measured when a model is opened (`HistoryCosts.favor_extension`): always for long
histories, for short ones at most while few people ask at once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import thread_time

import numpy as np
import torch
from torch import Tensor

from shoal.data.random import hash64
from shoal.serving.artifact.files import ArtifactError
from shoal.serving.artifact.operators.rule import TooLarge

# By field: new places behind kept ones -> [new places, width + dim].
Extend = Callable[[dict[str, Tensor]], Tensor]
# By field: padded histories [b, max_len] -> query vectors [b, dim].
Whole = Callable[[Mapping[str, Tensor]], Tensor]


@dataclass(frozen=True)
class HistoryCosts:
    """Costs of query vectors on this machine, in seconds of CPU time, computed in either way.

    whole       b histories in one batch: batch + b * history, however short they are (padded)
    extended    n new places of one history behind kept ones: extension + n * place
    """

    batch: float
    history: float
    extension: float
    place: float

    def favor_extension(self, new_places: int, batch_size: int, kept: bool) -> bool:
        """True where extending a history costs less than computing it whole, with its batch.

        kept: whether its places will be kept. Then the next request, of two new places, counts as
        well: a history that is seen for the first time may cost more now and less from then on.
        """
        whole = self.batch / batch_size + self.history
        extended = self.extension + new_places * self.place
        if kept:
            whole, extended = 2 * whole, extended + self.extension + 2 * self.place
        return extended < whole


# By these every history is extended.
ALWAYS_EXTENDED = HistoryCosts(batch=1.0, history=1.0, extension=0.0, place=0.0)


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

    def __init__(
        self, extend: Extend, width: int, max_len: int, most_bytes: int, costs: HistoryCosts
    ):
        self.extend = extend
        self.width = width
        self.max_len = max_len
        self.most_bytes = most_bytes
        self.costs = costs
        self.bytes = self.hits = self.requests = 0
        self.places = 0  # that were computed
        self._step = 256  # places that are computed at a time
        self._kept: OrderedDict[int, KeptHistory] = OrderedDict()
        self._lock = threading.Lock()

    def queries(self, query: Mapping[str, Tensor], whole: Whole) -> Tensor:
        """Query vectors [b, dim] of a batch by field: `history` [b, max_len], left-aligned, 0 pads,
        and `history_time` [b, max_len + 1] where it is known.

        whole: computes those that are not extended, all of them together.
        """
        history, times = query["history"].numpy(), query.get("history_time")
        batch_size = len(history)
        with self._lock:
            self.requests += batch_size
        if not self.costs.favor_extension(1, batch_size, True):
            return whole(query)
        extended: dict[int, Tensor] = {}
        for row, count in enumerate(np.count_nonzero(history, axis=1).tolist()):
            row_times = None if times is None else times[row, : count + 1].numpy()
            events = _events(history[row, :count], row_times)
            keys = _keys(events)
            new_places = count - self._find(events, keys)
            if count and self.costs.favor_extension(new_places, batch_size, count < self.max_len):
                extended[row] = self._extended(events, keys)
        if not extended:
            return whole(query)
        if len(extended) == batch_size:
            return torch.stack(list(extended.values()))
        others = torch.tensor([row for row in range(batch_size) if row not in extended])
        computed = whole({name: values[others] for name, values in query.items()})
        vectors = computed.new_empty(batch_size, computed.shape[1])
        vectors[others] = computed
        vectors[list(extended)] = torch.stack(list(extended.values()))
        return vectors

    def query(self, items: np.ndarray, times: np.ndarray | None) -> Tensor:
        """The query vector of one history, extended: items [l >= 1], times [l + 1] -> [dim]."""
        events = _events(items, times)
        return self._extended(events, _keys(events))

    def _extended(self, events: np.ndarray, keys: np.ndarray) -> Tensor:
        """The query vector of a history, of which what is not kept is computed."""
        kept = self._take(events, keys)
        done = len(kept.events)
        rows = _longer(kept.rows, len(events), self.max_len)
        outputs = rows.new_empty(0, self.width)
        while done < len(events):
            stop = min(done + self._step, len(events))
            new = torch.from_numpy(events[done:stop])
            fields = dict(zip(("new", "taken", "asked"), (one.contiguous() for one in new.T)))
            fields["kept_taken"] = torch.from_numpy(events[:done, 1].copy())
            try:
                outputs = self.extend({**fields, "kept": rows[:done]})
            except TooLarge as error:
                if self._step == 1:
                    raise ArtifactError(str(error)) from error
                self._step //= 2
                continue
            rows[done:stop] = outputs[:, : self.width]
            self.places += stop - done
            done = stop
        if 1 < len(events) < self.max_len:
            self._put(int(keys[-2]), KeptHistory(events[:-1], rows))
        return outputs[-1, self.width :]

    def _find(self, events: np.ndarray, keys: np.ndarray) -> int:
        """How many places of a history are kept: of its longest beginning that is."""
        with self._lock:
            for count in range(len(events) - 1, 0, -1):
                kept = self._kept.get(int(keys[count - 1]))
                if kept is not None and np.array_equal(kept.events, events[:count]):
                    return count
        return 0

    def _take(self, events: np.ndarray, keys: np.ndarray) -> KeptHistory:
        """The longest beginning that is kept. It is taken out, so no other thread extends it."""
        with self._lock:
            for count in range(len(events) - 1, 0, -1):
                kept = self._kept.get(int(keys[count - 1]))
                if kept is not None and np.array_equal(kept.events, events[:count]):
                    del self._kept[int(keys[count - 1])]
                    self.bytes -= kept.bytes
                    self.hits += 1
                    return kept
        return KeptHistory(events[:0], torch.empty(0, self.width))

    def _put(self, key: int, history: KeptHistory) -> None:
        with self._lock:
            before = self._kept.pop(key, None)  # of another thread, or of an equal key
            self.bytes += history.bytes - (0 if before is None else before.bytes)
            self._kept[key] = history
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


def _events(items: np.ndarray, times: np.ndarray | None) -> np.ndarray:
    """Events [l, 3] of a history: item, its time, and the time of the next one."""
    times = np.zeros(len(items) + 1, np.int64) if times is None else times
    return np.stack([items, times[:-1], times[1:]], 1)


def _keys(events: np.ndarray) -> np.ndarray:
    """The key of every beginning of a history: [l]."""
    return np.cumsum(hash64(*events.T, np.arange(len(events))), dtype=np.uint64)


def measure_costs(kept: KeptHistories, whole: Whole, query: Mapping[str, Tensor]) -> HistoryCosts:
    """Costs of both ways on this machine, on one thread; a second or less for most models.

    kept: an empty one, used up by this; query: some equal histories, one place shorter than the
    longest that the model reads.
    """
    # A service computes every batch on one thread.
    with ThreadPoolExecutor(1, "costs", torch.set_num_threads, (1,)) as pool:
        return pool.submit(_measure, kept, whole, query).result()


def _measure(kept: KeptHistories, whole: Whole, query: Mapping[str, Tensor]) -> HistoryCosts:
    size = len(query["history"])
    alone = _seconds(lambda: whole({name: values[:1] for name, values in query.items()}))
    if alone > 0.02:  # a few long ones show the cost of each as well as many
        size = 2
    together = _seconds(lambda: whole({name: values[:size] for name, values in query.items()}))
    history = max(0.0, together - alone) / (size - 1)
    items = query["history"][0].numpy()
    items = items[items > 0]
    times = query["history_time"][0].numpy() if "history_time" in query else None

    def ask(count: int) -> float:
        begun = thread_time()
        kept.query(items[:count], None if times is None else times[: count + 1])
        return thread_time() - begun

    kept.query(items[:1], None if times is None else times[:2])  # what is made on first use
    first = max(1, len(items) - 8)
    beginning = ask(first)
    two_places = min(ask(count) for count in range(first + 1, len(items) + 1))
    place = max(0.0, beginning - two_places) / max(1, first - 2)
    extension = max(0.0, two_places - 2 * place)
    return HistoryCosts(max(0.0, alone - history), history, extension, place)


def _seconds(compute: Callable[[], object]) -> float:
    """The least of a few times, since other load only adds; one that takes long is not repeated."""
    least = float("inf")
    for _ in range(4):
        begun = thread_time()
        compute()
        least = min(least, thread_time() - begun)
        if least > 0.5:
            break
    return least

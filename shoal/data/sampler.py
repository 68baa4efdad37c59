"""Negative items: never the padding, never a known positive, the same for every slicing.

A draw depends on (seed, epoch, sample index, column) and on what its user has seen, and on nothing
else: not on the batch, not on the rank, not on how many columns are drawn.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from shoal.data.random import hash64, uniform, uniform_below
from shoal.data.raw_columns import gather
from shoal.kernels.sampling import KnownPairs, draw_negatives

BITMAP_BYTES = 64 * 2**20
MAX_ATTEMPTS = 100  # then the choice is made from the list of unseen items
_COLUMN_BITS = 20  # columns below a million, samples of an epoch below 2^43


def _begins(ordered: np.ndarray) -> np.ndarray:
    """The places of a sorted array where a new value begins."""
    return np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))


def distinct(keys: np.ndarray) -> np.ndarray:
    """The different keys, ascending; np.unique takes ten times as long and more."""
    keys = np.sort(keys)
    return keys[_begins(keys)]


class SeenPairs:
    """The known (user, item) pairs: a packed bitmap where it is small, sorted keys otherwise."""

    def __init__(
        self, users: np.ndarray, items: np.ndarray, num_users: int, num_items: int
    ) -> None:
        keys = distinct(np.asarray(users, dtype=np.int64) * num_items + items)
        starts = np.searchsorted(keys, np.arange(num_users + 1) * num_items)
        self._set(keys, starts, num_users, num_items)

    @classmethod
    def sorted(
        cls, keys: np.ndarray, starts: np.ndarray, num_users: int, num_items: int
    ) -> SeenPairs:
        """From pairs user * num_items + item, ascending and once each, as a file may hold them.

        Those of a user begin at starts[user]; both int64, starts [num_users + 1].
        """
        seen = cls.__new__(cls)
        seen._set(keys, starts, num_users, num_items)
        return seen

    def _set(self, keys: np.ndarray, starts: np.ndarray, num_users: int, num_items: int) -> None:
        self.num_users, self.num_items = num_users, num_items
        self._keys, self._starts = keys, starts
        self._bitmap: np.ndarray | None = None
        num_bytes = (num_users * num_items + 7) // 8
        if num_bytes <= BITMAP_BYTES:
            self._bitmap = np.zeros(num_bytes, dtype=np.uint8)
            if self._keys.size:
                bits = np.left_shift(np.uint8(1), (self._keys & 7).astype(np.uint8))
                places = self._keys >> 3
                first = _begins(places)
                self._bitmap[places[first]] = np.bitwise_or.reduceat(bits, first)

    def contains(self, users: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Whether each pair is known, bool, in the broadcast shape of users and items."""
        keys = np.asarray(users, dtype=np.int64) * self.num_items + items
        if self._bitmap is not None:
            bits = self._bitmap[keys >> 3]
            keys &= 7
            bits >>= keys.astype(np.uint8)
            bits &= 1
            return bits.view(bool)
        if not self._keys.size:
            return np.zeros(keys.shape, dtype=bool)
        places = np.searchsorted(self._keys, keys)
        np.minimum(places, self._keys.size - 1, out=places)
        return self._keys[places] == keys

    def pairs(self) -> KnownPairs:
        """The pairs in the form that kernels take."""
        return KnownPairs(self.num_users, self.num_items, self._bitmap, self._keys, self._starts)

    def draw(self, samples: np.ndarray, seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """A user and one of the user's items for each sample, int64 [n] each; both uniform.

        Only users who have items are drawn; a pure function of (seed, epoch, sample).
        """
        having = np.flatnonzero(np.diff(self._starts))
        bits = hash64(seed, epoch, samples)
        users = having[uniform_below(bits, len(having))]
        starts = self._starts[users]
        places = starts + uniform_below(hash64(bits, 1), self._starts[users + 1] - starts)
        return users, self._keys[places] - users * self.num_items

    def items_of(self, users: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Known items of a block of users, ascending for each user.

        Row i is items[offsets[i]:offsets[i + 1]]; offsets int64 [n + 1], items int64 [total].
        """
        users = np.asarray(users, dtype=np.int64)
        keys, offsets = gather(self._keys, self._starts, users, 0)
        assert offsets is not None
        return offsets, keys - np.repeat(users * self.num_items, np.diff(offsets))


class NegativeSampler:
    """Draws unseen items, uniformly or in proportion to popularity^alpha.

    popularity: counts of the items in training, [num_items]; its entry 0 (padding) is ignored.
    Items that were never counted are not drawn by popularity (unless alpha is 0), except for a
    user who has seen all the others.
    """

    def __init__(
        self,
        seen: SeenPairs,
        num_items: int,
        *,
        distribution: Literal["uniform", "popularity"] = "uniform",
        alpha: float = 1.0,
        popularity: np.ndarray | None = None,
        seed: int,
    ) -> None:
        assert seen.num_items == num_items, "what was seen is of another catalogue"
        self.seen = seen
        self.num_items = num_items
        self.seed = seed
        self._weights: np.ndarray | None = None
        if distribution == "popularity":
            assert popularity is not None and len(popularity) == num_items
            weights = np.asarray(popularity, dtype=np.float64)[1:] ** alpha
            if not np.isfinite(weights).all() or weights.min() < 0 or weights.sum() == 0:
                raise ValueError(
                    "popularity^alpha must be finite, not negative and positive for some item; "
                    f"alpha is {alpha}"
                )
            self._weights = weights
            self._keep, self._alias = alias_table(weights)

    def draw(self, users: np.ndarray, index: np.ndarray, epoch: int, num: int) -> np.ndarray:
        """Negatives of a slice of samples: int64 [n, num], in 1 .. num_items - 1.

        users  [n] user of each sample
        index  [n] global index of each sample in the epoch
        """
        users = np.ascontiguousarray(users, dtype=np.int64)
        index = np.ascontiguousarray(index, dtype=np.int64)
        assert users.ndim == 1 and users.shape == index.shape
        native_draw = draw_negatives(
            self.seen.pairs(),
            key=int(hash64(self.seed, epoch)),
            alias_table=None if self._weights is None else (self._keep, self._alias),
            column_bits=_COLUMN_BITS,
            max_attempts=MAX_ATTEMPTS,
            users=users,
            index=index,
            num=num,
        )
        if native_draw is None:  # there is no native core
            return self._draw(users, index, epoch, num)
        drawn, num_open = native_draw
        if num_open < 0:
            raise ValueError(
                f"user ids run from {users.min()} to {users.max()}; allowed are 0 to "
                f"{self.seen.num_users - 1}"
            )
        if num_open:  # users who have seen nearly everything
            rows = np.flatnonzero((drawn == 0).any(axis=1))
            drawn[rows] = self._draw(users[rows], index[rows], epoch, num)
        return drawn

    def _draw(self, users: np.ndarray, index: np.ndarray, epoch: int, num: int) -> np.ndarray:
        """The definition of a draw, in numpy; the native core does the same, entry by entry."""
        # One integer names the entry. [num, n] within: the long axis is the contiguous one.
        entries = (index << _COLUMN_BITS) + np.arange(num)[:, None]
        bits = hash64(self.seed, epoch, entries)
        drawn = self._choose(bits)
        rejected = np.flatnonzero(self.seen.contains(users, drawn))
        if rejected.size:
            flat = drawn.reshape(-1)
            self._redraw(flat, rejected, users[rejected % users.size], bits.reshape(-1)[rejected])
        return np.ascontiguousarray(drawn.T)

    def draw_distinct(
        self, users: np.ndarray, index: np.ndarray, epoch: int, num: int
    ) -> np.ndarray:
        """Negatives of samples like `draw`, but all those of a sample differ: draws one after the
        other, each without those before. 0 fills the row of a user who has fewer than num unseen
        items.
        """
        users, index = np.asarray(users, dtype=np.int64), np.asarray(index, dtype=np.int64)
        chosen = np.zeros((len(users), num), dtype=np.int64)
        open_rows, width = np.arange(len(users)), num + num // 4 + 4
        # Repeats are drawn over: a longer row of draws begins with the shorter one.
        while open_rows.size and width <= 16 * num + 64:
            drawn = self.draw(users[open_rows], index[open_rows], epoch, width)
            place = np.cumsum(_first_occurrences(drawn), axis=1)  # 1, 2, ... at new items
            new = np.diff(place, axis=1, prepend=0).astype(bool) & (place <= num)
            row, column = np.nonzero(new)
            chosen[open_rows[row], place[row, column] - 1] = drawn[row, column]
            open_rows, width = open_rows[place[:, -1] < num], 4 * width
        for open_row in open_rows:
            rest = self._order(int(users[open_row]), hash64(self.seed, epoch, int(index[open_row])))
            rest = rest[~np.isin(rest, chosen[open_row])]
            free = np.flatnonzero(chosen[open_row] == 0)[: len(rest)]
            chosen[open_row, free] = rest[: len(free)]
        return chosen

    def _order(self, user: int, bits: np.ndarray) -> np.ndarray:
        """All unseen items of a user in the order in which draws without repeats find them."""
        items = self._unseen(user)
        # The smallest of exponential waiting times comes first; what has no weight comes last.
        wait = -np.log1p(-uniform(hash64(bits + items.astype(np.uint64))))
        if self._weights is not None:
            with np.errstate(divide="ignore"):
                wait = wait / self._weights[items - 1]
        return items[np.argsort(wait, kind="stable")]

    def _unseen(self, user: int) -> np.ndarray:
        unseen = np.ones(self.num_items, dtype=bool)
        unseen[self.seen.items_of(np.array([user]))[1]] = False
        unseen[0] = False
        return np.flatnonzero(unseen)

    def _choose(self, bits: np.ndarray) -> np.ndarray:
        """Items for uint64 bits, whether seen or not."""
        if self._weights is None:
            items = uniform_below(bits, self.num_items - 1)
        else:
            # The whole part is a slot of the table; the fraction is as good as a fresh number.
            coin = uniform(bits, self.num_items - 1)
            slots = coin.astype(np.int64)
            coin -= slots
            items = np.where(coin < self._keep[slots], slots, self._alias[slots])
        items += 1
        return items

    def _redraw(
        self, drawn: np.ndarray, places: np.ndarray, users: np.ndarray, bits: np.ndarray
    ) -> None:
        """Replace drawn[places] by the first unseen item of their further attempts, in place."""
        for attempt in range(1, MAX_ATTEMPTS):
            if not places.size:
                break
            drawn[places] = self._choose(hash64(bits + np.uint64(attempt)))
            is_seen = self.seen.contains(users, drawn[places])
            places, users, bits = places[is_seen], users[is_seen], bits[is_seen]
        for user in np.unique(users) if places.size else ():
            mine = users == user
            drawn[places[mine]] = self._exact(
                int(user), hash64(bits[mine] + np.uint64(MAX_ATTEMPTS))
            )

    def _exact(self, user: int, bits: np.ndarray) -> np.ndarray:
        """Choose from the list of items that a user has not seen."""
        items = self._unseen(user)
        if not items.size:
            raise ValueError(
                f"user {user} (remapped id) has seen all {self.num_items - 1} items, so there is "
                "no negative to draw; leave such users out (data.filter.user_inter_num) or train "
                "without negatives (train.negatives: null)"
            )
        if self._weights is not None:
            sums = np.cumsum(self._weights[items - 1])
            if sums[-1] > 0:
                return items[np.searchsorted(sums, uniform(bits, sums[-1]), side="right")]
        return items[uniform_below(bits, items.size)]


def log_weights(popularity: np.ndarray, distribution: str, alpha: float) -> np.ndarray:
    """ln of how often each item is drawn, up to a constant: float32 [num_items]; 0: uniformly."""
    weight = np.maximum(popularity, 1.0) ** (alpha if distribution == "popularity" else 0.0)
    return np.log(weight).astype(np.float32)


def _first_occurrences(values: np.ndarray) -> np.ndarray:
    """Where a row [n, width] has a value for the first time, bool."""
    order = np.argsort(values, axis=1, kind="stable")
    ordered = np.take_along_axis(values, order, 1)
    is_first = np.ones(values.shape, dtype=bool)
    is_first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    is_new = np.empty_like(is_first)
    np.put_along_axis(is_new, order, is_first, 1)
    return is_new


def alias_table(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slots for drawing in constant time: (keep float64 [n], alias int64 [n]).

    A slot keeps a coin in [0, 1) below its `keep` and passes it to its alias otherwise. Light slots
    are filled up from the heavy ones in order; a heavy slot that is overdrawn is filled by the
    next. Prefix sums of what is missing and of what is left over say where, for all slots at once.
    """
    scaled = weights * (weights.size / weights.sum())
    light, heavy = np.flatnonzero(scaled < 1), np.flatnonzero(scaled >= 1)
    keep, alias = np.minimum(scaled, 1.0), np.arange(weights.size)
    if light.size and heavy.size:
        missing = np.cumsum(1 - scaled[light])
        begins = np.concatenate([[0.0], missing[:-1]])
        surplus = np.cumsum(scaled[heavy] - 1)
        giver = np.searchsorted(surplus, begins, side="right")
        alias[light] = heavy[np.minimum(giver, heavy.size - 1)]
        # The last light slot that begins before a heavy one is used up may take more than is left.
        taker = np.searchsorted(begins, surplus[:-1], side="left") - 1
        overdrawn = np.where(taker < 0, 0.0, missing[taker] - surplus[:-1])
        keep[heavy[:-1]] = 1 - np.maximum(overdrawn, 0.0)
        alias[heavy[:-1]] = heavy[1:]
    return keep, alias

"""Recommender: the best items for users and histories, of a run, an artifact and the service.

    query     users by number, or what somebody took; as the model reads them
    items     the whole catalogue, or those that are allowed
    without   what each of them took, unless it may come again, and what is excluded
    top-k     of all queries together, exact (kernels/topk.py)

Ids are the data's own, in its type. An unknown user gets the most popular items, and unknown items
of a history are left out; the ranking reports both.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from shoal.data.ids import Ids
from shoal.kernels.topk import DotProducts, Fill, Pairs, plain, rank
from shoal.runs.explain import Breakdown, Explanation
from shoal.runs.ranked import RankedItems, UserRankings

log = logging.getLogger("shoal")
NOBODY = np.zeros(0, np.int64)


class History(NamedTuple):
    """Items, oldest first; and their times in seconds, with that of the request behind them."""

    items: np.ndarray  # int64 [n]
    times: np.ndarray | None = None  # int64 [n + 1]


@dataclass(frozen=True)
class Wanted:
    """One question: items for a user, or for whoever took a history (oldest first).

    times    of the history's items, for models that read them; one more is that of the request
    exclude  items that may not come; only: the items that alone may come
    seen     whether what was taken may come again; None: as the model was trained
    """

    user: Any = None
    history: Sequence[Any] | None = None
    times: Sequence[int] | None = None
    topk: int = 10
    exclude: Sequence[Any] = ()
    only: Sequence[Any] | None = None
    seen: bool | None = None


class Catalogue(Protocol):
    """What a trained model tells a recommender; numbers stand for users and items, 0 for none."""

    users: Ids
    items: Ids
    repeatable: bool  # whether what was taken may come again

    @property
    def popularity(self) -> np.ndarray:
        """How often each item was taken: [num_items]."""

    def of_users(self, users: np.ndarray) -> Any:
        """The query of known users."""

    def need_histories(self, timed: bool) -> None:
        """Refuse histories that the model cannot read; timed: with times."""

    def of_histories(self, histories: Sequence[History], user: int = 0) -> Any:
        """The query of anybody by what they took, as if they were this user; 0: nobody known."""

    def seen(self, users: np.ndarray) -> Pairs:
        """What each of these users took: place in `users` [m], item [m]."""

    def fill(self, query: Any, items: Tensor | None) -> Fill:
        """What writes the scores of a query for these items; None: for all."""

    @property
    def item_vectors(self) -> Tensor:
        """The vector of every item [num_items, dim]; refused where there are none."""

    @property
    def captions(self) -> Mapping[str, Any]:
        """`title` and `picture` of every item [num_items], empty text where it has none."""

    def breakdown(self, user: int, history: History | None, item: int) -> Breakdown:
        """The score of an item as a sum, for a known user or for a history."""


class Recommender:
    """Ranks a catalogue."""

    def __init__(self, catalogue: Catalogue):
        self.catalogue = catalogue
        self.users, self.items = catalogue.users, catalogue.items

    # ---- questions ------------------------------------------------------------------------------

    def recommend(self, user: Any = None, **question: Any) -> RankedItems | dict[Any, RankedItems]:
        """The ranking of one question; of several users a dict of them, which one pass makes."""
        if isinstance(user, str) or not isinstance(user, Iterable):
            return self.answer([Wanted(user, **question)])[0]
        users = [one.item() if isinstance(one, np.generic) else one for one in user]
        every = self.answer([Wanted(one, **question) for one in users])
        missing = [lost for found in every for lost in found.unknown]
        if missing:
            log.warning(
                "%d of %d users are not known, as %r: the most popular items answer",
                *(len(missing), len(users), missing[0]),
            )
        return UserRankings(zip(users, every))

    def answer(self, asked: Sequence[Wanted]) -> list[RankedItems]:
        """The rankings of questions; all that ask for the whole catalogue are one pass."""
        for one in asked:
            if (one.user is None) == (one.history is None):
                raise ValueError("give a user or a history, one of them")
            if one.topk < 1:
                raise ValueError(f"topk is {one.topk}; it must be 1 or more")
        answers: list[RankedItems] = [RankedItems(())] * len(asked)
        groups: dict[Any, list[tuple[int, Any]]] = {}  # what is ranked together
        unknown: dict[int, list[Any]] = {}
        users = iter(self.users.find([one.user for one in asked if one.history is None]).tolist())
        for place, one in enumerate(asked):
            if one.history is None:
                kind, what = "user", next(users)
                unknown[place], known = [] if what else [one.user], what > 0
            else:
                self.catalogue.need_histories(one.times is not None)
                kind, (what, unknown[place]) = "history", self._history(one)
                known = len(what.items) > 0
            if known:
                own = None if one.only is None else place  # a list of its own
                groups.setdefault((kind, own), []).append((place, what))
            else:
                answers[place] = self._popular(one)
        for (kind, _), group in groups.items():
            some = [asked[place] for place, _ in group]
            found = self._together(kind, some, [what for _, what in group])
            for (place, _), ranking in zip(group, found):
                answers[place] = ranking
        for place, ranking in enumerate(answers):
            ranking.unknown = tuple(unknown[place])
        return answers

    def score(self, one: Wanted, items: Sequence[Any]) -> list[float]:
        """Scores of items for a user or a history; what is not known is refused."""
        wanted = torch.from_numpy(self.items.need(items, "item"))
        if one.history is None:
            query = self.catalogue.of_users(self.users.need([one.user], "user"))
        else:
            self.catalogue.need_histories(one.times is not None)
            self.items.need(one.history, "item")
            query = self.catalogue.of_histories([self._history(one)[0]])
        return self.scores(query, 1, wanted)[0].tolist()

    def similar_items(self, item: Any, topk: int = 10) -> RankedItems:
        """The items whose vectors point most the same way: (item, cosine) each, without itself."""
        number = self.items.need([item], "item")
        without = np.zeros(2, np.int64), np.array([0, number[0]])
        fill = DotProducts(self._units[number], self._units)
        found = plain(*rank(fill, 1, len(self._units), topk, without), None)
        return self._named(found[0][0], found[1][0])

    def explain(self, one: Wanted, item: Any) -> Explanation:
        """Why an item has its score for a user or a history; what is not known is refused."""
        number = int(self.items.need([item], "item")[0])
        if (one.user is None) == (one.history is None):
            raise ValueError("give a user or a history, one of them")
        if one.history is None:
            user, history = int(self.users.need([one.user], "user")[0]), None
        else:
            self.catalogue.need_histories(one.times is not None)
            self.items.need(one.history, "item")
            user, (history, _) = 0, self._history(one)
        found = self.catalogue.breakdown(user, history, number)
        how = (found.rest, found.rest_is, found.of, found.error)
        if found.of == "features":
            return Explanation(zip(found.what, found.shares.tolist()), *how)
        total: dict[int, float] = {}  # an item may stand in a history more than once
        for what, share in zip(found.what, found.shares.tolist()):
            total[what] = total.get(what, 0.0) + share
        shares = [(self.items.values[k], share) for k, share in total.items()]
        return Explanation(shares, *how, self.titles(what for what, _ in shares))

    def titles(self, items: Iterable[Any]) -> dict[Any, str]:
        """Known items -> their titles, of those that have one."""
        return {one: own["title"] for one in items if "title" in (own := self.caption(one))}

    def caption(self, item: Any) -> dict[str, str]:
        """`title` and `picture` of a known item, where it has them."""
        (number,) = self.items.find([item])
        found = {role: str(texts[number]) for role, texts in self.catalogue.captions.items()}
        return {role: text for role, text in found.items() if text}

    @cached_property
    def _units(self) -> Tensor:
        return torch.nn.functional.normalize(self.catalogue.item_vectors, eps=1e-12)

    def _history(self, one: Wanted) -> tuple[History, list[Any]]:
        """What is known of a history, and what is not."""
        given = list(one.history or ())
        numbers = self.items.find(given)
        known = numbers > 0
        unknown = [item for item, number in zip(given, numbers.tolist()) if not number]
        times = None if one.times is None else asked_at(one.times, len(given))[[*known, True]]
        return History(numbers[known], times), unknown

    def _together(self, kind: str, asked: Sequence[Wanted], what: list[Any]) -> list[RankedItems]:
        """Rankings of questions that allow the same items."""
        only = asked[0].only
        allowed = None if only is None else np.unique(self.items.find(only))
        allowed = allowed if allowed is None else allowed[allowed > 0]
        again = self.catalogue.repeatable
        left = np.array([not (again if one.seen is None else one.seen) for one in asked])
        if kind == "user":
            users = np.array(what, np.int64)
            query, places = self.catalogue.of_users(users), np.flatnonzero(left)
            rows, items = self.catalogue.seen(users[left]) if len(places) else (NOBODY, NOBODY)
            pairs = [(places[rows], items)]
        else:
            query = self.catalogue.of_histories(what)
            pairs = [(np.full(len(h.items), k), h.items) for k, h in enumerate(what) if left[k]]
        for k, one in enumerate(asked):
            if one.exclude:
                banned = self.items.find(one.exclude)  # what is not known cannot come anyway
                pairs.append((np.full(len(banned), k), banned))
        rows, items = (np.concatenate([NOBODY, *(one[k] for one in pairs)]) for k in (0, 1))
        topk = max(one.topk for one in asked)
        items, scores = self.rank(query, len(asked), topk, (rows, items), allowed)
        return [self._named(items[k, : one.topk], scores[k]) for k, one in enumerate(asked)]

    def _named(self, items: np.ndarray, scores: np.ndarray) -> RankedItems:
        """Numbers of items and their scores; places without an item are left out."""
        left = int((items > 0).sum())  # the best first
        found = zip(self.items.values[items[:left]].tolist(), scores[:left].tolist())
        return RankedItems(found, titles=self.titles)

    def _popular(self, one: Wanted) -> RankedItems:
        allowed = None if one.only is None else self.items.find(one.only)
        items, counts = self.popular(one.topk, allowed, self.items.find(one.exclude))
        found = zip(self.items.values[items].tolist(), counts.tolist())
        return RankedItems(found, "popularity", titles=self.titles)

    # ---- by numbers, many at a time -------------------------------------------------------------

    def rank(
        self,
        query: Any,
        count: int,
        topk: int,
        without: Pairs = (NOBODY, NOBODY),
        allowed: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The best items of each of `count` queries [b, k] (0: none left), their scores [b, k].

        allowed: the items that alone may come, ascending; `without`: pairs that may not.
        """
        num_items = len(self.items) if allowed is None else len(allowed)
        rows, banned = without
        if allowed is None:
            rows = np.concatenate([rows, np.arange(count)])
            banned = np.concatenate([banned, np.zeros(count, np.int64)])  # the padding
        else:
            place = np.searchsorted(allowed, banned).clip(max=max(0, num_items - 1))
            inside = allowed[place] == banned if num_items else np.zeros(len(banned), bool)
            rows, banned = rows[inside], place[inside]
        ids = None if allowed is None else torch.from_numpy(allowed)
        with torch.inference_mode():
            fill = self.catalogue.fill(query, ids)
            found, scores = rank(fill, count, num_items, topk, (rows, banned))
        return plain(found, scores, allowed)

    def rank_users(
        self,
        users: np.ndarray,
        topk: int,
        allowed: np.ndarray | None = None,
        banned: np.ndarray = NOBODY,
        seen: bool | None = None,
        by: Any = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same for users by number; 0, who is not known, gets the most popular items.

        by: what ranks a query instead (as Approximate.rank).
        """
        known = np.flatnonzero(users)
        again = self.catalogue.repeatable if seen is None else seen
        rows, items = (NOBODY, NOBODY) if again else self.catalogue.seen(users[known])
        rows = np.concatenate([rows, np.repeat(np.arange(len(known)), len(banned))])
        items = np.concatenate([items, np.tile(banned, len(known))])
        query = self.catalogue.of_users(users[known])
        if by is not None:
            found = by(query, topk, (rows, items))
        else:
            found = self.rank(query, len(known), topk, (rows, items), allowed)
        if len(known) == len(users):
            return found
        width = found[0].shape[1]
        best, counts = self.popular(width, allowed, banned)
        every = np.zeros((len(users), width), np.int64), np.zeros((len(users), width), np.float32)
        every[0][:, : len(best)], every[1][:, : len(best)] = best, counts
        every[0][known], every[1][known] = found
        return every

    def scores(self, query: Any, count: int, items: Tensor) -> Tensor:
        """Scores of items [n] for each of `count` queries: [b, n]."""
        made = torch.empty(count, len(items))
        with torch.inference_mode():
            self.catalogue.fill(query, items)(0, count, 0, len(items), made)
        return made

    def popular(
        self, topk: int, allowed: np.ndarray | None = None, banned: np.ndarray = NOBODY
    ) -> tuple[np.ndarray, np.ndarray]:
        """The items that were taken most, and how often."""
        counts = self.catalogue.popularity
        order = self._by_popularity
        if allowed is not None:
            order = order[np.isin(order, allowed)]
        order = order[~np.isin(order, banned)][:topk] if len(banned) else order[:topk]
        return order, counts[order].astype(np.float32)

    @cached_property
    def _by_popularity(self) -> np.ndarray:
        return np.argsort(-self.catalogue.popularity[1:], kind="stable") + 1


def asked_at(times: Sequence[int] | np.ndarray, count: int) -> np.ndarray:
    """Times of `count` items and of the request, now where it is not given: [count + 1]."""
    given = np.asarray(times, dtype=np.int64)
    if given.shape not in ((count,), (count + 1,)):
        raise ValueError(
            f"there are {len(given)} times for {count} items; one more may be that of the request"
        )
    if len(given) == count:
        given = np.append(given, given[-1] if count else 0)
    return given


def padded(histories: Sequence[History], length: int) -> dict[str, np.ndarray]:
    """The last items of each: `history` [n, length], left-aligned, 0 pads.

    Where they have times `history_time` [n, length + 1]: behind the last item that of the request.
    """
    found = {"history": np.zeros((len(histories), length), np.int64)}
    if histories and histories[0].times is not None:
        found["history_time"] = np.zeros((len(histories), length + 1), np.int64)
    for row, one in enumerate(histories):
        for name, values in (("history", one.items), ("history_time", one.times)):
            if name in found:
                assert values is not None
                last = values[-found[name].shape[1] :]
                found[name][row, : len(last)] = last
    return found

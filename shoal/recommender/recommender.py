"""Recommender: the best items for users and histories, of a run, an artifact and the service.

    query     users by number, or histories; as the model reads them
    items     the whole catalogue, or those that are allowed
    without   what each of them took, unless it may come again, and what is excluded
    top-k     of all queries together, exact (kernels/topk.py)

Ids are the data's own, in its type. An unknown user gets the most popular items, and unknown items
of a history are left out; the ranking reports both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from shoal.data.ids import Ids
from shoal.kernels.topk import TILE, DotProducts, Fill, MaskedFill, Pairs, plain, rank
from shoal.recommender.explanation import Breakdown, Explanation
from shoal.recommender.ranked_items import RankedItems, UserRankings

log = logging.getLogger("shoal")
NO_IDS = np.zeros(0, np.int64)
Append = Callable[[str, Tensor, Tensor], Tensor]  # a name, rows [n, ...] and new ones -> all
MANY_ALLOWED = 0.25  # share of the items above which all are scored


class History(NamedTuple):
    """Items, oldest first; and their times in seconds, with that of the request behind them."""

    items: np.ndarray  # int64 [n]
    times: np.ndarray | None = None  # int64 [n + 1]


@dataclass(frozen=True)
class RankingQuestion:
    """One question: items for a user, or for a history (oldest first).

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


class Asker(NamedTuple):
    """Who asks a question, as the model knows it: a user by number, or a history."""

    user_id: int  # 0: not known
    history: History | None  # its known items; None: a user asks
    unknown: tuple[Any, ...]  # the user, or items of the history, that the model does not know

    @property
    def is_known(self) -> bool:
        """False where the model knows nothing of the asker: popular items answer."""
        return self.user_id > 0 if self.history is None else len(self.history.items) > 0


class Catalogue(Protocol):
    """A trained model as a recommender reads it; numbers stand for users and items, 0 for none."""

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
        """The query of histories, as if they were this user's; 0: an unknown user's."""

    def seen(self, users: np.ndarray) -> Pairs:
        """All that each of these users took: place in `users` [m], item [m]."""

    def fill(self, query: Any, items: Tensor | None) -> Fill:
        """The function that writes the scores of a query for these items; None: for all."""

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
        self.users = catalogue.users
        self.items = catalogue.items

    def of_longer(self, catalogue: Catalogue, append: Append) -> Recommender:
        """The recommender of this catalogue with items behind that nobody has taken.

        What was computed of the others stays. append: as `SpareRows.append` of artifacts.
        """
        longer = Recommender(catalogue)
        count, computed = len(self.items), vars(self)
        if "_units" in computed:
            units = torch.nn.functional.normalize(catalogue.item_vectors[count:], eps=1e-12)
            longer._units = append("units", self._units, units)
        if "_by_popularity" in computed:
            new = np.arange(count, len(catalogue.items))
            longer._by_popularity = np.append(self._by_popularity, new)
        return longer

    # ---- questions ------------------------------------------------------------------------------

    def recommend(self, user: Any = None, **question: Any) -> RankedItems | dict[Any, RankedItems]:
        """The ranking of one question; of several users a dict of them, which one pass makes."""
        if isinstance(user, str) or not isinstance(user, Iterable):
            return self.answer([RankingQuestion(user, **question)])[0]
        users = [one.item() if isinstance(one, np.generic) else one for one in user]
        rankings = self.answer([RankingQuestion(one, **question) for one in users])
        missing = [lost for ranking in rankings for lost in ranking.unknown]
        if missing:
            log.warning(
                "%d of %d users are not known, as %r: the most popular items answer",
                len(missing),
                len(users),
                missing[0],
            )
        return UserRankings(zip(users, rankings))

    def answer(self, questions: Sequence[RankingQuestion]) -> list[RankedItems]:
        """The rankings of questions: all users that ask for the whole catalogue are one pass, all
        histories another."""
        for question in questions:
            if (question.user is None) == (question.history is None):
                raise ValueError("give a user or a history, one of them")
            if question.topk < 1:
                raise ValueError(f"topk is {question.topk}; it must be 1 or more")
        askers = self._find_askers(questions)
        answers = [RankedItems(())] * len(questions)
        groups: dict[Any, list[int]] = {}  # places of questions that are ranked together
        for place, (question, asker) in enumerate(zip(questions, askers)):
            if asker.is_known:
                # A question with a list of allowed items is ranked alone.
                alone = None if question.only is None else place
                groups.setdefault((asker.history is None, alone), []).append(place)
            else:
                answers[place] = self._popular(question)
        for places in groups.values():
            rankings = self._rank_group(
                [questions[place] for place in places], [askers[place] for place in places]
            )
            for place, ranking in zip(places, rankings):
                answers[place] = ranking
        for ranking, asker in zip(answers, askers):
            ranking.unknown = asker.unknown
        return answers

    def score(self, question: RankingQuestion, items: Sequence[Any]) -> list[float]:
        """Scores of items for a user or a history; raises UnknownName."""
        item_ids = torch.from_numpy(self.items.need(items, "item"))
        if question.history is None:
            query = self.catalogue.of_users(self.users.need([question.user], "user"))
        else:
            self.catalogue.need_histories(question.times is not None)
            self.items.need(question.history, "item")
            query = self.catalogue.of_histories([self._history(question)[0]])
        return self.scores(query, 1, item_ids)[0].tolist()

    def similar_items(self, item: Any, topk: int = 10) -> RankedItems:
        """The items whose vectors point most the same way: (item, cosine) each, without itself."""
        number = self.items.need([item], "item")
        items, scores = self.rank_similar(number, topk, (np.zeros(1, np.int64), number))
        return self._named(items[0], scores[0])

    def explain(self, question: RankingQuestion, item: Any) -> Explanation:
        """Why an item has its score for a user or a history; raises UnknownName."""
        number = int(self.items.need([item], "item")[0])
        if (question.user is None) == (question.history is None):
            raise ValueError("give a user or a history, one of them")
        if question.history is None:
            user, history = int(self.users.need([question.user], "user")[0]), None
        else:
            self.catalogue.need_histories(question.times is not None)
            self.items.need(question.history, "item")
            user, (history, _) = 0, self._history(question)
        breakdown = self.catalogue.breakdown(user, history, number)
        shares = list(zip(breakdown.what, breakdown.shares.tolist()))
        titles: dict[Any, str] = {}
        if breakdown.of == "items":
            totals: dict[int, float] = {}  # an item may stand in a history more than once
            for item_id, share in shares:
                totals[item_id] = totals.get(item_id, 0.0) + share
            shares = [(self.items.values[item_id], share) for item_id, share in totals.items()]
            titles = self.titles(name for name, _ in shares)
        return Explanation(
            shares,
            rest=breakdown.rest,
            rest_is=breakdown.rest_is,
            of=breakdown.of,
            error=breakdown.error,
            titles=titles,
        )

    def titles(self, items: Iterable[Any]) -> dict[Any, str]:
        """Known items -> their titles, of those that have one."""
        captions = {item: self.caption(item) for item in items}
        return {item: caption["title"] for item, caption in captions.items() if "title" in caption}

    def caption(self, item: Any) -> dict[str, str]:
        """`title` and `picture` of a known item, where it has them."""
        (number,) = self.items.find([item])
        caption = {role: str(texts[number]) for role, texts in self.catalogue.captions.items()}
        return {role: text for role, text in caption.items() if text}

    @cached_property
    def _num_items(self) -> int:
        return len(self.items)

    @cached_property
    def _units(self) -> Tensor:
        return torch.nn.functional.normalize(self.catalogue.item_vectors, eps=1e-12)

    def _history(self, question: RankingQuestion) -> tuple[History, list[Any]]:
        """The known items of a question's history, and its unknown ones."""
        words = list(question.history or ())
        numbers = self.items.find(words)
        is_known = numbers > 0
        unknown = [item for item, number in zip(words, numbers.tolist()) if not number]
        times = None
        if question.times is not None:
            times = asked_at(question.times, len(words))[[*is_known, True]]
        return History(numbers[is_known], times), unknown

    def _find_askers(self, questions: Sequence[RankingQuestion]) -> list[Asker]:
        """The user or the history of each question, as far as the model knows them."""
        names = [question.user for question in questions if question.history is None]
        user_ids = iter(self.users.find(names).tolist())
        askers = []
        for question in questions:
            if question.history is None:
                user_id = next(user_ids)
                askers.append(Asker(user_id, None, () if user_id else (question.user,)))
            else:
                self.catalogue.need_histories(question.times is not None)
                history, unknown = self._history(question)
                askers.append(Asker(0, history, tuple(unknown)))
        return askers

    def _rank_group(
        self, questions: Sequence[RankingQuestion], askers: Sequence[Asker]
    ) -> list[RankedItems]:
        """Rankings of questions that allow the same items, all of users or all of histories."""
        only = questions[0].only
        allowed = None
        if only is not None:
            allowed = np.unique(self.items.find(only))
            allowed = allowed[allowed > 0]
        user_ids = np.array([asker.user_id for asker in askers], np.int64)
        histories = [asker.history for asker in askers if asker.history is not None]
        if histories:
            query = self.catalogue.of_histories(histories)
        else:
            query = self.catalogue.of_users(user_ids)
        best, scores = self.rank(
            query,
            len(questions),
            max(question.topk for question in questions),
            self._barred(questions, user_ids, histories),
            allowed,
        )
        return [
            self._named(best[row, : question.topk], scores[row])
            for row, question in enumerate(questions)
        ]

    def _barred(
        self,
        questions: Sequence[RankingQuestion],
        user_ids: np.ndarray,
        histories: Sequence[History],
    ) -> Pairs:
        """Pairs of a question and an item that may not come: what was taken, what is excluded."""
        repeatable = self.catalogue.repeatable
        without_seen = np.flatnonzero(
            [not (repeatable if question.seen is None else question.seen) for question in questions]
        )
        rows, items = [NO_IDS], [NO_IDS]
        if histories:
            for row in without_seen.tolist():
                rows.append(np.full(len(histories[row].items), row))
                items.append(histories[row].items)
        elif len(without_seen):
            places, seen = self.catalogue.seen(user_ids[without_seen])
            rows.append(without_seen[places])
            items.append(seen)
        for row, question in enumerate(questions):
            if question.exclude:
                excluded = self.items.find(question.exclude)  # 0, the padding, never comes
                rows.append(np.full(len(excluded), row))
                items.append(excluded)
        return np.concatenate(rows), np.concatenate(items)

    def _named(self, items: np.ndarray, scores: np.ndarray) -> RankedItems:
        """Numbers of items and their scores; places without an item are left out."""
        left = int((items > 0).sum())  # the best first
        ranking = zip(self.items.values[items[:left]].tolist(), scores[:left].tolist())
        return RankedItems(ranking, titles=self.titles)

    def _popular(self, question: RankingQuestion) -> RankedItems:
        allowed = None if question.only is None else self.items.find(question.only)
        items, counts = self.popular(question.topk, allowed, self.items.find(question.exclude))
        ranking = zip(self.items.values[items].tolist(), counts.tolist())
        return RankedItems(ranking, "popularity", titles=self.titles)

    # ---- by numbers, many at a time -------------------------------------------------------------

    def rank(
        self,
        query: Any,
        count: int,
        topk: int,
        without: Pairs = (NO_IDS, NO_IDS),
        allowed: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The best items of each of `count` queries [b, k] (0: none left), their scores [b, k].

        allowed: the items that alone may come, ascending; `without`: pairs that may not.
        """
        return self._rank(
            lambda ids: self.catalogue.fill(query, ids), count, topk, without, allowed
        )

    def rank_similar(
        self,
        items: np.ndarray,
        topk: int,
        without: Pairs = (NO_IDS, NO_IDS),
        allowed: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The items most like each of these [b, k] (0: none left), by number, and cosines [b, k].

        allowed: the items that alone may come, ascending; `without`: pairs that may not, as the
        place of an item in `items` and another one. Neither leaves an item itself out.
        """
        units = self._units

        def fill_for(ids: Tensor | None) -> Fill:
            return DotProducts(units[items], units if ids is None else units[ids])

        return self._rank(fill_for, len(items), topk, without, allowed)

    def _rank(
        self,
        fill_for: Callable[[Tensor | None], Fill],
        count: int,
        topk: int,
        without: Pairs,
        allowed: np.ndarray | None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The best items by the function that writes the scores of these items (None: of all)."""
        fill: Fill | None = None
        is_few = count <= TILE
        if is_few and allowed is not None and len(allowed) > MANY_ALLOWED * self._num_items:
            with torch.inference_mode():
                products = fill_for(None)
            if isinstance(products, DotProducts):
                # To score all and leave some out is cheaper than to copy the others' vectors for a
                # few queries.
                penalties = torch.full((self._num_items,), -torch.inf)
                penalties[torch.from_numpy(allowed)] = 0.0
                allowed, fill = None, MaskedFill(products, penalties)
        num_items = self._num_items if allowed is None else len(allowed)
        rows, banned = without
        if allowed is None:
            rows = np.concatenate([rows, np.arange(count)])
            banned = np.concatenate([banned, np.zeros(count, np.int64)])  # the padding
        else:
            place = np.searchsorted(allowed, banned).clip(max=max(0, num_items - 1))
            inside = allowed[place] == banned if num_items else np.zeros(len(banned), bool)
            rows, banned = rows[inside], place[inside]
        with torch.inference_mode():
            if fill is None:
                fill = fill_for(None if allowed is None else torch.from_numpy(allowed))
            places, scores = rank(fill, count, num_items, topk, (rows, banned))
        return plain(places, scores, allowed)

    def rank_users(
        self,
        users: np.ndarray,
        topk: int,
        allowed: np.ndarray | None = None,
        banned: np.ndarray = NO_IDS,
        seen: bool | None = None,
        by: Any = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The best items [b, k] of users by number, and their scores; 0: the most popular items.

        by: what ranks a query instead (as Approximate.rank).
        """
        known_places = np.flatnonzero(users)
        again = self.catalogue.repeatable if seen is None else seen
        rows, items = (NO_IDS, NO_IDS) if again else self.catalogue.seen(users[known_places])
        rows = np.concatenate([rows, np.repeat(np.arange(len(known_places)), len(banned))])
        items = np.concatenate([items, np.tile(banned, len(known_places))])
        query = self.catalogue.of_users(users[known_places])
        if by is not None:
            best, scores = by(query, topk, (rows, items))
        else:
            best, scores = self.rank(query, len(known_places), topk, (rows, items), allowed)
        if len(known_places) == len(users):
            return best, scores
        # Unknown users get the most popular items.
        width = best.shape[1]
        popular, counts = self.popular(width, allowed, banned)
        all_items = np.zeros((len(users), width), np.int64)
        all_scores = np.zeros((len(users), width), np.float32)
        all_items[:, : len(popular)] = popular
        all_scores[:, : len(popular)] = counts
        all_items[known_places] = best
        all_scores[known_places] = scores
        return all_items, all_scores

    def scores(self, query: Any, count: int, items: Tensor) -> Tensor:
        """Scores of items [n] for each of `count` queries: [b, n]."""
        scores = torch.empty(count, len(items))
        with torch.inference_mode():
            self.catalogue.fill(query, items)(0, count, 0, len(items), scores)
        return scores

    def popular(
        self, topk: int, allowed: np.ndarray | None = None, banned: np.ndarray = NO_IDS
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
    seconds = np.asarray(times, dtype=np.int64)
    if seconds.shape not in ((count,), (count + 1,)):
        raise ValueError(
            f"there are {len(seconds)} times for {count} items; one more may be that of the request"
        )
    if len(seconds) == count:
        seconds = np.append(seconds, seconds[-1] if count else 0)
    return seconds


def padded(histories: Sequence[History], length: int) -> dict[str, np.ndarray]:
    """The last items of each history: `history` [n, length], left-aligned, 0 pads.

    Where they have times `history_time` [n, length + 1]: behind the last item that of the request.
    """
    fields = {"history": np.zeros((len(histories), length), np.int64)}
    if histories and histories[0].times is not None:
        fields["history_time"] = np.zeros((len(histories), length + 1), np.int64)
    for row, history in enumerate(histories):
        for name, values in (("history", history.items), ("history_time", history.times)):
            if name in fields:
                assert values is not None
                last = values[-fields[name].shape[1] :]
                fields[name][row, : len(last)] = last
    return fields

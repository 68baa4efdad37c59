"""Recommender: the best items for users and histories of a trained model, in one pass.

    query     users by number, or what somebody took; as the model reads them
    items     the whole catalogue; its vectors are made once
    without   what each of them took, unless it may come again (eval.repeatable)
    top-k     of all queries together, as an evaluation ranks (Evaluator.best)

Ids are the data's own, in its type. An unknown user gets the most popular items, and unknown items
of a history are left out; the ranking reports both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.data.batch import Batch, Jagged
from shoal.data.history import Histories
from shoal.data.ids import Ids
from shoal.embedding.module import Embeddings
from shoal.models.base import Model, Retrieval
from shoal.training.evaluation import Evaluator
from shoal.training.evaluation.evaluator import ALL
from shoal.training.evaluation.phases import Lists

log = logging.getLogger("shoal")
Ask = Callable[[int, int], Batch | Jagged]  # first and last query -> what the model is given


class Ranking(list[tuple[Any, float]]):
    """The best items of one question, the best first: (item, score) each.

    by        `model`; `popularity` where it knows nothing of the user or the history
    unknown   what it does not know of the question: the user, items of the history

    >>> found = Ranking([("i7", 2.5)], by="popularity", unknown=("nobody",))
    >>> found[0], found.by, found.unknown
    (('i7', 2.5), 'popularity', ('nobody',))
    """

    def __init__(
        self, items: Iterable[tuple[Any, float]], by: str = "model", unknown: Iterable[Any] = ()
    ):
        super().__init__(items)
        self.by, self.unknown = by, tuple(unknown)


class Recommender:
    """Ranks the catalogue of one data set by one model."""

    def __init__(
        self, model: Model, evaluator: Evaluator, user_type: type = str, item_type: type = str
    ):
        self.model, self.evaluator, self.dataset = model, evaluator, evaluator.dataset
        self.users = Ids(self.dataset.vocab[self.dataset.user_field], user_type)
        self.items = Ids(self.dataset.vocab[self.dataset.item_field], item_type)
        self._encoded: dict[int, Tensor] = {}  # vectors of items

    # ---- questions ------------------------------------------------------------------------------

    def for_users(self, users: Sequence[Any], topk: int) -> list[Ranking]:
        """The best items of each user."""
        numbers = self.users.find(users)
        known, missing = numbers[numbers > 0], [u for u, n in zip(users, numbers.tolist()) if not n]
        found = iter(
            self._rank(
                lambda a, b: self.evaluator.query(known[a:b], self._histories),
                self.evaluator.taken.chosen(known),
                topk,
            )
        )
        if missing:
            self._warn("users", missing, len(users), "the most popular items answer")
        return [
            next(found) if number else self._popular(topk, (user,))
            for user, number in zip(users, numbers.tolist())
        ]

    def for_histories(self, histories: Sequence[Sequence[Any]], topk: int) -> list[Ranking]:
        """The best items for whoever took these items, oldest first."""
        self._check_reads_histories()
        numbers = [self.items.find(one) for one in histories]
        kept = [one[one > 0] for one in numbers]
        asked = [one for one in kept if len(one)]
        found = iter(self._rank(self._by_items(asked), self._without(asked), topk))
        answers, missing = [], 0
        for items, own, known in zip(histories, numbers, kept):
            unknown = [item for item, number in zip(items, own.tolist()) if not number]
            missing += len(unknown)
            answers.append(next(found) if len(known) else self._popular(topk))
            answers[-1].unknown = tuple(unknown)
        if missing:
            some = next(one.unknown for one in answers if one.unknown)
            self._warn("items", some, sum(map(len, histories)), "they are left out", missing)
        return answers

    def _warn(
        self, what: str, missing: Sequence[Any], count: int, then: str, number: int | None = None
    ) -> None:
        number = len(missing) if number is None else number
        log.warning("%d of %d %s are not known, as %r: %s", number, count, what, missing[0], then)

    def _popular(self, topk: int, unknown: Sequence[Any] = ()) -> Ranking:
        places = self._by_popularity[:topk]
        counts = self.evaluator.popularity.numpy()[places]
        items = zip(self.items.values[places].tolist(), counts.astype(float).tolist())
        return Ranking(items, "popularity", unknown)

    @cached_property
    def _by_popularity(self) -> np.ndarray:
        return np.argsort(-self.evaluator.popularity.numpy()[1:], kind="stable") + 1

    # ---- what the model is given ----------------------------------------------------------------

    @cached_property
    def _histories(self) -> Histories | None:
        return self.evaluator.histories(ALL)

    def _by_items(self, histories: Sequence[np.ndarray]) -> Ask:
        """Anybody, by what was taken: as the items of a sequence, or folded in."""
        device, length = self.evaluator.world.device, self.evaluator.max_len

        def lists(a: int, b: int) -> Jagged:
            some = self._without(histories[a:b], always=True)
            values, offsets = torch.from_numpy(some.items), torch.from_numpy(some.offsets)
            return Jagged(values.to(device), offsets.to(device))

        def batch(a: int, b: int) -> Batch:
            padded = np.zeros((b - a, length), np.int64)
            for row, one in zip(padded, histories[a:b]):
                last = one[-length:]
                row[: len(last)] = last
            nobody = torch.zeros(b - a, dtype=torch.int64)
            ids = {self.dataset.user_field: nobody, "history": torch.from_numpy(padded)}
            return Batch(b - a, ids).to(device)  # type: ignore[arg-type]

        return batch if self.model.kind == "sequential" else lists

    def _without(self, histories: Sequence[np.ndarray], always: bool = False) -> Lists:
        """The different items of each; none where they may come again, unless `always`."""
        if self.evaluator.section.repeatable and not always:
            return Lists.none(len(histories))
        different = [np.unique(one) for one in histories]
        offsets = np.cumsum([0, *map(len, different)])
        return Lists(np.concatenate([*different, np.zeros(0, np.int64)]), offsets)

    def _check_reads_histories(self) -> None:
        model, name = self.model, type(self.model).__name__
        if model.reads_times:
            raise ValueError(
                f"{name} reads when items were taken; export the run (shoal export), and give the "
                "artifact's recommend a history with its times"
            )
        knows_users = any(
            self.dataset.user_field in one.fields
            for one in model.modules()
            if isinstance(one, Embeddings)
        )
        folds = isinstance(model, Retrieval) and type(model).fold_in is not Retrieval.fold_in
        if not folds and (model.kind != "sequential" or knows_users):
            raise ValueError(
                f"{name} learned a vector for each user of its data, and a history has none: it "
                "cannot recommend for somebody new. Train on with these interactions (shoal "
                "train --from), or take a model that answers from items, such as SASRec or EASE"
            )

    # ---- answers --------------------------------------------------------------------------------

    def _rank(self, ask: Ask, without: Lists, topk: int) -> list[Ranking]:
        """The best items of each query, whose items that may not come `without` has."""
        if topk < 1:
            raise ValueError(f"topk is {topk}; it must be 1 or more")
        count = len(without.offsets) - 1
        numbers, scores = self.evaluator.best(self.model, ask, count, without, topk, self._encoded)
        left = (numbers > 0).sum(1).tolist()  # the best first, those that are left
        words = self.items.values[numbers].tolist()
        return [
            Ranking(zip(some[:n], own[:n])) for some, own, n in zip(words, scores.tolist(), left)
        ]

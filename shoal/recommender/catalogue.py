"""The catalogue of a trained run, as a recommender ranks it (recommender.py)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from shoal.config.schema import DataSection
from shoal.data.batch import Batch, Jagged
from shoal.data.dataset import Split
from shoal.data.history import Histories
from shoal.data.ids import Ids
from shoal.data.joined import candidates
from shoal.data.loading.captions import Captions, captions_of
from shoal.embedding.module import Embeddings
from shoal.kernels.topk import DotProducts, Fill, Pairs
from shoal.models.base import ClickModel, Model, Retrieval
from shoal.models.folding import Folding
from shoal.recommender.explanation import Breakdown, of_features, of_terms, of_vectors
from shoal.recommender.history_shares import of_history
from shoal.recommender.recommender import NO_IDS, History, asked_at, padded
from shoal.training.evaluation import Evaluator
from shoal.training.evaluation.splits import UserLists

ALL: tuple[Split, ...] = ("train", "valid", "test")
BLOCK = 1024  # vectors made at a time


class RunCatalogue:
    """The items of a run's data and the users who took them; queries are vectors or a batch."""

    def __init__(
        self,
        model: Model,
        evaluator: Evaluator,
        types: tuple[type, type] = (str, str),
        section: DataSection | None = None,
        earlier: Pairs = (NO_IDS, NO_IDS),
    ):
        """`section` names the data, to find captions of items in; `earlier`: users [n] and the
        items [n] that they took in data before this (a run that went on)."""
        self.model = model
        self.evaluator = evaluator
        self.dataset = evaluator.dataset
        self.section = section
        self.earlier = earlier
        self.users = Ids(self.dataset.vocab[self.dataset.user_field], types[0])
        self.items = Ids(self.dataset.vocab[self.dataset.item_field], types[1])
        self.repeatable = evaluator.section.repeatable is True
        self.popularity = evaluator.popularity.numpy()
        self._alone = threading.Lock()  # rows are looked up by one thread at a time

    def of_users(self, users: np.ndarray) -> Tensor | Batch:
        """The query of known users, with all that they took."""
        return self._query(self.evaluator.query(users, self._histories))

    def of_histories(self, histories: Sequence[History], user: int = 0) -> Tensor | Batch:
        """The query of anybody: items as a sequence, or folded in."""
        device = self.evaluator.world.device
        if self.model.kind != "sequential":
            different = [np.unique(one.items) for one in histories]
            offsets = torch.tensor([0, *map(len, different)]).cumsum(0)
            values = torch.from_numpy(np.concatenate([NO_IDS, *different]))
            lists = Jagged(values, offsets)
            assert isinstance(self.model, Retrieval)  # as need_histories has found
            with torch.inference_mode():
                if self._folds:
                    return self.model.fold_in(lists.to(device))
                assert self._folding is not None
                return self._folding.queries(lists.to(device), self.item_vectors.to(device))
        ids = {self.dataset.user_field: torch.full((len(histories),), user)}
        fields = padded(histories, self.evaluator.max_len)
        ids |= {name: torch.from_numpy(one) for name, one in fields.items()}
        return self._query(Batch(len(histories), {**ids}).to(device))

    def _query(self, batch: Batch) -> Tensor | Batch:
        if not isinstance(self.model, Retrieval):
            return batch
        starts = range(0, batch.size, BLOCK)
        parts = [batch.rows(a, min(a + BLOCK, batch.size)) for a in starts]
        with torch.inference_mode():
            vectors = [self.model.encode_query(part).float().cpu() for part in parts]
        return torch.cat(vectors) if vectors else torch.zeros(0, 1)

    @cached_property
    def _histories(self) -> Histories | None:
        return self.evaluator.histories(ALL)

    def fill(self, query: Tensor | Batch, items: Tensor | None) -> Fill:
        """The function that writes the scores of a query for these items; None: for all items."""
        if isinstance(query, Tensor):
            vectors = self.item_vectors
            return DotProducts(query.float().cpu(), vectors if items is None else vectors[items])
        device, model = self.evaluator.world.device, self.model
        item_ids = torch.arange(self.dataset.num_items) if items is None else items
        scorers: dict[int, Callable[[Tensor], Tensor]] = {}  # of queries whose items are ranked now

        def fill(a: int, b: int, first: int, last: int, out: Tensor) -> None:
            with self._alone:
                if a not in scorers:
                    scorers[a] = model.scorer(query.rows(a, b))
                out.copy_(scorers[a](item_ids[first:last].to(device)))
                if last == len(item_ids):
                    del scorers[a]

        return fill

    @cached_property
    def item_vectors(self) -> Tensor:
        """The vector of every item [num_items, dim]."""
        if not isinstance(self.model, Retrieval):
            raise ValueError(
                f"{type(self.model).__name__} scores pairs: its users and items have no vectors"
            )
        device, model = self.evaluator.world.device, self.model
        with torch.inference_mode():
            parts = torch.arange(self.dataset.num_items).split(BLOCK)
            return torch.cat([model.encode_item(part.to(device)).float().cpu() for part in parts])

    def seen(self, users: np.ndarray) -> Pairs:
        """All that these users took, in this data and before."""
        return self._taken.chosen(users).block(0, len(users))

    @cached_property
    def _taken(self) -> UserLists:
        dataset = self.dataset
        users = np.concatenate([self.earlier[0], *(dataset.user_ids(split) for split in ALL)])
        items = np.concatenate([self.earlier[1], *(dataset.item_ids(split) for split in ALL)])
        return UserLists.of(users, items, np.arange(dataset.num_users), dataset.num_users)

    def need_histories(self, timed: bool) -> None:
        """Refuse histories that the model cannot read."""
        model, name = self.model, type(self.model).__name__
        if model.reads_times:
            raise ValueError(
                f"{name} reads when items were taken; export the run, and give the artifact times"
            )
        knows_users = any(
            self.dataset.user_field in module.fields
            for module in model.modules()
            if isinstance(module, Embeddings)
        )
        is_folded = self._folds or self._folding is not None
        if not is_folded and (model.kind != "sequential" or knows_users):
            raise ValueError(
                f"{name} learned a vector for each user of its data, and a history has none; train "
                "on with these interactions (shoal train --from), or take SASRec or EASE, say"
            )

    @property
    def _folds(self) -> bool:
        """True for a model that computes the vector of a user from any history."""
        model = self.model
        return isinstance(model, Retrieval) and type(model).fold_in is not Retrieval.fold_in

    @cached_property
    def _folding(self) -> Folding | None:
        """How a history is answered by a model that learned a vector of each user."""
        with torch.inference_mode():
            return self.model.folding() if isinstance(self.model, Retrieval) else None

    # ---- why ------------------------------------------------------------------------------------

    @property
    def explained_by(self) -> Literal["features", "terms", "history", "vectors"] | None:
        """How a score becomes a sum (explanation.py); None: it does not."""
        if isinstance(self.model, ClickModel):
            return "features"
        if type(self.model).terms is not Model.terms:
            return "terms"
        if self.model.kind == "sequential" or self._folds:
            return "history"
        return "vectors" if isinstance(self.model, Retrieval) else None

    def breakdown(self, user: int, history: History | None, item: int) -> Breakdown:
        """The score of an item as a sum."""
        model, device, way = self.model, self.evaluator.world.device, self.explained_by
        if way is None:
            raise ValueError(
                f"{type(model).__name__} scores a pair by a network of the user's vector and the "
                "item's: no item that the user took has a share that adds up to the score; train "
                "EASE, BPR or SASRec on the same data, and ask that run"
            )
        if way == "history":
            longest = self.evaluator.max_len if model.kind == "sequential" else None
            return of_history(self, user, history or self.history_of(user), item, longest)
        if way == "vectors":
            someone = np.array([user])
            taken = self.seen(someone)[1] if history is None else np.unique(history.items)
            query = self.of_users(someone) if history is None else self.of_histories([history])
            assert isinstance(query, Tensor)
            return of_vectors(query[0].float().cpu(), taken, self.item_vectors, item)
        with self._alone, torch.inference_mode():
            if isinstance(model, ClickModel):
                return self._of_features(model, user, item)
            taken = np.unique((history or self.history_of(user)).items)
            terms = model.terms(
                torch.tensor(user, device=device),
                torch.from_numpy(taken).to(device),
                torch.tensor(item, device=device),
            )
            terms = terms.double().cpu()
        rest = 0.0
        if model.rest_is is not None:
            query = (
                self.of_users(np.array([user])) if history is None else self.of_histories([history])
            )
            score = torch.empty(1, 1)
            self.fill(query, torch.tensor([item]))(0, 1, 0, 1, score)
            rest = float(score.double() - terms.sum())
        return of_terms(taken, terms.numpy(), rest, model.rest_is)

    def history_of(self, user: int) -> History:
        """The history of a known user as the model reads it; without a sequence what it learned."""
        lists = self._histories
        if lists is None:
            return History(self._learned.chosen(np.array([user])).items.astype(np.int64))
        places = slice(lists.offsets[user], lists.offsets[user + 1])
        items = lists.items[places].astype(np.int64)
        times = None if lists.times is None else asked_at(lists.times[places], len(items))
        return History(items, times)

    @cached_property
    def _learned(self) -> UserLists:
        dataset = self.dataset
        return UserLists.of(
            dataset.user_ids("train"),
            dataset.item_ids("train"),
            np.arange(dataset.num_users),
            dataset.num_users,
        )

    def _of_features(self, model: ClickModel, user: int, item: int) -> Breakdown:
        table, device = model.facts.table, self.evaluator.world.device
        assert table is not None, "build lets click logs rank nothing"
        packed = any("slots" in m.fields for m in model.modules() if isinstance(m, Embeddings))
        users, items = torch.tensor([user, 0]), torch.tensor([item, 0])  # 0: nobody, nothing
        samples = candidates(table, users, items, packed, torch.device("cpu"))
        return of_features(samples, table.features, lambda batch: model.logits(batch.to(device)))

    @cached_property
    def captions(self) -> Captions:
        """Titles and pictures of items, where the data has them."""
        return captions_of(self.dataset, self.section) if self.section is not None else {}

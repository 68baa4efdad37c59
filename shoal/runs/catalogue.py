"""The catalogue of a trained run, as a recommender ranks it (recommender.py)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from shoal.data.batch import Batch, Jagged
from shoal.data.dataset import Phase
from shoal.data.history import Histories
from shoal.data.ids import Ids
from shoal.embedding.module import Embeddings
from shoal.kernels.topk import DotProducts, Fill, Pairs
from shoal.models.base import Model, Retrieval
from shoal.runs.recommender import History, padded
from shoal.training.evaluation import Evaluator
from shoal.training.evaluation.phases import UserLists

ALL: tuple[Phase, ...] = ("train", "valid", "test")
BLOCK = 1024  # vectors made at a time


class RunCatalogue:
    """The items of a run's data and the users who took them; queries are vectors or a batch."""

    def __init__(self, model: Model, evaluator: Evaluator, types: tuple[type, type] = (str, str)):
        self.model, self.evaluator, self.dataset = model, evaluator, evaluator.dataset
        self.users = Ids(self.dataset.vocab[self.dataset.user_field], types[0])
        self.items = Ids(self.dataset.vocab[self.dataset.item_field], types[1])
        self.repeatable = evaluator.section.repeatable
        self.popularity = evaluator.popularity.numpy()
        self._alone = threading.Lock()  # rows are looked up by one thread at a time

    def of_users(self, users: np.ndarray) -> Tensor | Batch:
        """Of known users, with all that they took."""
        return self._query(self.evaluator.query(users, self._histories))

    def of_histories(self, histories: Sequence[History]) -> Tensor | Batch:
        """Of anybody: items as a sequence, or folded in."""
        device = self.evaluator.world.device
        if self.model.kind != "sequential":
            different = [np.unique(one.items) for one in histories]
            offsets = torch.tensor([0, *map(len, different)]).cumsum(0)
            values = torch.from_numpy(np.concatenate(different))
            assert isinstance(self.model, Retrieval)  # as need_histories has found
            with torch.inference_mode():
                return self.model.fold_in(Jagged(values, offsets).to(device))
        ids = {self.dataset.user_field: torch.zeros(len(histories), dtype=torch.int64)}
        made = padded(histories, self.evaluator.max_len)
        ids |= {name: torch.from_numpy(one) for name, one in made.items()}
        return self._query(Batch(len(histories), {**ids}).to(device))

    def _query(self, batch: Batch) -> Tensor | Batch:
        if not isinstance(self.model, Retrieval):
            return batch
        starts = range(0, batch.size, BLOCK)
        parts = [batch.rows(a, min(a + BLOCK, batch.size)) for a in starts]
        with torch.inference_mode():
            made = [self.model.encode_query(part).float().cpu() for part in parts]
        return torch.cat(made) if made else torch.zeros(0, 1)

    @cached_property
    def _histories(self) -> Histories | None:
        return self.evaluator.histories(ALL)

    def fill(self, query: Tensor | Batch, items: Tensor | None) -> Fill:
        """What writes scores."""
        if isinstance(query, Tensor):
            vectors = self.item_vectors
            return DotProducts(query.float().cpu(), vectors if items is None else vectors[items])
        device, model = self.evaluator.world.device, self.model

        def fill(a: int, b: int, first: int, last: int, out: Tensor) -> None:
            wanted = torch.arange(first, last) if items is None else items[first:last]
            with self._alone:
                out.copy_(model.score(query.rows(a, b), wanted.to(device)))

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
        """All that these users took."""
        return self._taken.chosen(users).block(0, len(users))

    @cached_property
    def _taken(self) -> UserLists:
        dataset = self.dataset
        users = np.concatenate([dataset.user_ids(phase) for phase in ALL])
        items = np.concatenate([dataset.item_ids(phase) for phase in ALL])
        return UserLists.of(users, items, np.arange(dataset.num_users), dataset.num_users)

    def need_histories(self, timed: bool) -> None:
        """Refuse histories that the model cannot read."""
        model, name = self.model, type(self.model).__name__
        if model.reads_times:
            raise ValueError(
                f"{name} reads when items were taken; export the run, and give the artifact times"
            )
        knows_users = any(
            self.dataset.user_field in one.fields
            for one in model.modules()
            if isinstance(one, Embeddings)
        )
        folds = isinstance(model, Retrieval) and type(model).fold_in is not Retrieval.fold_in
        if not folds and (model.kind != "sequential" or knows_users):
            raise ValueError(
                f"{name} learned a vector for each user of its data, and a history has none; train "
                "on with these interactions (shoal train --from), or take SASRec or EASE, say"
            )

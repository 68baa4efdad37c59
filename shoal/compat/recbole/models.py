"""The bases of model classes that were written for RecBole.

A class keeps its `calculate_loss`, `predict` and `full_sort_predict`. Its base makes of them what
a model here answers: `forward(batch)`, the training loss, and `score(batch, items)`.

    calculate_loss(interaction)      a mean over samples -> Output(its sum, samples)
    full_sort_predict(interaction)   scores of all items -> those of the items asked for
    predict(interaction)             scores of pairs, where there is no full_sort_predict
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from logging import getLogger
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from shoal.compat.recbole.interaction import InputType, Interaction, TrainingData
from shoal.compat.recbole.tables import TableEmbedding
from shoal.models.base import Batch, Facts, Model, Output, item_blocks
from shoal.models.nn.dropout import begin_slice
from shoal.models.sequential.base import num_places


def total(loss: Any) -> Tensor:
    """A loss as a scalar; a class may return several, which are added."""
    parts = loss if isinstance(loss, tuple) else (loss,)
    for part in parts:
        if part.numel() != 1:
            raise ValueError(
                f"calculate_loss returned a tensor of shape {list(part.shape)}; it returns the "
                "mean over the samples, one number"
            )
    return torch.stack([part.reshape(()) for part in parts]).sum()


class RecBoleModel(Model):
    """What general and sequential models from RecBole share."""

    # Attributes that hold what is computed once for all requests; they are None during training.
    computed_once: ClassVar[tuple[str, ...]] = ()
    USER_ID: str

    class Options(Model.Options):
        """Options that are also read as a config: options["embedding_size"]."""

        # What every config of RecBole has, by its keys: the model sets it from its data.
        of_data: ClassVar[Mapping[str, Any]] = {}

        def __getitem__(self, key: str) -> Any:
            return self.of_data[key] if key in self.of_data else getattr(self, key)

        def __contains__(self, key: object) -> bool:
            return isinstance(key, str) and key in vars(self)

    def __init__(self, options: Any, facts: Facts):
        super().__init__(options, facts)
        options.of_data = {
            "USER_ID_FIELD": facts.user_field,
            "ITEM_ID_FIELD": facts.item_field,
            "LABEL_FIELD": "label",
            "NEG_PREFIX": "neg_",
            "LIST_SUFFIX": "_list",
            "ITEM_LIST_LENGTH_FIELD": "item_length",
            "MAX_ITEM_LIST_LENGTH": facts.max_len,
        }
        self.USER_ID, self.ITEM_ID = facts.user_field, facts.item_field
        self.NEG_ITEM_ID, self.LABEL = f"neg_{facts.item_field}", "label"
        self.n_users, self.n_items = facts.num_users, facts.num_items
        self.dataset = TrainingData(facts)
        self.logger = getLogger("shoal")
        self.register_buffer("_anchor", torch.empty(0), persistent=False)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        anchor: Any = self._anchor
        return anchor.device

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        """Move tensors that are no buffers with the model: RecBole's classes keep graphs so."""
        for name, value in list(vars(self).items()):
            if isinstance(value, Tensor):
                setattr(self, name, fn(value))
        return super()._apply(fn, recurse)

    def train(self, mode: bool = True) -> RecBoleModel:
        """Set training or evaluation, as torch does, and drop what was computed once."""
        for name in self.computed_once:
            setattr(self, name, None)
        super().train(mode)
        return self

    def initial_parameters(self) -> Iterator[Any]:
        """Weights and tables, for code that gives all of them initial values."""
        yield from self.parameters()
        for module in self.modules():
            if isinstance(module, TableEmbedding):
                yield module.weight

    # ---- what a class writes --------------------------------------------------------------------

    def calculate_loss(self, interaction: Any) -> Any:
        """The mean loss over samples, or several in a tuple."""
        raise NotImplementedError  # every class writes its own

    def predict(self, interaction: Any) -> Tensor:
        """Scores of pairs: [n]."""
        raise NotImplementedError  # where there is no full_sort_predict

    def full_sort_predict(self, interaction: Any) -> Tensor:
        """Scores of all items: [b * items] or [b, items]."""
        raise NotImplementedError  # where there is no predict

    # ---- what a model answers -------------------------------------------------------------------

    def training_fields(self, batch: Batch) -> dict[str, Tensor]:
        """The fields that calculate_loss reads, one line for each of a sample's negatives."""
        raise NotImplementedError  # each kind of model has its own

    def query_fields(self, batch: Batch) -> dict[str, Tensor]:
        """The fields of requests."""
        raise NotImplementedError  # each kind of model has its own

    def forward(self, batch: Batch) -> Output:
        """The training loss of one batch; a slice without samples reads the same tables."""
        fields = self.training_fields(batch if batch.size else placeholder(batch))
        interaction = Interaction(fields)
        lines = len(interaction)
        begin_slice(batch.first * (lines // max(1, batch.size)))  # dropout counts lines
        loss = total(self.calculate_loss(interaction))
        return Output(loss * lines, lines) if batch.size else Output(loss * 0.0, 0)

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        return self.scorer(batch)(items)

    def scorer(self, batch: Batch) -> Callable[[Tensor], Tensor]:
        """`score` of one batch; the scores of all items are computed once."""
        if type(self).full_sort_predict is RecBoleModel.full_sort_predict:
            return partial(self._score_pairs, batch)
        query = batch if batch.size else placeholder(batch)
        interaction = Interaction(self.query_fields(query))
        scores = self.full_sort_predict(interaction).view(query.size, -1)[: batch.size]
        return partial(pick, scores)

    def _score_pairs(self, batch: Batch, items: Tensor) -> Tensor:
        """Scores by `predict`, one block of items after the other."""
        query = batch if batch.size else placeholder(batch)
        every = items.expand(query.size, -1) if items.dim() == 1 else items
        if not len(every):
            every = every.new_ones(query.size, every.shape[1])
        fields = self.query_fields(query)
        parts = []
        for block in item_blocks(every.shape[1], query.size * 64):
            candidates = every[:, block]
            number = candidates.shape[1]
            pairs = {name: field.repeat_interleave(number, 0) for name, field in fields.items()}
            pairs[self.ITEM_ID] = candidates.reshape(-1)
            scores = self.predict(Interaction(pairs))
            parts.append(scores.reshape(query.size, number))
        return torch.cat(parts, 1)[: batch.size]


def placeholder(batch: Batch) -> Batch:
    """One sample of ids that exist, with the fields of a batch that has no sample."""
    ids: dict[str, Any] = {}
    for name in batch.ids:
        field = batch.tensor(name)
        ids[name] = field.new_ones(1, *field.shape[1:])
    labels = None if batch.labels is None else batch.labels.new_ones(1)
    return Batch(1, ids, labels=labels)


def pick(scores: Tensor, items: Tensor) -> Tensor:
    """Scores [b, all items] of candidates: items [n] or [b, n] -> [b, n]."""
    return scores[:, items] if items.dim() == 1 else scores.gather(1, items)


class GeneralRecommender(RecBoleModel):
    """The base of general models.

    A batch of b samples with k negatives each has b * k lines of a pairwise model (user, item,
    negative), and b * (1 + k) of a pointwise one (user, item, label).
    """

    input_type: ClassVar[Any] = InputType.PAIRWISE

    def training_fields(self, batch: Batch) -> dict[str, Tensor]:
        users, items = batch.tensor(self.USER_ID), batch.tensor(self.ITEM_ID)
        if "neg_item" not in batch.ids:
            fields = {self.USER_ID: users, self.ITEM_ID: items}
            return fields if batch.labels is None else {**fields, self.LABEL: batch.labels}
        negatives = batch.tensor("neg_item")
        if self.input_type == InputType.POINTWISE:
            items = torch.cat([items.unsqueeze(1), negatives], 1)
            labels = torch.zeros(items.shape, device=items.device)
            labels[:, 0] = 1.0
            users = users.repeat_interleave(items.shape[1])
            fields = {self.USER_ID: users, self.ITEM_ID: items.reshape(-1)}
            return {**fields, self.LABEL: labels.reshape(-1)}
        each = negatives.shape[1]
        return {
            self.USER_ID: users.repeat_interleave(each),
            self.ITEM_ID: items.repeat_interleave(each),
            self.NEG_ITEM_ID: negatives.reshape(-1),
        }

    def query_fields(self, batch: Batch) -> dict[str, Tensor]:
        return {self.USER_ID: batch.tensor(self.USER_ID)}


class SequentialRecommender(RecBoleModel):
    """The base of sequential models, which learn the item after each part of a history.

    item_seq [b, max_seq_length] holds the last items, 0 behind them, item_seq_len [b] how many.
    """

    kind = "sequential"
    samples = "prefixes"

    class Options(RecBoleModel.Options):
        """Options of sequential models."""

        DEFAULTS: ClassVar[dict[str, Any]] = {"train.negatives": None}

    def __init__(self, options: Any, facts: Facts):
        super().__init__(options, facts)
        self.POS_ITEM_ID = facts.item_field
        self.ITEM_SEQ, self.ITEM_SEQ_LEN = f"{facts.item_field}_list", "item_length"
        self.max_seq_length = facts.max_len

    def gather_indexes(self, output: Tensor, gather_index: Tensor) -> Tensor:
        """The vector at one place of each sample: output [b, l, d], places [b] -> [b, d]."""
        return output[torch.arange(len(output), device=output.device), gather_index]

    def get_attention_mask(self, item_seq: Tensor, bidirectional: bool = False) -> Tensor:
        """0 where a place may look, -10000 elsewhere: [b, 1, l or 1, l]."""
        visible = (item_seq != 0)[:, None, None]
        if not bidirectional:
            visible = visible.expand(-1, -1, item_seq.shape[1], -1).tril()
        return torch.where(visible, 0.0, -10000.0)

    def training_fields(self, batch: Batch) -> dict[str, Tensor]:
        fields = {**self.query_fields(batch), self.POS_ITEM_ID: batch.tensor("target")}
        if "neg_item" not in batch.ids:
            return fields
        negatives = batch.tensor("neg_item")
        each = negatives.shape[1]
        repeated = {name: field.repeat_interleave(each, 0) for name, field in fields.items()}
        return {**repeated, self.NEG_ITEM_ID: negatives.reshape(-1)}

    def query_fields(self, batch: Batch) -> dict[str, Tensor]:
        history = batch.tensor("history")
        history = pad(history, (0, self.max_seq_length - num_places(history, self.facts)))
        # A history without items is its first place, a 0.
        lengths = (history > 0).sum(1).clamp(min=1)
        fields = {self.ITEM_SEQ: history, self.ITEM_SEQ_LEN: lengths}
        if self.USER_ID in batch.ids:
            fields[self.USER_ID] = batch.tensor(self.USER_ID)
        return fields

"""Model: what every recommender answers. A model never names a rank, a device or a weight table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from shoal.data.batch import Batch
from shoal.embedding.module import Embeddings

Samples = Literal["interactions", "windows", "prefixes", "users"]  # what one sample is


@dataclass(frozen=True)
class Output:
    """The loss *summed* over the batch, and how many terms the sum has.

    The strategy divides by the count of the global batch, so uneven slices change nothing.
    """

    loss: Tensor  # scalar
    count: int | Tensor
    scores: Tensor | None = None  # [b], of click models: what was predicted, without gradient


@dataclass(frozen=True)
class Facts:
    """What a model may know of the data: sizes, field names and the training interactions."""

    num_users: int = 0  # padding included
    num_items: int = 0  # padding included
    user_field: str = "user_id"
    item_field: str = "item_id"
    max_len: int = 0
    train_users: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    train_items: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    num_negatives: int = 1
    # ln of how often an item is drawn as a negative, up to a constant [num_items]; empty: none is
    negative_logq: Tensor = field(default_factory=lambda: torch.empty(0))
    # of click logs
    num_slots: int = 0
    num_dense: int = 0
    rows: int | None = None  # ids are below this number; None: any 64-bit id


class Model(nn.Module):
    """Base of all models.

    A training batch of a `general` model has ids user_field [b], item_field [b] and neg_item
    [b, k] (absent without negatives; then `labels` [b] may be there). One of a `sequential` model
    has ids history [b, l] (left-aligned, 0 pads), target [b, l] (the next item at each position, 0
    where there is none) and neg_item [b, l, k]; one whose `samples` are prefixes has target [b] and
    neg_item [b, k], one whose samples are users has their items in a Jagged `taken` of b lists.
    When asked for scores a batch has ids user_field [b] and, for sequential models, history [b, l].
    A model that `reads_times` also has history_time [b, l + 1], in seconds: the time of every item
    of the history and, behind the last one, of the request (in training, of the last target).
    """

    kind: ClassVar[Literal["general", "sequential", "clicks"]] = "general"
    trainable: ClassVar[bool] = True  # False: nothing to optimise, one pass decides (Pop)
    samples: ClassVar[Samples] = "interactions"
    reads_times: ClassVar[bool] = False

    @dataclass
    class Options:
        """The model's own options, with defaults; shown by `shoal config show`."""

        RANKING: ClassVar[tuple[str, ...]] = ()  # those that learning does not depend on

    def __init__(self, options: Any, facts: Facts):
        super().__init__()
        self.options = options
        self.facts = facts

    def forward(self, batch: Batch) -> Output:
        """The training loss of one batch."""
        raise NotImplementedError  # every trainable model writes its own

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        """Scores of candidate items, higher is better: items [b, n] -> [b, n].

        Also takes items [n], one list for every row of the batch -> [b, n].
        """
        raise NotImplementedError  # retrieval models inherit it, others write their own


class Retrieval(Model):
    """A model whose score is a dot product of a query vector and an item vector."""

    def encode_query(self, batch: Batch) -> Tensor:
        """Query vectors [b, dim]."""
        raise NotImplementedError  # every retrieval model writes its own

    def encode_item(self, ids: Tensor) -> Tensor:
        """Item vectors: ids of any shape -> that shape + [dim]."""
        raise NotImplementedError  # every retrieval model writes its own

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        queries, vectors = self.encode_query(batch), self.encode_item(items)
        if items.dim() == 1:
            return queries @ vectors.T
        return torch.einsum("bd,bnd->bn", queries, vectors)


class ClickModel(Model):
    """A model of the probability of a click.

    A batch has ids `slots`: a tensor [b, num_slots] where every slot holds one id, else a Jagged of
    b * num_slots lists, sample after sample; dense `dense` [b, num_dense] where there are any; and
    labels [b], 1 for a click.
    """

    kind = "clicks"

    def slots(self, embed: Embeddings, batch: Batch) -> Tensor:
        """The row of every slot, summed where it has several ids: [b, num_slots, dim]."""
        rows = embed.pooled("slots", batch)
        return rows.view(batch.size, self.facts.num_slots, rows.shape[-1])

    def dense(self, batch: Batch) -> Tensor:
        """The dense values: [b, num_dense], of no columns where there are none."""
        if self.facts.num_dense:
            return batch.dense["dense"]
        return torch.empty(batch.size, 0, device=batch.flat_ids("slots").device)

    def logits(self, batch: Batch) -> Tensor:
        """The log odds of a click: [b]."""
        raise NotImplementedError  # every click model writes its own

    def forward(self, batch: Batch) -> Output:
        assert batch.labels is not None, "a click model learns from labels"
        logits = self.logits(batch)
        loss = binary_cross_entropy_with_logits(logits, batch.labels, reduction="sum")
        return Output(loss, batch.size, logits.detach())

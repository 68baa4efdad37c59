"""What sequential models share: how a state of a history is asked for the next item."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.models.base import (
    Batch,
    Embeddings,
    Facts,
    Init,
    Model,
    Output,
    Retrieval,
    Samples,
    Table,
)
from shoal.models.former_names import former_method
from shoal.models.nn.losses import (
    LossType,
    against_negatives,
    in_batch_softmax,
    missing_negatives,
    over_vectors,
)
from shoal.models.nn.transformer import Activation
from shoal.models.options import Positive, Share

Pooling = Literal["max", "average"]
SEQUENCE_DEFAULTS: dict[str, Any] = {"train.negatives": None}


@dataclass
class AttentionOptions:
    """Options of models with self-attention; `Transformer.of` reads them."""

    n_layers: int = 2
    n_heads: int = 2
    inner_size: int | None = 256  # width inside the feed-forward layers; null: 4 × the width
    hidden_dropout_prob: float = 0.5
    attn_dropout_prob: float = 0.5
    hidden_act: Activation = "gelu"
    layer_norm_eps: float = 1e-12


class Sequential(Model):
    """Reads a history; its loss is one of several, see shoal.models.nn.losses.

    Item vectors are one table: those that a history reads are those that are recommended.
    """

    kind = "sequential"
    samples: ClassVar[Samples] = "windows"
    # True: item vectors are rows as they are, and a softmax over them can be fused. A model that
    # makes something else of rows says False, and how in `compared` or `item_vectors`.
    rows_are_vectors: ClassVar[bool] = True
    embed: Embeddings
    logq: Tensor

    class Options(Model.Options):
        loss_type: LossType = "CE"  # training loss; sampled, gBCE and BPR also need train.negatives
        # gBCE: calibration, 0: plain binary cross entropy, 1: scores as calibrated as with CE
        gbce_t: Share = 0.75
        label_smoothing: Share = 0.0  # CE: share of the target that is spread over all items
        cosine: bool = False  # states and items are compared by angle
        temperature: Positive = 1.0  # scores are divided by it

        DEFAULTS: ClassVar[dict[str, Any]] = SEQUENCE_DEFAULTS

    def __init__(self, options: Any, facts: Facts):
        super().__init__(options, facts)
        logq = facts.negative_logq
        if options.loss_type == "in_batch":  # items are drawn as often as they occur
            logq = torch.bincount(facts.train_items, minlength=facts.num_items)
            logq = logq.clamp(min=1).float().log()
        self.register_buffer("logq", logq, persistent=False)

    def make_items(self, dim: int, std: float = 0.02, more: dict[str, Table] | None = None) -> None:
        """The table of item vectors, and tables of further fields."""
        items = Table("item", dim, self.facts.num_items, Init("normal", std), padding=0)
        self.embed = Embeddings(more, history=items, target=items, neg_item=items)

    def encode_item(self, ids: Tensor) -> Tensor:
        """Item vectors: ids of any shape -> that shape + [dim]."""
        return self.item_vectors(self.embed.rows("target", ids))

    def item_vectors(self, rows: Tensor) -> Tensor:
        """What rows of items are multiplied as: [..., width of a row] -> [..., d]."""
        return self.compared(rows)

    def every_item(self) -> Tensor:
        """The vectors of all items as a loss over all of them compares: [num_items, d]."""
        return self.item_vectors(self.embed.whole("target"))

    def compared(self, vectors: Tensor) -> Tensor:
        """Vectors as they are multiplied with others: [..., d]."""
        return F.normalize(vectors, dim=-1) if self.options.cosine else vectors

    def project_states(self, states: Tensor) -> Tensor:
        """States as they are multiplied with item vectors: [..., d]."""
        states = self.compared(states)
        return states if self.options.temperature == 1.0 else states / self.options.temperature

    asked = former_method("asked", project_states)

    def row_penalty(self, batch: Batch) -> Tensor:
        """Half the squared norms of the rows that samples read, without negatives: scalar."""
        fields = [f for f in self.embed.fields if f in batch.ids and f != "neg_item"]
        rows = [self.embed.rows(f, batch.tensor(f)) for f in fields]
        return 0.5 * sum((part.square().sum() for part in rows), rows[0].new_zeros(()))

    def loss(self, states: Tensor, targets: Tensor, negatives: Tensor | None) -> Output:
        """The loss of states [n, d] that are to find targets [n], against negatives [n, k]."""
        options, states = self.options, self.project_states(states)
        if options.loss_type == "CE":
            if options.cosine or options.label_smoothing or not self.rows_are_vectors:
                items, places = self.embed.among_candidates("target", self.every_item(), targets)
                total = over_vectors(states, items, places, options.label_smoothing)
            else:
                total = self.embed.full_softmax("target", states, targets)
            return Output(total, len(targets))
        if options.loss_type == "in_batch":
            items = self.encode_item(targets)
            total = in_batch_softmax(states, items, targets, self.gather_global, self.logq)
            return Output(total, len(targets))
        if negatives is None:
            raise missing_negatives(type(self).__name__, options.loss_type)
        logq = (self.logq[targets], self.logq[negatives]) if len(self.logq) else None
        loss, count = against_negatives(
            options.loss_type,
            states,
            targets,
            negatives,
            rows_of=self.encode_item,
            logq=logq,
            num_items=self.facts.num_items - 1,
            t=options.gbce_t,
        )
        return Output(loss, count)


class NextItem(Sequential, Retrieval):
    """A sequential model whose score is <state, item>.

    `states` is what the model makes of a history: for samples `windows` a state at each position,
    which may see no later one; for `prefixes` one state of the whole history. With b histories of l
    items and states of d numbers:

        history [b, l]    target [b, l]    states [b, l, d]    scores of n items [b, n]
    """

    def states(self, batch: Batch) -> Tensor:
        """[b, l, d] of windows, [b, d] of prefixes; called for training and for scores alike."""
        raise NotImplementedError  # every such model writes its own

    def states_at(self, batch: Batch, places: Tensor) -> Tensor:
        """States at places [n], counted in [b * l]: [n, d]."""
        return self.states(batch).flatten(0, 1)[places]

    def forward(self, batch: Batch) -> Output:
        target = batch.tensor("target")
        if "masked" in batch.ids:  # of a step that is recorded; pads have no target
            places = batch.flat_ids("masked")
            target = target.view(-1)[places]
            output = self.loss(self.states_at(batch, places), target, None)
            return Output(output.loss, torch.count_nonzero(target))
        real = target > 0
        negatives = batch.tensor("neg_item")[real] if "neg_item" in batch.ids else None
        return self.loss(self.states(batch)[real], target[real], negatives)

    def encode_query(self, batch: Batch) -> Tensor:
        if self.samples != "windows":
            return self.project_states(self.states(batch))
        # Only the last places are wanted: a model may leave out the others behind its last layer
        # that looks at other places, which halves what SASRec computes there.
        return self.project_states(self.states_at(batch, last_of_all(batch.tensor("history"))))


def tokens_of(batch: Batch) -> Tensor | None:
    """Places of the history [b * l] that have an item, where they were counted (graphed.py)."""
    return batch.flat_ids("tokens") if "tokens" in batch.ids else None


def num_places(history: Tensor, facts: Facts) -> int:
    """The places of histories [b, l]: l; refuses more than the model was built for."""
    if history.shape[1] > facts.max_len:
        raise ValueError(
            f"a history of {history.shape[1]} items is longer than the {facts.max_len} positions "
            "the model was built with; cut it, or raise data.max_len and train again"
        )
    return history.shape[1]


def lengths(history: Tensor) -> Tensor:
    """How many items each history [b, l] has: [b]."""
    return (history > 0).sum(1)


def last_places(history: Tensor) -> Tensor:
    """The place of the last item of each history [b, l]: [b]; 0 in an empty one."""
    return (lengths(history) - 1).clamp(min=0)


def last_of_all(history: Tensor) -> Tensor:
    """The place of the last item of each history [b, l], counted in [b * l]: [b]."""
    first_places = torch.arange(history.shape[0], device=history.device) * history.shape[1]
    return first_places + last_places(history)


def at_last(states: Tensor, history: Tensor) -> Tensor:
    """States [b, l, d] at the last item of each history; an empty one is its first position."""
    last = last_places(history)
    return states[torch.arange(last.shape[0], device=last.device), last]


def newest(vectors: Tensor, history: Tensor, number: int) -> tuple[Tensor, Tensor]:
    """Vectors of the last `number` items of each history, the newest last, and which are pads.

    vectors [b, l, d], history [b, l] -> [b, number, d], bool [b, number]; those of pads are zeros.
    """
    places = torch.arange(number, device=history.device) + lengths(history).unsqueeze(1) - number
    pads = places < 0
    rows = torch.arange(history.shape[0], device=history.device).unsqueeze(1)
    return vectors[rows, places.clamp(min=0)] * ~pads.unsqueeze(2), pads


def pooled(vectors: Tensor, pads: Tensor, how: Pooling) -> Tensor:
    """One vector of several [b, n, d], pads left out: [b, d]. Without any, zeros."""
    if how == "max":
        most = vectors.masked_fill(pads.unsqueeze(2), -torch.inf).amax(1)
        return most.masked_fill(pads.all(1, keepdim=True), 0.0)
    real = ~pads.unsqueeze(2)
    return (vectors * real).sum(1) / real.sum(1).clamp(min=1)


class MultiInterest(Sequential):
    """A sequential model: history [b, l] -> interests [b, k, d] -> scores of n items [b, n]."""

    samples = "prefixes"

    def interests(self, batch: Batch) -> Tensor:
        """[b, k, d]"""
        raise NotImplementedError  # every such model writes its own

    def chosen(self, interests: Tensor, target: Tensor) -> Tensor:
        """The state that is trained: interests [b, k, d], target vectors [b, d] -> [b, d]."""
        raise NotImplementedError  # every such model writes its own

    def forward(self, batch: Batch) -> Output:
        target = batch.tensor("target")
        negatives = batch.tensor("neg_item") if "neg_item" in batch.ids else None
        wanted = self.embed.rows("target", target)
        return self.loss(self.chosen(self.interests(batch), wanted), target, negatives)

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        interests, vectors = self.project_states(self.interests(batch)), self.encode_item(items)
        if items.dim() == 1:
            vectors = vectors.unsqueeze(0)
        best = torch.full((batch.size, items.shape[-1]), -torch.inf, device=items.device)
        for interest in interests.unbind(1):  # [b, k, n] is never held
            best = torch.maximum(best, (vectors @ interest.unsqueeze(2)).squeeze(2))
        return best

"""OutputLayer: models whose output layer is a row and a bias of each item, beside the item table.

score(item) = <state, output row of item> + bias
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.models.base import Batch, Embeddings, Facts, Init, Output, Retrieval, Table
from shoal.models.nn.losses import (
    against_negatives,
    in_batch_softmax,
    mean_distance,
    missing_negatives,
)


class OutputLayer(Retrieval):
    """A sequential model with such an output layer; `tied` reads the item table instead.

    Output rows and their bias are separate tables, so that they shard. A model's options have
    tied, loss_type, gbce_t, label_smoothing and debias.
    """

    kind = "sequential"
    popularity: Tensor

    def __init__(self, options: Any, facts: Facts):
        super().__init__(options, facts)
        counts = torch.bincount(facts.train_items, minlength=facts.num_items)
        self.register_buffer("popularity", counts.clamp(min=1).log(), persistent=False)

    def make_tables(self, items: Table) -> None:
        """The tables of the output layer beside that of items, which may have more rows behind."""
        outputs = items
        if not self.options.tied:
            outputs = Table(
                "output", items.dim, self.facts.num_items, items.init, padding=0, whole=True
            )
        zeros = Init("constant", 0.0)
        bias = Table("output_bias", 1, outputs.rows, zeros, padding=0, whole=True)
        # label smoothing reads the mean of all beside the softmax
        whole = {"every": outputs, "every_bias": bias} if self.options.label_smoothing else {}
        self.embed = Embeddings(whole, history=items, output=outputs, output_bias=bias)

    def loss(self, states: Tensor, batch: Batch, places: Tensor) -> Output:
        """The loss of states [n, d] at places [n] of a batch's histories, counted in [b * l]."""
        targets = batch.tensor("target").view(-1)[places]
        if self.options.loss_type == "CE":
            stop = self.facts.num_items
            loss = self.embed.full_softmax("output", states, targets, "output_bias", stop)
            if self.options.label_smoothing:
                every, bias = self.embed.whole("every"), self.embed.whole("every_bias").squeeze(-1)
                distance = mean_distance(states, every, bias, targets, stop)
                loss = loss + self.options.label_smoothing * distance
            return Output(loss, torch.count_nonzero(targets))
        states = with_one(states)
        if self.options.loss_type == "in_batch":
            items, gather = self.output_rows(targets), self.gather_global
            loss = in_batch_softmax(states, items, targets, gather, self.popularity)
            return Output(loss, len(targets))
        if "neg_item" not in batch.ids:
            raise missing_negatives(type(self).__name__, self.options.loss_type)
        loss, count = against_negatives(
            self.options.loss_type,
            states,
            targets,
            batch.tensor("neg_item"),  # [b, k], shared by the positions of a sequence
            self.output_rows,
            (batch.dense["target_logq"].view(-1)[places], batch.dense["neg_logq"]),
            self.facts.num_items - 1,
            self.options.gbce_t,
            owner=places // batch.tensor("history").shape[1],
        )
        return Output(loss, count)

    def output_rows(self, ids: Tensor) -> Tensor:
        """Output rows of ids and, behind them, their bias: ids' shape + [d + 1]."""
        rows = self.embed.rows("output", ids)
        return torch.cat([rows, self.embed.rows("output_bias", ids)], -1)

    def encode_item(self, ids: Tensor) -> Tensor:
        # The softmax learns how likely an item comes next, and what is popular always is. Less all
        # of ln(popularity), the score is how much likelier than usual the history makes it.
        vectors = self.output_rows(ids)
        if not self.options.debias:
            return vectors
        less = self.options.debias * self.popularity[ids].unsqueeze(-1)
        return vectors - F.pad(less, (vectors.shape[-1] - 1, 0))


def with_one(states: Tensor) -> Tensor:
    """States with a 1 behind them, which meets the bias of `output_rows`: [n, d] -> [n, d + 1]."""
    return F.pad(states, (0, 1), value=1.0)

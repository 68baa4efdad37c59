"""DIEN: Deep Interest Evolution Network for Click-Through Rate Prediction, Zhou et al., AAAI 2019.

A recurrent network makes interests of a history, a second one follows those that the candidate c
is about: attention scales its update gate.

    h_t = GRU(e_t, h_(t-1))        a_t = softmax of <h_t, W c>
    z_t = (1 - a_t u_t) z_(t-1) + a_t u_t tanh(...)        interest = the last z
    loss + aux_weight * mean over t of -ln sigmoid(<h_t, e_(t+1)>) - ln sigmoid(-<h_t, e'>)

e' is of an item drawn at random from the table.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Output
from shoal.models.clicks.history.base import LENGTH, Bilinear, HistoryModel, HistoryReader
from shoal.models.nn.dropout import uniform_like
from shoal.models.nn.mlp import begin_normal
from shoal.models.nn.recurrent import GRU


class Evolution(HistoryReader):
    """[b, d], [b, l, d], bool [b, l] -> [b, d]; keeps what the auxiliary loss needs."""

    def __init__(self, dim: int):
        super().__init__()
        self.width = dim
        self.gru = GRU(dim, dim)
        self.attention = Bilinear(dim, dim)
        self.inputs = nn.Linear(dim, 3 * dim)
        self.states = nn.Linear(dim, 3 * dim, bias=False)
        begin_normal(self.inputs)
        begin_normal(self.states)
        self.seen: tuple[Tensor, Tensor, Tensor] | None = None

    def forward(self, candidate: Tensor, vectors: Tensor, there: Tensor) -> Tensor:
        interests = self.gru(vectors)
        self.seen = (interests, vectors, there) if self.training else None
        weights = self.attention(candidate, interests, there)
        input_gates = self.inputs(interests)
        state = torch.zeros_like(candidate)
        for step in range(vectors.shape[1]):
            reset, update, new = input_gates[:, step].chunk(3, 1)
            old_reset, old_update, old_new = self.states(state).chunk(3, 1)
            # a place without an item has weight 0: the state stays
            share = weights[:, step, None] * (update + old_update).sigmoid()
            new = (new + (reset + old_reset).sigmoid() * old_new).tanh()
            state = (1.0 - share) * state + share * new
        return state


class DIEN(HistoryModel):
    """Where a table grows there is nothing to draw from, and no auxiliary loss."""

    recbole_options: ClassVar[Mapping[str, str]] = {"alpha": "aux_weight"}
    recbole_only: ClassVar[Mapping[str, tuple[object, str]]] = {
        "gru_type": ("AUGRU", "attention scales the update gate, as in the paper")
    }

    class Options(HistoryModel.Options):
        aux_weight: float = 1.0  # weight of the loss that asks interests for the next item

    def reader(self, dim: int, length: int) -> HistoryReader:
        return Evolution(dim)

    def forward(self, batch: Batch) -> Output:
        output = super().forward(batch)
        if not self.training or not self.options.aux_weight:
            return output
        loss = output.loss
        for number, (history, _) in enumerate(self.pairs):
            if history.rows is not None and (history.length or LENGTH) > 1:
                loss = loss + self.options.aux_weight * self._auxiliary(number, batch)
        return replace(output, loss=loss)

    def _auxiliary(self, number: int, batch: Batch) -> Tensor:
        """How badly interests predict the next item, summed over samples: scalar."""
        history = self.pairs[number][0]
        reader = self.readers[number]
        assert isinstance(reader, Evolution) and reader.seen and history.rows
        interests, vectors, there = reader.seen
        reader.seen = None
        states, following, real = interests[:, :-1], vectors[:, 1:], there[:, 1:]
        drawn = uniform_like(real.float()) * (history.rows - 1)
        others = self.embed.rows(history.name, 1 + drawn.long().clamp(max=history.rows - 2))
        right = F.logsigmoid((states * following).sum(2))
        wrong = F.logsigmoid(-(states * others).sum(2))
        each = ((right + wrong) * real).sum(1) / real.sum(1).clamp(min=1)
        return -(each if batch.weights is None else each * batch.weights).sum()

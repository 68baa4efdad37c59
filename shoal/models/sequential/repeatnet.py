"""RepeatNet: A Repeat Aware Neural Recommendation Machine for Session-based Recommendation, Ren et
al., AAAI 2019.

First whether the next item is one of the history (repeat, r) or a new one (explore, e):

    P(i) = P(r) P(i | r) + P(e) P(i | e)

    h_j = GRU(x_j)        a_j = softmax(<v, tanh(W h_last + U h_j)>), other v, W, U for each below
    P(r), P(e) = softmax(W' sum of a_j h_j)
    P(i | r) = sum of a_j over the places of i        0 for items that are not in the history
    P(i | e) = softmax(<w_i, [sum of a_j h_j, h_last]>)        0 for items that are
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Embeddings, Facts, Init, Output, Table
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.recurrent import GRU
from shoal.models.nn.transformer import HIDDEN
from shoal.models.sequential.base import at_last
from shoal.models.sequential.distribution import CE_ALONE, Distribution


class RepeatNet(Distribution):
    """An encoder, a switch, and a decoder for old and for new items."""

    recbole_without_effect: ClassVar[Mapping[str, str]] = {"loss_type": CE_ALONE}

    class Options(Distribution.Options):
        embedding_size: int = 64
        hidden_size: int = 64
        dropout_prob: float = 0.5  # dropout of what attention compares
        joint_train: bool = False  # the switch also learns by itself whether the next item is old

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width, hidden = options.embedding_size, options.hidden_size
        read = Table("item", width, facts.num_items, Init("xavier_normal"), padding=0)
        new = Table("new", 2 * hidden, facts.num_items, Init("xavier_normal"))
        self.embed = Embeddings(history=read, new=new)
        self.gru = GRU(width, hidden)
        self.switch_attention, self.repeat, self.explore = (
            PlaceAttention(hidden, options.dropout_prob) for _ in range(3)
        )
        self.switch = nn.Linear(hidden, 2, bias=False)
        for name, weight in self.named_parameters():
            if not name.startswith("gru.") and weight.dim() == 2:
                nn.init.xavier_normal_(weight)

    def log_parts(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """ln of P(r) and P(e) [b, 2], of P(i | r) and P(i | e) [b, num_items]; and what is old."""
        history = batch.tensor("history")
        pads = history == 0
        states = self.gru(self.embed.field("history", batch))  # [b, l, d]
        last = at_last(states, history)

        def mixed(weights: Tensor) -> Tensor:
            return (weights.unsqueeze(2) * states).sum(1)

        modes = self.switch(mixed(self.switch_attention(states, last, pads))).log_softmax(1)
        repeated = self.repeat(states, last, pads)
        empty = states.new_zeros(history.shape[0], self.facts.num_items)
        of_repeat = empty.scatter_add(1, history, repeated).clamp(min=1e-12).log()
        old = empty.scatter(1, history, 1.0) > 0
        query = torch.cat([mixed(self.explore(states, last, pads)), last], 1)
        logits = query @ self.embed.whole("new").T
        padding = torch.arange(self.facts.num_items, device=history.device) == 0
        of_explore = logits.masked_fill(old | padding, HIDDEN).log_softmax(1)
        return modes, of_repeat, of_explore, old

    def log_probabilities(self, batch: Batch) -> Tensor:
        modes, of_repeat, of_explore, old = self.log_parts(batch)
        return torch.where(old, modes[:, :1] + of_repeat, modes[:, 1:] + of_explore)

    def forward(self, batch: Batch) -> Output:
        modes, of_repeat, of_explore, old = self.log_parts(batch)
        target = batch.tensor("target").unsqueeze(1)
        is_old = old.gather(1, target)
        of_mode = torch.where(is_old, modes[:, :1], modes[:, 1:])
        of_item = torch.where(is_old, of_repeat.gather(1, target), of_explore.gather(1, target))
        often = 1.5 if self.options.joint_train else 1.0
        return Output(-(often * of_mode + of_item).sum(), len(target))


class PlaceAttention(nn.Module):
    """Weights of places: states [b, l, d], the last one [b, d], pads bool [b, l] -> [b, l]."""

    def __init__(self, width: int, dropout: float):
        super().__init__()
        self.last = nn.Linear(width, width, bias=False)
        self.each = nn.Linear(width, width, bias=False)
        self.weight = nn.Linear(width, 1, bias=False)
        self.last_dropout, self.each_dropout = Dropout(dropout), Dropout(dropout)

    def forward(self, states: Tensor, last: Tensor, pads: Tensor) -> Tensor:
        each = self.each_dropout(self.each(states))
        about = self.last_dropout(self.last(last)).unsqueeze(1)
        scores = self.weight(torch.tanh(about + each)).squeeze(2)
        return scores.masked_fill(pads, HIDDEN).softmax(1)

"""ComiRec: Controllable Multi-Interest Framework for Recommendation, Cen et al., KDD 2020.

ComiRec-SA: each interest is its own attention over the history.

    A = softmax over places(W2 tanh(W1 (x + p)))        interests = A^T x
    train    state = the interest that is nearest to the target
"""

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.nn.transformer import HIDDEN
from shoal.models.sequential.base import MultiInterest, num_places


class ComiRec(MultiInterest):
    """Interests by self-attention, of which the nearest to the target learns."""

    class Options(MultiInterest.Options):
        embedding_size: int = 64
        interests: int = 4

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width = options.embedding_size
        self.make_items(width, width**-0.5)
        self.positions = nn.Parameter(torch.randn(facts.max_len, width) * 0.02)
        self.hidden = nn.Linear(width, 4 * width)
        self.weigh = nn.Linear(4 * width, options.interests, bias=False)

    def interests(self, batch: Batch) -> Tensor:
        history = batch.tensor("history")
        length = num_places(history, self.facts)
        items = self.embed.field("history", batch)
        scores = self.weigh(torch.tanh(self.hidden(items + self.positions[:length])))
        pads = (history == 0).unsqueeze(-1)
        return scores.masked_fill(pads, HIDDEN).softmax(1).transpose(1, 2) @ items

    def chosen(self, interests: Tensor, target: Tensor) -> Tensor:
        nearest = (interests @ target.unsqueeze(2)).squeeze(2).argmax(1)
        return interests[torch.arange(nearest.shape[0], device=nearest.device), nearest]

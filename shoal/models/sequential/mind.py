"""MIND: Multi-Interest Network with Dynamic Routing for Recommendation at Tmall, Li et al., CIKM
2019.

Items are routed to interest capsules; logits b begin at random and grow where both agree:

    repeat   v_k = squash(sum of softmax over k(b)_ik S x_i)        b_ik += <v_k, S x_i>
    then     interest = relu layers of v_k
    train    state = sum of softmax((<v_k, target>)^p) v_k
"""

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.nn.transformer import HIDDEN, feed_forward
from shoal.models.sequential.base import MultiInterest, num_places


class MIND(MultiInterest):
    """Interests by dynamic routing, chosen among by label-aware attention."""

    first: Tensor

    class Options(MultiInterest.Options):
        embedding_size: int = 64
        interests: int = 4
        routing_steps: int = 3  # rounds in which items find their interests
        # exponent of label-aware attention; the larger, the nearer to the best interest
        power: float = 2.0

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width = options.embedding_size
        self.make_items(width, width**-0.5)
        self.bilinear = nn.Linear(width, width, bias=False)
        self.feed = feed_forward(width, 4 * width)
        self.register_buffer("first", torch.randn(facts.max_len, options.interests))

    def interests(self, batch: Batch) -> Tensor:
        history = batch.tensor("history")
        length = num_places(history, self.facts)
        mapped = self.bilinear(self.embed.field("history", batch))  # [b, l, d]
        pads = (history == 0).unsqueeze(-1)
        logits = self.first[:length].expand(*history.shape, -1)
        still = mapped.detach()  # routing is not learned through, but for its last step
        for step in range(self.options.routing_steps):
            last = step + 1 == self.options.routing_steps
            weights = logits.softmax(-1).masked_fill(pads, 0.0).transpose(1, 2)  # [b, k, l]
            capsules = squash(weights @ (mapped if last else still))
            if not last:
                logits = logits + still @ capsules.transpose(1, 2)
        return capsules + self.feed(capsules)

    def chosen(self, interests: Tensor, target: Tensor) -> Tensor:
        agreement = (interests @ target.unsqueeze(2)).squeeze(2)  # [b, k]
        powered = agreement.sign() * agreement.abs().clamp(min=1e-9) ** self.options.power
        weights = powered.clamp(min=HIDDEN).softmax(1)
        return (weights.unsqueeze(2) * interests).sum(1)


def squash(x: Tensor) -> Tensor:
    """Vectors [..., d] of their direction, with a length below 1."""
    square = x.square().sum(-1, keepdim=True)
    return square / (1.0 + square) * x / (square + 1e-9).sqrt()

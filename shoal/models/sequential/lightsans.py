"""LightSANs: Lighter and Better: Low-Rank Decomposed Self-Attention Networks for Next-Item
Recommendation, Fan et al., SIGIR 2021.

Items look at k interests instead of at each other, and positions have their own attention:

    interests   K~ = softmax over places(K W)^T K          (V~: the same of V)
    state      += softmax(Q K~^T) V~ + softmax(P_q P_k^T) V
"""

from functools import partial

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.mlp import begin_normal
from shoal.models.nn.transformer import HIDDEN, feed_forward, split_heads
from shoal.models.sequential.base import AttentionOptions, NextItem, at_last, num_places


class LightSANs(NextItem):
    """Self-attention whose cost grows with the length, not with its square."""

    samples = "prefixes"

    class Options(AttentionOptions, NextItem.Options):
        hidden_size: int = 64
        initializer_range: float = 0.02
        k_interests: int = 5  # interests that stand for the items in attention

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width, std = options.hidden_size, options.initializer_range
        self.make_items(width, std)
        self.positions = nn.Parameter(torch.randn(facts.max_len, width) * std)
        self.norm = nn.LayerNorm(width, eps=options.layer_norm_eps)
        self.dropout = Dropout(options.hidden_dropout_prob)
        self.blocks = nn.ModuleList(Block(options) for _ in range(options.n_layers))
        begin_normal(self, std)

    def states(self, batch: Batch) -> Tensor:
        history = batch.tensor("history")
        length = num_places(history, self.facts)
        x = self.dropout(self.norm(self.embed.field("history", batch)))
        for block in self.blocks:
            x = block(x, self.positions[:length], history == 0)
        return at_last(x, history)


class Block(nn.Module):
    """Attention to interests and positions, then a feed-forward layer: [b, l, d] -> the same."""

    def __init__(self, options: LightSANs.Options):
        super().__init__()
        width, self.heads = options.hidden_size, options.n_heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.key_interests = nn.Linear(width, options.k_interests, bias=False)
        self.value_interests = nn.Linear(width, options.k_interests, bias=False)
        self.place_query, self.place_key = nn.Linear(width, width), nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.feed = feed_forward(width, options.inner_size or 4 * width, options.hidden_act)
        self.norms = nn.ModuleList(nn.LayerNorm(width, options.layer_norm_eps) for _ in range(2))
        self.attention_dropout = Dropout(options.attn_dropout_prob)
        self.dropouts = nn.ModuleList(Dropout(options.hidden_dropout_prob) for _ in range(2))

    def forward(self, x: Tensor, positions: Tensor, pads: Tensor) -> Tensor:
        query, key, value = self.query_key_value(x).chunk(3, -1)
        few_keys = gather_interests(self.key_interests(key), key, pads)
        few_values = gather_interests(self.value_interests(value), value, pads)
        scale = (x.shape[-1] // self.heads) ** -0.5
        heads = partial(split_heads, heads=self.heads)
        scores = heads(query) @ heads(few_keys).mT * scale
        mixed = self.attention_dropout(scores.softmax(-1)) @ heads(few_values)
        place_queries, place_keys = self.place_query(positions), self.place_key(positions)
        places = heads(place_queries[None]) @ heads(place_keys[None]).mT * scale
        hidden = pads[:, None, None, :].float() * HIDDEN
        mixed = mixed + (places + hidden).softmax(-1) @ heads(value)
        mixed = self.out(mixed.transpose(1, 2).flatten(2))
        x = self.norms[0](x + self.dropouts[0](mixed))
        return self.norms[1](x + self.dropouts[1](self.feed(x)))


def gather_interests(scores: Tensor, x: Tensor, pads: Tensor) -> Tensor:
    """Mixtures of places, one for each interest: scores [b, l, k], x [b, l, d] -> [b, k, d]."""
    weights = scores.masked_fill(pads.unsqueeze(-1), HIDDEN).softmax(1)
    return weights.transpose(1, 2) @ x

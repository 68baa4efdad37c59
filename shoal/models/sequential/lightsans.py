"""LightSANs: Lighter and Better: Low-Rank Decomposed Self-Attention Networks for Next-Item
Recommendation, Fan et al., SIGIR 2021.

Items look at k interests instead of at each other, and positions have an attention of their own:

    interests   K~ = softmax over places(K W)^T K          (V~ likewise)
    state      += softmax(Q K~^T) V~ + softmax(P_q P_k^T) V
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shoal.data.batch import Batch
from shoal.models.base import Facts
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.transformer import ACTIVATIONS, HIDDEN, Activation
from shoal.models.sequential.base import NextItem, at_last


class LightSANs(NextItem):
    """Self-attention whose cost grows with the length, not with its square."""

    samples = "prefixes"

    @dataclass
    class Options(NextItem.Options):
        n_layers: int = 2
        n_heads: int = 2
        k_interests: int = 5  # interests that stand for the items in attention
        hidden_size: int = 64
        inner_size: int = 256
        hidden_dropout_prob: float = 0.5
        attn_dropout_prob: float = 0.5
        hidden_act: Activation = "gelu"
        layer_norm_eps: float = 1e-12

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width = options.hidden_size
        self.make_items(width)
        self.positions = nn.Parameter(torch.empty(facts.max_len, width))
        nn.init.normal_(self.positions, std=0.02)
        self.norm = nn.LayerNorm(width, eps=options.layer_norm_eps)
        self.dropout = Dropout(options.hidden_dropout_prob)
        self.blocks = nn.ModuleList(Block(options) for _ in range(options.n_layers))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def states(self, batch: Batch) -> Tensor:
        history = batch.tensor("history")
        length = len(self.position_ids(history))
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
        self.feed = nn.Sequential(
            nn.Linear(width, options.inner_size),
            ACTIVATIONS[options.hidden_act](),
            nn.Linear(options.inner_size, width),
        )
        self.norms = nn.ModuleList(
            nn.LayerNorm(width, eps=options.layer_norm_eps) for _ in range(2)
        )
        self.attention_dropout = Dropout(options.attn_dropout_prob)
        self.dropouts = nn.ModuleList(Dropout(options.hidden_dropout_prob) for _ in range(2))

    def forward(self, x: Tensor, positions: Tensor, pads: Tensor) -> Tensor:
        query, key, value = self.query_key_value(x).chunk(3, -1)
        few_keys = gather_interests(self.key_interests(key), key, pads)
        few_values = gather_interests(self.value_interests(value), value, pads)
        scale = (x.shape[-1] // self.heads) ** -0.5
        scores = self._heads(query) @ self._heads(few_keys).transpose(-1, -2) * scale
        mixed = self.attention_dropout(scores.softmax(-1)) @ self._heads(few_values)
        asked, found = self.place_query(positions), self.place_key(positions)
        places = self._heads(asked[None]) @ self._heads(found[None]).transpose(-1, -2) * scale
        hidden = pads[:, None, None, :].float() * HIDDEN
        mixed = mixed + (places + hidden).softmax(-1) @ self._heads(value)
        mixed = self.out(mixed.transpose(1, 2).flatten(2))
        x = self.norms[0](x + self.dropouts[0](mixed))
        return self.norms[1](x + self.dropouts[1](self.feed(x)))

    def _heads(self, x: Tensor) -> Tensor:
        """[b, l, d] -> [b, heads, l, d / heads]"""
        return x.view(*x.shape[:2], self.heads, x.shape[2] // self.heads).transpose(1, 2)


def gather_interests(scores: Tensor, x: Tensor, pads: Tensor) -> Tensor:
    """Mixtures of places, one for each interest: scores [b, l, k], x [b, l, d] -> [b, k, d]."""
    weights = scores.masked_fill(pads.unsqueeze(-1), HIDDEN).softmax(1)
    return weights.transpose(1, 2) @ x

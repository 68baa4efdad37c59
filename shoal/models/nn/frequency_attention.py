"""FrequencyBlock: attention that finds how far apart alike parts of a sequence are.

With F the Fourier transform over places, of which a layer keeps a band:

    R(delay) = mean over numbers of F^-1(F(q) * conj F(k))
    z_t = sum over the delays with the largest R of softmax(R)(delay) v_(t + delay)
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from shoal.models.nn.dropout import Dropout
from shoal.models.nn.transformer import HIDDEN, feed_forward, split_heads


class FrequencyBlock(nn.Module):
    """Attention by delays and a perceptron: [b, length, d] -> the same.

    Bands move from high frequencies in the first layer to low ones in the last. With
    `dual_domain` causal attention over places is mixed in. options: those of FEARec.
    """

    def __init__(self, options: Any, length: int, number: int):
        super().__init__()
        width, self.options = options.hidden_size, options
        self.query_key_value, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = feed_forward(width, options.inner_size or 4 * width, options.hidden_act)
        self.norms = nn.ModuleList(nn.LayerNorm(width, options.layer_norm_eps) for _ in range(2))
        self.dropouts = nn.ModuleList(Dropout(options.hidden_dropout_prob) for _ in range(2))
        self.attention_dropout = Dropout(options.attn_dropout_prob)
        self.delays = max(1, int(options.topk_factor * math.log(length)))
        layers, waves = options.n_layers, length // 2 + 1
        share, step = 1.0 / layers, waves / layers
        if options.global_ratio > share:  # bands overlap, and the last one ends at frequency 0
            share = options.global_ratio
            step = waves * (1.0 - share) // max(1, layers - 1)
        self.low = max(0, int(waves * (1.0 - share) - number * step))
        self.high = max(1, int(waves - number * step))

    def forward(self, x: Tensor, pads: Tensor) -> Tensor:
        query, key, value = self.query_key_value(x).chunk(3, 2)
        mixed = self._by_delays(query, key, value)
        if self.options.dual_domain:
            share = self.options.spatial_ratio
            mixed = (1.0 - share) * mixed + share * self._in_time(query, key, value, pads)
        x = self.norms[0](x + self.dropouts[0](self.out(mixed)))
        return self.norms[1](x + self.dropouts[1](self.feed(x)))

    def _by_delays(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Values of the places that lie a likely delay ahead: [b, length, d]."""
        size, length, width = value.shape
        if not size:  # a transform of nothing is refused
            return value + 0.0 * (query + key)
        # The transform of a real sequence that is read backwards is the conjugate one.
        backwards = torch.cat([key[:, :1], key[:, 1:].flip(1)], 1)
        waves = torch.fft.rfft(query, dim=1) * torch.fft.rfft(backwards, dim=1)
        likeness = torch.fft.irfft(self._band(waves), n=length, dim=1).mean(2)  # [b, delays]
        weights, delays = likeness.topk(self.delays, 1)
        place = torch.arange(length, device=value.device)
        mixed = torch.zeros_like(value)
        for weight, delay in zip(weights.softmax(1).unbind(1), delays.unbind(1)):
            moved = (place + delay.unsqueeze(1)) % length
            later = value.gather(1, moved.unsqueeze(2).expand(-1, -1, width))
            mixed = mixed + weight[:, None, None] * later
        return mixed

    def _band(self, waves: Tensor) -> Tensor:
        """The frequencies of this layer: [b, waves, d], zeros elsewhere."""
        number = torch.arange(waves.shape[1], device=waves.device)
        return waves * ((number >= self.low) & (number < self.high)).unsqueeze(1)

    def _in_time(self, query: Tensor, key: Tensor, value: Tensor, pads: Tensor) -> Tensor:
        """Causal attention: [b, l, d]."""
        if self.options.std and query.shape[0]:
            query, key, value = (
                torch.fft.irfft(self._band(torch.fft.rfft(x, dim=1)), n=x.shape[1], dim=1)
                for x in (query, key, value)
            )
        heads = self.options.n_heads
        query, key, value = (split_heads(x, heads) for x in (query, key, value))
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=pads.device).triu(1)
        scores = scores.masked_fill(later | pads[:, None, None, :], HIDDEN)
        mixed = self.attention_dropout(scores.softmax(-1)) @ value
        return mixed.transpose(1, 2).flatten(2)

"""FMLP: Filter-enhanced MLP is All You Need for Sequential Recommendation, Zhou et al., WWW 2022.

No attention: a learned filter of frequencies along the history, then a perceptron.

    x = norm(x + dropout(F^-1(W * F(x))))        x = norm(x + dropout(mlp(x)))

Histories are aligned to their end, so that the last item is always at the last place.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.transformer import Activation, feed_forward
from shoal.models.sequential.base import NextItem, lengths, num_places


class FMLP(NextItem):
    """Filters in the frequency domain; named FMLP-Rec in the paper."""

    samples = "prefixes"

    class Options(NextItem.Options):
        n_layers: int = 2
        hidden_size: int = 64
        hidden_dropout_prob: float = 0.5
        hidden_act: Activation = "gelu"
        layer_norm_eps: float = 1e-12

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width = options.hidden_size
        self.make_items(width)
        self.positions = nn.Parameter(torch.randn(facts.max_len, width) * 0.02)
        self.norm = nn.LayerNorm(width, eps=options.layer_norm_eps)
        self.dropout = Dropout(options.hidden_dropout_prob)
        self.blocks = nn.ModuleList(Block(options, facts.max_len) for _ in range(options.n_layers))

    def states(self, batch: Batch) -> Tensor:
        history = batch.tensor("history")
        num_places(history, self.facts)
        items = to_the_end(self.embed.field("history", batch), history, self.facts.max_len)
        x = self.dropout(self.norm(items + self.positions))
        for block in self.blocks:
            x = block(x)
        return x[:, -1]


class Block(nn.Module):
    """A filter and a perceptron: [b, max_len, d] -> the same."""

    def __init__(self, options: FMLP.Options, length: int):
        super().__init__()
        width = options.hidden_size
        self.filter = nn.Parameter(torch.randn(length // 2 + 1, width, 2) * 0.02)
        self.feed = feed_forward(width, 4 * width, options.hidden_act)
        self.norms = nn.ModuleList(nn.LayerNorm(width, options.layer_norm_eps) for _ in range(2))
        self.dropouts = nn.ModuleList(Dropout(options.hidden_dropout_prob) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0]:  # a transform of nothing is refused
            waves = torch.fft.rfft(x, dim=1, norm="ortho") * torch.view_as_complex(self.filter)
            filtered = torch.fft.irfft(waves, n=x.shape[1], dim=1, norm="ortho")
        else:
            filtered = x + self.filter.sum() * 0.0
        x = self.norms[0](x + self.dropouts[0](filtered))
        return self.norms[1](x + self.dropouts[1](self.feed(x)))


def to_the_end(vectors: Tensor, history: Tensor, width: int) -> Tensor:
    """Vectors [b, l, d] of histories, their last items in the last of `width` places, pads before.

    The rows of pads are zeros.
    """
    vectors = F.pad(vectors, (0, 0, 0, width - history.shape[1]))
    place = torch.arange(width, device=history.device) - (width - lengths(history).unsqueeze(1))
    return vectors.gather(1, (place % width).unsqueeze(-1).expand_as(vectors))

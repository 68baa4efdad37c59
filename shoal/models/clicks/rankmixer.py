"""RankMixer: RankMixer: Scaling Up Ranking Models in Industrial Recommenders, Zhu et al., 2025.

The features side by side are cut into T tokens of equal width, each projected to D numbers. Blocks
mix tokens without attention and without weights, by moving parts of them, and give each token a
feed-forward layer of its own:

    mixed  token h = [part h of token 1, ..., part h of token T]     of T parts each, D / T wide
    S      = norm(mixed(X) + X)
    X      <- norm(W2_t gelu(W1_t S_t) + S_t)        with own W1 [D, k D], W2 [k D, D] of a token t
    logit  = tower of the mean of the tokens

Weights are 2 k L T D^2 in products of large matrices. Where the paper groups features by what they
mean, here they are cut in the order of the data; its sparse mixture of experts is left out.
"""

from dataclasses import field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.clicks.base import Flat
from shoal.models.nn.mlp import Tower
from shoal.models.options import Count


class TokenLinear(nn.Module):
    """A linear layer for each token: [tokens, b, width] -> [tokens, b, size]."""

    def __init__(self, tokens: int, width: int, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(tokens, width, size) * width**-0.5)
        self.bias = nn.Parameter(torch.zeros(tokens, 1, size))

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias.to(x.dtype), x, self.weight)


class RankMixerBlock(nn.Module):
    """[tokens, b, dim] -> [tokens, b, dim]."""

    def __init__(self, tokens: int, dim: int, inner: int):
        super().__init__()
        self.mixing_norm, self.norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.inner = TokenLinear(tokens, dim, inner)
        self.out = TokenLinear(tokens, inner, dim)

    def forward(self, x: Tensor) -> Tensor:
        mixed = x.unflatten(2, (x.shape[0], -1)).permute(2, 1, 0, 3).flatten(2)
        x = self.mixing_norm(mixed + x)
        return self.norm(self.out(F.gelu(self.inner(x))) + x)


class RankMixer(Flat):
    """Token mixing by heads, and a feed-forward layer for each token."""

    class Options(Flat.Options):
        tokens: Count = 8  # tokens that the features are cut into; as many heads
        hidden_size: Count = 64  # width of a token; a multiple of tokens
        n_layers: int = 2
        expansion: Count = 4  # width inside the feed-forward layers, as a multiple of hidden_size
        # widths of the perceptron above the mean of the tokens
        layers: list[int] = field(default_factory=list)
        dropout: float = 0.0

        def __post_init__(self) -> None:
            if self.hidden_size % self.tokens:
                raise ValueError(
                    f"RankMixer cuts each token into {self.tokens} heads of equal width, and "
                    f"model.hidden_size is {self.hidden_size}; make it a multiple of model.tokens"
                )

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        tokens, dim = options.tokens, options.hidden_size
        self.part = -(-self.flat_width // tokens)  # zeros fill up the last tokens
        self.tokenize = TokenLinear(tokens, self.part, dim)
        self.stack = nn.Sequential()
        for _ in range(options.n_layers):
            self.stack.append(RankMixerBlock(tokens, dim, options.expansion * dim))
        self.deep = Tower([dim, *options.layers], options.dropout)

    def logits(self, batch: Batch) -> Tensor:
        x = self.features(batch)
        tokens = self.options.tokens
        x = F.pad(x, (0, tokens * self.part - x.shape[1])).unflatten(1, (tokens, -1))
        x = self.stack(self.tokenize(x.transpose(0, 1)))  # [tokens, b, dim]
        return self.deep(x.mean(0))

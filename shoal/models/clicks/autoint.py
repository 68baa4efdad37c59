"""AutoInt: Automatic Feature Interaction Learning via Self-Attentive Neural Networks.

Song et al., CIKM 2019. Features look at each other; what a feature becomes is

    v_i <- relu([heads of attention of v_i over all v_j] + W v_i)
    logit = <w, [v_1, v_2, ...]> + tower of the first [v_1, v_2, ...]     (AutoInt+)
"""

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from shoal.models.base import Batch, Facts
from shoal.models.clicks.base import Vectors
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.mlp import Tower, begin_normal


class AutoInt(Vectors):
    """Attention over features; without `layers` there is no tower, as in the plain AutoInt."""

    recbole_options: ClassVar[Mapping[str, str]] = {"n_layers": "attention_layers"}

    class Options(Vectors.Options):
        dim: int = 16
        initial_range: float = 0.1
        attention_layers: int = 3  # layers of attention between features
        attention_size: int = 32  # width of all heads together
        n_heads: int = 2
        layers: list[int] = field(default_factory=lambda: [400, 400])
        dropout: float = 0.0
        # dropout of attention weights and of the perceptron's layers; null: none, and `dropout`
        dropout_probs: list[float] | None = None

        def __post_init__(self) -> None:
            if self.attention_size % self.n_heads:
                raise ValueError(
                    f"model.attention_size {self.attention_size} does not divide into "
                    f"{self.n_heads} heads of equal width; make it a multiple of model.n_heads"
                )
            if self.dropout_probs is not None and len(self.dropout_probs) < 2:
                raise ValueError(
                    f"model.dropout_probs is {self.dropout_probs}; it has a rate for attention "
                    "weights and one for the perceptron"
                )

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.make_vectors(options.dim)
        rates = options.dropout_probs or [0.0, options.dropout]
        self.attention_dropout = Dropout(rates[0])
        self.attention = nn.ModuleList()
        width = options.dim
        for _ in range(options.attention_layers):
            self.attention.append(nn.Linear(width, 4 * options.attention_size, bias=False))
            width = options.attention_size
        self.out = nn.Linear(width * self.num_vectors, 1)
        begin_normal(self)
        self.deep: Tower | None = None
        if options.layers:
            sizes = [options.dim * self.num_vectors, *options.layers]
            self.deep = Tower(sizes, rates[1])

    def logits(self, batch: Batch) -> Tensor:
        first = x = self.vectors(batch)
        for layer in self.attention:
            x = self._attend(x, layer)
        logits = self.out(x.flatten(1)).squeeze(1)
        return logits if self.deep is None else logits + self.deep(first.flatten(1))

    def _attend(self, x: Tensor, layer: nn.Module) -> Tensor:
        """What features become that look at each other: [b, n, d] -> [b, n, attention_size]."""
        parts = layer(x).unflatten(2, (4, self.options.n_heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value, same = parts  # [b, heads, n, width of a head] each
        if self.attention_dropout.p and self.training:  # torch's own would draw other masks
            weights = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1)
            mixed = self.attention_dropout(weights) @ value + same
        else:
            mixed = scaled_dot_product_attention(query, key, value) + same
        return mixed.transpose(1, 2).flatten(2).relu()

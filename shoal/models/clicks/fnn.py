"""FNN: Deep Learning over Multi-field Categorical Data, Zhang, Du and Wang, ECIR 2016.

    x = [v_1, v_2, ..., dense]        x <- tanh(W x + b), layer by layer        logit = <w, x> + b

The paper begins with the vectors of a trained FM; here they begin at random and learn with the
layers.
"""

from collections.abc import Mapping
from dataclasses import field
from itertools import pairwise
from typing import ClassVar

from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.clicks.base import Flat
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.mlp import Linear, begin_xavier


class FNN(Flat):
    """A perceptron with tanh over the vectors of features."""

    recbole_options: ClassVar[Mapping[str, str]] = {
        "embedding_size": "dim",
        "mlp_hidden_size": "layers",
        "dropout_prob": "dropout",
    }

    class Options(Flat.Options):
        dim: int = 10
        layers: list[int] = field(default_factory=lambda: [256, 256, 256])
        dropout: float = 0.2

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        sizes = [self.flat_width, *options.layers]
        hidden: list[nn.Module] = []
        for width_in, width_out in pairwise(sizes):
            hidden += [Dropout(options.dropout), Linear(width_in, width_out), nn.Tanh()]
        self.hidden, self.out = nn.Sequential(*hidden), nn.Linear(sizes[-1], 1)
        begin_xavier(self)

    def logits(self, batch: Batch) -> Tensor:
        return self.out(self.hidden(self.features(batch))).squeeze(1)

"""DLRM: Deep Learning Recommendation Model for Personalization and Recommendation Systems.

Naumov et al., 2019. The dense values become a vector like those of the slots; all vectors meet in
dot products, which a perceptron reads beside the dense vector:

    d     = relu layers of dense
    dots  = <v_i, v_j> for i > j, of the vectors d, v_1, v_2, ...
    logit = tower of [d, dots]
"""

from dataclasses import field

from torch import Tensor

from shoal.models.base import Batch, ClickModel, Facts, Init
from shoal.models.nn.interactions import Dots
from shoal.models.nn.mlp import MLP, Tower, begin_normal


class DLRM(ClickModel):
    """Without dense values there is no d: the tower reads the dots of the slots alone.

    vectors [b, n, dim]    dots [b, n * (n - 1) / 2]    tower [b, dim + pairs] -> logits [b]
    """

    class Options(ClickModel.Options):
        dim: int = 16
        # widths of the relu layers that read dense values; a layer of width dim follows
        bottom_layers: list[int] = field(default_factory=lambda: [512, 256, 64])
        # widths of the layers above the products
        top_layers: list[int] = field(default_factory=lambda: [512, 256])
        dropout: float = 0.0
        initial_range: float = 0.01  # first values lie within +- this; dots near 0 carry no signal

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        if facts.num_slots + (facts.num_dense > 0) < 2:
            raise ValueError("DLRM has one vector and so no pairs: give it more slots")
        self.same_width(options.dim)
        init = Init("uniform", options.initial_range)
        self.embed = self.embeddings(options.dim, init)
        if facts.num_dense:
            self.bottom = MLP([facts.num_dense, *options.bottom_layers, options.dim])
            begin_normal(self.bottom)
        self.dots = Dots(facts.num_slots + (facts.num_dense > 0))
        width = len(self.dots.lower) + options.dim * (facts.num_dense > 0)
        self.top = Tower([width, *options.top_layers], options.dropout)

    def logits(self, batch: Batch) -> Tensor:
        vectors = self.slots(self.embed, batch)
        if not self.facts.num_dense:
            return self.top(self.dots(vectors))
        return self.top(self.dots.concat_dots(self.bottom(self.dense(batch)), vectors))

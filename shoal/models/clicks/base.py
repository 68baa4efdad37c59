"""What click models read: the vectors of features side by side, or as vectors of one width."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, ClickModel, Embeddings, Facts, Init, Output
from shoal.models.nn.losses import sum_of_norms


class Flat(ClickModel):
    """`features` is x = [v_1, v_2, ..., dense]."""

    options: Any

    class Options(ClickModel.Options):
        dim: int = 9
        # first values lie within +- this; products near 0 carry no signal
        initial_range: float = 0.01

    def __init__(self, options: Any, facts: Facts):
        super().__init__(options, facts)
        self.embed = self.embeddings(options.dim, Init("uniform", options.initial_range))

    @property
    def flat_width(self) -> int:
        """How wide x is."""
        return self.width(self.options.dim) + self.facts.num_dense

    def features(self, batch: Batch) -> Tensor:
        """All that is known of a sample, side by side: [b, flat_width]."""
        rows = self.flat(self.embed, batch)
        return torch.cat([rows, self.dense(batch)], 1) if self.facts.num_dense else rows


class Vectors(ClickModel):
    """A feature is the id of a slot with its vector v, or a dense value x with x * v."""

    options: Any
    embed: Embeddings

    class Options(ClickModel.Options):
        dim: int = 9
        # first values lie within +- this; values of 0 would never change
        initial_range: float = 0.01

    @property
    def num_vectors(self) -> int:
        """Slots and dense values."""
        return self.facts.num_slots + self.facts.num_dense

    def make_vectors(self, dim: int) -> None:
        """The table of the slots' vectors, and those of dense values."""
        size = self.options.initial_range
        if self.num_vectors < 2:
            raise ValueError(
                f"{type(self).__name__} has one vector and so no pairs: give it more slots"
            )
        self.same_width(dim)
        self.embed = self.embeddings(dim, Init("uniform", size))
        vectors = torch.empty(self.facts.num_dense, dim)
        self.dense_vectors = nn.Parameter(vectors.uniform_(-size, size))

    def vectors(self, batch: Batch) -> Tensor:
        """The vectors of all features: [b, num_slots + num_dense, dim]."""
        rows = self.slots(self.embed, batch)
        if not self.facts.num_dense:
            return rows
        return torch.cat([rows, self.dense(batch).unsqueeze(2) * self.dense_vectors], 1)


class Penalised(ClickModel):
    """A click model some of whose weights are kept small: loss + reg_weight * their norms."""

    options: Any

    class Options(ClickModel.Options):
        reg_weight: float = 0.0  # weight of the norms of the weights that the model names

    def penalised(self) -> Iterable[Tensor]:
        """The weights of which `reg_weight` counts the norms."""
        raise NotImplementedError  # every such model writes its own

    def forward(self, batch: Batch) -> Output:
        output = super().forward(batch)
        if not self.options.reg_weight:
            return output
        # a term of every sample: the mean over any number of them is the same
        penalty = self.options.reg_weight * sum_of_norms(self.penalised()) * output.count
        return replace(output, loss=output.loss + penalty)

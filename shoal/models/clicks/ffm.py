"""FFM: Field-aware Factorization Machines for CTR Prediction, Juan et al., RecSys 2016.

A feature has another vector for every field that it meets:

    logit = LR + sum over i < j of <v_i for field j, v_j for field i>
"""

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from shoal.models.base import Batch, Facts
from shoal.models.clicks.base import Vectors
from shoal.models.clicks.lr import LR


class FFM(LR, Vectors):
    """A row holds a feature's vectors for all fields: fields * dim wide."""

    recbole_only: ClassVar[Mapping[str, tuple[object, str]]] = {
        "fields": (None, "every feature is a field")
    }

    class Options(Vectors.Options):
        dim: int = 4

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.make_vectors(options.dim * self.num_vectors)

    def logits(self, batch: Batch) -> Tensor:
        each = self.vectors(batch).unflatten(2, (self.num_vectors, -1))  # [b, n, n, dim]
        met = (each * each.transpose(1, 2)).sum(-1)  # both halves are the same
        pairs = met.sum((1, 2)) - met.diagonal(dim1=1, dim2=2).sum(1)
        return super().logits(batch) + 0.5 * pairs

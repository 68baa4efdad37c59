"""SLIM: Sparse Linear Methods for Top-N Recommender Systems, Ning and Karypis, ICDM 2011.

    W = argmin of 1/2 |X - X W|^2 + l2/2 |W|^2 + l1 |W|,  W >= 0, diag(W) = 0

by coordinate descent (models/nn/elastic_net.py).
"""

from collections.abc import Iterator

from torch import Tensor

from shoal.models.general.item_weights import SparseWeights
from shoal.models.nn.closed_form import check_memory
from shoal.models.nn.elastic_net import Penalties, elastic_net
from shoal.models.options import Count, NotNegative, Positive


class SLIM(SparseWeights):
    """Few weights, none of them below 0."""

    class Options(SparseWeights.Options):
        l1: NotNegative = 2.0  # L1 penalty: how often two items must occur together to get a weight
        l2: Positive = 20.0
        sweeps: Count = 30
        tolerance: float = 1e-4  # sweeps end when the largest change is below this

    def weight_blocks(self) -> Iterator[Tensor]:
        check_memory(f"SLIM of {self.facts.num_items:,} items", 8 * self.facts.num_items**2)
        options = self.options
        penalties = Penalties(options.l1, options.l2, options.sweeps, options.tolerance)
        return elastic_net(self.taken, penalties)

"""SLIMElastic: SLIM: Sparse Linear Methods for Top-N Recommender Systems, Ning and Karypis, ICDM
2011, with the penalties of an elastic net.

Squared errors are averaged over the users, so that penalties suit data of any size:

    W = argmin of 1/(2 users) |X - X W|^2 + alpha (1 - l1_ratio)/2 |W|^2 + alpha l1_ratio |W|

by coordinate descent (models/nn/elastic_net.py). It is SLIM with l1 = users * alpha * l1_ratio and
l2 = users * alpha * (1 - l1_ratio).
"""

from collections.abc import Iterator

from torch import Tensor

from shoal.models.general.item_weights import SparseWeights
from shoal.models.nn.closed_form import check_memory
from shoal.models.nn.elastic_net import Penalties, elastic_net
from shoal.models.options import Count, Positive, Share


class SLIMElastic(SparseWeights):
    """Sparse weights by an elastic net, of any sign if they may."""

    class Options(SparseWeights.Options):
        alpha: Positive = 0.2  # weight of both penalties
        l1_ratio: Share = 0.02  # share of the L1 penalty; the other one is L2
        positive_only: bool = True  # no weight is below 0
        hide_item: bool = True  # an item has no weight for itself
        sweeps: Count = 30
        tolerance: float = 1e-4  # sweeps end when the largest change is below this

    def weight_blocks(self) -> Iterator[Tensor]:
        count, options = self.facts.num_items, self.options
        check_memory(f"SLIMElastic of {count:,} items", 8 * count**2)
        strength = options.alpha * (self.facts.num_users - 1)  # user 0 is padding
        penalties = Penalties(
            l1=strength * options.l1_ratio,
            l2=strength * (1.0 - options.l1_ratio),
            sweeps=options.sweeps,
            tolerance=options.tolerance,
            positive=options.positive_only,
            hide_item=options.hide_item,
        )
        return elastic_net(self.taken, penalties)

"""ADMMSLIM: ADMM SLIM: Sparse Recommendations for Many Users, Steck et al., WSDM 2020.

SLIM's sparse weights by the alternating direction method of multipliers: B fits the data, C is
sparse, and Γ pulls them together.

    L = lambda2 diag(share of users with the item ^ alpha)      P = (G + L + rho I)^-1
    B = P (G + rho C - Γ) - P diag(γ), with γ so that diag(B) = 0
    C = shrink(B + Γ / rho, lambda1 / rho)                      Γ = Γ + rho (B - C)

G = X^T X, or, with center_columns, that of X less the means m of its columns; the score is then
m_j + sum of (x_i - m_i) C[i, j] over all items i. All of C is in every process.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.data.batch import Jagged
from shoal.models.general.item_weights import SparseWeights
from shoal.models.nn.closed_form import Progress, check_memory, negative_inverse_
from shoal.models.options import Count, NotNegative, Positive


class ADMMSLIM(SparseWeights):
    """Sparse weights by ADMM: a fixed number of products of items x items matrices."""

    rest_is = "what everybody takes on average (center_columns)"

    class Options(SparseWeights.Options):
        lambda1: NotNegative = 3.0  # L1 penalty
        lambda2: NotNegative = 200.0  # L2 penalty of an item that everybody took
        alpha: NotNegative = 0.5  # power of an item's share of users in its L2 penalty
        rho: Positive = 4000.0  # how strongly the fitting and the sparse weights are held together
        k: Count = 100  # number of rounds
        positive_only: bool = True  # no weight is below 0
        # An item's average is left out of the fit, and added to scores
        center_columns: bool = False

    def weight_blocks(self) -> Iterator[Tensor]:
        check_memory(f"ADMMSLIM of {self.facts.num_items:,} items", 24 * self.facts.num_items**2)
        users, options = self.facts.num_users - 1, self.options  # user 0 is padding
        common = torch.cat([block for _, block in self.taken.common()])
        means = common.diagonal() / users
        if options.center_columns:
            common -= users * torch.outer(means, means)
        weights = self._alternate(common, means)
        blocks = weights.T.split(1 << 10)
        if options.center_columns:  # what does not depend on the user stands at the padding item
            constants = (means - means @ weights).split(1 << 10)
            blocks = [torch.cat([c[:, None], w[:, 1:]], 1) for c, w in zip(constants, blocks)]
        yield from blocks

    def _alternate(self, common: Tensor, means: Tensor) -> Tensor:
        """C after all rounds, of G and of the items' shares of users: [num_items, num_items]."""
        options = self.options
        penalised = common.double()
        penalised.diagonal().add_(options.lambda2 * means.pow(options.alpha) + options.rho)
        inverse = negative_inverse_(penalised, "ADMMSLIM").neg_().float()
        fitted, own = inverse @ common, inverse.diagonal()
        sparse, pull = torch.zeros_like(fitted), torch.zeros_like(fitted)
        progress = Progress("ADMMSLIM", options.k)
        for done in range(options.k):
            dense = fitted + inverse @ (options.rho * sparse - pull)
            dense -= inverse * (dense.diagonal() / own)
            sparse = F.softshrink(dense + pull / options.rho, options.lambda1 / options.rho)
            if options.positive_only:
                sparse.clamp_(min=0.0)
            pull += options.rho * (dense - sparse)
            progress(done + 1)
        return sparse

    def fold_in(self, lists: Jagged) -> Tensor:
        taken = super().fold_in(lists)
        taken[:, 0] = 1.0  # meets what does not depend on the user
        return taken

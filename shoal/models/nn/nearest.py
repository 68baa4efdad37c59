"""The graph that joins each row with those nearest to it, and sums along it."""

import torch.nn.functional as F
from torch import Tensor


def mean_of_nearest(
    x: Tensor, read: tuple[Tensor, Tensor], share: float, k: int, layers: int
) -> Tensor:
    """The mean of x and of what `layers` steps along the nearest rows make of it: [n, d] -> [n, d].

    read: two matrices [n, ...] that say what is near, the first one to this share; no gradients
    """
    first, second = (nearest(matrix.detach(), k) for matrix in read)
    total = layer = x
    for _ in range(layers):
        layer = share * joined(layer, first) + (1.0 - share) * joined(layer, second)
        total = total + layer
    return total / (layers + 1)


def nearest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k nearest of each row by cosine, itself among them, and normalised weights: [n, k]."""
    x = F.normalize(x, dim=1)
    weights, places = (x @ x.T).topk(min(k, len(x)), 1)
    weights = weights.clamp(min=0.0)
    share = weights.sum(1).clamp(min=1e-9).rsqrt()
    return places, weights * share.unsqueeze(1) * share[places]


def joined(x: Tensor, near: tuple[Tensor, Tensor]) -> Tensor:
    """Weighed sums of the nearest rows: [n, d] -> [n, d]."""
    places, weights = near
    return (F.embedding(places, x) * weights.unsqueeze(2)).sum(1)

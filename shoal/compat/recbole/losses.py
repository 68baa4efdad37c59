"""RecBole's losses, by its names: each is a mean over the samples of a batch."""

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid


class BPRLoss(nn.Module):
    """The mean of -ln sigmoid(positive - negative): scores [n], [n] -> scalar.

    >>> import torch
    >>> from shoal.compat.recbole import BPRLoss
    >>> round(float(BPRLoss()(torch.tensor([1.0]), torch.tensor([1.0]))), 4)
    0.6931
    """

    def __init__(self, gamma: float = 1e-10):
        super().__init__()
        self.gamma = gamma  # RecBole adds it within the logarithm, which logsigmoid does not need

    def forward(self, pos_score: Tensor, neg_score: Tensor) -> Tensor:
        return -logsigmoid(pos_score - neg_score).mean()


class RegLoss(nn.Module):
    """The sum of the norms of some weights."""

    def forward(self, parameters: list[Tensor]) -> Tensor:
        return torch.stack([weight.norm(2) for weight in parameters]).sum()


class EmbLoss(nn.Module):
    """A penalty on the vectors of a batch, divided by its samples: vectors [n, d] -> scalar.

    With `require_pow` the share of a sample does not depend on the others. Without, it is the norm
    of all vectors of a process together, so several processes penalise a little more than one.
    """

    def __init__(self, norm: int = 2):
        super().__init__()
        self.norm = norm

    def forward(self, *embeddings: Tensor, require_pow: bool = False) -> Tensor:
        norms = torch.stack([torch.norm(vectors, p=self.norm) for vectors in embeddings])
        if require_pow:
            norms = norms.pow(self.norm) / self.norm
        return norms.sum() / embeddings[-1].shape[0]

"""SINE: Sparse-Interest Network for Sequential Recommendation, Tan et al., WSDM 2021.

Of a pool of concepts C a user has the few that fit the history best; each is an interest:

    z = sum of softmax(w2 tanh(W1 x_t)) x_t
    C_k = sigmoid(<c_k, z>) c_k, of the k concepts with the largest <c_k, z>
    P(k|t) = softmax over k of <W3 x_t / |W3 x_t|, norm(C_k)>
    P(t|k) = softmax over t of <v_k, tanh(V_k x_t)>
    interest_k = f_k / |f_k|,  f_k = sum over t of P(k|t) P(t|k) x_t

What is wanted next weighs them, read off the concepts of the history in order:

    y_t = sum of P(k|t) C_k        a = norm(sum of softmax(<w4, tanh(W3 y_t)>) y_t)
    state = sum of softmax(<interest_k, a> / tau) interest_k
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Facts, Output
from shoal.models.nn.transformer import HIDDEN
from shoal.models.options import Count, Positive
from shoal.models.sequential.base import NextItem


class SINE(NextItem):
    """A penalty keeps concepts different: half the squares of their covariances.

    The pool of concepts is a dense parameter, which every process has.
    """

    samples = "prefixes"

    class Options(NextItem.Options):
        embedding_size: int = 64
        prototype_size: Count = 50  # concepts in the pool
        interest_size: Count = 3  # concepts of a user
        tau_ratio: Positive = 0.1  # temperature of the choice among interests; small: one of them
        reg_loss_ratio: float = 0.5  # weight of the penalty that keeps concepts different
        layer_norm_eps: float = 1e-12

        def __post_init__(self) -> None:
            if self.interest_size > self.prototype_size:
                raise ValueError(
                    f"model.interest_size {self.interest_size} is more than the concepts of the "
                    f"pool, model.prototype_size {self.prototype_size}"
                )

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width, few = options.embedding_size, options.interest_size
        self.make_items(width, width**-0.5)
        self.concepts = nn.Parameter(torch.empty(options.prototype_size, width))
        nn.init.xavier_normal_(self.concepts)
        self.about, self.about_weight = weights(width, width), weights(width)
        self.assign, self.next_weight = weights(width, width), weights(width)
        self.attend, self.attend_weight = weights(few, width, width), weights(few, width)
        self.concept_norm = nn.LayerNorm(width, eps=options.layer_norm_eps)
        self.next_norm = nn.LayerNorm(width, eps=options.layer_norm_eps)

    def states(self, batch: Batch) -> Tensor:
        items = self.embed.field("history", batch)  # [b, l, d]
        pads = batch.tensor("history") == 0
        about = torch.tanh(items @ self.about) @ self.about_weight
        user = _mean(items, about, pads)
        fits, chosen = (user @ self.concepts.T).topk(self.options.interest_size, 1)
        concepts = F.embedding(chosen, self.concepts) * fits.sigmoid().unsqueeze(2)  # [b, k, d]

        moved = F.normalize(items @ self.assign, dim=2)
        of_place = (moved @ self.concept_norm(concepts).transpose(1, 2)).softmax(2)  # [b, l, k]
        hidden = torch.tanh(items.unsqueeze(1) @ self.attend)  # [b, k, l, d]
        attention = (hidden * self.attend_weight.unsqueeze(1)).sum(3)
        attention = attention.masked_fill(pads.unsqueeze(1), HIDDEN).softmax(2)  # [b, k, l]
        interests = F.normalize((of_place.transpose(1, 2) * attention) @ items, dim=2)

        read = of_place @ concepts  # [b, l, d]
        wanted = torch.tanh(read @ self.assign) @ self.next_weight
        wanted = self.next_norm(_mean(read, wanted, pads))
        shares = (interests @ wanted.unsqueeze(2)).squeeze(2) / self.options.tau_ratio
        return (shares.softmax(1).unsqueeze(2) * interests).sum(1)

    def forward(self, batch: Batch) -> Output:
        output = super().forward(batch)
        centred = self.concepts - self.concepts.mean(1, keepdim=True)
        covariance = centred @ centred.T / centred.shape[1]
        penalty = 0.5 * (covariance.square().sum() - covariance.diagonal().square().sum())
        penalty = self.options.reg_loss_ratio * penalty * output.count  # a term of every sample
        return replace(output, loss=output.loss + penalty)


def weights(*shape: int) -> nn.Parameter:
    """Parameters that begin small."""
    return nn.Parameter(torch.randn(shape) * 0.01)


def _mean(vectors: Tensor, scores: Tensor, pads: Tensor) -> Tensor:
    """The mean of vectors [b, l, d], weighed by the softmax of scores [b, l]: [b, d]."""
    shares = scores.masked_fill(pads, HIDDEN).softmax(1)
    return (shares.unsqueeze(2) * vectors).sum(1)

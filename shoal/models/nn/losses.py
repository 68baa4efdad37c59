"""Losses of a state that is asked for an item: against negatives, the batch, or the catalogue.

CE        -ln softmax over all items
sampled   -ln softmax over the item and its negatives, each logit less ln of how often its item
          is drawn, so that the loss tends to CE's (Bengio and Senécal, 2008)
gBCE      -β ln σ(s+) - sum of ln(1 - σ(s-)), β = α (t (1 - 1/α) + 1/α), where α is the share of
          items that are negatives: the scores of items are those of CE for t = 1, those of
          plain cross entropy for t = 0 (Petrov and Macdonald, RecSys 2023)
BPR       -ln σ(s+ - s-), for every negative
WARP      1 - s+ + s- of the first negative within 1 of the item or above it, times the logarithm of
          the item's rank, which the number of negatives up to that one estimates (Weston et al.,
          IJCAI 2011)
in_batch  -ln softmax over the items of the global batch, with the same correction; a term does not
          depend on how the batch is sliced, and every process must call it equally often
"""

from collections.abc import Callable, Iterable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.kernels.pairs import bpr_loss, loss_of_places

Gather = Callable[[Tensor], Tensor]  # Model.gather_global: [b, ...] -> [global b, ...]
LossType = Literal["CE", "sampled", "in_batch", "gBCE", "BPR"]


def against_negatives(
    kind: str,
    states: Tensor,
    targets: Tensor,
    negatives: Tensor,
    rows_of: Callable[[Tensor], Tensor],
    logq: tuple[Tensor, Tensor] | None,
    num_items: int,
    t: float,
    owner: Tensor | None = None,
) -> tuple[Tensor, int]:
    """The summed loss and the count of its terms: states [n, d], targets [n], negatives [n, k].

    rows_of    item vectors of ids
    logq       ln of how often items are drawn, of the targets [n] and of the negatives; None: all
               equally often
    num_items  those that may be drawn
    owner      [n]: negatives, and their logq, are [b, k], those of state i in line owner[i]
    """
    rows = rows_of(negatives)
    if owner is not None:
        rows, negatives = rows[owner], negatives[owner]
    positives = rows_of(targets)
    if kind == "BPR":
        return bpr_loss(states, positives, rows), negatives.numel()
    right = (states * positives).sum(-1, keepdim=True)  # [n, 1]
    wrong = torch.bmm(rows, states.unsqueeze(2)).squeeze(2)  # [n, k]
    if kind == "gBCE":
        share = negatives.shape[1] / (num_items - 1)
        weight = share * (t * (1.0 - 1.0 / share) + 1.0 / share)
        loss = -weight * F.logsigmoid(right).sum() - F.logsigmoid(-wrong).sum()
        return loss, right.numel() + wrong.numel()
    if logq is not None:
        right = right - logq[0].unsqueeze(1)
        wrong = wrong - (logq[1] if owner is None else logq[1][owner])
    wrong = wrong.masked_fill(negatives == targets.unsqueeze(1), -torch.inf)
    logits = torch.cat([right, wrong], 1)
    return (logits.logsumexp(1) - logits[:, 0]).sum(), len(states)


def pointwise_loss(scores: Tensor) -> Tensor:
    """Cross entropy of scores [b, 1 + k], of items against 1 and of their negatives against 0."""
    return -F.logsigmoid(scores[:, 0]).sum() - F.logsigmoid(-scores[:, 1:]).sum()


def in_batch_softmax(
    queries: Tensor, items: Tensor, ids: Tensor, gather: Gather, logq: Tensor | None
) -> Tensor:
    """Sum of -ln softmax(<q, i> - ln q(i)) at each query's own item, over the items of the batch.

    queries  [n, d]
    items    [n, d], what the queries are asked for
    ids      [n], theirs: the same item of another sample is no negative
    logq     ln of how often items occur in training [num_items]; None: no correction
    """
    every, numbers = gather(items), gather(ids)  # [global n, ...]
    right, wrong = (queries * items).sum(-1, keepdim=True), queries @ every.T
    if logq is not None:
        right, wrong = right - logq[ids].unsqueeze(1), wrong - logq[numbers]
    wrong = wrong.masked_fill(ids.unsqueeze(1) == numbers, -torch.inf)
    return (torch.cat([right, wrong], 1).logsumexp(1) - right.squeeze(1)).sum()


def over_vectors(states: Tensor, vectors: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Summed cross entropy over given item vectors [items, d], whose first is padding -> scalar.

    smoothing: this share of the probability that is asked for is spread over all items. A state
    whose target is 0 does not count.
    """
    logits = states @ vectors[1:].T  # [n, items - 1]
    return F.cross_entropy(
        logits, targets - 1, ignore_index=-1, reduction="sum", label_smoothing=smoothing
    )


def mean_distance(
    hidden: Tensor, items: Tensor, bias: Tensor, targets: Tensor, stop: int
) -> Tensor:
    """Sum of (logit of the target - mean logit of items 1 to stop - 1): what smooths labels.

    Cross entropy + s * this is the cross entropy with labels smoothed by s. hidden [n, d], items
    [rows, d], bias [rows], targets [n] (0 does not count) -> scalar. The mean is that of the rows,
    taken before the product: no logits of all items are made.
    """
    distances = (hidden * (items[targets] - items[1:stop].mean(0))).sum(-1)
    distances = distances + bias[targets] - bias[1:stop].mean()
    return distances.where(targets > 0, 0.0).sum()


def sum_of_norms(weights: Iterable[Tensor]) -> Tensor:
    """The L2 norms of some weights, each as a whole, added up: scalar."""
    return torch.stack([torch.linalg.vector_norm(each) for each in weights]).sum()


def half_squares(*vectors: Tensor) -> Tensor:
    """Half the squared length of all vectors together: scalar."""
    return 0.5 * torch.stack([each.square().sum() for each in vectors]).sum()


def missing_negatives(model: str, kind: str) -> ValueError:
    """The error of a loss that needs negatives and has none."""
    number = 1 if kind == "BPR" else 128
    return ValueError(
        f"{model} with loss_type {kind} learns from negatives and has none; "
        f"set train.negatives.num to {number}, or model.loss_type to CE"
    )


def warp_loss(queries: Tensor, positives: Tensor, negatives: Tensor, num_items: int) -> Tensor:
    """WARP, summed: [b, d], [b, d], [b, k, d] -> scalar. 0 where no negative is near enough."""
    right = (queries * positives).sum(-1, keepdim=True)  # [b, 1]
    wrong = (queries.unsqueeze(1) * negatives).sum(-1)  # [b, k]
    near = wrong > right - 1.0
    first = near.int().argmax(1, keepdim=True)
    rank = torch.div(num_items - 1, first + 1, rounding_mode="floor").clamp(min=1)
    weight = rank.log().clamp(1.0, 10.0) * near.any(1, keepdim=True)
    return (weight * (1.0 - right + wrong.gather(1, first))).sum()


def placed_bpr_loss(rows: Tensor, places: Tensor) -> Tensor:
    """bpr_loss of rows [n, d]; places [2 + k, b]: those of queries, positives and negatives."""
    if places.shape[0] == 3:
        return loss_of_places(rows, places)
    queries, positives, negatives = F.embedding(places, rows).split([1, 1, places.shape[0] - 2])
    return bpr_loss(queries.squeeze(0), positives.squeeze(0), negatives.transpose(0, 1))


def contrast(ids: Tensor, first_view: Tensor, second_view: Tensor, temperature: float) -> Tensor:
    """The contrastive loss of ids [b] in two views of everything, summed: scalar.

    -ln softmax(cos(first view of an id, second view of all) / temperature), at the id itself.

    first_view, second_view: [n, d]. The softmax runs over all n, not over those of the batch, so
    that a term does not depend on the rest of the batch.
    """
    return F.cross_entropy(_alike(ids, first_view, second_view, temperature), ids, reduction="sum")


def contrast_within(
    ids: Tensor, first_view: Tensor, second_view: Tensor, temperature: float, gather: Gather
) -> Tensor:
    """The contrastive loss among what the global batch holds; see `contrast`.

    Every id counts alike however often it is there: the mean over a batch is that over its
    different ids.
    """
    every = gather(ids)
    counts = torch.zeros(len(second_view), device=ids.device)
    counts.index_add_(0, every, torch.ones(len(every), device=ids.device))
    there = counts > 0
    logits = _alike(ids, first_view, second_view, temperature).masked_fill(~there, -torch.inf)
    share = len(every) / there.sum().clamp(min=1)
    return (share / counts[ids] * F.cross_entropy(logits, ids, reduction="none")).sum()


def _alike(ids: Tensor, first_view: Tensor, second_view: Tensor, temperature: float) -> Tensor:
    """cos(first view of id, second view of all) / temperature: [b, n]."""
    left = F.normalize(F.embedding(ids, first_view), dim=-1)
    return left / temperature @ F.normalize(second_view, dim=-1).T

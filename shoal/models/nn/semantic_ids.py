"""Semantic ids: a few codes for every item, so that items that are alike share the first of them.

RQ-VAE (Lee et al., CVPR 2022; Rajput et al., NeurIPS 2023): an autoencoder whose latent vector is
the sum of one vector out of each of several codebooks, each of what the ones before left over:

    r(1) = encoder(x)    c(k) = nearest of codebook k to r(k)    r(k+1) = r(k) - e(c(k))
    loss = |x - decoder(sum of e)|^2 + sum of |sg r - e|^2 + beta |r - sg e|^2

A last code counts the items that have all others in common.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.data.batch import Jagged
from shoal.data.item_codes import distinguished, shared_groups
from shoal.models.nn.user_items import owners


class RQVAE(nn.Module):
    """Vectors [n, width] to codes [n, levels]."""

    def __init__(self, width: int, hidden: int, latent: int, levels: int, size: int):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, latent))
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, width))
        self.books = nn.Parameter(torch.randn(levels, size, latent) * 0.1)

    def begin(self, vectors: Tensor) -> None:
        """Codebooks begin as k-means of what they will be asked for: none stays unused."""
        with torch.no_grad():
            rest = self.encoder(vectors)
            for book in self.books:
                book.copy_(k_means(rest, len(book)))
                rest = rest - book[nearest(rest, book)]

    def quantised(self, rest: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Codes [n, levels], the sum of their vectors [n, latent], and the loss of choosing."""
        codes, total, loss = [], torch.zeros_like(rest), rest.new_zeros(())
        for book in self.books:
            code = nearest(rest.detach(), book)
            row = book[code]
            loss = loss + F.mse_loss(row, rest.detach()) + 0.25 * F.mse_loss(rest, row.detach())
            codes.append(code)
            total, rest = total + row, rest - row.detach()
        return torch.stack(codes, 1), total, loss

    def forward(self, vectors: Tensor) -> Tensor:
        """The loss of vectors, a mean."""
        latent = self.encoder(vectors)
        _, total, loss = self.quantised(latent)
        through = latent + (total - latent).detach()  # gradients pass the choice by
        return loss + F.mse_loss(self.decoder(through), vectors)


Method = Literal["rqvae", "kmeans"]


def semantic_ids(
    vectors: Tensor, levels: int, size: int, steps: int = 300, method: Method = "rqvae"
) -> Tensor:
    """Codes of vectors [n, width], the last of which distinguishes those that share the others.

    Returns [n, levels + 1], each below `size`.
    """
    codes = quantise(vectors, levels, size, steps, method)[0]
    largest = int(shared_groups(codes)[1].max())
    if largest > size:
        raise ValueError(
            f"{largest} items have the same semantic id, and a code has {size} values; "
            "raise model.code_size or model.code_levels"
        )
    return distinguished(codes)


def quantise(
    vectors: Tensor, levels: int, size: int, steps: int, method: Method
) -> tuple[Tensor, float]:
    """Codes of vectors [n, width] -> [n, levels], and the share of their variance that is lost.

    Learned with torch's present generator, from all vectors at once. kmeans: each codebook is
    k-means of what those before left over, of the vectors themselves.
    """
    width, size = vectors.shape[1], min(size, max(1, len(vectors)))
    vectors = (vectors - vectors.mean(0)) / vectors.std().clamp(min=1e-6)
    if method == "kmeans":
        level_codes, rest = [], vectors
        for _ in range(levels):
            book = k_means(rest, size)
            level_codes.append(nearest(rest, book))
            rest = rest - book[level_codes[-1]]
        return torch.stack(level_codes, 1), _share(rest, vectors)
    with torch.enable_grad():
        model = RQVAE(width, 2 * width, min(32, width), levels, size)
        model.begin(vectors)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for _ in range(steps):
            optimizer.zero_grad()
            model(vectors).backward()
            optimizer.step()
    with torch.no_grad():
        codes, total, _ = model.quantised(model.encoder(vectors))
        return codes, _share(model.decoder(total) - vectors, vectors)


def _share(rest: Tensor, vectors: Tensor) -> float:
    return float(rest.square().sum() / vectors.square().sum().clamp(min=1e-12))


def nearest(vectors: Tensor, book: Tensor) -> Tensor:
    """The row of a book that is nearest to each vector: [n, d], [k, d] -> [n]."""
    return (book.square().sum(1) - 2.0 * vectors @ book.T).argmin(1)


def k_means(
    vectors: Tensor, count: int, rounds: int = 10, generator: torch.Generator | None = None
) -> Tensor:
    """Centres of so many groups of vectors: [n, d] -> [count, d].

    generator: draws where groups begin; None: torch's own.
    """
    order = torch.randperm(len(vectors), generator=generator)
    centres = vectors[order[torch.arange(count) % len(vectors)]].clone()
    for _ in range(rounds):
        group = nearest(vectors, centres)
        sums = torch.zeros_like(centres).index_add_(0, group, vectors)
        counts = torch.bincount(group, minlength=count).unsqueeze(1)
        centres = torch.where(counts > 0, sums / counts.clamp(min=1), centres)
    return centres


def item_codes(
    facts: Any, source: str, dim: int, levels: int, size: int, steps: int
) -> tuple[Tensor, int]:
    """Codes of all items [num_items, levels], of item 0 zeros, and how many values a code has.

    They are those that the data gives, else `semantic_ids` of `item_vectors`.
    """
    if facts.codes is not None:
        return facts.codes, int(facts.codes.max()) + 1
    vectors = item_vectors(facts, source, dim)
    codes = semantic_ids(vectors[1:], levels, size, steps)
    return F.pad(codes, (0, 0, 1, 0)), size


def taken_vectors(users: Tensor, items: Tensor, sizes: tuple[int, int], dim: int) -> Tensor:
    """Vectors of items by who took them: the leading singular vectors of the interactions.

    sizes: numbers of users and items -> [items, at most dim]
    """
    ones = torch.ones(len(users))
    pairs = torch.stack([items.long(), users.long()])
    shape = sizes[::-1]
    matrix = torch.sparse_coo_tensor(pairs, ones, shape, check_invariants=False).coalesce()
    rows, columns = matrix.indices()
    by_item = torch.bincount(rows, minlength=sizes[1]).clamp(min=1).float()
    by_user = torch.bincount(columns, minlength=sizes[0]).clamp(min=1).float()
    values = (by_item[rows] * by_user[columns]).rsqrt()
    matrix = torch.sparse_coo_tensor(
        matrix.indices(), values, shape, is_coalesced=True, check_invariants=False
    )
    rank = min(dim, *sizes)
    left, singular, _ = torch.svd_lowrank(matrix, q=rank, niter=4)
    return left * singular * by_item.sqrt().unsqueeze(1)


def item_vectors(facts: Any, source: str, dim: int) -> Tensor:
    """What semantic ids are made of: [num_items, dim], or as wide as a column of vectors is.

    source: interactions, features (all of items), or the name of one feature of items.
    """
    if source == "interactions":
        sizes = facts.num_users, facts.num_items
        return taken_vectors(facts.train_users, facts.train_items, sizes, dim)
    every = [f for f in facts.of_side("item") if f.column != facts.item_field]
    features = every if source == "features" else [f for f in every if f.name == source]
    if not every:
        raise ValueError(
            "codes of features read features of items and the data has none; describe some with "
            "data.features (side: item), or make codes of interactions (model.codes_from)"
        )
    if not features:
        raise ValueError(
            f"items have no feature {source!r}; codes are made of interactions, of features (all "
            f"of them), or of one: {', '.join(one.name for one in every)}"
        )
    batch = facts.side("item", torch.arange(facts.num_items))
    total = torch.zeros(facts.num_items, dim)
    for feature in features:  # a random direction for each value, so that equal ones are equal
        if not feature.is_sparse:
            values = batch.dense[feature.name].view(facts.num_items, feature.width)
            if len(features) == 1 and feature.width > 1:  # vectors already
                return values
            total += values @ torch.randn(feature.width, dim)
            continue
        ids = batch.ids[feature.name]
        directions = torch.randn(int(batch.flat_ids(feature.name).max()) + 1, dim)
        directions[0] = 0.0
        if isinstance(ids, Jagged):
            total.index_add_(0, owners(ids), directions[ids.values])
        else:
            total += directions[ids.view(facts.num_items)]
    return total

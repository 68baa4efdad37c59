"""Semantic ids: a few codes for every item, so that items that are alike share the first of them.

Codes are made of vectors by codebooks (nn/codebooks.py). A last code counts the items that have all
others in common.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.data.batch import Jagged
from shoal.data.item_codes import distinguished, shared_groups
from shoal.models.nn.codebooks import Method, learn_codebooks
from shoal.models.nn.user_items import owners


def semantic_ids(
    vectors: Tensor, levels: int, size: int, steps: int = 300, method: Method = "rqvae"
) -> Tensor:
    """Codes of vectors [n, width], the last of which distinguishes those that share the others.

    Returns [n, levels + 1], each below `size`.
    """
    codes = learn_codebooks(vectors, levels, size, steps, method)[1]
    largest = int(shared_groups(codes)[1].max())
    if largest > size:
        raise ValueError(
            f"{largest} items have the same semantic id, and a code has {size} values; "
            "raise model.code_size or model.code_levels"
        )
    return distinguished(codes)


def item_codes(
    facts: Any, source: str, dim: int, levels: int, size: int, steps: int
) -> tuple[Tensor, int]:
    """Codes of all items [num_items, levels], of item 0 zeros, and how many values a code has.

    They are those that the data gives, else `semantic_ids` of `item_vectors`.
    """
    if facts.codes is not None:
        return facts.codes, facts.code_size or int(facts.codes.max()) + 1
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

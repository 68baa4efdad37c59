"""Why an artifact scores as it does: scores as sums over what its files hold.

history  the graph reads histories, so it can be asked with parts of one
vectors  a learned vector of the user
terms    query vectors have a number for each item (EASE, SLIM, ItemKNN)
solved   query vectors solve equations of what the user took (IALS)
alike    an item has one score for everybody (Pop)
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.models.nn.least_squares import solved_terms
from shoal.recommender.explanation import Breakdown, of_terms

CLOSE = 1e-3  # of a score: vectors are float32, or packed into fewer bytes


def terms(query: Tensor, vectors: Tensor, item: int) -> Breakdown:
    """A term for each item: query [num_items], vectors [num_items, num_items]."""
    if len(query) != len(vectors):
        raise ValueError("its vectors are not of items")
    return of_terms(np.arange(len(query)), (query * vectors[item]).double().numpy())


def solved(query: Tensor, vectors: Tensor, item: int, taken: np.ndarray, weights: Any) -> Breakdown:
    """Terms of a query that solves the equations of IALS for the items taken."""
    names = ("alpha", "reg_weight", "nu")
    values = [weights.get(name) if isinstance(weights, dict) else None for name in names]
    numbers = [float(one) for one in values if isinstance(one, int | float) and math.isfinite(one)]
    if len(numbers) < len(names):
        raise ValueError("the weights of its equations")
    try:
        shares = solved_terms(
            vectors,
            torch.from_numpy(taken),
            torch.tensor(item),
            alpha=numbers[0],
            reg_weight=numbers[1],
            nu=numbers[2],
        )
    except RuntimeError as error:
        raise ValueError(str(error)) from None
    score = float(query.double() @ vectors[item].double())
    if not abs(float(shares.sum()) - score) <= CLOSE * max(1.0, abs(score)):
        raise ValueError("its vectors do not solve their equations")
    return of_terms(taken, shares.numpy())

"""Contrastive terms and unit vectors with gradients of their own, against plain autograd."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from shoal.embedding.pooling import pool_rows
from shoal.models.nn import contrast as terms
from shoal.models.nn.unit import unit


@pytest.mark.parametrize("block", [1 << 20, 40])  # all logits at once, or two ids at a time
def test_a_contrast(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terms, "BLOCK", block)
    torch.manual_seed(0)
    ids = torch.tensor([3, 7, 3, 0, 19, 3, 7])
    own = [torch.randn(20, 8, requires_grad=True) for _ in range(2)]
    plain = [x.detach().double().requires_grad_() for x in own]
    found = terms.contrast(ids, *own, 0.2)
    left, right = F.normalize(plain[0][ids], dim=1), F.normalize(plain[1], dim=1)
    wanted = F.cross_entropy(left @ right.T / 0.2, ids, reduction="sum")
    (3.0 * found).backward()
    (3.0 * wanted).backward()
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    for x, y in zip(own, plain):
        torch.testing.assert_close(x.grad.double(), y.grad, rtol=1e-4, atol=1e-4)


def test_unit_vectors() -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 3, 4, dtype=torch.float64)
    x[2, 1] = 0.0  # not stretched
    own, plain = x.clone().requires_grad_(), x.clone().requires_grad_()
    weights = torch.randn(5, 3, 4, dtype=torch.float64)
    (unit(own) * weights).sum().backward()
    (F.normalize(plain, dim=-1) * weights).sum().backward()
    torch.testing.assert_close(unit(own), F.normalize(plain, dim=-1))
    torch.testing.assert_close(own.grad, plain.grad)


@pytest.mark.parametrize("how", ["sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
def test_pooled_rows(how: str, weighted: bool) -> None:
    torch.manual_seed(0)
    ids, offsets = torch.tensor([1, 0, 2, 5, 5, 0]), torch.tensor([0, 3, 3, 5, 6])
    rows = torch.randn(6, 4, dtype=torch.float64)
    rows[ids == 0] = 0.0  # padding reads as zeros
    weights = torch.rand(6, dtype=torch.float64) if weighted else None
    own, plain = rows.clone().requires_grad_(), rows.clone().requires_grad_()
    found = pool_rows(own, ids, offsets, how, weights, padding=0)  # type: ignore[arg-type]
    times = plain if weights is None else plain * weights[:, None]
    bags = [times[a:b].sum(0) for a, b in pairwise(offsets.tolist())]
    if how == "mean":
        real = [max(1, int((ids[a:b] != 0).sum())) for a, b in pairwise(offsets.tolist())]
        bags = [bag / n for bag, n in zip(bags, real)]
    wanted, back = torch.stack(bags), torch.randn(4, 4, dtype=torch.float64)
    (found * back).sum().backward()
    (wanted * back).sum().backward()
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(own.grad, plain.grad)

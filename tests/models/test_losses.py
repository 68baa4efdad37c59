"""Losses, against their formulas and torch's own."""

import math

import pytest
import torch

from shoal.kernels import pairs
from shoal.models.nn.losses import bpr_loss


def test_bpr_loss_of_two_pairs_by_hand():
    query = torch.tensor([[1.0, 2.0]])
    positive = torch.tensor([[3.0, 0.0]])  # score 3
    negative = torch.tensor([[[1.0, 0.0], [0.0, 2.5]]])  # scores 1 and 5: margins 2 and -2
    by_hand = math.log(1 + math.exp(-2)) + math.log(1 + math.exp(2))
    assert bpr_loss(query, positive, negative).item() == pytest.approx(by_hand, rel=1e-6)


@pytest.mark.parametrize("rows", [0, 1, 5, 3000])
@pytest.mark.parametrize("dim", [1, 7, 16, 64, 70])
def test_bpr_loss_of_one_negative_has_the_gradients_of_its_formula(rows, dim):
    torch.manual_seed(rows + dim)
    leaves = [torch.randn(rows, dim) * 3 for _ in range(3)]  # margins of all sizes
    loss = bpr_loss(*(x.requires_grad_() for x in leaves[:2]), leaves[2].requires_grad_()[:, None])
    (loss * 0.25).backward()
    exact = [x.detach().double().requires_grad_() for x in leaves]
    margins = (exact[0] * (exact[1] - exact[2])).sum(1)
    expected = torch.log1p(torch.exp(-margins)).sum()
    (expected * 0.25).backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)
    for leaf, right in zip(leaves, exact):
        torch.testing.assert_close(leaf.grad, right.grad.float(), rtol=1e-4, atol=1e-5)


def test_the_native_loss_of_pairs_is_torchs(monkeypatch):
    torch.manual_seed(4)
    leaves = [torch.randn(513, 64), torch.randn(513, 64), torch.randn(513, 1, 64)]
    found = []
    for core_takes_pairs in (pairs.core_takes_pairs, lambda *_: False):
        monkeypatch.setattr(pairs, "core_takes_pairs", core_takes_pairs)
        own = [x.clone().requires_grad_() for x in leaves]
        loss = bpr_loss(*own)
        loss.backward()
        found.append([loss.detach(), *(x.grad for x in own)])
    for one, other in zip(*found):
        torch.testing.assert_close(one, other, rtol=2e-6, atol=1e-6)

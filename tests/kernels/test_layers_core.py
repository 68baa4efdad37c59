"""Steps of layers by the native core, against the same in torch."""

from __future__ import annotations

import pytest
import torch

from shoal.kernels.bags import sum_bags
from shoal.kernels.machine import on_arm
from shoal.models.nn.interactions import Dots, sum_of_products


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dim", [1, 3, 8, 10, 64, 83])
def test_bags_are_sums_of_rows(dim: int, weighted: bool) -> None:
    x, weights = torch.randn(50, dim), torch.rand(90) if weighted else None
    starts, ids = torch.tensor([0, 0, 7, 8, 90]), torch.randint(50, (90,))
    every = x[ids] if weights is None else x[ids] * weights[:, None]
    wanted = torch.stack([part.sum(0) for part in every.tensor_split([0, 7, 8])])
    assert torch.allclose(sum_bags(x, starts, ids, weights), wanted, atol=1e-5)
    lie = torch.tensor([0, 4, 50])
    wanted = torch.stack([x[:4].sum(0), x[4:].sum(0)])
    assert torch.allclose(sum_bags(x, lie), wanted, atol=1e-5)


def test_bags_refuse_what_does_not_fit() -> None:
    x = torch.randn(5, 8)
    if not on_arm(x):
        # Off ARM the core's bags are not called: torch's are as quick there.
        pytest.skip("torch's own bags are used here")
    with pytest.raises(ValueError, match="below the number of rows"):
        sum_bags(x, torch.tensor([0, 2]), torch.tensor([1, 5]))
    with pytest.raises(ValueError, match="ascend"):
        sum_bags(x, torch.tensor([0, 6]))
    with pytest.raises(ValueError, match="int64"):
        sum_bags(x, torch.tensor([0, 2], dtype=torch.int32))
    with pytest.raises(ValueError, match="as many weights"):
        sum_bags(x, torch.tensor([0, 2]), torch.tensor([1, 2]), torch.ones(3))


@pytest.mark.parametrize("apart", [False, True])
def test_dots_are_those_of_all_pairs(apart: bool) -> None:
    rows = torch.randn(4, 37, 5) if apart else torch.randn(37, 4, 5)
    rows.requires_grad_()
    vectors = rows.transpose(0, 1) if apart else rows
    pairs = [(i, j) for i in range(4) for j in range(i)]
    wanted = torch.stack([(vectors[:, i] * vectors[:, j]).sum(1) for i, j in pairs], 1)
    found = Dots(4)(vectors)
    assert torch.allclose(found, wanted, atol=1e-5)
    grad = torch.randn_like(found)
    (of_wanted,) = torch.autograd.grad(wanted, rows, grad)
    (of_found,) = torch.autograd.grad(found, rows, grad)
    assert torch.allclose(of_found, of_wanted, atol=1e-5)


@pytest.mark.parametrize("apart", [False, True])
def test_products_of_pairs_are_summed(apart: bool) -> None:
    rows = torch.randn(4, 300, 5) if apart else torch.randn(300, 4, 5)
    rows.requires_grad_()
    vectors = rows.transpose(0, 1) if apart else rows
    wanted = torch.stack([vectors[:, i] * vectors[:, j] for i in range(4) for j in range(i)]).sum(0)
    found = sum_of_products(vectors)
    assert torch.allclose(found, wanted, atol=1e-5)
    grad = torch.randn_like(found)
    (of_wanted,) = torch.autograd.grad(wanted, rows, grad)
    (of_found,) = torch.autograd.grad(found, rows, grad)
    assert torch.allclose(of_found, of_wanted, atol=1e-5)

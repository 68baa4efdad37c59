"""Steps over columns: values and gradients are those of the plain formulas."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from shoal.models.nn.columns import _Attend, features_attend, pair_attention
from shoal.models.nn.interactions import sum_of_facing
from shoal.models.nn.mlp import MLP
from shoal.models.nn.native import takes_attend
from shoal.world.core import load_core


def check(made, plain, *given: Tensor) -> None:
    """Both agree, and so do the gradients of what they were given."""
    ours = [one.clone().requires_grad_() for one in given]
    theirs = [one.clone().requires_grad_() for one in given]
    got, want = made(*ours), plain(*theirs)
    torch.testing.assert_close(got, want)
    upstream = [torch.randn_like(one) for one in want]
    torch.autograd.backward(got, upstream)
    torch.autograd.backward(want, upstream)
    for mine, other in zip(ours, theirs):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_attention_over_pairs() -> None:
    torch.manual_seed(1)

    def plain(columns, weight, bias, query, out):
        left, right = torch.triu_indices(4, 4, 1)
        pairs = columns[left] * columns[right]
        return query @ (weight @ pairs + bias.unsqueeze(1)).relu(), out @ pairs

    given = [(4, 3, 11), (5, 3), (5,), (5,), (3,)]
    check(pair_attention, plain, *[torch.randn(shape) for shape in given])


@pytest.mark.parametrize("size", [0, 1, 9])
def test_features_attend_to_each_other(size: int) -> None:
    torch.manual_seed(2)

    def plain(x, weight):
        parts = (x @ weight.T).view(size, 5, 4, 2, 3).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(parts[0], parts[1], parts[2]) + parts[3]
        return [mixed.transpose(1, 2).flatten(2).relu()]

    def made(x, weight):
        return [features_attend(x, weight, 2)]

    check(made, plain, torch.randn(size, 5, 4), torch.randn(24, 4))


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    ("size", "number", "dim", "heads", "width"),
    [(1, 2, 1, 1, 1), (3, 7, 10, 2, 8), (37, 3, 6, 3, 5), (530, 5, 9, 1, 3), (1100, 2, 4, 2, 2)],
)
def test_the_core_attends_as_torch_does(
    size: int, number: int, dim: int, heads: int, width: int, apart: bool
) -> None:
    if load_core() is None:  # then there is no kernel to compare with
        pytest.skip("torch alone is used here")
    torch.manual_seed(6)

    def made(x, weight):
        x = x.transpose(0, 1).contiguous().transpose(0, 1) if apart else x
        assert takes_attend(x, weight)
        return [features_attend(x, weight, heads)]

    def plain(x, weight):
        return [_Attend.apply(x.permute(2, 1, 0).contiguous(), weight, heads).permute(2, 1, 0)]

    check(made, plain, torch.randn(size, number, dim), torch.randn(4 * heads * width, dim))


def test_attention_is_the_same_for_any_number_of_threads() -> None:
    torch.manual_seed(7)
    found = []
    x, weight = torch.randn(1300, 4, 6), torch.randn(24, 6)
    for threads in (1, 3):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            given = x.clone().requires_grad_(), weight.clone().requires_grad_()
            out = features_attend(*given, 2)
            found.append([out, *torch.autograd.grad(out.square().sum(), given)])
        finally:
            torch.set_num_threads(before)
    for one, other in zip(*found):
        assert torch.equal(one, other)


def test_what_is_no_number_stays_so() -> None:
    x = torch.randn(20, 3, 4)
    x[5, 1, 2] = float("nan")
    found = features_attend(x, torch.randn(16, 4), 1)
    assert found[5].isnan().all() and not found[:5].isnan().any() and not found[6:].isnan().any()


@pytest.mark.parametrize("apart", [False, True])
def test_facing_vectors(apart: bool) -> None:
    torch.manual_seed(3)

    def plain(vectors):
        each = vectors.view(6, 4, 4, 3)
        pairs = [(each[:, i, j] * each[:, j, i]).sum(1) for j in range(4) for i in range(j)]
        return [torch.stack(pairs).sum(0)]

    def made(vectors):
        laid = vectors.transpose(0, 1).contiguous().transpose(0, 1) if apart else vectors
        return [sum_of_facing(laid)]

    check(made, plain, torch.randn(6, 4, 12))


@pytest.mark.parametrize("dropout", [0.0, 0.3, 1.0])
def test_perceptron_is_its_layers(dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """One step for product, relu and the next dropout, with the masks that layers would draw."""
    monkeypatch.setattr("shoal.models.nn.mlp.SMALL", 0)  # small ones are the layers themselves
    torch.manual_seed(4)
    mlp = MLP([5, 7, 6, 3], dropout)

    def seeded(call):
        def run(x):
            torch.manual_seed(5)
            return [call(x)]

        return run

    x = torch.randn(8, 2, 5)
    check(seeded(mlp), seeded(lambda x: torch.nn.Sequential.forward(mlp, x)), x)
    grads = []
    for call in (mlp, lambda x: torch.nn.Sequential.forward(mlp, x)):
        mlp.zero_grad()
        torch.manual_seed(5)
        call(x).square().sum().backward()
        grads.append([one.grad for one in mlp.parameters()])
    for mine, other in zip(*grads):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)
    mlp.eval()
    torch.testing.assert_close(mlp(x), torch.nn.Sequential.forward(mlp, x))

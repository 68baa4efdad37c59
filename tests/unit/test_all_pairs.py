"""A perceptron of all pairs, made by what its units do in blocks: the plain one, pair by pair."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from shoal.models.nn import all_pairs
from shoal.models.nn.all_pairs import alike, scores_of_all

Layers = list[tuple[Tensor, Tensor]]


def plain(users: Tensor, items: Tensor, layers: Layers, out: Tensor) -> Tensor:
    x = (users.unsqueeze(1) + items).double().relu()
    for weight, bias in layers:
        x = (x @ weight.double().T + bias.double()).relu()
    return x @ out.double()


def some(users: int, items: int, widths: list[int], spread: float) -> tuple:
    """Units of one block do much the same where what is of all pairs is large beside the spread."""
    made = torch.Generator().manual_seed(users)
    shared = torch.randn(widths[0], generator=made)
    first = [
        torch.randn(n, 1, generator=made) * shared
        + spread * torch.randn(n, widths[0], generator=made)
        for n in (users, items)
    ]
    layers = [
        (torch.randn(b, a, generator=made) / a**0.5, torch.randn(b, generator=made))
        for a, b in pairwise(widths)
    ]
    return *first, layers, torch.randn(widths[-1], generator=made)


@pytest.mark.parametrize("widths", [[9], [24, 13], [24, 16, 8], [8, 8, 8, 8]])
@pytest.mark.parametrize("spread", [0.0, 0.05, 3.0])
@pytest.mark.parametrize(("users", "items"), [(1, 1), (1, 700), (70, 333), (200, 3)])
def test_it_is_the_plain_perceptron(widths, spread, users, items, monkeypatch) -> None:
    monkeypatch.setattr(all_pairs, "PAIRS", 512)
    asked = some(users, items, widths, spread)
    want = plain(*asked)
    torch.testing.assert_close(scores_of_all(*asked).double(), want, rtol=1e-5, atol=1e-5)


def test_what_is_not_a_number_is_seen() -> None:
    users, items, layers, out = some(5, 40, [12, 6], 0.1)
    items[7, 3] = torch.nan
    found = scores_of_all(users, items, layers, out).isnan()
    assert found[:, 7].all() and found.sum() == 5


def test_no_pairs() -> None:
    users, items, layers, out = some(5, 40, [12, 6], 0.1)
    assert scores_of_all(users[:0], items, layers, out).shape == (0, 40)
    assert scores_of_all(users, items[:0], layers, out).shape == (5, 0)


def test_neighbours_are_alike() -> None:
    number = torch.randperm(50, generator=torch.Generator().manual_seed(1))
    order = number[alike(number[:, None] * torch.ones(3) + 7.0)]
    assert order.tolist() in (list(range(50)), list(range(49, -1, -1)))

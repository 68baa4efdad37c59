"""The loss of placed pairs by the native core, against plain torch."""

from __future__ import annotations

import pytest
import torch

from shoal.kernels import pairs
from shoal.kernels.core import load_core
from shoal.models.nn import losses

# Without a compiler at installation there is no core, and torch makes all of this.
on_core = pytest.mark.skipif(load_core() is None, reason="the native core is not built")


@pytest.mark.parametrize("dim", [1, 5, 16, 70])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_loss_of_places_is_that_of_their_rows(dim: int, threads: int, monkeypatch) -> None:
    torch.manual_seed(dim)
    rows, places = torch.randn(37, dim), torch.randint(0, 37, (3, 4099))
    before, found = torch.get_num_threads(), []
    torch.set_num_threads(threads)
    try:
        for takes in (pairs.takes_placed, lambda *_: False):
            monkeypatch.setattr(pairs, "takes_placed", takes)
            own = rows.clone().requires_grad_()
            loss = losses.placed_bpr_loss(own, places)
            (loss * 0.25).backward()
            found.append((loss.detach(), own.grad))
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(*found, rtol=2e-5, atol=2e-4)


@on_core
def test_places_lie_within_their_rows() -> None:
    with pytest.raises(ValueError, match="places"):
        pairs.placed_pair_loss(torch.ones(4, 2), torch.full((3, 5), 4))
    with pytest.raises(ValueError, match="slopes"):
        places = torch.zeros(3, 5, dtype=torch.int64)
        pairs.placed_pair_gradients(torch.ones(4, 2), places, torch.ones(4), 1.0)

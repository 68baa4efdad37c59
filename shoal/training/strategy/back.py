"""Backward, less what torch wraps it in: checks in Python that take as long as small graphs do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_engine: Any = torch.autograd.Variable._execution_engine


def go_back(loss: Tensor, scale: Tensor | None = None) -> None:
    """As `(loss * scale).backward()`, of a scalar loss; scale: 1 where none is given.

    The graph is gone afterwards. `loss.backward(scale)` would make torch import all of its symbolic
    shapes.
    """
    grad = torch.ones_like(loss) if scale is None else scale
    keep_graph = create_graph = False
    allow_unreachable = accumulate = True
    _engine.run_backward(
        (loss,), (grad,), keep_graph, create_graph, (), allow_unreachable, accumulate
    )

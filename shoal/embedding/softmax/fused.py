"""A softmax over rows in the memory of a GPU that are updated in the same pass.

Forward reads the rows once for the loss and the gradients of the states; the step reads them once
more, and what would be the gradient of the whole table never leaves the chip.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from shoal.embedding.engines.row_engine import RowEngine
from shoal.embedding.softmax.deferred import Deferred
from shoal.kernels.softmax import gpu_kernels

ALONE = (
    "gradients of the rows of a softmax cannot be added to others of the same step where they are "
    "never written; set strategy.fused=false"
)


def fusable(rows: RowEngine | None, bias: RowEngine | None) -> bool:
    """Whether one pass of the kernels can update both; bias: a number for each row."""
    for engine in (rows, bias):
        if engine is not None and (engine.adam_rows() is None or engine.table.padding != 0):
            return False
    if rows is None or gpu_kernels(rows.table.dim) is None:
        return False
    same_optimizer = bias is None or bias.optimizer == rows.optimizer
    return same_optimizer and (
        bias is None or (bias.table.rows, bias.table.dim) == (rows.table.rows, 1)
    )


class FusedSoftmax:
    """The summed cross entropy of one batch; after backward it is a deferred update of all rows."""

    normalizers: Tensor  # set by forward
    parts: Any

    def __init__(
        self,
        rows: RowEngine,
        bias: RowEngine | None,
        targets: Tensor,
        stop: int,
        defer: Callable[[Deferred], None],
    ):
        """defer: called in backward, with this update."""
        adam_rows, self.stop, self.defer = rows.adam_rows(), stop, defer
        assert adam_rows is not None  # `fusable` said so
        self.rows, self.bias = adam_rows, None if bias is None else bias.adam_rows()
        self.optimizer = rows.optimizer
        self.tables = [one.table.name for one in (rows, bias) if one is not None]
        self.targets = targets.contiguous()
        self.scale: Tensor | None = None  # set by backward

    def loss(self, hidden: Tensor) -> Tensor:
        """The loss of states [n, d], a scalar; positions whose target is 0 do not count."""
        return _Loss.apply(hidden, self)

    def backward(self, scale: Tensor) -> None:
        """Defers these rows' update."""
        if self.scale is not None:
            raise RuntimeError(ALONE)
        self.scale = scale
        self.defer(self)

    def gradients(self) -> list[Tensor]:
        """They cannot be had: no kernel writes them."""
        raise RuntimeError(ALONE)

    def step(self, lr: float, scale: float) -> None:
        """A step of rows and bias, whose own count of steps has gone up already."""
        assert self.scale is not None
        rows, bias = self.rows, self.bias
        gpu_kernels(rows.values.shape[1]).update(
            self.parts,
            self.targets,
            self.normalizers,
            self.scale if scale == 1.0 else self.scale * scale,
            (rows.values, rows.first, rows.second),
            None if bias is None else (bias.values, bias.first, bias.second),
            rows.numbers,
            self.stop,
            self.optimizer,
        )


class _Loss(torch.autograd.Function):
    """The gradient of the states is made in forward; backward scales it."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, softmax: FusedSoftmax) -> Tensor:
        kernels = gpu_kernels(softmax.rows.values.shape[1])
        bias = None if softmax.bias is None else softmax.bias.values
        losses, ctx.grads, softmax.normalizers, softmax.parts = kernels.pool(
            hidden.contiguous(), softmax.rows.values, bias, softmax.targets, softmax.stop
        )
        ctx.softmax = softmax
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        scale = grads[0].to(ctx.grads)
        ctx.softmax.backward(scale)
        return ctx.grads * scale, None

"""A softmax over the rows of a Device engine that are updated in the same pass.

Forward reads the rows once for the loss and the gradients of the states; the step reads them once
more, and what would be the gradient of the whole table never leaves the chip.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from shoal.embedding.engines.device import Device, device_pair
from shoal.embedding.engines.row_engine import RowEngine
from shoal.embedding.softmax.deferred import Deferred
from shoal.kernels.softmax import gpu_kernels

ALONE = (
    "gradients of the rows of a softmax cannot be added to others of the same step where they are "
    "never written; set strategy.fused=false"
)


def fusable(rows: RowEngine | None, bias: RowEngine | None) -> tuple[Device, Device | None] | None:
    """Both engines, where they have kernels for it."""
    found = device_pair(rows, bias)
    if found is None:
        return None
    if any(one.kernels is None or one.table.padding != 0 for one in found if one is not None):
        return None
    return None if gpu_kernels(found[0].table.dim) is None else found


class FusedSoftmax:
    """The summed cross entropy of one batch; after backward it is a deferred update of all rows."""

    normalizers: Tensor  # set by forward
    parts: Any

    def __init__(
        self,
        rows: Device,
        bias: Device | None,
        targets: Tensor,
        stop: int,
        defer: Callable[[Deferred], None],
    ):
        """defer: called in backward, with this update."""
        self.rows, self.bias, self.stop, self.defer = rows, bias, stop, defer
        self.tables = [one.table.name for one in (rows, bias) if one is not None]
        self.targets = targets.contiguous()
        self.scale: Tensor | None = None  # set by backward

    def loss(self, hidden: Tensor) -> Tensor:
        """Of states [n, d]: a scalar; a position whose target is 0 does not count."""
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
        gpu_kernels(rows.table.dim).update(
            self.parts,
            self.targets,
            self.normalizers,
            self.scale if scale == 1.0 else self.scale * scale,
            rows.parts(),
            None if bias is None else bias.parts(),
            rows.numbers,
            self.stop,
            rows.optimizer,
        )


class _Loss(torch.autograd.Function):
    """The gradient of the states is made in forward; backward scales it."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, softmax: FusedSoftmax) -> Tensor:
        kernels = gpu_kernels(softmax.rows.table.dim)
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

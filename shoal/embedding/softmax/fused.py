"""A softmax over the rows of a Device store that learn in the same pass.

Forward reads the rows once for the loss and the gradients of the states; the step reads them once
more, and what would be the gradient of the whole table never leaves the chip.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shoal.embedding.leaves.device import Device
from shoal.embedding.store import Store

ALONE = (
    "gradients of the rows of a softmax cannot be added to others of the same step where they are "
    "never written; set strategy.fused=false"
)


def can_fuse(rows: Store | None, bias: Store | None) -> bool:
    """Whether both stores have kernels for it."""
    parts = [part for part in (rows, bias) if part is not None]
    if not all(isinstance(part, Device) and part.kernels is not None for part in parts):
        return False
    if any(part.table.padding != 0 for part in parts):
        return False
    if bias is not None and bias.table.dim != 1:
        return False
    from shoal.embedding.softmax import triton_softmax  # there is Triton, where stores have kernels

    return isinstance(rows, Device) and rows.table.dim in triton_softmax.DIMS


class FusedSoftmax:
    """The summed cross entropy of one batch, and the step of all rows that goes with it."""

    def __init__(self, rows: Device, bias: Device | None, targets: Tensor, stop: int):
        self.rows, self.bias, self.stop = rows, bias, stop
        self.targets = targets.contiguous()
        self.normalizers, self.parts = targets, targets  # set by forward
        self.scale: Tensor | None = None  # set by backward
        self._replaced = False

    def loss(self, hidden: Tensor) -> Tensor:
        """Of states [n, d]: a scalar; a position whose target is 0 does not count."""
        return _Loss.apply(hidden, self)

    @property
    def learns(self) -> bool:
        """Whether backward came by, so that `step` has something to do."""
        return self.scale is not None

    def replace(self) -> None:
        """Another softmax over the same rows follows, which is well where this one is forgotten."""
        if self.learns:
            raise RuntimeError(ALONE)
        self._replaced = True

    def follow_back(self, scale: Tensor) -> None:
        """Backward came by."""
        if self._replaced or self.learns:
            raise RuntimeError(ALONE)
        self.scale = scale

    def step(self) -> None:
        """A step of rows and bias, whose own count of steps has gone up already."""
        if self.scale is None:
            return  # backward never came by
        from shoal.embedding.softmax import triton_softmax

        rows, bias = self.rows, self.bias
        triton_softmax.update(
            self.parts,
            self.targets,
            self.normalizers,
            self.scale,
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
        from shoal.embedding.softmax import triton_softmax

        bias = None if softmax.bias is None else softmax.bias.values
        losses, ctx.grads, softmax.normalizers, softmax.parts = triton_softmax.pool(
            hidden.contiguous(), softmax.rows.values, bias, softmax.targets, softmax.stop
        )
        ctx.softmax = softmax
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        scale = grads[0].to(ctx.grads)
        ctx.softmax.follow_back(scale)
        return ctx.grads * scale, None

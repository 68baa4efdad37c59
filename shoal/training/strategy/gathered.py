"""Gathered: the tensors of all ranks' samples, for models that look across the global batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from shoal.world.world import World


class Gathered:
    """Gathers a tensor of every rank; what `Model.gather_global` calls. Every rank must call it."""

    def __init__(self, world: World):
        self.world = world
        self.parts = 1  # that this step's batch is cut into

    def __call__(self, tensor: Tensor) -> Tensor:
        if self.parts > 1:
            raise ValueError(
                "the model looks across the global batch, which train.accumulate trains in "
                f"{self.parts} parts; set train.accumulate=1"
            )
        return tensor if self.world.size == 1 else Gather.apply(tensor, self.world)


class Gather(torch.autograd.Function):
    """[b, ...] of every rank -> [global b, ...], in order of rank, which is that of samples."""

    @staticmethod
    def forward(context: Any, tensor: Tensor, world: World) -> Tensor:
        joined, lengths = world.gather([tensor.detach().contiguous()])
        context.world, context.lengths = world, [length for (length,) in lengths]
        return joined[0]

    @staticmethod
    def backward(context: Any, grads: Tensor) -> tuple[Tensor, None]:
        """The gradients that all ranks have for this rank's samples, summed in order of rank."""
        world, lengths = context.world, context.lengths
        mine = lengths[world.rank]
        came = world.all_to_all(grads.float().contiguous(), lengths, [mine] * world.size)
        return came.view(world.size, mine, *grads.shape[1:]).sum(0).to(grads.dtype), None

"""Collective: the step that ddp and sharded share, dense parameters that agree by all-reduce."""

import torch
from torch import Tensor

from shoal.distributed.world import World
from shoal.embedding.placements.replicated import ReplicatedRows
from shoal.embedding.rows.table import Table
from shoal.embedding.service import RowService
from shoal.training.strategies.base import Strategy, Sums


class Collective(Strategy):
    """Replicated dense parameters, summed gradients; the row service knows where rows are."""

    def update(self, sums: Sums, lr: float) -> Tensor:
        collected = self.rows.collect(self.dense_sums(sums))
        loss, scale = self.set_dense_gradients(collected.dense)
        gradients, row_scale = self.clip(collected.rows, scale)
        if self.dense_optimizer is not None:
            self.dense_optimizer.step(lr)
        self.rows.apply(gradients, lr, row_scale)
        return loss

    def dense_sums(self, sums: Sums) -> list[Tensor]:
        """The vector that ranks sum up: dense gradients, the loss, its count, and per parameter
        the number of ranks with a gradient."""
        count = torch.as_tensor(sums.count).to(sums.loss)
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.dense]
        had = sums.loss.new_tensor([float(p.grad is not None) for p in self.dense])
        flat = [grad.reshape(-1).to(sums.loss) for grad in grads]
        return [*flat, sums.loss.reshape(1), count.reshape(1), had]

    def set_dense_gradients(self, flat: Tensor) -> tuple[Tensor, float]:
        """Dense gradients of the global batch's mean loss; that loss, and 1 / its count.

        A parameter without a gradient on any rank gets none, as in one process.
        """
        size = sum(p.numel() for p in self.dense)
        loss, (count, *gradient_counts) = flat[size], flat[size + 1 :].tolist()
        scale = 1.0 / count if count else 0.0
        means = flat[:size].mul_(scale).split([p.numel() for p in self.dense])
        for parameter, mean, has_gradient in zip(self.dense, means, gradient_counts):
            if has_gradient:
                parameter.grad = mean.view_as(parameter).to(parameter.dtype)
        return loss * scale, scale


class DDP(Collective):
    """Replicated rows, all-reduced dense gradients."""

    name = "ddp"

    def __init__(self, world: World | None = None, fused: bool = True):
        super().__init__(world)
        self.fused = fused and self.world.device.type == "cpu"  # a GPU's kernels never write them

    def make_rows(self, tables: dict[str, Table]) -> RowService:
        engines = self.make_engines(tables, self.fused)
        rows = ReplicatedRows(engines, self.rules, self.world)
        self.prefetches = bool(rows.offloaded_tables)
        return rows

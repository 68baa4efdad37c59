"""single: one process, rows in its own memory."""

from collections.abc import Sequence

from torch import Tensor

from shoal.data.batch import Batch
from shoal.distributed.world import World
from shoal.embedding.placements.local import LocalRows
from shoal.embedding.rows.table import Table
from shoal.embedding.service import RowService
from shoal.models.base import Output
from shoal.training.strategies.base import Strategy, Sums


class Single(Strategy):
    """The reference that every other strategy must equal."""

    name = "single"

    def __init__(self, world: World | None = None, fused: bool = True):
        super().__init__(world)
        self.fused = fused

    def make_rows(self, tables: dict[str, Table]) -> RowService:
        engines = self.make_engines(tables, self.fused)
        self.local_rows = LocalRows(engines, self.rules, self.world.device)
        self.prefetches = bool(self.local_rows.offloaded_tables)
        return self.local_rows

    def forward_backward(self, parts: Sequence[Batch]) -> Sums:
        """A batch in one part has gradients of its mean loss at once: nothing is scaled later."""
        if len(parts) > 1:
            return super().forward_backward(parts)
        output = self.forward(parts[0])
        mean = output.loss * _one_over_count(output)
        mean.backward()
        return Sums(mean.detach(), 1)

    def update(self, sums: Sums, lr: float) -> Tensor:
        scale = 1.0 / max(1.0, float(sums.count))
        if scale != 1.0:
            for parameter in self.dense:
                if parameter.grad is not None:
                    parameter.grad.mul_(scale)
        gradients, row_scale = self.clip(self.rows.collect().rows, scale)
        if self.dense_optimizer is not None:
            self.dense_optimizer.step(lr)
        self.rows.apply(gradients, lr, row_scale)
        return sums.loss if scale == 1.0 else sums.loss * scale


def _one_over_count(output: Output) -> float | Tensor:
    """1 / the terms of a batch's loss."""
    count = output.count
    if isinstance(count, Tensor):  # a GPU is not waited for
        return count.clamp(min=1).to(output.loss).reciprocal().view_as(output.loss)
    return 1.0 / count if count else 0.0

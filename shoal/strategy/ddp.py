"""ddp: every rank holds all parameters; gradients are summed over ranks before the update.

Of tables only the rows that the batch touched travel: bytes on the wire grow with the batch, never
with the table. Every rank applies the same sums in the same order, so replicas stay equal bit for
bit.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from shoal.embedding.duplicates import sum_duplicates
from shoal.embedding.store import Store
from shoal.models.base import Output
from shoal.strategy.base import Gradients, Strategy


class DDP(Strategy):
    """Replicated rows, all-reduced dense gradients."""

    name = "ddp"

    def backward(self, output: Output) -> None:
        output.loss.backward()
        self._loss, self._count = output.loss.detach(), output.count

    def step(self, lr: float) -> Tensor:
        # One all-reduce carries the dense gradients, the loss and the count.
        for parameter in self.dense:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        grads = [p.grad for p in self.dense]
        tail = torch.stack([self._loss, torch.as_tensor(self._count).to(self._loss)])
        flat = self.world.all_reduce(torch.cat([g.reshape(-1) for g in grads] + [tail]))  # type: ignore[union-attr]
        total = flat[-1]
        scale = 1.0 / float(total) if total else 0.0
        position = 0
        for grad in grads:
            grad.copy_(flat[position : position + grad.numel()].view_as(grad)).mul_(scale)  # type: ignore[union-attr]
            position += grad.numel()  # type: ignore[union-attr]
        self.update(self._exchange(self.take_gradients(), scale), lr)
        return flat[-2] * scale

    def _exchange(self, gradients: Gradients, scale: float) -> Gradients:
        """Everybody's row gradients, in order of rank: two collectives for all tables."""
        mine: list[Tensor] = []
        for ids, grads in gradients.values():
            unique, summed = sum_duplicates(ids, grads)
            mine += [unique, summed.mul_(scale)]
        everyone = self.world.exchange(mine)
        return {
            name: (
                torch.cat([parts[2 * k] for parts in everyone]),
                torch.cat([parts[2 * k + 1] for parts in everyone]),
            )
            for k, name in enumerate(gradients)
        }

    def owned_rows(self) -> Iterator[tuple[str, Store]]:
        if self.world.is_main:
            yield from super().owned_rows()

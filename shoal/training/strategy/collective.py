"""Collective: what ddp and sharded share, dense parameters that agree by all-reduce."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.models.base import Output
from shoal.training.strategy.base import Gradients, Strategy


class Collective(Strategy):
    """Replicated dense parameters, summed gradients. Subclasses say how rows' gradients travel."""

    def backward(self, output: Output) -> None:
        output.loss.backward()
        self._loss, self._count = output.loss.detach(), output.count

    def step_sums(self, loss: Tensor, count: int | Tensor, lr: float) -> Tensor:
        self._loss, self._count = loss, count
        return self.step(lr)

    def step(self, lr: float) -> Tensor:
        # One all-reduce carries the dense gradients, the loss, the count and the rows' note.
        grads = []
        for parameter in self.dense:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            grads.append(parameter.grad)
        count = torch.as_tensor(self._count).to(self._loss)
        tail = torch.stack([self._loss, count, self._loss.new_tensor(self.note())])
        flat = self.world.all_reduce(torch.cat([g.reshape(-1) for g in grads] + [tail]))
        total, note = flat[-2:].tolist()
        scale = 1.0 / total if total else 0.0
        mean, position = flat[:-3].mul_(scale), 0
        for parameter, grad in zip(self.dense, grads):
            parameter.grad = mean[position : position + grad.numel()].view_as(grad)
            position += grad.numel()
        self.update(self.exchange_rows(scale, note), lr, scale)
        return flat[-3] * scale

    def note(self) -> float:
        """A number of this rank whose sum over ranks `exchange_rows` is given."""
        return 0.0

    def exchange_rows(self, scale: float, notes: float) -> Gradients:
        """The row gradients of the global batch, scaled, that this rank must apply."""
        raise NotImplementedError  # every collective strategy writes its own

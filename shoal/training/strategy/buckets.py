"""Buckets: dense gradients that are summed over ranks while backward still goes on.

Backward ends with the first layers, so gradients of the last ones are complete first. Parameters
are cut into buckets in that order; a bucket whose gradients are all there is on its way at once:

    backward    | layer 3 | layer 2 | layer 1 | rows' gradients ...
    all-reduce            | bucket 1 | bucket 2 | bucket 3 |

Buckets leave in one order on every rank, whatever order gradients come in: ranks must agree on it.
Each element is summed over the same ranks as it would be in one large sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.world.world import Arriving, World

BUCKET = 4 << 20  # bytes of gradients from which on a separate trip pays


class Buckets:
    """The dense parameters of a model, cut into parts that travel one after the other."""

    def __init__(self, parameters: Sequence[Tensor], world: World):
        self.world = world
        self._parts: list[list[Tensor]] = [[]]
        size = 0
        for parameter in reversed(parameters):
            if size >= BUCKET:
                self._parts.append([])
                size = 0
            self._parts[-1].append(parameter)
            size += parameter.nbytes
        self._part_of = {p: number for number, part in enumerate(self._parts) for p in part}
        self._sent: list[Arriving] = []
        self._missing: list[int] = []  # gradients of each part that are still to come
        self.begun = False
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._came)

    def begin(self) -> None:
        """The last backward of a step comes next."""
        self._sent, self._missing = [], [len(part) for part in self._parts]
        self.begun = True

    def _came(self, parameter: Tensor) -> None:
        if self.begun:
            self._missing[self._part_of[parameter]] -= 1
            while len(self._sent) < len(self._parts) and not self._missing[len(self._sent)]:
                self._send()

    def _send(self) -> None:
        part = self._parts[len(self._sent)]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in part]
        had = grads[0].new_tensor([float(p.grad is not None) for p in part])
        flat = torch.cat([*(grad.reshape(-1) for grad in grads), had])
        self._sent.append(self.world.start_all_reduce(flat))

    def flush(self) -> None:
        """Backward is over: parts with parameters that had no gradient leave, too."""
        self.begun = False
        while len(self._sent) < len(self._parts):
            self._send()

    def end(self, scale: float) -> None:
        """The gradients of all ranks, multiplied, on the parameters that any rank has one of."""
        for part, arriving in zip(self._parts, self._sent):
            flat = arriving.wait()
            sizes = [parameter.numel() for parameter in part]
            *means, had = flat.split([*sizes, len(part)])
            for parameter, mean, some in zip(part, means, had.tolist()):
                if some:
                    parameter.grad = mean.mul_(scale).view_as(parameter)
        self._sent = []

"""A softmax over the rows of a CPU's store that learn in the native core (csrc/catalogue.h).

Forward reads the rows once, for the exponentials of the logits and the gradients of the states; the
step reads them once more: gradients of a few rows at a time are made in the cache and used there,
so that the gradient of the table is never written. Used where it was measured to be faster.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from shoal.embedding.engines.device import Device
from shoal.embedding.engines.row_engine import RowEngine
from shoal.embedding.softmax.deferred import Deferred
from shoal.kernels.machine import is_wide
from shoal.kernels.softmax import STEPS, catalogue_exponentials, room_for, step_catalogue


def fusable_on_cpu(
    rows: RowEngine | None, bias: RowEngine | None = None
) -> tuple[Device, Device | None] | None:
    """Both engines, where the core can update them in the step of a softmax, and is worth it."""
    if not isinstance(rows, Device) or not (bias is None or isinstance(bias, Device)):
        return None
    if bias is not None and (
        (bias.table.rows, bias.table.dim) != (rows.table.rows, 1)
        or bias.optimizer != rows.optimizer
    ):
        return None
    for engine in (rows, bias):
        if engine is not None and not (
            engine.fused and engine.device.type == "cpu" and engine.table.padding in (None, 0)
        ):
            return None
    can_step = rows.optimizer.name in STEPS and rows.optimizer.clip is None
    return (rows, bias) if can_step and is_wide() else None


class CoreSoftmax:
    """Takes the place of SoftmaxGradients for one batch; after backward it is a deferred update."""

    hidden: Tensor  # the gradient of the states; made in `begin` and `add`
    factor: float  # of backward

    def __init__(
        self,
        rows: Device,
        bias: Device | None,
        others: Tensor,
        defer: Callable[[Deferred], None],
    ):
        """others [m], ascending, are the rows that are no candidates; defer: see FusedSoftmax."""
        self.rows = rows
        self.bias = bias
        self.others = others
        self.defer = defer
        self.tables = [one.table.name for one in (rows, bias) if one is not None]

    def begin(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Exponentials of all logits of states [n, d]: their highest logits and sums, [n] each."""
        values, bias = self.rows.values, self.bias
        self.states = states.detach().contiguous()
        self._version = self.states._version
        memory = self._take(room_for(len(states), len(values)))
        bias_values = None if bias is None else bias.values
        self.exponentials = catalogue_exponentials(
            self.states, values, bias_values, self.others, memory
        )
        self.hidden = self.exponentials.pooled  # the gradient of the states, once `add` was there
        return self.exponentials.highest, self.exponentials.totals

    def targets(self, positions: Tensor | None, targets: Tensor) -> Tensor:
        """Logits of the target rows [m] at these positions (None: at all): [m]."""
        states = self.states if positions is None else self.states[positions]
        right = (states * self.rows.values.index_select(0, targets)).sum(1)
        return right if self.bias is None else right + self.bias.values[:, 0][targets]

    def add(self, shares: Tensor, positions: Tensor | None, targets: Tensor) -> None:
        """Add gradients of all positions at once (SoftmaxGradients.add does it block by block)."""
        rows = self.rows.values.index_select(0, targets)
        self.hidden.mul_(shares.unsqueeze(1))
        self.shares = shares.contiguous()
        if positions is None:
            self.hidden.sub_(rows)
            self.places = torch.where(targets > 0, targets, -1)  # 0 is padding
        else:
            self.hidden.index_add_(0, positions, rows, alpha=-1.0)
            self.places = torch.full((len(shares),), -1)
            self.places[positions] = targets

    def scaled(self, factor: Tensor) -> tuple[Tensor, None, None]:
        """The gradient of the states; those of the rows come in `step`."""
        self.factor = float(factor)
        self.defer(self)
        return self.hidden.mul_(self.factor), None, None

    def step(self, lr: float, scale: float) -> None:
        """A step of rows and bias, whose count of steps has gone up already."""
        store, optimizer = self.rows, self.rows.optimizer
        now = optimizer.numbers(lr, store.step)
        beta1, beta2 = optimizer.betas or (0.0, 0.0)
        numbers = [
            now.size,
            now.eps,
            1.0 - beta1,
            1.0 - beta2,
            0.0 if optimizer.decoupled else optimizer.weight_decay,
            now.keep,
        ]
        engines = [engine for engine in (store, self.bias) if engine is not None]
        parts = [[engine.values, *engine.state.values()] for engine in engines]
        self._learn(optimizer.name, numbers, parts, scale)
        for engine in engines:
            if engine.table.padding is not None:
                engine.values[engine.table.padding] = (
                    0.0  # it has no gradient; rounding must not move it
                )

    def _take(self, count: int) -> Tensor:
        """Floats [count]: those of the step before, since new memory costs time."""
        spare, self.rows.spare = self.rows.spare, torch.empty(0)
        if spare.untyped_storage().nbytes() < 4 * count:
            return torch.empty(count + count // 4)[:count]
        return spare.as_strided((count,), (1,), 0)

    def gradients(self) -> list[Tensor]:
        """The gradients of every table [k, dim], which `step` itself never writes."""
        stores = [one for one in (self.rows, self.bias) if one is not None]
        zeros = [torch.zeros_like(one.values) for one in stores]
        # A step of SGD from zeros, of size -1, engines the gradients themselves.
        self._learn("sgd", [-1.0, 0.0, 0.0, 0.0, 0.0, 1.0], [[one] for one in zeros], 1.0)
        return zeros

    def _learn(
        self, optimizer: str, numbers: list[float], parts: list[list[Tensor]], scale: float
    ) -> None:
        """One step of rows and, if any, bias; parts: values and state of each."""
        if self.states._version != self._version:
            raise RuntimeError(
                "the states of a softmax were changed in place before its rows were updated: "
                "change a copy, or set strategy.fused=false"
            )
        factor = scale * self.factor
        shares = self.shares * factor
        step_catalogue(
            self.states,
            self.exponentials,
            shares,
            self.places,
            factor,
            optimizer,
            numbers,
            *parts,
        )
        self.rows.spare = self.exponentials.values.view(-1)

"""The optimizer of rows in a custom loop: one that does what torch's optimizer does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import torch

from shoal.config.schema import OptimizerSection
from shoal.optimizers.selection import row_optimizer_of

DENSE_NAMES = get_args(OptimizerSection.model_fields["name"].annotation)
# torch's optimizer -> that of rows, the hyper-parameters it hands on, and what it must not have
SAME: dict[type, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    torch.optim.Adagrad: (
        "adagrad",
        ("eps", "initial_accumulator_value", "weight_decay"),
        ("lr_decay", "maximize"),
    ),
    torch.optim.Adam: ("adam", ("betas", "eps", "weight_decay"), ("amsgrad", "maximize")),
    torch.optim.AdamW: ("adamw", ("betas", "eps", "weight_decay"), ("amsgrad", "maximize")),
    torch.optim.SparseAdam: ("sparse_adam", ("betas", "eps"), ("maximize",)),
    torch.optim.RMSprop: (
        "rmsprop",
        ("alpha", "eps", "weight_decay"),
        ("momentum", "centered", "maximize"),
    ),
    torch.optim.SGD: ("sgd", ("weight_decay",), ("dampening", "nesterov", "maximize")),
}


class RowUpdates:
    """The optimizer of a model that has rows alone."""

    def __init__(self, step: Callable[[float], None], lr: float):
        self._step = step
        self.lr = lr

    def step(self) -> None:
        """Update the rows of the batch."""
        self._step(self.lr)

    def zero_grad(self) -> None:
        """Nothing: gradients of rows are gone with the step."""


class SteppedByUser:
    """torch's own optimizer, for its state: the user's loop calls its `step`."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer = optimizer

    def step(self, lr: float) -> None:
        """Nothing: it follows."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optimizer, name)


def optimizer_section(
    dense: torch.optim.Optimizer | None, rows: str | None, lr: float | None, options: dict[str, Any]
) -> OptimizerSection:
    """The section of the optimizer of rows: the one named, or one like the dense optimizer."""
    base = lr if dense is None else float(dense.param_groups[0]["lr"])
    if rows is None and dense is None:
        raise ValueError("name what updates the rows: strategy.optimizer(rows='adagrad', lr=0.1)")
    if base is None:
        raise ValueError(f"strategy.optimizer(rows={rows!r}) needs lr, the learning rate")
    if rows is None:
        assert dense is not None
        rows, hyper_parameters = _same_as(dense)
        options = {**hyper_parameters, **options}
    if lr is not None:
        options = {**options, "lr": lr}
    # Backends compare what rows have with the plain optimizer of that name.
    name = rows if rows in DENSE_NAMES else "sgd"
    section = OptimizerSection.model_validate(
        {"name": name, "lr": base, "rows": {"name": rows, **options}}
    )
    row_optimizer_of(section)  # refuses what this optimizer does not have
    return section


def _same_as(dense: torch.optim.Optimizer) -> tuple[str, dict[str, Any]]:
    """The row optimizer that does what torch's does, and its hyper-parameters."""
    group = dense.param_groups[0]
    entry = SAME.get(type(dense))
    odd = [] if entry is None else [key for key in entry[2] if group.get(key)]
    if entry is None or odd:
        why = f" with {odd[0]}={group[odd[0]]}" if odd else ""
        raise ValueError(
            f"rows have no optimizer like {type(dense).__name__}{why}; name one for them: "
            "strategy.optimizer(dense, rows='adagrad', lr=0.1)"
        )
    name, keys, _ = entry
    hyper_parameters = {key: group[key] for key in keys}
    if hyper_parameters.get("weight_decay") == 0.0 and name != "adamw":
        del hyper_parameters["weight_decay"]  # which not every backend has
    if group.get("momentum"):
        name, hyper_parameters = "momentum", {**hyper_parameters, "momentum": group["momentum"]}
    return name, hyper_parameters

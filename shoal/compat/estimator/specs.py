"""What an Estimator is given, and what its model_fn returns; names as in TensorFlow's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

Mode = Literal["train", "eval", "infer"]
InputFn = Callable[[], Iterable[Any]]  # batches: features, or (features, labels)


class ModeKeys:
    """What a model_fn is called for.

    >>> import shoal
    >>> shoal.ModeKeys.TRAIN, shoal.ModeKeys.EVAL, shoal.ModeKeys.PREDICT
    ('train', 'eval', 'infer')
    """

    TRAIN: Mode = "train"
    EVAL: Mode = "eval"
    PREDICT: Mode = "infer"


@dataclass(frozen=True)
class TrainOp:
    """A step of training: what strategy.minimize gives."""

    loss: Tensor
    dense: Callable[[list[Any]], torch.optim.Optimizer] | None
    rows: str | None
    lr: float | None
    options: Mapping[str, Any]


class Hook:
    """What is called while an Estimator trains; each call is made on every process.

    >>> import shoal
    >>> class Until(shoal.Hook):
    ...     def after_run(self, step, loss):
    ...         return loss < 0.1  # True ends the training
    >>> Until().after_run(7, loss=0.05)
    True
    """

    def begin(self) -> None:
        """Before the first step."""

    def after_run(self, step: int, loss: float) -> bool | None:
        """After a step, with the loss of the global batch; True ends the training."""

    def end(self) -> None:
        """After the last step."""


@dataclass(frozen=True)
class EstimatorSpec:
    """What a model_fn answers.

    loss: the mean of the batch. predictions: name -> tensor that begins with [b].
    eval_metric_ops: name -> a value per sample [b], whose mean is reported; or (scores [b],
    labels [b]) under the name of a metric such as AUC.

    >>> import torch, shoal
    >>> spec = shoal.EstimatorSpec(shoal.ModeKeys.PREDICT, predictions={"score": torch.ones(2)})
    >>> spec.mode, list(spec.predictions)
    ('infer', ['score'])
    """

    mode: Mode
    loss: Tensor | None = None
    train_op: TrainOp | None = None
    predictions: Mapping[str, Tensor] | Tensor | None = None
    eval_metric_ops: Mapping[str, Any] = field(default_factory=dict)
    training_hooks: Sequence[Hook] = ()
    training_chief_hooks: Sequence[Hook] = ()  # on rank 0 alone


@dataclass(frozen=True)
class TrainSpec:
    """What train_and_evaluate trains on; max_steps: in all, None: as much as input_fn has.

    >>> import shoal
    >>> shoal.TrainSpec(lambda: [], max_steps=50).max_steps
    50
    """

    input_fn: InputFn
    max_steps: int | None = None
    hooks: Sequence[Hook] = ()


@dataclass(frozen=True)
class EvalSpec:
    """What it evaluates on. steps: batches of an evaluation; None: all that input_fn has.

    >>> import shoal
    >>> shoal.EvalSpec(lambda: []).steps
    100
    """

    input_fn: InputFn
    steps: int | None = 100
    name: str | None = None


@dataclass(frozen=True)
class RunConfig:
    """How an Estimator runs.

    >>> import shoal
    >>> shoal.RunConfig(save_checkpoints_steps=500).keep_checkpoint_max
    2
    """

    save_checkpoints_steps: int = 1000
    keep_checkpoint_max: int = 2
    log_step_count_steps: int = 100
    save_summary_steps: int = 100
    tensorboard: bool = True

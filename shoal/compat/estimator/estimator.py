"""Estimator: trains, evaluates and predicts with a model_fn, on any number of processes.

A model_fn is called for every batch, and gives an EstimatorSpec. Its modules are made once and kept
by name (strategy.module). Input functions give global batches; each process takes its slice.

MODEL_DIR/
    checkpoints/   committed ones, as everywhere; a run continues from the newest
    tensorboard/   loss and metrics
    train.log
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shoal.compat.estimator.evaluation import Evaluation
from shoal.compat.estimator.specs import (
    EstimatorSpec,
    EvalSpec,
    Hook,
    InputFn,
    Mode,
    ModeKeys,
    RunConfig,
    TrainOp,
    TrainSpec,
)
from shoal.config.errors import did_you_mean
from shoal.config.schema import OptimizerSection
from shoal.loop.loop import Loop
from shoal.loop.slices import size_of, tensors
from shoal.serving.artifact.tables import Kind
from shoal.training.checkpoint.writing import Checkpoints
from shoal.training.run_folder import RunFolder, start_logging
from shoal.training.trackers.tracker import Trackers

log = logging.getLogger("shoal")
ModelFn = Callable[..., EstimatorSpec]


class Kept(nn.Module):
    """Modules under names of any kind (an nn.ModuleDict has methods that are called `items`)."""

    def put(self, name: str, module: nn.Module) -> None:
        """Keep a module."""
        if "." in name:
            raise ValueError(f"the name of module {name!r} has a dot, which would mean one within")
        self._modules[name] = module

    def get(self, name: str) -> nn.Module | None:
        """The module of that name."""
        return self._modules.get(name)


class Estimator:
    """Made by strategy.estimator(model_fn, model_dir, config, params)."""

    def __init__(
        self,
        loop: Loop,
        modules: Kept,
        model_fn: ModelFn,
        model_dir: str | Path,
        config: RunConfig | Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
    ):
        self.loop, self.world = loop, loop.world
        self.modules: nn.Module = modules  # the model's, by the names that model_fn gave them
        self.model_fn = model_fn
        self.folder = RunFolder(model_dir)
        self.config = _run_config(config)
        self.params = dict(params or {})
        self.step = 0  # global steps that were made
        self._batch = 0  # batches of the present input that they took
        self._built = False
        self._optimizer: Any = None  # none: the model is only used

    # ---- calling the model_fn -------------------------------------------------------------------

    def _call(self, batch: Any, mode: Mode, new: bool = False) -> tuple[EstimatorSpec, int]:
        """The spec of this process's slice, and how many samples that has; new: modules are."""
        mine = self.loop.slice(tensors(batch, self.world.device))
        features, labels = mine if isinstance(mine, tuple) and len(mine) == 2 else (mine, None)
        with self.loop.scope() if new else self.loop.entered():
            spec = self.model_fn(features=features, labels=labels, mode=mode, params=self.params)
        if not isinstance(spec, EstimatorSpec):
            raise ValueError(f"model_fn gave {type(spec).__name__}; it gives an EstimatorSpec")
        return spec, size_of(mine)

    def _build(self, batch: Any, mode: Mode) -> None:
        """Make the model's modules with a first batch, and load the newest checkpoint."""
        if self._built:
            return
        self.loop.previewing = True  # modules may be made
        try:
            with torch.no_grad():
                spec, _ = self._call(batch, mode, new=True)
            self.loop.take_over_built()  # also where the scope stands within another
        finally:
            self.loop.previewing = False
        newest = Checkpoints(self.folder.checkpoints.absolute(), self.world).load_newest()
        if mode == ModeKeys.TRAIN:
            self._set_up(_train_op(spec))
        elif newest is None:
            raise ValueError(f"{self.folder.path} has no checkpoint to load; train first")
        else:
            self.loop.set_up(OptimizerSection.model_validate(newest.state["optimizer"]))
        if newest is not None:
            self.loop.go_back(newest, self.modules)
            self.step, self._batch = int(newest.state["step"]), int(newest.state["batch"])
            log.info("%s: at step %d", self.folder.path, self.step)
        self._built = True

    def _set_up(self, op: TrainOp) -> None:
        """Give rows and dense parameters their optimizer."""
        learned = [p for p in self.modules.parameters() if p.requires_grad]
        if op.dense is None and any(p.numel() for p in learned):
            raise ValueError(
                "the model has dense parameters, and strategy.minimize names an optimizer of rows "
                "alone; add dense=functools.partial(torch.optim.Adagrad, lr=0.1), say"
            )
        dense = None if op.dense is None else op.dense(learned)
        self._optimizer = self.loop.optimizer(dense, op.rows, op.lr, **op.options)

    # ---- training -------------------------------------------------------------------------------

    def train(
        self,
        input_fn: InputFn,
        steps: int | None = None,
        max_steps: int | None = None,
        hooks: Sequence[Hook] = (),
    ) -> Estimator:
        """Train on what input_fn gives, for `steps` more or until `max_steps` in all."""
        self._train(input_fn, steps, max_steps, hooks, dict)
        return self

    def train_and_evaluate(self, train: TrainSpec, evaluate: EvalSpec) -> dict[str, float]:
        """Train, and evaluate whenever a checkpoint was taken and at the end; the last metrics."""
        metrics: dict[str, float] = {}

        def evaluate_once() -> dict[str, float]:
            metrics.update(self.evaluate(evaluate.input_fn, evaluate.steps, evaluate.name))
            return metrics

        self._train(train.input_fn, None, train.max_steps, train.hooks, evaluate_once)
        return metrics

    def _train(
        self,
        input_fn: InputFn,
        steps: int | None,
        max_steps: int | None,
        hooks: Sequence[Hook],
        evaluate: Callable[[], dict[str, float]],
    ) -> None:
        if steps is not None and max_steps is not None:
            raise ValueError("give steps (more) or max_steps (in all), not both")
        with ExitStack() as stack:
            curves = self._start(stack)
            batches = self._from_where_it_stopped(input_fn, ModeKeys.TRAIN)
            stop = max_steps if steps is None else self.step + steps
            hooks = list(hooks)
            begun, saved = False, None
            while stop is None or self.step < stop:
                batch = next(batches, None)
                if batch is None:  # all of it was trained: another call begins anew
                    self._batch = 0
                    break
                spec, _ = self._call(batch, ModeKeys.TRAIN)
                if not begun:
                    hooks += [*spec.training_hooks]
                    hooks += spec.training_chief_hooks if self.world.is_main else ()
                    for hook in hooks:
                        hook.begin()
                    begun = True
                loss = self._step(_train_op(spec).loss)
                self.step, self._batch = self.step + 1, self._batch + 1
                if self.step % self.config.log_step_count_steps == 0:
                    log.info("step %d: loss %.6f", self.step, loss)
                if curves is not None and self.step % self.config.save_summary_steps == 0:
                    curves.epoch({"epoch": self.step, "loss": loss})
                ended = [hook.after_run(self.step, loss) for hook in hooks]
                if self.step % self.config.save_checkpoints_steps == 0:
                    saved = self._save(loss, evaluate(), curves)
                vote = torch.tensor([float(any(ended))], device=self.world.device)
                if float(self.world.all_reduce(vote)) > 0:  # one process is enough
                    break
            for hook in hooks if begun else ():
                hook.end()
            if begun and saved != (self.step, self._batch):
                # Where the input ended with a step that was saved, the checkpoint must record that.
                is_new = saved is None or saved[0] != self.step
                self._save(loss, evaluate() if is_new else {}, curves)
            elif not begun:  # it was trained before
                evaluate()

    def _step(self, loss: Tensor) -> float:
        """One step; the loss of the global batch."""
        if self._optimizer is None:
            raise RuntimeError("the model was opened for use alone; train with a new strategy")
        self.modules.train()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return self.loop.mean(loss)

    def _start(self, stack: ExitStack) -> Trackers | None:
        if not self.world.is_main:
            start_logging("info", self.world.rank)
            return None
        self.folder.path.mkdir(parents=True, exist_ok=True)
        stack.enter_context(self.folder.locked())
        start_logging("info", 0, self.folder.path / "train.log")
        if not self.config.tensorboard:
            return None
        curves = stack.enter_context(Trackers(["tensorboard"]))
        curves.begin({}, self.folder.path)
        return curves

    def _from_where_it_stopped(self, input_fn: InputFn, mode: Mode) -> Iterator[Any]:
        """The batches that come next: those that the checkpoint has seen are passed over."""
        batches = iter(input_fn())
        first = next(batches, None)
        if first is None:
            raise ValueError("input_fn gives no batches")
        self._build(first, mode)
        return islice(chain([first], batches), self._batch, None)

    def _save(
        self, loss: float, metrics: dict[str, float], curves: Trackers | None
    ) -> tuple[int, int]:
        keep = self.config.keep_checkpoint_max
        state = {"step": self.step, "batch": self._batch}
        self.loop.save(self.folder.checkpoints, self.modules, keep=keep, **state)
        if curves is not None and metrics:
            curves.epoch({"epoch": self.step, "loss": loss, "valid": metrics})
        return self.step, self._batch

    # ---- using ----------------------------------------------------------------------------------

    def evaluate(
        self, input_fn: InputFn, steps: int | None = None, name: str | None = None
    ) -> dict[str, float]:
        """Metrics of what input_fn gives, equal for every number of processes."""
        evaluation = Evaluation(self.world)
        for spec, size in self._run(input_fn, steps, ModeKeys.EVAL):
            evaluation.add(spec, size)
        metrics = {**evaluation.result(), "global_step": self.step}
        shown = ", ".join(f"{key} {value:.6g}" for key, value in metrics.items())
        log.info("evaluation%s: %s", f" {name}" if name else "", shown)
        return metrics

    def predict(self, input_fn: InputFn) -> Iterator[dict[str, Tensor]]:
        """The predictions of every sample, in order, on every process."""
        for spec, _ in self._run(input_fn, None, ModeKeys.PREDICT):
            predictions = spec.predictions
            if predictions is None:
                raise ValueError("model_fn gave no predictions for mode infer")
            named = (
                predictions if isinstance(predictions, Mapping) else {"predictions": predictions}
            )
            whole = {key: self.world.all_gather(one.contiguous()) for key, one in named.items()}
            for number in range(len(next(iter(whole.values())))):
                yield {key: one[number] for key, one in whole.items()}

    def export_saved_model(
        self,
        folder: str | Path,
        input_receiver: Callable[[], Any],
        output: str | None = None,
        rows: Kind = "float32",
    ) -> Path:
        """Export what model_fn predicts into a new folder, named by the time, inside `folder`; its
        path.

        input_receiver: gives features such as those of a request, a few samples of them. output:
        which of several predictions. All processes call it.
        """
        from shoal.compat.estimator.export import export_module, named

        features, had_names = named(tensors(input_receiver(), self.world.device))
        self._build(features if had_names else features["input"], ModeKeys.PREDICT)

        def answer(inputs: dict[str, Tensor]) -> Tensor:
            with self.loop.entered():
                spec = self.model_fn(
                    features=inputs if had_names else inputs["input"],
                    labels=None,
                    mode=ModeKeys.PREDICT,
                    params=self.params,
                )
            return _prediction(spec, output)

        return export_module(
            self.loop, folder, self.modules, answer, features, rows, step=self.step
        )

    def _run(
        self, input_fn: InputFn, steps: int | None, mode: Mode
    ) -> Iterator[tuple[EstimatorSpec, int]]:
        for batch in islice(input_fn(), steps):
            self._build(batch, mode)
            self.modules.eval()
            try:
                with torch.no_grad():
                    spec, size = self._call(batch, mode)
            finally:
                self.modules.train()
            yield spec, size


def _prediction(spec: EstimatorSpec, output: str | None) -> Tensor:
    """The one prediction that is exported."""
    predictions = spec.predictions
    if predictions is None:
        raise ValueError("model_fn gave no predictions for mode infer: there is nothing to export")
    if isinstance(predictions, Tensor):
        return predictions
    if output is None and len(predictions) == 1:
        return next(iter(predictions.values()))
    if output is None or output not in predictions:
        names = ", ".join(predictions)
        raise ValueError(
            f"model_fn predicts {names}; name the one to export: output={next(iter(predictions))!r}"
        )
    return predictions[output]


def _train_op(spec: EstimatorSpec) -> TrainOp:
    if spec.train_op is None:
        raise ValueError(
            "model_fn gave no train_op for mode train: train_op=strategy.minimize(loss, "
            "functools.partial(torch.optim.Adagrad, lr=0.1))"
        )
    return spec.train_op


def _run_config(settings: RunConfig | Mapping[str, Any] | None) -> RunConfig:
    if isinstance(settings, RunConfig):
        return settings
    fields = RunConfig.__dataclass_fields__
    for key in settings or {}:
        if key not in fields:
            raise ValueError(
                f"config has no {key!r}; it has {', '.join(fields)}{did_you_mean(key, fields)}"
            )
    return RunConfig(**(settings or {}))

"""Evaluation: sums over the samples of an Estimator's evaluation, merged over the processes."""

from __future__ import annotations

import torch
from torch import Tensor

from shoal.compat.estimator.specs import EstimatorSpec
from shoal.config.errors import did_you_mean
from shoal.distributed.world import World
from shoal.training.metrics import METRICS, MetricSet, Valued


class Evaluation:
    """The loss and the metrics of all batches, whoever had which samples."""

    def __init__(self, world: World):
        self.world = world
        self._sums: dict[str, Tensor] = {}  # name -> sum and number of samples
        self._sets: dict[str, MetricSet] = {}

    def add(self, spec: EstimatorSpec, size: int) -> None:
        """One slice of `size` samples."""
        if spec.loss is not None:
            mean = spec.loss.detach().double().cpu()
            self._count("loss", mean * size if size else torch.zeros(()).double(), size)
        for name, metric in spec.eval_metric_ops.items():
            if isinstance(metric, tuple):
                self._measure(name, *metric)
            else:
                self._count(name, metric.detach().double().sum().cpu(), len(metric))

    def _count(self, name: str, total: Tensor, size: int) -> None:
        both = torch.stack([total.double(), torch.tensor(float(size)).double()])
        self._sums[name] = self._sums[name] + both if name in self._sums else both

    def _measure(self, name: str, scores: Tensor, labels: Tensor) -> None:
        if name not in METRICS or METRICS[name].needs != "valued":
            names = [key for key, one in METRICS.items() if one.needs == "valued"]
            raise ValueError(
                f"eval_metric_ops[{name!r}] is a pair (scores, labels), which the metrics "
                f"{', '.join(names)} take{did_you_mean(name, names)}"
            )
        if name not in self._sets:
            self._sets[name] = MetricSet([name], [1], 1, torch.zeros(1))
        users = torch.zeros(len(scores), dtype=torch.int64)
        self._sets[name].update(
            Valued(users, scores.detach().double().cpu(), labels.detach().double().cpu())
        )

    def result(self) -> dict[str, float]:
        """Name -> value, equal on every process."""
        results = {}
        for name, both in self._sums.items():
            total, count = self.world.all_reduce(both.to(self.world.device)).tolist()
            if not count:
                raise ValueError("there are no samples to evaluate on: input_fn gives none")
            results[name] = total / count
        for name, metrics in self._sets.items():
            metrics.reduce(self.world)
            results[name] = next(iter(metrics.compute("what input_fn gives").values()))
        return results

"""ClickEvaluator: exact metrics of predicted clicks, the same for every number of ranks.

Samples are cut into tiles of a fixed size. What a tile's predictions are does not depend on who
makes them nor on what else is predicted, and metrics merge as states, never as results.
"""

import logging
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shoal.clicks import ClickReader
from shoal.config.schema import DataSection, EvalSection
from shoal.data.batch import Batch, Jagged
from shoal.data.dataset import Split
from shoal.data.features import Label
from shoal.distributed.world import World
from shoal.models.base import ClickModel, Model
from shoal.training.evaluation.leakage import LeakageCheck
from shoal.training.metrics import MetricSet, Valued

log = logging.getLogger("shoal")

TILE_ROWS = 1 << 14  # fewer at a time would cost more in calls than in arithmetic


def predicted(logits: Tensor, losses: Sequence[str] = ()) -> Tensor:
    """Predictions from log odds: probabilities; for a label with squared loss the number itself.

    logits: [b], or [b, labels], with the loss of each. In double: a float32 probability would tie
    predictions that differ.
    """
    logits = logits.double().cpu()
    values = torch.sigmoid(logits)
    shape = len(logits), len(losses)
    for column, loss in enumerate(losses):
        if loss == "squared":
            values.view(shape)[:, column] = logits.view(shape)[:, column]
    return values


def base_of(share: float, metrics: Container[str]) -> dict[str, float]:
    """The share of clicks, and the metrics of always predicting it; none where labels are others.

    >>> base_of(0.5, ["auc", "logloss", "gauc"])
    {'clicks': 0.5, 'auc': 0.5, 'logloss': 0.6931471805599453}
    """
    chosen = [name for name in ("auc", "logloss") if name in metrics]
    if not chosen or not 0 < share < 1:
        return {}
    loss = -share * math.log(share) - (1 - share) * math.log(1 - share)
    base_values = {"auc": 0.5, "logloss": loss}
    return {"clicks": share} | {name: base_values[name] for name in chosen}


def base_line(base: Mapping[str, float], test: Mapping[str, float], samples: int) -> str:
    """A line for the log: the metrics of a constant prediction, and whether the model is better.

    samples: those that were tested.

    >>> base_line({"clicks": 0.5, "auc": 0.5}, {"auc": 0.61}, 10_000)
    '0.5000 of the test samples are clicks; always predicting that: auc 0.5000'
    """
    values = ", ".join(f"{name} {value:.4f}" for name, value in base.items() if name != "clicks")
    line = f"{base['clicks']:.4f} of the test samples are clicks; always predicting that: {values}"
    chance = chance_of_auc(base["clicks"], samples)
    if "auc" in base and test["auc"] <= 0.5 + chance:
        return (
            f"{line}. The model has auc {test['auc']:.4f}, and on {samples:,} samples chance alone "
            f"gives up to {0.5 + chance:.4f}: it is not shown to know anything about clicks. More "
            "rows may help, or columns that say more about them"
        )
    if "logloss" in base and test["logloss"] > base["logloss"]:
        return (
            f"{line}. The model has logloss {test['logloss']:.4f}, which is worse: its order is of "
            "use, its probabilities are not; eval.valid_metric=LogLoss chooses the epoch by them"
        )
    return line


def chance_of_auc(share: float, samples: int) -> float:
    """How far above 0.5 the AUC of random predictions may come: three standard errors.

    share: of clicks among the samples, neither 0 nor 1.

    >>> round(chance_of_auc(0.3, 4000), 3), round(chance_of_auc(0.5, 10**6), 4)
    (0.03, 0.0017)
    """
    clicks = share * samples
    return 3 * math.sqrt((samples + 1) / (12 * clicks * (samples - clicks)))


class ClickEvaluator:
    """Evaluates a click model on the valid and test phases.

    readers: phase -> reader made with tile=TILE_ROWS. group: what GAUC groups by: the slot whose
    first id counts, or a field of the batch with one id each; or None. sources: phase -> where its
    samples come from, for errors. labels: their names, where there are several. leakage: what
    checks features alone; None: nothing does.
    """

    def __init__(
        self,
        readers: Mapping[str, ClickReader],
        section: EvalSection,
        world: World,
        group: int | str | None = None,
        sources: Mapping[str, str] | None = None,
        labels: Sequence[Label] = (),
        leakage: LeakageCheck | None = None,
    ):
        self.readers = readers
        self.section = section
        self.world = world
        self.group = group
        self.sources, self.labels, self.leakage = sources or {}, labels, leakage
        # Of the phase that was evaluated last.
        self.auc: float | None = None
        self.values: dict[str, float] = {}
        self.num_samples = 0
        # As of Evaluator: clicks are predicted, and no user has a list.
        self.results = None
        self.base: dict[str, float] = {}  # of the phase that was evaluated last

    def check_features(self) -> list[str]:
        """A warning for each feature that predicts the label too well by itself."""
        is_checked = self.leakage is not None and self.world.is_main and self.has("valid")
        return self.leakage.run() if self.leakage is not None and is_checked else []

    def extra_results(self) -> dict[str, Any]:
        """Extra results of the last test: a constant prediction and single features."""
        figures = {} if self.leakage is None else self.leakage.figures(self.auc)
        result = {"base": self.base, "single_features": figures}
        return {key: value for key, value in result.items() if value}

    def leave(self, folder: Path, section: DataSection) -> dict[str, Any]:
        """After a test: log extra results and return them; writes nothing into the folder."""
        if self.base:
            log.info("%s", base_line(self.base, self.values, self.num_samples))
        if self.leakage is not None and self.auc is not None:
            for line in self.leakage.compare(self.auc):
                log.warning("%s", line)
        return self.extra_results()

    def has(self, phase: Split) -> bool:
        """Whether a phase has samples, as far as that is known before they are read."""
        return phase in self.readers and self.readers[phase].known_samples != 0

    def check(self, phases: Iterable[Split]) -> None:
        """Refuse phases without samples, as far as that is known before they are read."""
        for phase in phases:
            if phase not in self.readers:
                raise ValueError(
                    f"there are no {phase} files to evaluate on; name them with data.clicks.valid "
                    "or data.clicks.test, or set train.eval_every=0"
                )
            if not self.has(phase):
                raise self._empty(phase)

    def evaluate(
        self,
        model: Model,
        phase: Split,
        progress: Callable[[Iterator[Any], Any], Iterator[Any]] = lambda steps, total: steps,
        keep: bool = False,
    ) -> dict[str, float]:
        """Metric name -> value, equal on every rank."""
        assert isinstance(model, ClickModel), "build gives click logs to click models alone"
        self.check([phase])
        reader = self.readers[phase]
        metrics = [self._metrics(k) for k in range(max(1, len(self.labels)))]
        clicked = torch.zeros(2, dtype=torch.float64)  # clicks, and samples
        was_training = model.training
        model.eval()
        # Every rank makes as many steps, with empty tiles at the end: a pull may be a collective.
        batches = reader.batches(0, self.world.rank, self.world.size)
        with torch.inference_mode():
            for batch in progress(batches, reader.num_tiles(self.world.size)):
                logits = model.logits(batch.to(self.world.device))
                values = predicted(logits, [metric_set.loss for metric_set in self.labels])
                labels = self._update(metrics, self._groups(batch, reader), values, batch)
                clicked += torch.stack([labels.double().sum().cpu(), torch.tensor(batch.size)])
        model.train(was_training)
        for metric_set in metrics:
            metric_set.reduce(self.world)
        if metrics[0].num_rows == 0:  # what a program or a reader of the user's gives: known now
            raise self._empty(phase)
        clicks, rows = self.world.all_reduce(clicked.to(self.world.device)).tolist()
        source = self.sources.get(phase, f"the {phase} log")
        result = metrics[0].compute(source)
        self.base = base_of(clicks / rows, result)
        self.auc, self.values, self.num_samples = result.get("auc"), result, int(rows)
        if len(metrics) > 1:  # of several labels the first has the plain names too
            for label, metric_set in zip(self.labels, metrics):
                result |= {
                    f"{key}_{label.name}": v for key, v in metric_set.compute(source).items()
                }
        return result

    def _metrics(self, label: int) -> MetricSet:
        """Metrics of one label; further labels that are any number get their errors only."""
        names = self.section.metric_names
        if label > 0 and self.labels[label].loss == "squared":
            names = [name for name in names if name in ("MAE", "RMSE")] or ["RMSE"]
        return MetricSet(names, self.section.topk or [1], 1, torch.zeros(1))

    def _update(
        self, metrics: list[MetricSet], groups: Tensor, values: Tensor, batch: Batch
    ) -> Tensor:
        """Update metrics with a tile; returns the labels of the first metric set."""
        assert batch.labels is not None
        by_label = [
            tensor.view(batch.size, len(metrics)).unbind(1) for tensor in (values, batch.labels)
        ]
        for metric_set, label_values, labels in zip(metrics, *by_label):
            metric_set.update(Valued(groups, label_values, labels))
        return by_label[1][0]

    def _empty(self, phase: str) -> ValueError:
        return ValueError(
            f"there are no samples to evaluate on in phase {phase}: "
            f"{self.sources.get(phase, f'the {phase} log')} gives none; name files that have some, "
            "or set train.eval_every=0"
        )

    def _groups(self, batch: Batch, reader: ClickReader) -> Tensor:
        """The groups of GAUC, int64 [b]."""
        if self.group is None:
            return torch.zeros(batch.size, dtype=torch.int64)
        if isinstance(self.group, str):
            return batch.tensor(self.group)
        num_slots = len(reader.layout.slots)
        ids = batch.ids["slots"]
        if isinstance(ids, Jagged):
            return ids.values[ids.offsets[self.group : -1 : num_slots]]
        return ids[:, self.group]

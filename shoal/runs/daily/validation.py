"""Progressive validation: how well what was known foretells the new data, before it is seen."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shoal.data.dataset import Dataset
from shoal.training.evaluation import Evaluator
from shoal.training.trainer import Trainer
from shoal.world.durable import replace_durably

log = logging.getLogger("shoal")
FILE = "before.json"  # in a run's folder: a run that is resumed cannot find it out again


def validate_first(trainer: Trainer, dataset: Any) -> dict[str, float]:
    """Metrics of a model that goes on, on the new data's valid split; or on all of the new data."""
    config, evaluator = trainer.config, trainer.evaluator
    if config.start.run is None or not (config.train.eval_every or config.start.test_first):
        return {}
    # (With start.test_first the valid files of a click log are those that it trains on.)
    if config.start.test_first and isinstance(evaluator, Evaluator):
        none = np.zeros(0, np.int64)
        assert isinstance(dataset, Dataset)
        every = np.sort(np.concatenate(list(dataset.splits.values())))
        unseen = replace(dataset, splits={"train": none, "valid": every, "test": none})
        how = (config.eval, trainer.world, config.run.seed, config.data.max_len)
        evaluator = Evaluator(unseen, *how, evaluator.sequential, evaluator.timed)
    evaluator.check(["valid"])
    values = evaluator.evaluate(trainer.model, "valid")
    log.info("before training: %s", values)
    return values


def keep_before(folder: Path, before: dict[str, float]) -> dict[str, float]:
    """Leave the metrics in a run's folder; where there are none, those that it has."""
    if before:
        replace_durably(folder / FILE, json.dumps(before).encode())
        return before
    try:
        found = json.loads((folder / FILE).read_text())
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError, RecursionError):
        return {}

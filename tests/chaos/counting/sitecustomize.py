"""In every process of a trial: the samples of each training step are written down.

Python imports this by itself where PYTHONPATH has its folder. A record is epoch, step, number of
samples, then user and item of each; a file per process, in the folder SHOAL_CHAOS_COUNTS.
And the time of day jumps by as many seconds as the file SHOAL_CHAOS_CLOCK says, once it is there.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.abc import MetaPathFinder
from typing import Any

TRAINER = "shoal.training.trainer"


class Counting(MetaPathFinder):
    """Meets the trainer when it is imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != TRAINER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        load = spec.loader.exec_module

        def load_and_count(module: Any) -> None:
            load(module)
            count(module.Trainer)

        spec.loader.exec_module = load_and_count  # type: ignore[method-assign]
        return spec


def count(trainer_class: Any) -> None:
    """Let every trainer write down what it trains on."""
    import numpy

    begin = trainer_class.__init__

    def begin_counting(self: Any, *given: Any, **named: Any) -> None:
        begin(self, *given, **named)
        file = os.open(
            f"{os.environ['SHOAL_CHAOS_COUNTS']}/{os.getpid()}", os.O_WRONLY | os.O_CREAT
        )
        train = self.strategy.step

        def train_and_count(parts: Any, lr: Any = None) -> Any:
            for part in parts:
                head = [self.cursor.epoch, self.cursor.step + 1, part.size]
                pairs = [part.ids["user_id"].numpy(), part.ids["item_id"].numpy()]
                os.write(file, numpy.concatenate([head, *pairs]).astype("<i8").tobytes())
            return train(parts, lr)

        self.strategy.step = train_and_count

    trainer_class.__init__ = begin_counting


def jump() -> None:
    """Let the time of day be another when a file says so."""
    import time

    right, file = time.time, os.environ["SHOAL_CHAOS_CLOCK"]

    def wrong() -> float:
        try:
            with open(file) as told:
                return right() + float(told.read() or 0)
        except OSError:
            return right()

    time.time = wrong


if "SHOAL_CHAOS_COUNTS" in os.environ:
    jump()
    sys.meta_path.insert(0, Counting())

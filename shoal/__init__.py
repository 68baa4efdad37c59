"""Shoal trains recommenders, distributed.

run                  train, evaluate and test: shoal.run(model="BPR", dataset="ml-100k", nproc=2)
fit                  the same for a frame of pandas, Polars or Arrow; Feature says what columns mean
tune                 search for the best hyper-parameters: shoal.tune("BPR", "ml-100k", trials=30)
evaluate, report     the metrics of a trained run once more; a page of a run or of several
recommend            the best items for a user of a trained run
export, load         a trained run as an artifact that needs neither config nor data, and its use;
                     Pipeline: several of them and rules, behind one file
run_rank             one rank of a run, for torch.multiprocessing.spawn
CollectiveStrategy   many processes under a PyTorch loop of your own, or an Estimator
Embedding            rows that such a loop spreads over its processes
EstimatorSpec        what a model_fn answers; ModeKeys, Hook and RunConfig go with it
TrainSpec, EvalSpec  what an Estimator trains and evaluates on
ray                  runs and scripts as ranks on a Ray cluster: shoal.ray.train, shoal.ray.launch

A model of your own is made of shoal.models.base.Model; `shoal new model NAME` writes one to begin
with. The command line is `shoal --help`, the documentation docs/ of the project.
"""

from __future__ import annotations

import os
import signal
import threading
import time

STARTED = time.perf_counter()  # for the start-up time that result.json states
__version__ = "0.2.0.dev0"

# Public name -> the module below shoal that has it. `import shoal` stays quick: torch comes in
# with the first name that is used.
_ROOMS = {
    **dict.fromkeys(("run", "run_rank"), "runs.run"),
    **dict.fromkeys(("evaluate", "recommend"), "runs.trained_run"),
    **dict.fromkeys(("fit", "Feature"), "runs.fit"),
    "report": "experiments.report",
    "export": "serving.artifact.export",
    "tune": "experiments.tuning.tune",
    "load": "serving.artifact.artifact",
    "Pipeline": "serving.pipeline.pipeline",
    "CollectiveStrategy": "compat.estimator.strategy",
    "Embedding": "loop.modules",
    **dict.fromkeys(("EstimatorSpec", "EvalSpec", "Hook"), "compat.estimator.specs"),
    **dict.fromkeys(("ModeKeys", "RunConfig", "TrainSpec"), "compat.estimator.specs"),
}
# Dialects of configs, as module:class, that are registered from the start (shoal.config.dialect).
DIALECTS = {
    "tdfo": "shoal.compat.dialects.tdfo:Tdfo",
    "paddlerec": "shoal.compat.dialects.paddlerec:PaddleRec",
    "torchrec": "shoal.compat.dialects.torchrec:TorchRec",
    "recbole": "shoal.compat.dialects.recbole:RecBole",
}
# The package whose classes are the metrics that a config can name (shoal.config.metric_classes).
METRICS = "shoal.training.metrics"
__all__ = sorted([*_ROOMS, "Interrupted", "__version__", "ray"])


class Interrupted(BaseException):
    """A signal asked the whole command to end. No Exception: nobody is to handle it on the way.

    >>> import shoal
    >>> shoal.Interrupted(15)
    Interrupted('SIGTERM')
    """

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number


def how_to_install(extra: str) -> str:
    """What to type for an extra that is missing. pip keeps the package that is installed."""
    above = os.path.dirname(os.path.dirname(__file__))
    if os.path.exists(os.path.join(above, "Makefile")):
        return f"make extras EXTRAS={extra} (in the clone)"
    return f'pip install "shoal-rec[{extra}]"'


if "SHOAL_LAUNCHER" in os.environ and threading.current_thread() is threading.main_thread():
    # A rank or a server: its launcher tells of Ctrl-C. Here, because what follows takes a while.
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))


def __getattr__(name: str):  # type: ignore[no-untyped-def]
    from importlib import import_module

    if name == "ray":
        return import_module("shoal.runs.ray_cluster")
    if name in _ROOMS:
        return getattr(import_module(f"shoal.{_ROOMS[name]}"), name)
    raise AttributeError(f"module 'shoal' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What completion offers: the public names, loaded or not."""
    return [*__all__]

"""Trained: a run that was trained, to be evaluated again and to recommend.

import shoal
shoal.evaluate("runs/BPR-ml-100k-...")["test"]
shoal.recommend("runs/BPR-ml-100k-...", user="196")
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

import shoal
from shoal.config import Resolved
from shoal.config.keys import KEYS
from shoal.config.schema import ModelSection
from shoal.config.trust import WRITES
from shoal.data.dataset import Dataset
from shoal.data.sources.files import find_files
from shoal.distributed.world import World
from shoal.kernels.topk import Pairs
from shoal.models import find
from shoal.models.base import ClickModel
from shoal.recommender.catalogue import RunCatalogue
from shoal.recommender.explanation import Explanation
from shoal.recommender.predictions import Predictor
from shoal.recommender.ranked_items import RankedItems
from shoal.recommender.recommender import NO_IDS, RankingQuestion, Recommender
from shoal.runs.announcement import describe_data, warn
from shoal.runs.build import build
from shoal.runs.results import RunResult
from shoal.runs.run import connect_as, resolve_run
from shoal.runs.vocabulary_growth import read_taken
from shoal.training.checkpoint.reading import check_fingerprint
from shoal.training.checkpoint.writing import Checkpoints, restore_into
from shoal.training.run_folder import RunFolder, start_logging

log = logging.getLogger("shoal")


NO_RULES = {key: one.default for key, one in KEYS.items() if key.startswith("rows.")}
UNWRITTEN = NO_RULES | {key: KEYS[key].default for key in WRITES}


def open_config(
    folder: str | Path,
    overrides: Sequence[str] = (),
    values: dict[str, Any] | None = None,
    trust: bool = False,
) -> Resolved:
    """The config of a run as its trained model is used: without what only training needs."""
    origin = "use of a trained run"
    # Steps are recorded for training alone, and nothing is written where training wrote.
    values = {"strategy.graph": False, "run.trackers": [], **UNWRITTEN, **(values or {})}
    resolved = resolve_run(folder, overrides, values, origin, trust)
    changed = dict(NO_RULES)  # nothing is counted, admitted or dropped
    # all of it is in the checkpoints
    changed |= {"start.run": None, "start.pretrained": {}, "start.value_decay.after": 0}
    if resolved.config.start.vocabulary is not None:
        changed["start.vocabulary"] = str(folder)
    strategy = resolved.config.strategy
    if strategy.name == "ps":  # rows are keyed by id: no servers are needed
        changed |= {"strategy.name": "auto", "launch.servers": 0}
        if strategy.ps.mode == "geo":  # its servers keep no optimizer's state
            changed |= {"train.optimizer.name": "sgd", "train.optimizer.rows": {}}
            changed["train.optimizer.tables"] = {}
    return resolved.with_values(changed, origin)


class Trained:
    """A finished (or interrupted) run, opened for evaluation and recommendation."""

    def __init__(
        self,
        folder: str | Path,
        resolved: Resolved | None = None,
        world: World | None = None,
        trust: bool = False,
    ):
        """`resolved`: the run's config as `open_config` reads it, with what is to be other."""
        self.folder = RunFolder(folder)
        self.resolved = resolved or open_config(folder, trust=trust)
        self.config = self.resolved.config
        self.world = world or World()
        self.parts = build(self.config, self.world)
        self.config = self.parts.config
        checkpoints = Checkpoints(self.folder.checkpoints, self.world)
        newest = checkpoints.load_newest()
        if newest is None:
            raise ValueError(f"{folder} has no checkpoint to load; train first")
        step = newest.state["step"]
        newest = checkpoints.load_best(newest, f"that of step {step} is used") or newest
        self.state = newest.state
        ranking = self.parts.model.options.RANKING
        saved = _for_use(self.state["fingerprint"], ranking)
        now = _for_use(self.parts.fingerprint, ranking)
        check_fingerprint(saved, now, self.folder.path, self.parts.model.options)
        restore_into(self.parts.strategy, newest)
        self.model = self.parts.model.eval()

    def evaluate(self, per_user: str | Path | None = None) -> dict[str, Any]:
        """Valid and test metrics of the best checkpoint, as result.json holds them.

        per_user: a file of Parquet to write, with the list and the values of each test user.
        """
        begun = time.perf_counter()
        evaluator = self.parts.evaluator
        valid = evaluator.evaluate(self.model, "valid")
        middle = time.perf_counter()
        test = evaluator.evaluate(self.model, "test", keep=per_user is not None)
        ended = time.perf_counter()
        if per_user is not None:
            if evaluator.results is None:
                raise ValueError(
                    "--per-user writes lists of users, and eval.metrics has no metric that ranks "
                    "items; add one, such as Recall"
                )
            if self.world.is_main:
                evaluator.results.write_users(Path(per_user))
        return {
            "model": self.config.model.title,
            "dataset": self.config.data.title,
            "protocol": self.parts.protocol,
            "world_size": self.world.size,
            "best_valid": valid,
            "test": test,
            **evaluator.extra_results(),
            "epochs": self.state["epoch"],
            "best_epoch": self.state["best_epoch"],
            "seconds": {
                "total": ended - shoal.STARTED,
                "train_epoch_median": None,
                "eval_median": (ended - begun) / 2,
                "startup": begun - shoal.STARTED,
                "valid": middle - begun,
                "test": ended - middle,
            },
        }

    def recommend(
        self, user: Any = None, topk: int = 10, history: Sequence[Any] | None = None
    ) -> RankedItems | dict[Any, RankedItems]:
        """The best items for a user, or for whoever took a history (oldest first), (item, score)
        each; of several users a dict of them, which one pass makes.

        Items already seen are left out, unless the model may recommend them again
        (eval.repeatable). Unknown users and items do not fail: the ranking's `by` and `unknown`
        report how they were answered.
        """
        return self.recommender.recommend(user, topk=topk, history=history)

    def explain(
        self, user: Any = None, item: Any = None, history: Sequence[Any] | None = None
    ) -> Explanation:
        """Why an item has its score for a user, or for a history: shares that add up to it.

        Shares are of the items that were taken, or of features where the model predicts clicks.

        >>> import shoal  # after the example of shoal.run
        >>> trained = shoal.runs.trained_run.Trained("runs/first")
        >>> item, score = trained.recommend("7", topk=1)[0]
        >>> abs(trained.explain("7", item).score - score) < 1e-3
        True
        """
        return self.recommender.explain(RankingQuestion(user, history), item)

    def predict(self, rows: Any) -> np.ndarray:
        """The probability of a click of each row of a frame or a dict of columns, as the training
        data had them: [n]; of several labels [n, labels].

        Users, items and values that training did not see are treated as their features say.
        """
        return self.predictor.predict(rows)

    @cached_property
    def predictor(self) -> Predictor:
        """Predicts clicks from raw rows."""
        model, device = self.model, self.world.device
        if not isinstance(model, ClickModel):
            raise ValueError(
                f"{self.config.model.title} ranks items: it predicts no clicks; use recommend"
            )
        losses = [label.loss for label in model.facts.labels]
        encoder = self.parts.encoder(self.config.data)
        return Predictor(encoder, lambda batch: model.logits(batch.to(device)), losses)

    @cached_property
    def types(self) -> tuple[type, type]:
        """The types of the data's user and item ids: int, float or str."""
        data = self.config.data
        pattern = (data.files or {}).get("inter", "")
        if not pattern.endswith(".parquet"):
            return str, str
        import polars as pl

        schema = pl.read_parquet_schema(find_files(pattern, data.path, "data.files.inter")[0])
        kinds = [schema[name] for name in (data.fields.user, data.fields.item)]
        user, item = (int if k.is_integer() else float if k.is_float() else str for k in kinds)
        return user, item

    @cached_property
    def recommender(self) -> Recommender:
        """Ranks the items of the data for its users."""
        evaluator = self.parts.ranking()
        if evaluator is None:
            raise ValueError(
                f"{self.config.model.title} predicts clicks of samples, not items; use `shoal eval`"
            )
        catalogue = RunCatalogue(
            self.model,
            evaluator,
            types=self.types,
            section=self.config.data,
            earlier=self.earlier,
        )
        return Recommender(catalogue)

    @cached_property
    def earlier(self) -> Pairs:
        """Users [n] and the items [n] that they took up to this run, where it went on from one."""
        dataset = self.parts.dataset
        if self.config.start.vocabulary is None or not isinstance(dataset, Dataset):
            return NO_IDS, NO_IDS
        return read_taken(self.folder.path, dataset) or (NO_IDS, NO_IDS)


def _for_use(fingerprint: dict[str, Any], ranking: Sequence[str]) -> dict[str, Any]:
    """The part of a fingerprint that a trained model needs: not how it was trained or ranks."""
    options = {k: v for k, v in fingerprint["options"].items() if k not in ranking}
    training = ["batch_size", "optimizer", "row_optimizers", "order", "shuffle", "split_over"]
    kept = {k: v for k, v in fingerprint.items() if k not in training}
    return {**kept, "options": options}


def evaluate(
    folder: str | Path,
    overrides: Sequence[str] = (),
    output: str | Path | None = None,
    values: dict[str, Any] | None = None,
    trust: bool = False,
    per_user: str | Path | None = None,
) -> RunResult:
    """Evaluate a run's best checkpoint, on one process or on the ranks the environment says.

    trust: run the code that the run's config names (a program, a reader). per_user: a file of
    Parquet to write, with the list, the hits and the values of each test user.

    >>> import shoal  # after the example of shoal.run
    >>> result = shoal.evaluate("runs/first", values={"eval.topk": [5, 10]})
    >>> result["test"]["recall@5"] <= result["test"]["recall@10"]
    True
    """
    resolved = open_config(folder, overrides, values, trust)
    return RunResult(evaluate_run(folder, resolved, output, per_user))


def evaluate_run(
    folder: str | Path,
    resolved: Resolved,
    output: str | Path | None = None,
    per_user: str | Path | None = None,
) -> dict[str, Any]:
    """Evaluate a run's best checkpoint with a config that is resolved already."""
    world = connect_as(resolved.config.run, resolved.config.launch)
    try:
        start_logging(resolved.config.run.log_level, world.rank, form=resolved.config.run.log)
        if world.is_main:  # before the work, not after it
            if output is not None:
                RunFolder(output).create(resume=True)
            if per_user is not None:
                _check_file(resolved.config.model, Path(per_user))
        trained = Trained(folder, resolved, world)
        log.info("%s", describe_data(trained.parts.dataset))
        warn(trained.parts)
        result = trained.evaluate(per_user)
        if world.is_main:
            if output is not None:
                RunFolder(output).write_result(result)
            log.info("best valid : %s", result["best_valid"])
            log.info("test result: %s", result["test"])
        return result
    finally:
        world.close()


def _check_file(model: ModelSection, file: Path) -> None:
    """Refuse a file that could not be written, or that nothing would be written to."""
    if find(model.name).kind == "clicks":
        raise ValueError(
            f"{model.title} predicts clicks: its users have no lists to write to {file}"
        )
    if file.suffix != ".parquet" or file.is_dir():
        raise ValueError(f"--per-user {file}: name a file that ends in .parquet")
    if not file.parent.is_dir():
        raise ValueError(f"--per-user {file}: there is no folder {file.parent}; make it first")


def recommend(
    folder: str | Path,
    user: Any = None,
    topk: int = 10,
    trust: bool = False,
    history: Sequence[Any] | None = None,
) -> RankedItems | dict[Any, RankedItems]:
    """The best items for a user of a trained run, for several, or for a history.

    As Trained.recommend; `trust` as in evaluate.

    >>> import shoal  # after the example of shoal.run
    >>> best = shoal.recommend("runs/first", user="7", topk=3)
    >>> len(best), best[0][1] >= best[1][1] >= best[2][1]
    (3, True)
    """
    torch.set_num_threads(os.cpu_count() or 1)
    return Trained(folder, trust=trust).recommend(user, topk, history)

"""What a log says of a run before it trains: its data, protocol, model and strategy."""

from __future__ import annotations

import logging
from typing import Any

from shoal.clicks import ClickData
from shoal.config.schema import TrainSection
from shoal.data.dataset import Dataset
from shoal.data.reader import Reader
from shoal.data.statistics import describe, find_data_warnings
from shoal.runs.parts import Parts
from shoal.training.evaluation import ClickEvaluator

log = logging.getLogger("shoal")


def describe_data(dataset: Dataset | ClickData) -> str:
    """The block of figures of a data set."""
    return dataset.describe() if isinstance(dataset, ClickData) else describe(dataset)


def warn(parts: Parts, evaluated: bool = True) -> None:
    """Log what makes the metrics of the data doubtful: on one rank, which counts it."""
    if parts.strategy.world.is_main:
        # Of clicks nothing is ranked, and no item is left out.
        is_click_model = isinstance(parts.evaluator, ClickEvaluator)
        may_repeat = parts.config.eval.repeatable is True or is_click_model
        is_ranked = not is_click_model and getattr(parts.reader, "labels", None) is None
        for warning in find_data_warnings(parts.dataset, evaluated, may_repeat, is_ranked):
            log.warning("%s", warning)
        if evaluated and isinstance(parts.evaluator, ClickEvaluator):
            for warning in parts.evaluator.check_features():
                log.warning("%s", warning)
        if _has_no_order(parts):
            log.warning(
                "%s reads items in the order of the file's rows, since there is no time, and a "
                "random part is tested; if rows stand in the order in which they happened, set "
                "data.split.order=file",
                parts.config.model.title,
            )


def _has_no_order(parts: Parts) -> bool:
    """True for a sequential model that is tested on random items: the data has no order."""
    data = parts.dataset
    is_random = parts.config.data.split.order == "random"
    is_timed = not isinstance(data, Dataset) or data.time_field is not None
    return parts.model.kind == "sequential" and is_random and not is_timed


def _batch_words(train: TrainSection, reader: Reader) -> str:
    """How large a batch is, for the log."""
    most = train.batch_tokens
    size = str(train.samples)
    return size if most is None else f"{most} items at most, about {reader.batch_size} samples"


def announce(parts: Parts) -> None:
    """The block of facts at the head of a log."""
    train = parts.config.train
    log.info("%s", describe_data(parts.dataset))
    log.info("protocol: %s", parts.protocol)
    warn(parts, bool(train.eval_every))
    for note in parts.notes:
        log.info("%s", note)
    if isinstance(parts.dataset, ClickData):
        _announce_clicks(parts)
    else:
        _announce_interactions(parts)
    tables = list(parts.strategy.tables.values())
    count = sum((table.rows or 0) * table.dim for table in tables)
    count += sum(p.numel() for p in parts.model.parameters() if p.requires_grad)
    log.info("%s\nTrainable parameters: %d", parts.model, count)
    world = parts.strategy.world
    log.info(
        "strategy %s on %d process%s (%s)",
        parts.strategy.name,
        world.size,
        "" if world.size == 1 else "es",
        world.device.type,
    )


def _announce_clicks(parts: Parts) -> None:
    """Batches and metrics of a click log."""
    config = parts.config
    order = "in the order of the files"
    if getattr(getattr(parts.reader, "inner", parts.reader), "shuffle", False):
        order = "shuffled"
    log.info("[Training]: train_batch_size = [%d] %s", config.train.samples, order)
    log.info("[Evaluation]: metrics: [%s]", ", ".join(config.eval.metrics))


def _announce_interactions(parts: Parts) -> None:
    """Batches, negatives and evaluation of interactions, in the words of RecBole's log."""
    config = parts.config
    section = config.train.negatives
    negatives = {section.distribution: section.num} if section else None
    log.info(
        "[Training]: train_batch_size = [%s] negative sampling: [%s]",
        _batch_words(config.train, parts.reader),
        negatives,
    )
    split = config.data.split
    split_arguments: dict[str, Any] = {"LS": split.leave}
    if split.by == "ratio":
        split_arguments = {"RS": split.ratio}
    arguments = {
        "group_by": split.group_by,
        "order": {"random": "RO", "time": "TO", "file": "FO"}[split.order],
        "split": split_arguments,
        "mode": config.eval.mode,
    }
    if split.at is not None:
        arguments = {"split": {"at": split.at}, "mode": config.eval.mode}
    if split.by == "sessions":
        cut = split.ratio if split.at is None else split.at
        arguments = {"split": {"sessions": cut}, "mode": config.eval.mode}
    log.info(
        "[Evaluation]: eval_batch_size = [%d] eval_args: [%s]",
        config.eval.batch_size,
        arguments,
    )

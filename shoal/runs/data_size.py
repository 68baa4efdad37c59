"""Settings that follow the size of the data: train.batch_size, train.patience, eval.valid_users.

What a config leaves to `auto`, or says in items, is decided here from counts alone: the same on
every rank, for every number of ranks and in every resumed run. No clock is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shoal.config.schema import AUTO, Config, EvalSection, TrainSection
from shoal.config.sizes import items_of

USUAL_BATCH, SMALLEST_BATCH = 2048, 64  # samples of a step
USUAL_PATIENCE = 10  # evaluations
# A sequence model that sees a user as one sample has few samples: in batches of 2,048 an epoch of
# 1,090 users is one step, and 10 evaluations without improvement are 10 steps.
FEWEST_STEPS = 32  # of an epoch, where batches are not the smallest already
FEWEST_PATIENT_STEPS = FEWEST_STEPS * USUAL_PATIENCE
# A validation ranks users x items pairs. Measured on two x86 cores, BPR of width 64: 1.2 to 2.2 ns
# a pair, 1.7 to 3 us a training interaction, so an epoch takes as long as about 1,024 pairs for
# each of its interactions. Wider vectors and longer histories make both dearer alike.
PAIRS_OF_A_ROW = 1024
FEWEST_USERS = 2048  # in a validation by a sample


@dataclass(frozen=True)
class DataSize:
    """Counts that settings are decided from."""

    samples: int  # of an epoch, as the model reads the data: interactions, windows or users
    rows: int  # training interactions
    users: int  # that the valid split has
    items: int  # that are ranked for each of them


@dataclass(frozen=True)
class SizeSettings:
    """Usual settings for data of a size."""

    batch_size: int
    patience: int
    valid_users: int | None  # None: all


def settings_for(size: DataSize, batch_size: int | str = AUTO) -> SizeSettings:
    """The settings for data of a size; batch_size: the one of the config.

    >>> settings_for(DataSize(samples=1_090, rows=50_000, users=1_090, items=3_646))
    SizeSettings(batch_size=64, patience=18, valid_users=None)
    >>> settings_for(DataSize(samples=900_000, rows=900_000, users=105_283, items=340_556))
    SizeSettings(batch_size=2048, patience=10, valid_users=2706)
    >>> windows = DataSize(samples=1_900, rows=95_000, users=943, items=1_682)
    >>> settings_for(windows, "2048 items").batch_size
    41
    """
    items = items_of(batch_size)
    if items is not None:
        batch_size = max(1, round(items * size.samples / max(1, size.rows)))
    elif not isinstance(batch_size, int):
        batch_size = USUAL_BATCH
        while batch_size > SMALLEST_BATCH and size.samples < FEWEST_STEPS * batch_size:
            batch_size //= 2
    steps = max(1, -(-size.samples // batch_size))
    patience = max(USUAL_PATIENCE, -(-FEWEST_PATIENT_STEPS // steps))
    users = max(FEWEST_USERS, size.rows * PAIRS_OF_A_ROW // max(1, size.items))
    return SizeSettings(batch_size, patience, users if users < size.users else None)


@dataclass(frozen=True)
class Decided:
    """A config without `auto` under these keys, and lines for the log about what was decided."""

    config: Config
    notes: list[str]


def decide_by_size(config: Config, size: DataSize, takes_steps: bool = True) -> Decided:
    """The config with what the size of the data decides in place of `auto` and of items.

    takes_steps: False for a model that is solved in closed form, which has no batches.
    """
    train, section = config.train, config.eval
    settings = settings_for(size, train.batch_size)
    notes, chosen = [], dict[str, Any]()
    is_open = not isinstance(train.batch_size, int)
    if is_open and takes_steps and train.batch_tokens is None:
        steps = -(-size.samples // settings.batch_size)
        chosen["train.batch_size"] = f"{settings.batch_size} ({size.samples:,} samples, "
        chosen["train.batch_size"] += f"{steps:,} steps an epoch)"
    if train.patience == AUTO and takes_steps and train.eval_every:
        chosen["train.patience"] = f"{settings.patience} evaluations"
    if chosen:
        words = ", ".join(f"{key}={value}" for key, value in chosen.items())
        notes.append(f"by the size of the data: {words}")
    valid_users = section.valid_users
    if valid_users == AUTO:
        valid_users = "all"
        if settings.valid_users is not None and config.ranks_all("valid"):
            valid_users = settings.valid_users
        if valid_users != "all" and train.eval_every:
            notes.append(
                f"validation takes {valid_users:,} of {size.users:,} users, the same every time, "
                "since all would take longer than an epoch (eval.valid_users=all takes all); the "
                "test takes all"
            )
    return Decided(_replaced(config, settings, valid_users), notes)


def decide_without_size(config: Config) -> Config:
    """The config with usual values in place of `auto`, where the samples are not counted.

    A sample is one item then, of a batch whose size is said in items.
    """
    batch_size = config.train.batch_size
    if not isinstance(batch_size, int):
        batch_size = items_of(batch_size) or USUAL_BATCH
    settings = SizeSettings(batch_size, USUAL_PATIENCE, None)
    valid_users = "all" if config.eval.valid_users == AUTO else config.eval.valid_users
    return _replaced(config, settings, valid_users)


def decided_values(train: TrainSection, evaluation: EvalSection) -> dict[str, Any]:
    """The keys that the size of the data may decide, with their values in a config's sections."""
    return {
        "train.batch_size": train.batch_size,
        "train.patience": train.patience,
        "eval.valid_users": evaluation.valid_users,
    }


def _replaced(config: Config, settings: SizeSettings, valid_users: Any) -> Config:
    train = config.train
    values = {
        "batch_size": settings.batch_size,
        "patience": settings.patience if train.patience == AUTO else train.patience,
    }
    section = config.eval.model_copy(update={"valid_users": valid_users})
    return config.model_copy(update={"train": train.model_copy(update=values), "eval": section})

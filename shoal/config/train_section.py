"""The sections `train`, `eval` and `checkpoint`: how a model is trained, judged and kept."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, model_validator, with_config
from typing_extensions import TypedDict

from shoal.config.errors import nearest
from shoal.config.section import STRICT, WRITTEN, Choices, Section
from shoal.config.sizes import ItemCount


class NegativesSection(Section):
    distribution: Literal["uniform", "popularity"] = Field(
        "uniform", description="distribution from which negatives are drawn"
    )
    num: int = Field(1, ge=1, description="negatives drawn for each positive")
    alpha: float = Field(
        1.0, ge=0, description="power of the popularity by which negatives are drawn"
    )
    dynamic: bool = Field(False, description="keep the best scored of `candidates` draws")
    candidates: int = Field(
        0, ge=0, description="dynamic: draws of which the best is kept; at least 2"
    )

    @model_validator(mode="after")
    def _enough(self) -> NegativesSection:
        if self.dynamic and self.candidates < 2:
            raise ValueError(
                f"candidates is {self.candidates}; dynamic negatives choose among at least 2"
            )
        return self


Number = Annotated[float, Field(allow_inf_nan=False)]
AUTO: Final = "auto"  # decided from the size of the data: shoal/runs/data_size.py
Auto = Literal["auto"]
Items = Annotated[str, ItemCount()]

DENSE_OPTIMIZERS = Choices(module="shoal.optimizers.dense")
ROW_OPTIMIZERS = Choices(module="shoal.optimizers.row_optimizer")


@with_config(STRICT)
class RowOptimizerOptions(TypedDict, total=False):
    """What updates rows. Ranges, and who has which: shoal/optimizers/."""

    name: Annotated[str, ROW_OPTIMIZERS]
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    weight_decay: Number
    clip: Annotated[Number | None, Field(description="largest norm of a row's gradient")]
    betas: Annotated[list[Number], Field(min_length=2, max_length=2, description="adam, adamw")]
    eps: Annotated[Number, Field(description="adam, adamw, adagrad, rowwise_adagrad, rmsprop")]
    momentum: Annotated[Number, Field(description="momentum")]
    alpha: Annotated[Number, Field(description="rmsprop")]
    initial_accumulator_value: Annotated[
        Number, Field(description="adagrad, rowwise_adagrad, ftrl")
    ]
    l1: Annotated[Number, Field(description="ftrl")]
    l2: Annotated[Number, Field(description="ftrl")]
    beta: Annotated[Number, Field(description="ftrl")]


class OptimizerSection(Section):
    name: Annotated[str, DENSE_OPTIMIZERS] = Field(
        "adam", description="what updates dense parameters, and rows unless `rows` differs"
    )
    lr: float = Field(
        1e-3,
        gt=0,
        description="learning rate of dense parameters, and of rows unless `rows` differs",
    )
    weight_decay: float = Field(
        0.0, ge=0, description="weight of the L2 penalty; decoupled for adamw"
    )
    schedule: Literal["constant", "linear", "cosine", "step", "exponential"] = Field(
        "constant", description="how the learning rate changes after warm-up"
    )
    warmup_steps: int = Field(0, ge=0, description="steps in which the learning rate rises from 0")
    decay_epochs: int = Field(25, ge=1, description="schedule step: epochs between decays")
    gamma: float = Field(
        0.1, gt=0, description="schedules step and exponential: the factor of a decay"
    )
    rows: RowOptimizerOptions = Field(
        default_factory=lambda: RowOptimizerOptions(),
        description="what updates rows, where it differs from dense parameters: name, lr, "
        "hyper-parameters",
    )
    tables: dict[str, RowOptimizerOptions] = Field(
        default_factory=dict,
        description="table -> name, lr, hyper-parameters, for that table alone",
    )


class TrainSection(Section):
    epochs: int = Field(300, ge=0, description="most passes over the training data")
    batch_size: Annotated[int, Field(ge=1)] | Auto | Items = Field(
        AUTO,
        description="samples per update, whatever the number of processes; auto: 2048, and fewer "
        "where those would be few steps an epoch; `2048 items`: as many samples as have about so "
        "many items to find, see docs/reference/models.md",
    )
    batch_tokens: int | None = Field(
        None,
        ge=1,
        description="histories: most items per update, in place of batch_size; at least three of "
        "the longest history",
    )
    shuffle: bool = Field(True, description="take samples in a new order in every epoch")
    positives: Literal["each", "by_user"] = Field(
        "each",
        description="each: every interaction once an epoch; by_user: as many samples, each a user "
        "at random and one of the user's items, so that users count alike (LightGCN's authors)",
    )
    negatives: NegativesSection | None = Field(
        default_factory=NegativesSection, description="null: none are drawn"
    )
    optimizer: OptimizerSection = Field(default_factory=OptimizerSection)
    clip_grad_norm: float | None = Field(
        None, gt=0, description="largest norm of all gradients together"
    )
    eval_every: int = Field(
        1, ge=0, description="epochs between evaluations, and always after the last one; 0: never"
    )
    patience: Annotated[int, Field(ge=0)] | Auto = Field(
        AUTO,
        description="evaluations without improvement before the end; auto: 10, and more where an "
        "epoch has few steps",
    )
    print_every: int = Field(0, ge=0, description="steps between lines about training; 0: none")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="precision of products in the dense part; parameters and sums stay float32",
    )
    accumulate: int = Field(
        1,
        ge=1,
        description="number of parts in which a batch is computed, one after the other: less "
        "memory",
    )
    compile: bool = Field(False, description="let torch.compile make the dense part faster")
    ema: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="decay of a moving average of dense parameters, which the trained model uses",
    )
    recompute: bool = Field(
        False, description="transformers: backward computes layers again: less memory, more time"
    )
    bucket: bool = Field(
        False, description="histories of like length share a batch, which is as long as the longest"
    )
    balance: bool = Field(
        False,
        description="histories: processes, and parts of accumulate, take slices of a batch that "
        "cost about the same, by items and their pairs; false: equal numbers of samples",
    )

    @property
    def samples(self) -> int:
        """batch_size, when it is decided."""
        assert isinstance(self.batch_size, int), "build() decides train.batch_size"
        return self.batch_size

    @property
    def most_stale(self) -> int:
        """patience, when it is decided."""
        assert isinstance(self.patience, int), "build() decides train.patience"
        return self.patience


MODE = re.compile(r"full|labeled|(?:uni|pop)[1-9]\d*")


def _mode(text: str) -> str:
    if MODE.fullmatch(text):
        return text
    word = text.rstrip("0123456789")
    suggestion = nearest(word, ["full", "labeled", "uni", "pop"]) or ""
    if suggestion in ("uni", "pop"):
        suggestion += text[len(word) :] or "100"
    hint = f"; did you mean {suggestion}?" if MODE.fullmatch(suggestion) else ""
    raise ValueError(f"allowed: full, labeled, uniN or popN (uni100){hint}")


def _both(mode: str | dict[str, str]) -> str | dict[str, str]:
    if isinstance(mode, dict) and len(mode) < 2:
        raise ValueError("name a mode for valid and for test, or one for both")
    return mode


Mode = Annotated[str, AfterValidator(_mode)]


def metric_title(name: str) -> str:
    """The name of a metric without the file or package of a custom one."""
    return name.rpartition(":")[2].rpartition(".")[2]


class GroupsSection(Section):
    """Columns whose values are groups, for metrics that compare them."""

    user: str | None = Field(None, description="column with the groups of users, such as gender")
    item: str | None = Field(
        None,
        description="column with the groups of items, such as genres; a cell has one or a list",
    )


class EvalSection(Section):
    mode: Annotated[Mode | dict[Literal["valid", "test"], Mode], AfterValidator(_both)] = Field(
        "full",
        description="items that are ranked: full, uniN, popN or labeled; one for both splits or "
        "one each",
    )
    metrics: list[str] = Field(
        ["Recall", "MRR", "NDCG", "Hit", "Precision"],
        min_length=1,
        description="names of metrics, see docs/reference/metrics.md; your own: FILE.py:Class",
    )
    topk: list[Annotated[int, Field(ge=1)]] = Field(
        [10], description="cut-offs of the ranking metrics"
    )
    valid_metric: str = Field(
        "MRR",
        description="metric that decides on the best checkpoint and on early stopping; without "
        "@K: at 10, "
        "or at the first of eval.topk",
    )
    batch_size: int = Field(4096, ge=1, description="users (or rows) handled at a time")
    valid_users: Annotated[int, Field(ge=1)] | Literal["auto", "all"] = Field(
        AUTO,
        description="users of the valid split that are evaluated, drawn once; auto: all, or a "
        "sample where all would take longer than an epoch, see docs/reference/metrics.md",
    )
    decimals: int = Field(4, ge=0, description="decimals of metrics in the log")
    repeatable: bool | Literal["auto"] = Field(
        "auto",
        description="items of the history may be recommended again; auto: where users of the data "
        "take items again",
    )
    tail_ratio: float = Field(0.1, gt=0, description="share of items counted as the tail")
    groups: GroupsSection = Field(default_factory=GroupsSection)
    per_user: bool = Field(
        True,
        description="write evaluation/users.parquet and items.parquet: recommended lists, hits "
        "and values of each user of the test split",
    )

    @property
    def metric_names(self) -> list[str]:
        """The metrics, without the file or package of custom ones."""
        return [metric_title(name) for name in self.metrics]


class CheckpointSection(Section):
    keep: int = Field(
        2, ge=1, description="how many of the newest checkpoints are kept, besides the best one"
    )
    every_epochs: int = Field(1, ge=1, description="epochs between checkpoints")
    every_steps: int = Field(
        0, ge=0, description="steps between checkpoints within an epoch; 0: none"
    )
    whole_every: int = Field(
        1,
        ge=1,
        le=100,
        description="every so many checkpoints one is whole; the ones between hold changed rows "
        "only",
    )
    copy_to: Annotated[str | None, WRITTEN] = Field(
        None,
        description="URL of an object store (s3://, gs://, ...) that gets a copy of every "
        "checkpoint",
    )

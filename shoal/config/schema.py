"""The config, typed and strict. Each section is a class; its defaults are the documentation.

The options of a model stand beside the model (a dataclass `Options` in its file); here the section
`model` only keeps them as given.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Required

from pydantic import BeforeValidator, ConfigDict, Field
from typing_extensions import TypedDict

from shoal.config.features import FeatureOptions, LabelOptions
from shoal.config.row_rules import RowsSection
from shoal.config.section import Section

MOST_ROWS = 1 << 40  # of a table or a data set: what its bytes are counted in must not overflow
MOST_COLUMNS = 1 << 16  # of a click log


CLICK_FORMATS = ("slots", "criteo", "planted_clicks")  # csv and parquet hold either
GENERATED_CLICKS = ("clicks", "planted", "planted_clicks")  # names that need no files


class ModelSection(Section):
    name: str = Field("BPR", description="as `shoal models` lists them; of your own: FILE.py:Class")
    options: dict[str, Any] = Field(
        default_factory=dict, description="the model's own options; written model.KEY in a config"
    )

    @property
    def title(self) -> str:
        """The name without the file or package that a model of one's own stands in."""
        return self.name.rpartition(":")[2]


class FieldsSection(Section):
    user: str = "user_id"
    item: str = "item_id"
    rating: str = "rating"
    time: str = "timestamp"
    label: str = "label"


class PlantedSection(Section):
    """The generated data set: latent taste, power-law popularity, drift over time."""

    users: int = Field(943, ge=2, le=MOST_ROWS)
    items: int = Field(1682, ge=2, le=MOST_ROWS)
    interactions: int = Field(100_000, ge=2, le=MOST_ROWS)
    factors: int = Field(8, ge=1, description="dimensions of the planted taste")
    strength: float = Field(4.0, ge=0, description="0: taste is ignored, popularity alone decides")
    drift: float = Field(0.3, ge=0, description="how far a user's taste wanders from first to last")
    popularity: float = Field(0.8, ge=0, description="exponent of the items' power law")
    item_features: int = Field(
        0, ge=0, le=64, description="columns that tell what an item is; 0: nothing tells"
    )
    new_items: float = Field(
        0.0, ge=0, le=0.4, description="share of items that come only in the last eighth of a user"
    )
    seed: int = 7


class RandomSection(Section):
    """The other generated data set: users and items drawn uniformly, to measure speed with."""

    users: int = Field(10, ge=1, le=MOST_ROWS)
    items: int = Field(30, ge=1, le=MOST_ROWS)
    interactions: int = Field(300, ge=1, le=MOST_ROWS)
    seed: int = 7


class PlantedClicksSection(Section):
    """The generated click log: a planted logistic model, so that the best possible AUC is known."""

    samples: int = Field(
        50_000, ge=10, le=MOST_ROWS, description="rows to train on; a tenth more for each test"
    )
    slots: int = Field(8, ge=1, le=MOST_COLUMNS)
    ids_per_slot: int = Field(1000, ge=1, le=MOST_ROWS)
    dense: int = Field(4, ge=0, le=MOST_COLUMNS)
    popularity: float = Field(1.05, ge=0, description="exponent of the ids' power law")
    strength: float = Field(1.0, ge=0, description="0: clicks do not depend on anything")
    seed: int = 7


class ClicksSection(Section):
    """Click logs: labelled samples with slots of ids and dense values, in any number of files."""

    train: str | None = Field(None, description="a file, a folder or a pattern; sorted by name")
    valid: str | None = Field(None, description="likewise; null: the test files")
    test: str | None = Field(None, description="likewise; null: the valid files, or none")
    reader: Literal["memory", "stream", "custom"] = Field(
        "memory", description="load and shuffle all, or read on; or your own reader"
    )
    custom: str | None = Field(None, description="reader custom: FILE.py[:CLASS]")
    pipe_command: str | None = Field(
        None, description="a program: raw lines on its stdin, lines of slots on its stdout"
    )
    split_files: bool = Field(
        False, description="a worker reads its share of the files, not its share of each batch"
    )
    slots: list[str] | Annotated[int, Field(ge=0, le=MOST_COLUMNS)] | None = Field(
        None, description="slots (columns) with ids, by name or number; null: those of the format"
    )
    dense: list[str] | Annotated[int, Field(ge=0, le=MOST_COLUMNS)] | None = Field(
        None, description="dense values likewise"
    )
    label: str | None = Field(None, description="the label's name; null: that of the format")
    group: str | None = Field(None, description="the slot that GAUC groups by")
    rows: int | None = Field(
        None, ge=1, le=MOST_ROWS, description="ids are folded below this number; null: tables grow"
    )
    threads: int = Field(1, ge=1, description="threads of a worker that parse")
    profile: bool = Field(False, description="log the reader's own speed after every epoch")
    planted: PlantedClicksSection = Field(default_factory=PlantedClicksSection)


class SplitSection(Section):
    by: Literal["ratio", "leave_one_out"] = "ratio"
    ratio: list[float] = Field([0.8, 0.1, 0.1], min_length=3, max_length=3)
    leave: Literal["valid_and_test", "valid_only", "test_only"] = "valid_and_test"
    order: Literal["random", "time", "file"] = Field(
        "random", description="file: as the rows stand, where there is no time"
    )
    group_by: Literal["user", "none"] = "user"


class FilterSection(Section):
    values: dict[str, str] = Field(
        default_factory=dict, description='float field -> intervals, e.g. {rating: "[3,inf)"}'
    )
    user_inter_num: str = Field("[0,inf)", description="keep users with so many interactions")
    item_inter_num: str = Field("[0,inf)", description="keep items with so many interactions")
    by_user_or_item: bool = Field(
        True, description="drop interactions of users and items absent from .user / .item files"
    )
    duplicates: Literal["first", "last"] | None = Field(
        None, description="of repeated (user, item) pairs keep this one; null keeps all"
    )


class DataSection(Section):
    name: str = Field(
        "planted", description="data set: `planted`, `random`, or a folder under data.path"
    )
    path: str = Field("dataset", description="folder that holds data sets: PATH/NAME/NAME.inter")
    format: Literal[
        "auto",
        "atomic",
        "movielens",
        "prepared",
        "planted",
        "random",
        "planted_clicks",
        "slots",
        "criteo",
        "csv",
        "parquet",
        "arrow",
        "jsonl",
    ] = "auto"
    files: dict[str, str] | None = Field(
        None,
        description="tables of one's own: inter (or train, valid and test), user, item -> a file, "
        "a folder or a pattern",
    )
    encoding: str = Field("utf-8", description="of csv and JSON lines")
    quote: str | None = Field('"', description="what quotes cells of csv; null: nothing")
    bad_rows: Literal["error", "skip"] = Field(
        "error",
        description="csv, JSON lines: rows that cannot be read end the run, or are left out",
    )
    clicks: ClicksSection = Field(default_factory=ClicksSection)
    planted: PlantedSection = Field(default_factory=PlantedSection)
    random: RandomSection = Field(default_factory=RandomSection)
    fields: FieldsSection = Field(default_factory=FieldsSection)
    separator: str = "\t"
    seq_separator: str = " "
    load: dict[str, list[str]] | None = Field(
        None, description="file suffix -> columns to load; null loads all of .inter"
    )
    unload: dict[str, list[str]] | None = None
    extra_suffixes: list[str] = Field(default_factory=list, description="further files to load")
    filter: FilterSection = Field(default_factory=FilterSection)
    threshold: dict[str, float] | None = Field(
        None, description="field -> value; at or above it the label is 1"
    )
    normalize: list[str] | Literal["all"] = Field(
        default_factory=list, description="float fields scaled to [0, 1]"
    )
    features: dict[str, FeatureOptions] | None = Field(
        None, description="name -> what it is, exactly those; null: what the columns suggest"
    )
    labels: dict[str, LabelOptions] | None = Field(
        None, description="name -> column, loss, weight; null: the label field, logistic"
    )
    sample_weight: str | None = Field(
        None, description="the column with the weight of each sample in the loss"
    )
    presplit: list[str] | None = Field(
        None, description="three name parts: NAME.PART.inter are the train, valid and test rows"
    )
    split: SplitSection = Field(default_factory=SplitSection)
    max_len: int = Field(50, ge=1, description="items kept of a user's history")
    cache: bool = Field(True, description="keep prepared columns beside the raw files")

    @property
    def is_click_log(self) -> bool:
        """Whether a click model reads a log of samples here; else interactions with features."""
        if self.clicks.train is not None or self.format in CLICK_FORMATS:
            return True
        return self.format == "auto" and self.name in GENERATED_CLICKS


class NegativesSection(Section):
    distribution: Literal["uniform", "popularity"] = "uniform"
    num: int = Field(1, ge=1)
    alpha: float = Field(1.0, ge=0, description="popularity is raised to this power")
    dynamic: bool = Field(False, description="keep the best scored of `candidates` draws")
    candidates: int = Field(0, ge=0)


Number = Annotated[float, Field(allow_inf_nan=False)]


class RowOptimizerOptions(TypedDict, total=False):
    """What updates rows. Ranges, and who has which: shoal/embedding/optim/rows.py."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]

    name: Literal[
        "adam",
        "adamw",
        "sgd",
        "momentum",
        "adagrad",
        "rowwise_adagrad",
        "rmsprop",
        "ftrl",
        "sparse_adam",
    ]
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
    name: Literal["adam", "adamw", "sgd", "adagrad", "rmsprop", "sparse_adam"] = "adam"
    lr: float = Field(1e-3, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    schedule: Literal["constant", "linear", "cosine", "step", "exponential"] = "constant"
    warmup_steps: int = Field(0, ge=0)
    decay_epochs: int = Field(25, ge=1, description="schedule step: epochs between decays")
    gamma: float = Field(0.1, gt=0, description="schedules step and exponential: the factor")
    rows: RowOptimizerOptions = Field(
        default_factory=lambda: RowOptimizerOptions(),
        description="what updates rows, where it is not as above: name, lr, hyper-parameters",
    )
    tables: dict[str, RowOptimizerOptions] = Field(
        default_factory=dict, description="table -> likewise, for that table alone"
    )


class TrainSection(Section):
    epochs: int = Field(300, ge=0)
    batch_size: int = Field(
        2048, ge=1, description="samples per update, whatever the number of processes"
    )
    shuffle: bool = True
    negatives: NegativesSection | None = Field(default_factory=NegativesSection)
    optimizer: OptimizerSection = Field(default_factory=OptimizerSection)
    clip_grad_norm: float | None = Field(None, gt=0)
    eval_every: int = Field(1, ge=0, description="epochs between evaluations; 0: never")
    patience: int = Field(10, ge=0, description="evaluations without improvement before the end")
    print_every: int = Field(0, ge=0, description="steps between lines about training; 0: none")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="of products in the dense part; parameters and sums stay float32"
    )
    accumulate: int = Field(
        1, ge=1, description="parts that a batch is computed in, one after the other: less memory"
    )
    compile: bool = Field(False, description="let torch.compile make the dense part faster")
    ema: float | None = Field(
        None, gt=0, lt=1, description="decay of a moving average of dense parameters, which is used"
    )
    recompute: bool = Field(
        False, description="transformers: backward computes layers again: less memory, more time"
    )
    bucket: bool = Field(
        False, description="histories of like length share a batch, which is as long as the longest"
    )


class EvalSection(Section):
    mode: str | dict[Literal["valid", "test"], str] = Field(
        "full", description="full, uniN, popN or labeled; one for both phases or one each"
    )
    metrics: list[str] = Field(["Recall", "MRR", "NDCG", "Hit", "Precision"])
    topk: list[int] = Field([10])
    valid_metric: str = "MRR@10"
    batch_size: int = Field(4096, ge=1, description="users (or rows) handled at a time")
    decimals: int = Field(4, ge=0)
    repeatable: bool = Field(False, description="items of the history may be recommended again")
    tail_ratio: float = Field(0.1, gt=0, description="share of items counted as the tail")


class CheckpointSection(Section):
    keep: int = Field(2, ge=1, description="newest checkpoints kept; the best is kept too")
    every_epochs: int = Field(1, ge=1)
    every_steps: int = Field(0, ge=0, description="also within an epoch; 0: no")
    whole_every: int = Field(
        1,
        ge=1,
        le=100,
        description="of so many checkpoints one is whole; the rest hold changed rows only",
    )


Place = Literal["auto", "row", "table", "column", "replicate"]


class TablePlace(TypedDict, total=False):
    """Where one table goes; what is left out is as for all tables."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]

    place: Place
    by: Literal["hash", "range"]  # place row: how ids become ranks
    rank: int  # place table: who holds it


def _was_a_count(value: Any) -> Any:
    """Configs of old say 0 or 1 batches."""
    if type(value) is int:
        if value not in (0, 1):
            raise ValueError("it was a number of batches once, and is a switch: one batch or none")
        return bool(value)
    return value


class ServersSection(Section):
    """Strategy ps: parameter servers hold the rows, and by default the dense parameters."""

    mode: Literal["sync", "async", "geo"] = "sync"
    dense: Literal["server", "all_reduce"] = Field(
        "server", description="who keeps the dense parameters: the servers, or every worker"
    )
    geo_step: int = Field(100, ge=1, description="geo: batches between exchanges of differences")
    ahead: Annotated[bool, BeforeValidator(_was_a_count)] = Field(
        True, description="rows of the next batch are fetched while this one computes"
    )
    staleness: int = Field(
        16, ge=1, description="async: steps that a worker may be ahead of the slowest one"
    )
    addresses: list[str] = Field(
        default_factory=list,
        description="HOST:PORT or ipc://PATH of every server; `shoal launch` fills it in",
    )
    keys: str | None = Field(
        None, description="folder of `shoal keys make`: what travels is encrypted; null: plain"
    )
    plain: bool = Field(False, description="go without keys between hosts")
    bfloat16: bool = Field(False, description="rows and gradients travel in half the bytes")
    compress: bool = Field(False, description="ids and rows travel compressed")
    timeout: float = Field(10.0, gt=0, description="seconds of silence before a peer is given up")
    journal: bool = Field(
        False,
        description="servers write down what changes them: one that dies is started again alone, "
        "and workers wait for it for launch.join_timeout seconds",
    )
    restarts: int = Field(
        10, ge=0, description="journal: how often each host starts servers again that were killed"
    )


class StrategySection(Section):
    name: Literal["auto", "single", "ddp", "sharded", "ps"] = "auto"
    backend: Literal["native", "torchrec"] = Field(
        "native", description="sharded: whose code holds, sends and updates the rows"
    )
    ps: ServersSection = Field(default_factory=ServersSection)
    place: Place = Field("auto", description="sharded: how tables are cut; auto: by their size")
    row_by: Literal["hash", "range"] = Field("hash", description="place row: how ids are cut")
    tables: dict[str, TablePlace] = Field(
        default_factory=dict, description="sharded: table -> place, by, rank, for that table alone"
    )
    replicate_below: float = Field(
        0.25, ge=0, description="place auto: tables of at most so many MiB are replicated"
    )
    memory: float | None = Field(None, gt=0, description="GiB of rows a rank may hold; null: any")
    overlap: bool = Field(True, description="ids of the next batch travel during this one")
    fused: bool = Field(
        True,
        description="rows are updated where their gradients are made, which are never stored: "
        "in the softmax over a whole table of single and sharded, on a GPU by Triton kernels "
        "(Adam, single alone), on CPUs by the core; ddp writes them",
    )
    graph: bool | Literal["auto"] = Field(
        False,
        description="single on a GPU: record a step once per shape of batch and replay it; auto: "
        "where the model says that all its steps do the same work and nothing else is in the way",
    )


class LaunchSection(Section):
    nproc: int = Field(1, ge=0, description="processes on this host (0: only servers)")
    world_size: int = Field(-1, description="processes on all hosts; -1: nproc")
    ip: str = "localhost"
    port: int = Field(0, ge=0, le=65535, description="0: any free port, on one host only")
    group_offset: int = Field(0, ge=0, description="global rank of this host's first process")
    hosts: int = Field(0, ge=0, description="hosts with processes; 0: world_size / nproc")
    host: int = Field(0, ge=0, description="which of these hosts this is, when hosts is given")
    servers: int = Field(0, ge=0, description="strategy ps: servers started on this host")
    first_server: int = Field(0, ge=0, description="strategy ps: number of this host's first one")
    join_timeout: float = Field(60.0, gt=0, description="seconds to wait for all ranks")
    hang_timeout: float = Field(
        60.0, gt=0, description="seconds without any work after which a process is said to hang"
    )
    grace: float = Field(
        30.0, ge=0, description="seconds to save in after SIGTERM while training; 0: end at once"
    )
    max_restarts: int = Field(
        0, ge=0, description="how often a failed run is brought back from its last checkpoint"
    )
    min_nproc: int = Field(
        0, ge=0, description="one host: go on with fewer where one is lost, down to these; 0: never"
    )
    regrow: float = Field(
        60.0, ge=0, description="seconds until lost processes are tried again; 0: never"
    )
    secret: str | None = Field(
        None, description="several hosts: file (mode 0600) that all have; null: SHOAL_SECRET"
    )
    plain: bool = Field(False, description="several hosts: anybody on the network may join")
    encrypt: bool = Field(False, description="several hosts: encrypt what ranks send (CPUs)")
    shared_memory: bool = Field(
        True, description="processes of one host without GPUs talk through memory, not by sockets"
    )


class PretrainedOptions(TypedDict, total=False):
    """Vectors that the rows of a table begin with."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)  # type: ignore[misc]

    file: Required[str]
    frozen: bool


class DecaySection(Section):
    """What becomes of users and items that new data does not name any more."""

    after: int = Field(
        0, ge=0, description="days (runs that go on) without an interaction; 0: rows stay"
    )
    factor: float = Field(0.5, ge=0, lt=1, description="what a row is multiplied by, every day")


class StartSection(Section):
    """What training begins with, where that is not nothing."""

    run: str | None = Field(None, description="folder of a run to go on from (`--from`)")
    words: str | None = Field(None, description="folder of a run whose ids keep their numbers")
    pretrained: dict[str, str | PretrainedOptions] = Field(
        default_factory=dict,
        description="table -> FILE.npy, or {file: FILE.npy, frozen: true}: rows stay as they are; "
        "FILE.txt has the ids of its rows",
    )
    decay: DecaySection = Field(default_factory=DecaySection)
    test_first: bool = Field(
        False, description="evaluate on all of the new data before training on all of it"
    )


class RunSection(Section):
    seed: int = 2020
    output: str | None = Field(None, description="folder of the run; null: a new one under root")
    root: str = "runs"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    gpu_ids: str | None = Field(
        None, description='GPUs to use, e.g. "0,1,2,3"; null: all, "": none'
    )
    share_gpu: bool = Field(
        False,
        description="several processes may use one GPU, to compare strategies: what they send each "
        "other passes through host memory",
    )
    threads: int = Field(0, ge=0, description="threads per process; 0: cores / processes")
    tf32: bool = Field(
        False, description="matrix products on a GPU round their factors to 10 bits: much faster"
    )
    progress: bool = True
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    loss_decimals: int = Field(4, ge=0)
    tensorboard: bool = True


class Config(Section):
    """A whole run."""

    model: ModelSection = Field(default_factory=ModelSection)
    data: DataSection = Field(default_factory=DataSection)
    train: TrainSection = Field(default_factory=TrainSection)
    eval: EvalSection = Field(default_factory=EvalSection)
    rows: RowsSection = Field(default_factory=RowsSection)
    start: StartSection = Field(default_factory=StartSection)
    checkpoint: CheckpointSection = Field(default_factory=CheckpointSection)
    strategy: StrategySection = Field(default_factory=StrategySection)
    launch: LaunchSection = Field(default_factory=LaunchSection)
    run: RunSection = Field(default_factory=RunSection)

    @property
    def updates_apart(self) -> bool:
        """Whether every process makes updates of its own: batch_size is then each one's."""
        return self.strategy.name == "ps" and self.strategy.ps.mode == "async"

    def samples_per_step(self, processes: int) -> int:
        """Samples that all processes together take at a time."""
        return self.train.batch_size * (processes if self.updates_apart else 1)

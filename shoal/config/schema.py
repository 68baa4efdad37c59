"""The config, typed and strict. Each section is a class; its defaults are the documentation.

data_section.py        where samples come from
train_section.py       train, eval, checkpoint
strategy_section.py    where rows and dense parameters live; parameter servers
launch_section.py      launch, start, run
row_rules.py           rows

The options of a model stand beside the model (a dataclass `Options` in its file); here the section
`model` only keeps them as given.
"""

from typing import Any, Literal

from pydantic import Field

from shoal.config.data_section import (
    CLICK_FORMATS,
    DATASETS,
    GENERATED,
    MOST_COLUMNS,
    PREPARED,
    ClicksSection,
    DataSection,
    FilterSection,
    SplitSection,
    SyntheticClicksSection,
    SyntheticSection,
    add_format,
)
from shoal.config.launch_section import (
    ForgettingSection,
    LaunchSection,
    RunSection,
    StartSection,
)
from shoal.config.row_rules import RowsSection
from shoal.config.section import Section
from shoal.config.strategy_section import ServersSection, StrategySection
from shoal.config.train_section import (
    AUTO,
    CheckpointSection,
    EvalSection,
    NegativesSection,
    OptimizerSection,
    RowOptimizerOptions,
    TrainSection,
)

__all__ = [
    "AUTO",
    "CLICK_FORMATS",
    "DATASETS",
    "GENERATED",
    "MOST_COLUMNS",
    "PREPARED",
    "ClicksSection",
    "Config",
    "DataSection",
    "EvalSection",
    "FilterSection",
    "ForgettingSection",
    "LaunchSection",
    "ModelSection",
    "NegativesSection",
    "OptimizerSection",
    "RowOptimizerOptions",
    "Section",
    "ServersSection",
    "SplitSection",
    "StrategySection",
    "SyntheticClicksSection",
    "SyntheticSection",
    "add_format",
]


class ModelSection(Section):
    name: str = Field(
        "BPR", description="the model: a name of `shoal models`, or your own class as FILE.py:Class"
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="the model's own options; written model.KEY in a config"
    )

    @property
    def title(self) -> str:
        """The name without the file or package of a custom model."""
        return self.name.rpartition(":")[2]


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
    def per_worker_batches(self) -> bool:
        """True where every worker updates by its own batches: batch_size is then per worker."""
        return self.strategy.name == "ps" and self.strategy.ps.mode == "async"

    @property
    def elastic(self) -> bool:
        """True where workers join and leave, and servers lend them batches."""
        return self.strategy.name == "ps" and self.strategy.ps.elastic

    def samples_per_step(self, processes: int) -> int:
        """Samples that all processes together take at a time."""
        return self.train.samples * (processes if self.per_worker_batches else 1)

    def ranks_all(self, split: Literal["valid", "test"]) -> bool:
        """Whether a split ranks all items, not candidates or rows with labels."""
        mode = self.eval.mode
        return (mode if isinstance(mode, str) else mode[split]) == "full"

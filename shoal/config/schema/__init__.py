"""The config, typed and strict. Each section is a class; its defaults are the documentation.

data.py        where samples come from
train.py       train, eval, checkpoint
strategy.py    where rows and dense parameters live; parameter servers
launch.py      launch, start, run

The options of a model stand beside the model (a dataclass `Options` in its file); here the section
`model` only keeps them as given. The section `rows` stands in shoal/config/row_rules.py.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from shoal.config.row_rules import RowsSection
from shoal.config.schema.data import (
    CLICK_FORMATS,
    DATASETS,
    GENERATED,
    MOST_COLUMNS,
    MOST_ROWS,
    PREPARED,
    ClicksSection,
    DataSection,
    FieldsSection,
    FilterSection,
    PlantedClicksSection,
    PlantedSection,
    RandomSection,
    SplitSection,
    add_format,
)
from shoal.config.schema.launch import (
    DecaySection,
    LaunchSection,
    PretrainedOptions,
    RunSection,
    StartSection,
)
from shoal.config.schema.strategy import (
    ServersSection,
    StrategySection,
    TablePlace,
)
from shoal.config.schema.train import (
    CheckpointSection,
    EvalSection,
    NegativesSection,
    OptimizerSection,
    RowOptimizerOptions,
    TrainSection,
)
from shoal.config.section import Section

__all__ = [
    "CLICK_FORMATS",
    "DATASETS",
    "GENERATED",
    "MOST_COLUMNS",
    "MOST_ROWS",
    "PREPARED",
    "CheckpointSection",
    "ClicksSection",
    "Config",
    "DataSection",
    "DecaySection",
    "EvalSection",
    "FieldsSection",
    "FilterSection",
    "LaunchSection",
    "ModelSection",
    "NegativesSection",
    "OptimizerSection",
    "PlantedClicksSection",
    "PlantedSection",
    "PretrainedOptions",
    "RandomSection",
    "RowOptimizerOptions",
    "RunSection",
    "Section",
    "ServersSection",
    "SplitSection",
    "StartSection",
    "StrategySection",
    "TablePlace",
    "TrainSection",
    "add_format",
]


class ModelSection(Section):
    name: str = Field("BPR", description="as `shoal models` lists them; of your own: FILE.py:Class")
    options: dict[str, Any] = Field(
        default_factory=dict, description="the model's own options; written model.KEY in a config"
    )

    @property
    def title(self) -> str:
        """The name without the file or package that a model of one's own stands in."""
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
    def updates_apart(self) -> bool:
        """Whether every process makes updates of its own: batch_size is then each one's."""
        return self.strategy.name == "ps" and self.strategy.ps.mode == "async"

    @property
    def workers_come_and_go(self) -> bool:
        """Whether processes are no ranks, and servers lend them what they train on."""
        return self.strategy.name == "ps" and self.strategy.ps.elastic

    def samples_per_step(self, processes: int) -> int:
        """Samples that all processes together take at a time."""
        return self.train.batch_size * (processes if self.updates_apart else 1)

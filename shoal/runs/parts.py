"""The parts of a run: data set, model, strategy, reader, evaluator."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from shoal.clicks import ClickData
from shoal.clicks.encoder import FeatureEncoder, LogEncoder, encoder_of
from shoal.config.schema import Config, DataSection
from shoal.data.dataset import Dataset
from shoal.data.loading.load import with_side_files
from shoal.data.protocol import click_log_protocol, protocol_of
from shoal.data.reader import Reader
from shoal.models.base import Model
from shoal.training.evaluation import ClickEvaluator, Evaluator
from shoal.training.strategies import Strategy


@dataclass
class Parts:
    """The parts of a run."""

    dataset: Dataset | ClickData
    model: Model
    strategy: Strategy
    reader: Reader
    evaluator: Evaluator | ClickEvaluator
    fingerprint: dict[str, Any]  # must be the same for a checkpoint to fit
    config: Config  # with what the data decided in place of `auto`
    notes: list[str] = dataclasses.field(
        default_factory=list
    )  # lines for the log about what it decided

    @property
    def protocol(self) -> str:
        """One line: the tested part, the validation part and the ranked items."""
        if isinstance(self.dataset, ClickData):
            return click_log_protocol(self.dataset.sources)
        return str(protocol_of(self.config.data, self.config.eval))

    def ranking(self) -> Evaluator | None:
        """The evaluator that ranks items for users; None for click logs, which know neither."""
        if isinstance(self.evaluator, Evaluator) or not isinstance(self.dataset, Dataset):
            return self.evaluator if isinstance(self.evaluator, Evaluator) else None
        return Evaluator(
            self.dataset,
            self.config.eval,
            self.strategy.world,
            self.config.run.seed,
            self.config.data.max_len,
        )

    def encoder(self, data: DataSection) -> FeatureEncoder | LogEncoder:
        """The encoder of raw rows into samples of a click model; data: how they are read."""
        facts = self.model.facts
        if isinstance(self.dataset, ClickData):
            columns = {f.name: f.column for f in facts.features if facts.per_feature}
            return LogEncoder(self.dataset.layout, self.dataset.form, columns)
        assert facts.table is not None, "click models on interactions read features"
        data = with_side_files(data)
        return encoder_of(self.dataset, facts.table, data, is_packed(self.strategy), facts.labels)


def is_packed(strategy: Strategy) -> bool:
    """True for a model that reads the ids of all features from one table."""
    return any("slots" in embed.fields for embed in strategy.embeddings)

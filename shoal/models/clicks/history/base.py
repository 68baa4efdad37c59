"""HistoryModel: click models that read a history in the light of the candidate.

A history is a feature of kind sequence that shares its table with a feature of one id, the
candidate's: `watched: {kind: sequence, table: item_id}` beside `item_id`. With interactions it may
be made of them: what the user took before, `{kind: sequence, column: item_id, table: item_id}`.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from shoal.data.features import Feature
from shoal.models.base import Batch, ClickModel, Facts, Init, Jagged
from shoal.models.nn.mlp import Tower, begin_normal
from shoal.models.nn.transformer import HIDDEN

LENGTH = 50  # of a history whose feature has none


class HistoryReader(nn.Module):
    """(candidate [b, d], vectors [b, l, d], which of them are there: bool [b, l]) -> [b, width]."""

    width: int


class HistoryModel(ClickModel):
    """logit = tower of [vectors of the other features, interest of each history, dense].

    `reader` makes the module that reads a history.
    """

    reads_history = True
    recbole_without_effect: ClassVar[Mapping[str, str]] = {
        "pooling_mode": "data.features.NAME.pooling says it, of each feature with lists"
    }

    class Options(ClickModel.Options):
        dim: int = 16
        initial_range: float = 0.01
        layers: list[int] = field(default_factory=lambda: [200, 80])
        dropout: float = 0.0

    def __init__(self, options: Any, facts: Facts):
        super().__init__(options, facts)
        self.pairs = history_pairs(type(self).__name__, facts)
        histories = {history.name for history, _ in self.pairs}
        self.others = tuple(one for one in facts.sparse if one.name not in histories)
        self.embed = self.embeddings(options.dim, Init("uniform", options.initial_range))
        readers = [
            self.reader(history.dim or options.dim, history.length or LENGTH)
            for history, _ in self.pairs
        ]
        self.readers = nn.ModuleList(readers)
        width = sum(one.dim or options.dim for one in self.others) + facts.num_dense
        width += sum(one.width for one in readers)
        self.deep = Tower([width, *options.layers], options.dropout)

    def reader(self, dim: int, length: int) -> HistoryReader:
        """What reads a history of so many vectors of this width."""
        raise NotImplementedError  # every such model writes its own

    def logits(self, batch: Batch) -> Tensor:
        rows = self.rows(self.embed, batch, self.others)
        read = list(rows.values())
        for reader, (history, item) in zip(self.readers, self.pairs):
            length = history.length or LENGTH
            vectors = self.embed.listed(history.name, batch, length)
            read.append(reader(rows[item.name], vectors, self.there(history, batch)))
        return self.deep(torch.cat([*read, self.dense(batch)], 1))

    def there(self, history: Feature, batch: Batch) -> Tensor:
        """Which places of a history hold an item: bool [b, length]."""
        return padded_ids(batch, history.name, history.length or LENGTH) != 0


def history_pairs(model: str, facts: Facts) -> list[tuple[Feature, Feature]]:
    """Every history with the feature of the candidate."""
    pairs = []
    for history in facts.sparse if facts.per_feature else ():
        same = [f for f in facts.sparse if f.table == history.table and not f.is_list]
        if history.kind == "sequence" and same:
            pairs.append((history, same[0]))
    if not pairs:
        raise ValueError(
            f"{model} reads a history beside a candidate, and data.features has none: describe a "
            "list as {kind: sequence, table: item_id} beside item_id: {kind: id} (of interactions, "
            "column: item_id makes it what the user took before), or choose DeepFM"
        )
    return pairs


def only_history(model: str, facts: Facts, width: int) -> tuple[Feature, Feature]:
    """The one history and the feature of the candidate, of models that read items as they are."""
    (history, item), *more = history_pairs(model, facts)
    if more:
        names = ", ".join(one.name for one, _ in ((history, item), *more))
        raise ValueError(f"{model} reads one history, and data.features has {names}; keep one")
    if history.dim not in (None, width):
        raise ValueError(
            f"{model} reads items as they are, so their vectors are model.hidden_size wide: set "
            f"model.hidden_size={history.dim}, or leave out data.features.{history.name}.dim"
        )
    return history, item


def padded_ids(batch: Batch, name: str, length: int) -> Tensor:
    """The last `length` ids of every list, left-aligned, 0 pads: [b, length]."""
    ids = batch.ids[name]
    if not isinstance(ids, Jagged):  # lists of one
        ids = Jagged(ids, torch.arange(ids.shape[0] + 1, device=ids.device))
    return ids.padded(length)


class Bilinear(nn.Module):
    """Shares softmax of <h, W c> over what is there: [b, c], [b, l, d], bool [b, l] -> [b, l]."""

    def __init__(self, candidate: int, dim: int):
        super().__init__()
        self.linear = nn.Linear(candidate, dim, bias=False)
        begin_normal(self)

    def forward(self, candidate: Tensor, vectors: Tensor, there: Tensor) -> Tensor:
        scores = torch.bmm(vectors, self.linear(candidate).unsqueeze(2)).squeeze(2)
        return scores.masked_fill(~there, HIDDEN).softmax(1) * there

"""ItemFeatures: vectors of the features of any items, for models that read histories."""

from typing import Any

import torch
from torch import Tensor, nn

from shoal.embedding.module import Embeddings
from shoal.embedding.rows.bags import Pooling
from shoal.embedding.rows.table import Init, Table


class ItemFeatures(nn.Module):
    """A vector for every feature of an item but its own id: ids [...] -> [..., features, dim].

    A list of ids is pooled; a number multiplies a learned vector. Id 0 has vectors of zeros.
    """

    def __init__(
        self,
        model: str,
        facts: Any,
        dim: int,
        std: float = 0.02,
        selected: list[str] | None = None,
        pooling: Pooling | None = None,
    ):
        """selected: names of the features that are read, None: all.

        pooling: how lists of ids are pooled, None: as each feature says.
        """
        super().__init__()
        self.facts, self.dim, self.pooling = facts, dim, pooling
        self.features = [f for f in facts.of_side("item") if f.column != facts.item_field]
        if selected is not None:
            names = [feature.name for feature in self.features]
            if unknown := [name for name in selected if name not in names]:
                raise ValueError(
                    f"{model} is to read the feature {unknown[0]} of items, and the data's are "
                    f"{', '.join(names) or 'none'}; name some of these, or add it to data.load"
                )
            self.features = [f for f in self.features if f.name in selected]
        if not self.features:
            raise ValueError(
                f"{model} reads features of items and the data has none; describe some with "
                "data.features (side: item), or choose SASRec"
            )
        tables = {
            feature.name: Table(feature.table, dim, feature.rows, Init("normal", std), padding=0)
            for feature in self.features
            if feature.is_sparse
        }
        self.embed = Embeddings(tables)
        numbers = {f.name: f.width for f in self.features if not f.is_sparse}
        self.numbers = nn.ParameterDict(
            {name: torch.randn(width, dim) * std for name, width in numbers.items()}
        )

    @property
    def number(self) -> int:
        """How many features there are."""
        return len(self.features)

    def forward(self, ids: Tensor) -> Tensor:
        batch = self.facts.side("item", ids)
        vectors = []
        for feature in self.features:
            if feature.is_sparse:
                vectors.append(
                    self.embed.pooled(feature.name, batch, self.pooling or feature.pooling)
                )
            else:
                values = batch.dense[feature.name].view(batch.size, feature.width)
                vectors.append(values @ self.numbers[feature.name])
        every = torch.stack(vectors, 1)  # [ids, features, dim]
        return every.view(*ids.shape, self.number, self.dim) * (ids > 0)[..., None, None]

"""nn.Embedding whose rows are a table, so that they can be spread over processes.

    self.item_embedding = TableEmbedding("item_embedding", self.n_items, 64, padding_idx=0)
    self.item_embedding(items)     rows of ids: items.shape + [64]
    self.item_embedding.weight     all rows: [n_items, 64]

While a model is built its tables have no rows yet. `weight` then stands for them and records how
they begin: `nn.init.xavier_normal_(self.item_embedding.weight)` becomes the table's Init.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from shoal.models.base import Embeddings, Init, Table


class TableEmbedding(nn.Embedding):
    """A table with the face of nn.Embedding; its name must differ from those of other tables.

    >>> from shoal.compat.recbole import TableEmbedding
    >>> items = TableEmbedding("item", 100, 8, padding_idx=0)
    >>> _ = items.weight.data.normal_(mean=0.0, std=0.02)
    >>> items.table.init
    Init(kind='normal', scale=0.02)
    """

    def __init__(
        self, name: str, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None
    ):
        nn.Module.__init__(self)  # nn.Embedding's would make a weight
        self.num_embeddings, self.embedding_dim = int(num_embeddings), int(embedding_dim)
        self.padding_idx = padding_idx
        self.max_norm = None
        self.norm_type, self.scale_grad_by_freq, self.sparse = 2.0, False, False
        # The initial values of nn.Embedding.
        initial = Init("normal", 1.0)
        self.table = Table(name, self.embedding_dim, self.num_embeddings, initial, padding_idx)
        self.embed = Embeddings({name: self.table})

    def begin_with(self, init: Init) -> None:
        """Set the initial values, while the model is built."""
        self.table = replace(self.table, init=init)
        self.embed = Embeddings({self.table.name: self.table})

    @property
    def weight(self) -> Any:  # type: ignore[override]
        """All rows [num_embeddings, embedding_dim]; `InitialRows` while the model is built."""
        return self.embed.whole(self.table.name) if self.embed.attached else InitialRows(self)

    def forward(self, input: Tensor) -> Tensor:
        """Rows of ids: input.shape + [embedding_dim]."""
        return self.embed.rows(self.table.name, input)


class InitialRows:
    """Stands for the rows of a table that has none yet: takes their initial values."""

    def __init__(self, embedding: TableEmbedding):
        object.__setattr__(self, "_embedding", embedding)

    @property
    def shape(self) -> torch.Size:
        """Rows and columns."""
        table = self._embedding.table
        return torch.Size((table.rows, table.dim))

    @property
    def data(self) -> InitialRows:
        """Itself: code often sets initial values on `weight.data`."""
        return self

    def size(self, dim: int | None = None) -> Any:
        """As of a tensor."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """As of a tensor."""
        return 2

    ndimension = dim

    def normal_(self, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> InitialRows:
        """Rows begin with normal values."""
        if mean != 0.0:
            raise self._refusal(f"begin with normal values around {mean}", "around 0")
        return self._begin_with("normal", std)

    def uniform_(self, a: float = 0.0, b: float = 1.0, *, generator: Any = None) -> InitialRows:
        """Rows begin with uniform values."""
        if abs(a + b) > 1e-9 * abs(b):
            raise self._refusal(f"begin with uniform values in [{a}, {b}]", "in [-b, b]")
        return self._begin_with("uniform", b)

    def fill_(self, value: float) -> InitialRows:
        """Rows begin with one value."""
        return self._begin_with("constant", value)

    def zero_(self) -> InitialRows:
        """Rows begin with zeros."""
        return self.fill_(0.0)

    def __getitem__(self, index: Any) -> _PaddingRow:
        """The padding row, which is zeros."""
        row = index[0] if isinstance(index, tuple) else index
        table = self._embedding.table
        if table.padding is None or row != table.padding:
            raise self._refusal(f"give row {row} values of its own", "give padding_idx that row")
        return _PaddingRow(table.name)

    def __setitem__(self, index: Any, value: Any) -> None:
        self[index].fill_(float(value))

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "requires_grad" or not value:
            raise self._refusal(f"set {name} of its weight", "leave that line out")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"table {self._embedding.table.name!r} has no rows while the model is built, so that "
            f"weight.{name} cannot be used there; initial values are set by normal_, uniform_, "
            "fill_ or zero_, or a function of torch.nn.init that calls one of them"
        )

    def _begin_with(self, kind: Any, scale: float) -> InitialRows:
        self._embedding.begin_with(Init(kind, float(scale)))
        return self

    def _refusal(self, what: str, remedy: str) -> ValueError:
        name = self._embedding.table.name
        return ValueError(f"table {name!r} cannot {what}; {remedy}")


class _PaddingRow:
    """The padding row of a table: it reads as zeros already."""

    def __init__(self, table: str):
        self.table = table

    def fill_(self, value: float) -> None:
        """Accept zeros alone."""
        if value:
            raise ValueError(f"the padding of table {self.table!r} reads as zeros, not as {value}")

    def zero_(self) -> None:
        """It is zeros."""

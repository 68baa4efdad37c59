"""Embedding modules of a plain PyTorch model whose rows are spread over the processes.

Embedding          rows by name; `rows=None` grows
SpreadEmbedding    what becomes of an nn.Embedding that was built within an embedding_scope
SpreadBag          what becomes of an nn.EmbeddingBag that was built within one

Each reads its rows through shoal.embedding.module.Embeddings, as models do.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from shoal.embedding.module import Embeddings
from shoal.embedding.rows.table import Init, Table

ROWS = "rows"  # the name of the parameter that stands for them
entered: list[Any] = []  # the strategies whose scopes a module is built in, the innermost last


class Weighing:
    """Scales gradients of this process to their weight in that of the global batch."""

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def __call__(self, rows: Tensor) -> Tensor:
        if rows.requires_grad:
            rows = rows.view_as(rows)
            rows.register_hook(
                lambda grads: grads * self.weight
            )  # the weight at the time of backward
        return rows


class SpreadModule(nn.Module):
    """Base of all modules here: a table, and the embeddings that read its rows.

    `model.parameters()` has an empty tensor in the place of the rows: optimizers refuse to have no
    parameters, and a model may be made of embeddings alone. `state_dict()` has nothing.
    """

    table: Table
    embed: Embeddings
    first_rows: Tensor | None  # values that rows begin with; None: as the table says
    _scope: Any  # the strategy

    def _spread(self, table: Table, scope: Any, first_rows: Tensor | None = None) -> None:
        self.table = table
        self.first_rows = first_rows
        self._scope = scope
        self.embed = Embeddings({table.name: table})
        self._parameters[ROWS] = nn.Parameter(torch.empty(0, table.dim))

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination.pop(prefix + ROWS, None)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *arguments: Any) -> None:
        full_state = {**state_dict, prefix + ROWS: self._parameters[ROWS]}
        super()._load_from_state_dict(full_state, prefix, *arguments)

    def look_up(self, ids: Tensor) -> Tensor:
        """Rows of ids of any shape: that shape + [dim]."""
        if not self.embed.attached:
            return self._scope.preview(self.table, ids.long())
        return self._scope.weighing(self.embed.rows(self.table.name, ids.long()))


class Embedding(SpreadModule):
    """Rows under a name, spread over the processes: `shoal.Embedding("item", dim=16)`.

    rows: how many there are; None: any 64-bit id has one, which comes to be when it is first
    trained. init: how a row begins (shoal.embedding.rows.table.Init). padding: an id that reads
    as 0.

    >>> import torch, shoal
    >>> strategy = shoal.CollectiveStrategy(device="cpu")
    >>> with strategy.embedding_scope():
    ...     words = shoal.Embedding("word", dim=8, rows=100, padding=0)
    >>> optimizer = strategy.optimizer(rows="adagrad", lr=0.1)
    >>> rows = words(torch.tensor([[5, 0]]))
    >>> rows.shape, rows[0, 1].abs().sum().item()
    (torch.Size([1, 2, 8]), 0.0)
    """

    def __init__(
        self,
        name: str,
        dim: int,
        rows: int | None = None,
        init: Init | None = None,
        padding: int | None = None,
    ):
        super().__init__()
        if not entered or not entered[-1].in_embedding_scope:
            raise RuntimeError(
                f"shoal.Embedding({name!r}) must be built within `with strategy.embedding_scope():`"
            )
        self._spread(Table(name, dim, rows, init or Init(), padding), entered[-1])
        entered[-1].adopt(self)

    def forward(self, ids: Tensor) -> Tensor:
        """ids of any shape -> that shape + [dim]."""
        return self.look_up(ids)


class _SpreadTorchModule(SpreadModule):
    """A module of torch's whose weight is spread: it is looked up, and never whole."""

    @property
    def weight(self) -> Tensor:
        raise RuntimeError(
            f"the weight of {self.table.name} is spread over the processes and never whole: a "
            "layer that reads it (tied weights, say) must be built outside of embedding_scope"
        )


class SpreadEmbedding(_SpreadTorchModule, nn.Embedding):  # type: ignore[override]
    """An nn.Embedding that was taken over."""

    def forward(self, input: Tensor) -> Tensor:
        rows = self.look_up(input)
        if self.padding_idx is None:
            return rows
        padding = (input == self.padding_idx)[..., None].to(rows.device)
        return torch.where(padding, rows.detach(), rows)  # which never learns


class SpreadBag(_SpreadTorchModule, nn.EmbeddingBag):  # type: ignore[override]
    """An nn.EmbeddingBag that was taken over."""

    def forward(
        self,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        rows = self.look_up(input.reshape(-1))
        places = torch.arange(input.numel(), device=rows.device).view(input.shape)
        padding = None
        if self.padding_idx is not None:  # left out of every bag
            padding = len(rows)
            places = places.masked_fill(input.to(rows.device) == self.padding_idx, padding)
            rows = torch.cat([rows, rows.new_zeros(1, rows.shape[1])])
        return functional.embedding_bag(
            places,
            rows,
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=padding,
        )


def take_over(module: nn.Module, name: str, scope: Any) -> SpreadModule | None:
    """Let an nn.Embedding or nn.EmbeddingBag read spread rows; None: a frozen one, left alone."""
    assert isinstance(module, nn.Embedding | nn.EmbeddingBag)
    if not module.weight.requires_grad:
        return None
    for option in ("max_norm", "scale_grad_by_freq"):
        if getattr(module, option):
            raise ValueError(
                f"{type(module).__name__} with {option}={getattr(module, option)} cannot be "
                "spread: it changes rows, or gradients, by what a single process sees; leave it "
                "out, or build the module outside of embedding_scope"
            )
    values = module.weight.detach().float().cpu()
    kind = SpreadEmbedding if isinstance(module, nn.Embedding) else SpreadBag
    old = type(module)
    plain = old in (nn.Embedding, nn.EmbeddingBag)
    del module._parameters["weight"]
    # The same object goes on: wherever the model keeps it, it is spread now.
    module.__class__ = kind if plain else type(f"Spread{old.__name__}", (old, kind), {})
    assert isinstance(module, SpreadModule)
    table = Table(name, module.embedding_dim, module.num_embeddings, Init("constant", 0.0))
    module._spread(table, scope, values)
    return module

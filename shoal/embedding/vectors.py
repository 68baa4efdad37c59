"""Projected vectors: what a table's rows become where each id has a vector.

    row of id i  ->  row + W v_i        (a row of an id without a training interaction: zeros)
                     W v_i              where there are no rows

W [dim, width] is a dense parameter; vectors are read, never trained.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.data.loading.vectors import AlignedVectors
from shoal.embedding.rows.table import Table


class StoredVectors(nn.Module):
    """The vectors of all items or users. Tables share one, so that a GPU has them once.

    On a CPU the vectors stay in their file, which is mapped; a GPU has a copy.
    """

    values: Tensor
    place: Tensor
    scale: Tensor

    def __init__(self, vectors: AlignedVectors):
        super().__init__()
        for name in ("values", "place", "scale"):
            self.register_buffer(name, getattr(vectors, name), persistent=False)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors of ids of any shape, that shape + [width], and their scales: 0 for none."""
        return self.values[self.place[ids]].float(), self.scale[ids]


class ProjectedVectors(nn.Module):
    """Vectors as one table's rows read them: ids [...] -> [..., dim].

    trained: ids with a training interaction, bool [n]. They are kept in checkpoints: an id that a
    run before this one learned has a row, whatever the new data holds.
    """

    trained: Tensor
    mean: Tensor
    factor: Tensor

    def __init__(
        self, stored: StoredVectors, vectors: AlignedVectors, table: Table, trained: Tensor
    ):
        super().__init__()
        self.stored, self.dim = stored, table.dim
        self.with_rows, self.shifted = vectors.with_rows, vectors.shift is not None
        self.register_buffer("trained", trained.clone())
        if vectors.shift is not None:  # kept: another file must not move what was learned
            self.register_buffer("mean", vectors.shift.mean.clone())
            self.register_buffer("factor", vectors.shift.factor.clone())
        deviation = _deviation(table) / max(vectors.length, 1e-12)
        self.weight = nn.Parameter(torch.randn(table.dim, vectors.width) * deviation)
        self._candidates: Tensor | None = None
        self.register_load_state_dict_pre_hook(_keep_trained)

    def forward(self, ids: Tensor, rows: Tensor | None) -> Tensor:
        """What ids of any shape read as; rows: theirs, that shape + [dim], or None."""
        values, scale = self.stored(ids)
        if self.shifted:
            values = (values - self.mean) * self.factor
        projected = F.linear(values * scale.unsqueeze(-1), self.weight)
        if rows is None:
            return projected
        # What stands behind the last id, such as a mask token, is no id without interactions.
        beyond = ids >= len(self.trained)
        learned = self.trained[ids.clamp(max=len(self.trained) - 1)] | beyond
        return rows * learned.unsqueeze(-1) + projected

    def candidates(self) -> Tensor | None:
        """Padding and the trained ids, where a softmax leaves others out: [n]; None: all are."""
        if self._candidates is None:
            allowed = self.trained.clone()
            allowed[0] = True
            self._candidates = allowed.nonzero().squeeze(1)
        return None if len(self._candidates) == len(self.trained) else self._candidates


def _deviation(table: Table) -> float:
    """The standard deviation of initial values."""
    kind, scale = table.resolved_init
    return {"uniform": scale / 3**0.5, "normal": scale, "constant": 0.0}[kind]


def _keep_trained(module: ProjectedVectors, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    """Ids that a checkpoint knows as trained stay so; new ones may stand behind them."""
    before, now = state.get(prefix + "trained"), module.trained
    module._candidates = None
    if before is not None and before.dim() == 1 and len(before) <= len(now):
        joined = now.clone()
        joined[: len(before)] |= before.to(now.device)
        state[prefix + "trained"] = joined


def among(candidates: Tensor, vectors: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The vectors of candidates [k, d] of all [n, d], and targets [m] as places among them.

    The first candidate is padding; a target that is no candidate becomes it, and does not count.
    """
    place = torch.zeros(len(vectors), dtype=torch.int64, device=vectors.device)
    place[candidates] = torch.arange(len(candidates), device=vectors.device)
    return vectors[candidates], place[targets]

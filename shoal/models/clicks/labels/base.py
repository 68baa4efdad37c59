"""What models with a logit for each label share; experts and the gates that weigh them."""

from dataclasses import field
from typing import Any

import torch
from torch import Tensor, nn

from shoal.models.base import Facts
from shoal.models.clicks.base import Flat
from shoal.models.nn.mlp import MLP, begin_normal


class SeveralLabels(Flat):
    """Reads x = [v_1, v_2, ..., dense] [b, width]; logits [b, labels], or [b] of one label."""

    several_labels = True

    class Options(Flat.Options):
        tower_layers: list[int] = field(default_factory=lambda: [64])
        dropout: float = 0.0

    def __init__(self, options: Any, facts: Facts):
        super().__init__(options, facts)
        self.outputs = max(1, len(facts.labels))

    def together(self, logits: list[Tensor]) -> Tensor:
        """Logits of the labels, [b] each, as they are answered."""
        return logits[0] if len(logits) == 1 else torch.stack(logits, 1)

    def need_steps(self) -> None:
        """Refuse labels that are no steps of one way, such as seen, clicked, bought."""
        if self.outputs < 2 or not all(one.loss == "logistic" for one in self.facts.labels):
            raise ValueError(
                f"{type(self).__name__} learns steps that follow each other, such as click and "
                "purchase, each 0 or 1; name two labels or more in data.labels, the first step "
                "first, with loss logistic, or choose MMoE"
            )


class Experts(nn.Module):
    """Perceptrons of the same input: [b, width] -> [b, experts, sizes[-1]]."""

    def __init__(self, number: int, sizes: list[int], dropout: float = 0.0):
        super().__init__()
        self.each = nn.ModuleList(MLP(sizes, dropout) for _ in range(number))
        begin_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([expert(x) for expert in self.each], 1)


class Gate(nn.Module):
    """The mean of experts [b, n, d], weighed by softmax(W x): -> [b, d]."""

    def __init__(self, width: int, number: int):
        super().__init__()
        self.linear = nn.Linear(width, number, bias=False)
        begin_normal(self)

    def forward(self, x: Tensor, experts: Tensor) -> Tensor:
        return torch.bmm(self.linear(x).softmax(1).unsqueeze(1), experts).squeeze(1)

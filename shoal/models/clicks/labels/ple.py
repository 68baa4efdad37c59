"""PLE: Progressive Layered Extraction, Tang et al., RecSys 2020.

Every label has its own experts beside shared ones, in several layers:

    own_k  <- gate_k(own_k) over the experts of label k and the shared ones
    shared <- gate(shared) over the experts of all labels and the shared ones
    logit_k = tower_k of own_k
"""

from dataclasses import field

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.clicks.labels.base import Experts, Gate, SeveralLabels
from shoal.models.nn.mlp import Tower


class Extraction(nn.Module):
    """One layer: what every label reads, and last what all do, [b, width] each -> [b, size] each.

    The last layer of all makes nothing shared, as nothing would read it.
    """

    def __init__(
        self, labels: int, own: int, shared: int, sizes: list[int], dropout: float, last: bool
    ):
        super().__init__()
        self.own = nn.ModuleList(Experts(own, sizes, dropout) for _ in range(labels))
        self.shared = Experts(shared, sizes, dropout)
        self.gates = nn.ModuleList(Gate(sizes[0], own + shared) for _ in range(labels))
        self.shared_gate = None if last else Gate(sizes[0], labels * own + shared)

    def forward(self, read: list[Tensor]) -> list[Tensor]:
        own = [experts(x) for experts, x in zip(self.own, read)]
        shared = self.shared(read[-1])
        mixtures = [
            gate(x, torch.cat([outputs, shared], 1))
            for gate, x, outputs in zip(self.gates, read, own)
        ]
        if self.shared_gate is not None:
            mixtures.append(self.shared_gate(read[-1], torch.cat([*own, shared], 1)))
        return mixtures


class PLE(SeveralLabels):
    """Experts of single labels keep what would harm the others."""

    class Options(SeveralLabels.Options):
        own_experts: int = 2  # experts that each label has to itself
        shared_experts: int = 2  # experts that all labels share
        expert_layers: list[int] = field(default_factory=lambda: [128])
        levels: int = 2  # number of layers of experts

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width = self.flat_width
        self.levels = nn.ModuleList()
        for level in range(options.levels):
            sizes = [width, *options.expert_layers]
            extraction = Extraction(
                labels=self.outputs,
                own=options.own_experts,
                shared=options.shared_experts,
                sizes=sizes,
                dropout=options.dropout,
                last=level == options.levels - 1,
            )
            self.levels.append(extraction)
            width = sizes[-1]
        self.towers = nn.ModuleList(
            Tower([width, *options.tower_layers], options.dropout) for _ in range(self.outputs)
        )

    def logits(self, batch: Batch) -> Tensor:
        read = [self.features(batch)] * (self.outputs + 1)
        for level in self.levels:
            read = level(read)
        return self.together([tower(x) for tower, x in zip(self.towers, read)])

"""NextItNet: A Simple Convolutional Generative Network for Next Item Recommendation, Yuan et al.,
WSDM 2019.

Convolutions that see only what came before, with holes that grow from layer to layer:

    block   x + relu(norm(conv(relu(norm(conv(x, dilation d))), dilation 2d)))
"""

from dataclasses import field, replace

import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Facts, Output
from shoal.models.nn.losses import sum_of_norms
from shoal.models.sequential.base import NextItem

PENALISED = nn.Linear, nn.Conv1d  # layers that reg_weight counts


class NextItNet(NextItem):
    """Dilated causal convolutions, trained at every position."""

    class Options(NextItem.Options):
        embedding_size: int = 64
        kernel_size: int = 3  # positions that a convolution looks at
        block_num: int = 5  # how often the dilations are repeated
        # distance between the positions that a convolution reads, layer by layer
        dilations: list[int] = field(default_factory=lambda: [1, 4])
        reg_weight: float = 0.0  # weight of the norms of the layers' weights

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width = options.embedding_size
        self.make_items(width, std=facts.num_items**-0.5)
        self.blocks = nn.ModuleList(
            Block(width, options.kernel_size, dilation)
            for dilation in options.dilations * options.block_num
        )
        self.out = nn.Linear(width, width)

    def forward(self, batch: Batch) -> Output:
        output = super().forward(batch)
        if not self.options.reg_weight:
            return output
        weights = [one.weight for one in self.modules() if isinstance(one, PENALISED)]
        # a term of every sample: the mean over any number of them is the same
        penalty = self.options.reg_weight * sum_of_norms(weights) * output.count
        return replace(output, loss=output.loss + penalty)

    def states(self, batch: Batch) -> Tensor:
        x = self.embed.field("history", batch)
        for block in self.blocks:
            x = block(x)
        return self.out(x)


class Block(nn.Module):
    """Two causal convolutions beside the identity: [b, l, width] -> the same."""

    def __init__(self, width: int, kernel: int, dilation: int):
        super().__init__()
        self.first = nn.Conv1d(width, width, kernel, dilation=dilation)
        self.second = nn.Conv1d(width, width, kernel, dilation=2 * dilation)
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=1e-8) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        out = x
        for conv, norm in zip((self.first, self.second), self.norms):
            back = (conv.kernel_size[0] - 1) * conv.dilation[0]
            convolved = conv(F.pad(out.transpose(1, 2), (back, 0))).transpose(1, 2)
            out = F.relu(norm(convolved))
        return x + out

"""Caser: Personalized Top-N Sequential Recommendation via Convolutional Sequence Embedding, Tang
and Wang, WSDM 2018.

The last items are an image of l rows: filters of each height find patterns of several items in a
row, filters of width 1 weigh the items.

    z = relu(W [max over time of relu(horizontal), vertical])        state = relu(W' [z, user])
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Facts, Init, Output, Table
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.losses import sum_of_norms
from shoal.models.sequential.base import NextItem

PENALISED = nn.Linear, nn.Conv2d  # layers that reg_weight counts


class Caser(NextItem):
    """Convolutions over the history, beside a vector of the user."""

    samples = "prefixes"

    class Options(NextItem.Options):
        embedding_size: int = 64
        nh: int = 8  # horizontal filters of each height
        nv: int = 4  # number of vertical filters
        heights: int = 16  # the highest horizontal filter; at most data.max_len
        dropout_prob: float = 0.4
        reg_weight: float = 0.0  # weight of the norms of the layers' weights

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width, length = options.embedding_size, facts.max_len
        users = Table("user", width, facts.num_users, Init("normal", width**-0.5))
        self.make_items(width, width**-0.5, {facts.user_field: users})
        heights = range(1, min(options.heights, length) + 1)
        self.horizontal = nn.ModuleList(nn.Conv2d(1, options.nh, (h, width)) for h in heights)
        self.vertical = nn.Linear(length, options.nv, bias=False)
        self.dropout = Dropout(options.dropout_prob)
        self.join = nn.Linear(options.nv * width + options.nh * len(heights), width)
        self.out = nn.Linear(2 * width, width)

    def forward(self, batch: Batch) -> Output:
        output = super().forward(batch)
        if not self.options.reg_weight:
            return output
        weights = [one.weight for one in self.modules() if isinstance(one, PENALISED)]
        # a term of every sample: the mean over any number of them is the same
        penalty = self.options.reg_weight * sum_of_norms(weights) * output.count
        return replace(output, loss=output.loss + penalty)

    def states(self, batch: Batch) -> Tensor:
        rows = self.embed(batch, ["history", self.facts.user_field])
        items = rows["history"]
        missing = self.facts.max_len - items.shape[1]
        items = F.pad(items, (0, 0, 0, missing))
        image = items.unsqueeze(1)  # [b, 1, l, d]
        horizontal = [F.relu(conv(image)).squeeze(3).amax(2) for conv in self.horizontal]
        weighed = self.vertical(items.transpose(1, 2)).flatten(1)  # [b, d * nv]
        z = F.relu(self.join(self.dropout(torch.cat([weighed, *horizontal], 1))))
        return F.relu(self.out(torch.cat([z, rows[self.facts.user_field]], 1)))

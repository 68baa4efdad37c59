"""KGNNLS: Knowledge-aware Graph Neural Networks with Label Smoothness Regularization.

Wang et al., KDD 2019. KGCN, whose weights of neighbours a(u, v, w) must also carry labels: an item
that is hidden should have the label that its neighbours pass on. With l_u = 1 for items that u
took, 0 for other items, 1/2 for entities that are no items:

    l_u(v) <- l_u(v) for items but the hidden one, else sum over neighbours w of a(u, v, w) l_u(w)
    loss = cross entropy of scores + ls_weight * cross entropy of the hidden item's passed label
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.models.base import Batch, Facts, Output
from shoal.models.knowledge.kgcn import KGCN
from shoal.models.nn.losses import pointwise_loss

UNSURE = 1e-3  # passed labels stay so far from 0 and 1: what only one label reaches is not certain


class KGNNLS(KGCN):
    """Smooth labels pay off from two hops on: one hop from an item there are few other items.

    Labels are those of the training interactions, which every process has.
    """

    taken: Tensor  # [pairs]: user * nodes + node, ascending
    is_item: Tensor  # [nodes]: whether the node is an item

    class Options(KGCN.Options):
        reg_weight: float = 1e-7
        ls_weight: float = 0.5  # weight of the hidden item's passed label

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        users, nodes = self.taken_nodes()
        taken = (users * self.num_nodes + nodes).sort().values
        self.register_buffer("taken", taken, persistent=False)  # rebuilt from the data
        is_item = torch.zeros(self.num_nodes, dtype=torch.bool)
        is_item[self.item_node[1:]] = True
        self.register_buffer("is_item", is_item, persistent=False)

    def forward(self, batch: Batch) -> Output:
        items = self.candidates(batch)  # [b, 1 + k]
        scores = self.score(batch, items)
        users, nodes = self.embed.field(self.facts.user_field, batch), self.around(items)
        passed = self.passed_labels(batch.tensor(self.facts.user_field), users, nodes)
        truth = torch.zeros_like(passed)
        truth[:, 0] = 1.0
        smooth = F.binary_cross_entropy(passed.clamp(UNSURE, 1.0 - UNSURE), truth, reduction="sum")
        rows = self.embed.rows("node", nodes[0])
        size = 0.5 * (users.square().sum() * items.shape[1] + rows.square().sum())
        loss = pointwise_loss(scores) + self.options.ls_weight * smooth
        return Output(loss + self.options.reg_weight * size, scores.numel())

    def passed_labels(self, user_ids: Tensor, users: Tensor, nodes: list[Tensor]) -> Tensor:
        """Labels that reach each item from its neighbours, its own being hidden: [b, n].

        users [b, d]: rows; nodes: as `around` has them, the items themselves first
        """
        labels, fixed = [], []
        for layer_nodes in nodes:
            key = user_ids[:, None, None] * self.num_nodes + layer_nodes
            place = torch.searchsorted(self.taken, key).clamp(max=len(self.taken) - 1)
            label = (self.taken[place] == key).to(users.dtype)
            visible = self.is_item[layer_nodes] & (layer_nodes != nodes[0])
            labels.append(torch.where(visible, label, 0.5))
            fixed.append(visible)
        weights = self.weights(users, nodes)
        for hop in range(len(weights)):
            labels = [
                torch.where(
                    fixed[k], labels[k], (labels[k + 1].view(weights[k].shape) * weights[k]).sum(3)
                )
                for k in range(len(weights) - hop)
            ]
        return labels[0].squeeze(2)

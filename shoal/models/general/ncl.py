"""NCL: Improving Graph Collaborative Filtering with Neighborhood-enriched Contrastive Learning, Lin
et al., WWW 2022.

LightGCN, in which a node should look like its structural neighbours, which an even layer of the
graph adds up, and like its semantic neighbours, the centre of a cluster of nodes:

    loss = mean of BPR + ssl_reg * sum of -ln softmax(cos(E(2 hyper_layers)_n, E(0)) / tau)_n
           + proto_reg * sum of -ln softmax(cos(E(0)_n, centres) / tau)_own centre

for the user n and, times alpha in the first, the item n of every sample. Both contrasts are sums
over the global batch, so their weights are small. Clusters are found anew by k-means of all nodes,
by each process for itself and alike.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.models.base import Batch, Facts, Output
from shoal.models.general.lightgcn import LightGCN
from shoal.models.nn.k_means import k_means, nearest
from shoal.models.nn.losses import contrast
from shoal.models.options import Count


class NCL(LightGCN):
    """Contrast with neighbours in the graph and in the space of vectors."""

    cuda_graph_safe = False
    samples_seen: Tensor
    clustered_at: Tensor  # epoch of the last clustering, -1 before the first
    user_centres: Tensor  # [clusters, d], of length 1
    item_centres: Tensor
    user_cluster: Tensor  # [num_users]
    item_cluster: Tensor

    class Options(LightGCN.Options):
        n_layers: int = 3
        reg_weight: float = 1e-4
        ssl_temp: float = 0.1  # temperature of both contrasts
        ssl_reg: float = 1e-7  # weight of the contrast with structural neighbours
        hyper_layers: Count = 1  # half the layers between a node and its structural neighbours
        alpha: float = 1.0  # weight of items beside users among structural neighbours
        proto_reg: float = 8e-8  # weight of the contrast with centres of clusters
        num_clusters: Count = 1000  # clusters of users, and of items; no more than there are
        m_step: Count = 1  # epochs between two clusterings
        warm_up_step: int = 20  # epochs before the first clustering

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width = options.embedding_size
        for side, size in (("user", facts.num_users), ("item", facts.num_items)):
            clusters = min(options.num_clusters, size)
            self.register_buffer(f"{side}_centres", torch.zeros(clusters, width))
            self.register_buffer(f"{side}_cluster", torch.zeros(size, dtype=torch.int64))
        self.register_buffer("samples_seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("clustered_at", torch.full((), -1))

    def forward(self, batch: Batch) -> Output:
        nodes, options, users = self.nodes(batch), self.options, self.facts.num_users
        total = len(self.gather_global(nodes))
        first, final = self.propagated()
        output = self.pair_loss(nodes, first, final)
        far = first
        for _ in range(2 * options.hyper_layers):
            far = self.graph(far)
        taken = nodes[:, 1] - users
        term = contrast(nodes[:, 0], far[:users], first[:users], options.ssl_temp)
        of_items = contrast(taken, far[users:], first[users:], options.ssl_temp)
        loss = output.loss + total * options.ssl_reg * (term + options.alpha * of_items)
        self._cluster(first, total)
        if int(self.clustered_at) >= 0:
            term = self._prototypes(first[nodes[:, 0]], self.user_cluster[nodes[:, 0]], "user")
            term = term + self._prototypes(first[nodes[:, 1]], self.item_cluster[taken], "item")
            loss = loss + total * options.proto_reg * term
        return Output(loss, output.count)

    def _prototypes(self, vectors: Tensor, clusters: Tensor, side: str) -> Tensor:
        """The contrast of vectors [b, d] with the centres of one side, at their own: scalar."""
        centres = self.get_buffer(f"{side}_centres")
        logits = F.normalize(vectors, dim=1) @ centres.T / self.options.ssl_temp
        return F.cross_entropy(logits, clusters, reduction="sum")

    @torch.no_grad()
    def _cluster(self, first: Tensor, total: int) -> None:
        """Find clusters where an epoch begins that asks for new ones; count the step's samples."""
        options = self.options
        epoch = int(self.samples_seen) // max(1, len(self.facts.train_items))
        self.samples_seen += total
        due = epoch >= options.warm_up_step and (epoch - options.warm_up_step) % options.m_step == 0
        if not due or epoch == int(self.clustered_at):
            return
        self.clustered_at.fill_(epoch)
        sides = first.split([self.facts.num_users, self.facts.num_items])
        for side, vectors in zip(("user", "item"), sides):
            generator = torch.Generator().manual_seed(epoch)  # alike on all processes
            clusters = len(self.get_buffer(f"{side}_centres"))
            centres = k_means(vectors, clusters, generator=generator)
            self.get_buffer(f"{side}_cluster").copy_(nearest(vectors, centres))
            self.get_buffer(f"{side}_centres").copy_(F.normalize(centres, dim=1))

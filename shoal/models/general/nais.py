"""NAIS: Neural Attentive Item Similarity Model for Recommendation, He et al., TKDE 2018.

FISM, in which the items taken count by how much they matter for the item asked for:

    f_ij = <h, relu(W [p_j * q_i] + b)>, or of [p_j, q_i] (concat)
    y_ui = b_i + n^-alpha * sum over the n items j taken, but i, of a_ij <p_j, q_i>
    a_ij = exp(f_ij) / (sum over j of exp(f_ij))^beta

trained as a yes/no question, with log loss. With beta below 1 long histories are not punished.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Embeddings, Facts, Init, Model, Output, Table, item_blocks
from shoal.models.nn.losses import pointwise_loss
from shoal.models.nn.mlp import begin_xavier
from shoal.models.nn.user_items import UserItems, owners
from shoal.models.options import Share


class NAIS(Model):
    """Attention over the items taken, for each item asked for.

    all histories in a row: items t, each of user owner [t], rows [t, d]    items asked for [b, n]
    """

    recbole_without_effect: ClassVar[Mapping[str, str]] = {
        "split_to": "evaluation goes block by block by itself",
        "pretrain_path": "rows begin at random; a checkpoint of RecBole's FISM is not read",
    }

    class Options(Model.Options):
        embedding_size: int = 64
        weight_size: int = 64  # width of the attention's layer
        algorithm: Literal["prod", "concat"] = "prod"  # what the attention reads of two items
        # weights of the lengths of the tables of items taken, of items asked for, of the attention
        reg_weights: list[float] = field(default_factory=lambda: [1e-7, 1e-7, 1e-5])
        alpha: Share = 0.0  # 0: the sum over the items taken; 1: their mean
        beta: Share = 0.5  # 1: shares of the attention add up to 1; less: long histories count more

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width, normal = options.embedding_size, Init("normal", 0.01)
        self.embed = Embeddings(
            taken=Table("item_taken", width, facts.num_items, normal, padding=0),
            item=Table("item", width, facts.num_items, normal, padding=0),
            item_bias=Table("item_bias", 1, facts.num_items, Init("constant", 0.0), padding=0),
        )
        inputs = width if options.algorithm == "prod" else 2 * width
        self.attention = nn.Sequential(nn.Linear(inputs, options.weight_size), nn.ReLU())
        begin_xavier(self.attention)
        self.weigh = nn.Parameter(torch.ones(options.weight_size))
        self.taken = UserItems(
            facts.train_users, facts.train_items, facts.num_users, facts.num_items
        )

    def forward(self, batch: Batch) -> Output:
        positives = batch.tensor(self.facts.item_field).unsqueeze(1)
        items = torch.cat([positives, self.negatives(batch)], 1)  # [b, 1 + k]
        taken, owner = self._histories(batch)
        here = taken.unsqueeze(1) != items[owner]  # [t, 1 + k]: an item is no evidence for itself
        asked_for = self.embed.rows("item", items)[owner]  # [t, 1 + k, d]
        logits = self._sums(self.embed.rows("taken", taken), asked_for, here, owner, batch.size)
        logits = logits + self.embed.rows("item_bias", items).squeeze(2)
        loss = pointwise_loss(logits)
        of_taken, of_items, of_attention = (logits.numel() * w for w in self.options.reg_weights)
        if of_taken:
            loss = loss + of_taken * self.embed.whole("taken").norm()
        if of_items:
            loss = loss + of_items * self.embed.whole("item").norm()
        if of_attention:
            loss = loss + of_attention * self.attention.get_parameter("0.weight").norm()
        return Output(loss, logits.numel())

    def _histories(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """What the users of a batch took [t], and whose line in the batch each is [t]."""
        users = batch.tensor(self.facts.user_field)
        if torch.compiler.is_exporting():  # a graph has no sizes that depend on values
            owner = torch.arange(users.shape[0]).repeat_interleave(self.taken.longest)
            return self.taken.latest(users, self.taken.longest).flatten(), owner
        lists = self.taken.lists(users)
        return lists.values, owners(lists)

    def _sums(
        self, rows: Tensor, vectors: Tensor, here: Tensor, owner: Tensor, size: int
    ) -> Tensor:
        """Sums over histories, weighed by attention: rows [t, d] of items taken, vectors
        [t or 1, n, d] of items asked for, here [t, n] (what counts) -> [size, n].
        """
        rows = rows.unsqueeze(1)  # [t, 1, d]
        if self.options.algorithm == "prod":
            pairs = rows * vectors
        else:
            pairs = torch.cat(torch.broadcast_tensors(rows, vectors), 2)
        scores = (self.attention(pairs) @ self.weigh).masked_fill(~here, -torch.inf)  # [t, n]
        shape = size, scores.shape[1]
        # One number is taken off all scores, so that none is too large for exp; it cancels out.
        most = torch.cat([scores.detach().flatten(), scores.new_zeros(1)]).amax()
        total = scores.new_zeros(shape).index_add(0, owner, (scores - most).exp())
        ln_total = most + total.clamp(min=1e-30).log()
        shares = (scores - self.options.beta * ln_total[owner]).exp()
        sums = scores.new_zeros(shape).index_add(0, owner, shares * (rows * vectors).sum(2))
        counts = scores.new_zeros(shape).index_add(0, owner, here.to(scores.dtype))
        return sums * counts.clamp(min=1.0).pow(-self.options.alpha)

    def scorer(self, batch: Batch) -> Callable[[Tensor], Tensor]:
        taken, owner = self._histories(batch)
        rows = self.embed.rows("taken", taken)
        return partial(self._score_block, rows, taken > 0, owner, batch.size)

    def _score_block(
        self, rows: Tensor, real: Tensor, owner: Tensor, size: int, items: Tensor
    ) -> Tensor:
        vectors = self.embed.rows("item", torch.atleast_2d(items))  # [1 or b, n, d]
        parts = []
        for block in item_blocks(items.shape[-1], rows.numel()):
            part = vectors[:, block]
            here = real.unsqueeze(1).expand(-1, part.shape[1])
            spread = part if items.dim() == 1 else part[owner]
            parts.append(self._sums(rows, spread, here, owner, size))
        bias = self.embed.rows("item_bias", torch.atleast_2d(items)).squeeze(2)
        return torch.cat(parts, 1) + bias

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        return self.scorer(batch)(items)

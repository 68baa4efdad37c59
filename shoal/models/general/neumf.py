"""NeuMF: Neural Collaborative Filtering, He et al., WWW 2017.

Two halves with tables of their own, joined at the last layer:

    GMF    u * i                           (elementwise)
    MLP    relu layers over [u, i]
    score  = <h, [GMF, MLP]>               trained as a yes/no question, with log loss
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.data.batch import Batch
from shoal.embedding.module import Embeddings
from shoal.embedding.table import Init, Table
from shoal.models.base import SCORE_BLOCK, Facts, Model, Output
from shoal.models.nn.mlp import MLP


class NeuMF(Model):
    """Matrix factorisation and a multi-layer perceptron, fused. Scores are logits."""

    @dataclass
    class Options(Model.Options):
        mf_embedding_size: int = 64
        mlp_embedding_size: int = 64
        mlp_hidden_size: list[int] = field(default_factory=lambda: [128, 64])
        dropout_prob: float = 0.1
        mf_train: bool = True  # False leaves the GMF half out
        mlp_train: bool = True  # False leaves the MLP half out

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        if not (options.mf_train or options.mlp_train):
            raise ValueError(
                "NeuMF has no half left: set model.mf_train or model.mlp_train to true"
            )
        self.embed = nn.ModuleDict()
        width = 0
        if options.mf_train:
            self.embed["mf"] = self._tables("mf", options.mf_embedding_size)
            width += options.mf_embedding_size
        if options.mlp_train:
            sizes = [2 * options.mlp_embedding_size, *options.mlp_hidden_size]
            self.embed["mlp"] = self._tables("mlp", options.mlp_embedding_size)
            self.mlp = MLP(sizes, dropout=options.dropout_prob)
            width += sizes[-1]
        self.predict = nn.Linear(width, 1)

    def _tables(self, half: str, dim: int) -> Embeddings:
        users = Table(f"{half}_user", dim, self.facts.num_users, Init("normal", 0.01))
        items = Table(f"{half}_item", dim, self.facts.num_items, Init("normal", 0.01))
        return Embeddings(
            {self.facts.user_field: users, self.facts.item_field: items, "neg_item": items}
        )

    def _rows(self, name: str, ids: Tensor) -> dict[str, Tensor]:
        """Rows of ids in each half."""
        return {half: embed.rows(name, ids) for half, embed in self.embed.items()}  # type: ignore[operator]

    def _logits(self, users: dict[str, Tensor], items: dict[str, Tensor]) -> Tensor:
        """Logits of pairs; users and items are broadcast: [b, 1, d], [b or 1, n, d] -> [b, n]."""
        logits: Tensor = self.predict.bias
        weights = self.predict.weight[0]
        if "mf" in self.embed:
            products = users["mf"] * items["mf"]
            logits = logits + products @ weights[: self.options.mf_embedding_size]
            weights = weights[self.options.mf_embedding_size :]
        if "mlp" in self.embed:
            pairs = torch.broadcast_tensors(users["mlp"], items["mlp"])
            logits = logits + self.mlp(torch.cat(pairs, -1)) @ weights
        return logits

    def forward(self, batch: Batch) -> Output:
        users: Tensor = batch.ids[self.facts.user_field].unsqueeze(1)  # type: ignore[union-attr]
        items: Tensor = batch.ids[self.facts.item_field].unsqueeze(1)  # type: ignore[union-attr]
        if "neg_item" in batch.ids:
            items = torch.cat([items, batch.ids["neg_item"]], 1)  # type: ignore[list-item]
            labels = torch.zeros(items.shape, device=items.device)
            labels[:, 0] = 1.0
        elif batch.labels is not None:
            labels = batch.labels.unsqueeze(1)
        else:
            raise ValueError(
                "NeuMF learns from negatives or labels and has neither; "
                "set train.negatives.num to 1, or data.threshold to make labels of a field"
            )
        user_field, item_field = self.facts.user_field, self.facts.item_field
        logits = self._logits(self._rows(user_field, users), self._rows(item_field, items))
        loss = F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
        return Output(loss, labels.numel())

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        """As in Model. The first layer is linear in user and item, so each is taken through it once
        and only their sum is made for every pair."""
        users = self._rows(self.facts.user_field, batch.tensor(self.facts.user_field).unsqueeze(1))
        # Rows are read in one go: a read may be a trip that all ranks make the same number of.
        vectors = self._rows(self.facts.item_field, torch.atleast_2d(items))  # [n] becomes [1, n]
        weights = self.predict.weight[0]
        scores = self.predict.bias.expand(batch.size, items.shape[-1])
        if "mf" in self.embed:
            width = self.options.mf_embedding_size
            asked, found = users["mf"] * weights[:width], vectors["mf"]
            if items.dim() == 1:
                scores = scores + asked.squeeze(1) @ found.squeeze(0).T
            else:
                scores = scores + (asked @ found.mT).squeeze(1)
            weights = weights[width:]
        if "mlp" in self.embed:
            scores = scores + self._deep_scores(users["mlp"], vectors["mlp"], weights)
        return scores

    def _deep_scores(self, users: Tensor, items: Tensor, weights: Tensor) -> Tensor:
        """<weights, perceptron> of pairs: [b, 1, d], [b or 1, n, d] -> [b, n]."""
        if len(self.mlp) == 0:
            pairs = torch.broadcast_tensors(users, items)
            return torch.cat(pairs, -1) @ weights
        first, *rest = [layer for layer in self.mlp if isinstance(layer, nn.Linear)]
        user_half, item_half = first.weight.chunk(2, 1)
        users, items = users @ user_half.T + first.bias, items @ item_half.T
        blocks = (items,)
        if isinstance(users.shape[0], int):  # in an export it is a symbol, and there are no blocks
            widest = max(self.options.mlp_hidden_size)
            blocks = items.split(max(1, SCORE_BLOCK // max(1, len(users) * widest)), 1)
        parts = []
        for block in blocks:
            hidden = (users + block).relu_()  # [b, block, width]
            for layer in rest:
                hidden = layer(hidden).relu_()
            parts.append(hidden @ weights)
        return torch.cat(parts, 1)

"""NeuMF: Neural Collaborative Filtering, He et al., WWW 2017.

Two halves, each with its own tables, joined at the last layer:

    GMF    u * i                           (elementwise)
    MLP    relu layers over [u, i]
    score  = <h, [GMF, MLP]>               trained as a yes/no question, with log loss
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Embeddings, Facts, Init, Model, Output, Table, item_blocks
from shoal.models.nn.mlp import MLP


class NeuMF(Model):
    """Matrix factorisation and a multi-layer perceptron, fused. Scores are logits.

    users [b, 1, d], items and k negatives [b, 1 + k, d] of each half -> logits [b, 1 + k]
    """

    recbole_only: ClassVar[Mapping[str, tuple[object, str]]] = {
        "use_pretrain": (False, "both halves are trained together, from the start")
    }
    recbole_without_effect: ClassVar[Mapping[str, str]] = {
        "mf_pretrain_path": "it is read with use_pretrain: true alone",
        "mlp_pretrain_path": "it is read with use_pretrain: true alone",
    }

    class Options(Model.Options):
        mf_embedding_size: int = 64  # width of the factorisation half's vectors
        mlp_embedding_size: int = 64  # width of the perceptron half's vectors
        mlp_hidden_size: list[int] = field(default_factory=lambda: [128, 64])
        dropout_prob: float = 0.1  # dropout before each layer of the perceptron
        mf_train: bool = True  # train the GMF half; false leaves it out
        mlp_train: bool = True  # train the MLP half; false leaves it out

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        if not (options.mf_train or options.mlp_train):
            raise ValueError(
                "NeuMF has no half left: set model.mf_train or model.mlp_train to true"
            )
        self.fields = facts.user_field, facts.item_field
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
        return Embeddings(dict(zip(self.fields, (users, items))), neg_item=items)

    def _rows(self, name: str, ids: Tensor) -> dict[str, Tensor]:
        """Rows of ids in each half."""
        halves: dict[str, Any] = dict(self.embed)
        return {half: embed.rows(name, ids) for half, embed in halves.items()}

    def _logits(self, users: dict[str, Tensor], items: dict[str, Tensor]) -> Tensor:
        """Logits of pairs; users and items are broadcast: [b, 1, d], [b or 1, n, d] -> [b, n]."""
        logits: Tensor = self.predict.bias
        weights = self.predict.weight[0]
        if "mf" in self.embed:
            width = self.options.mf_embedding_size
            logits = logits + ((users["mf"] * weights[:width]) @ items["mf"].mT).squeeze(1)
            weights = weights[width:]
        if "mlp" in self.embed:
            pairs = torch.broadcast_tensors(users["mlp"], items["mlp"])
            logits = logits + self.mlp(torch.cat(pairs, -1)) @ weights
        return logits

    def forward(self, batch: Batch) -> Output:
        users, items = (batch.tensor(name).unsqueeze(1) for name in self.fields)
        if "neg_item" in batch.ids:
            items = torch.cat([items, batch.tensor("neg_item")], 1)
            labels = torch.zeros(items.shape, device=items.device)
            labels[:, 0] = 1.0
        elif batch.labels is not None:
            labels = batch.labels.unsqueeze(1)
        else:
            raise ValueError(
                "NeuMF learns from negatives or labels and has neither; "
                "set train.negatives.num to 1, or data.threshold to make labels of a field"
            )
        user_field, item_field = self.fields
        logits = self._logits(self._rows(user_field, users), self._rows(item_field, items))
        loss = F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
        return Output(loss, labels.numel())

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        user_field, item_field = self.fields
        user_rows = self._rows(user_field, batch.tensor(user_field).unsqueeze(1))
        # Rows are read at once: a read may be a trip that all ranks make the same number of.
        item_rows = self._rows(item_field, torch.atleast_2d(items))  # [n] becomes [1, n]
        widest = max([2 * self.options.mlp_embedding_size, *self.options.mlp_hidden_size])
        parts = [
            self._logits(user_rows, {half: rows[:, block] for half, rows in item_rows.items()})
            for block in item_blocks(items.shape[-1], batch.size * widest)
        ]
        return torch.cat(parts, 1)

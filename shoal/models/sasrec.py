"""SASRec: Self-Attentive Sequential Recommendation, Kang and McAuley, ICDM 2018.

A causal transformer reads a user's items in order. At every position its state is asked for the
next item, so a history of l items trains l predictions in one pass:

    history   a b c 0      (left-aligned, 0 pads)
    target    b c d 0
    state     h h h .      score(item) = <h, item>, with the item vectors that were read
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from shoal.data.batch import Batch
from shoal.embedding.module import Embeddings
from shoal.embedding.table import Init, Table
from shoal.models.base import Facts, Output, Retrieval
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.losses import bpr_loss
from shoal.models.nn.transformer import Activation, CausalTransformer


class SASRec(Retrieval):
    """Self-attention over the history; the state at its last item is the query.

    Layers are pre-norm, x + dropout(g(norm(x))), as in section III-B of the paper.
    """

    kind: ClassVar[Literal["general", "sequential"]] = "sequential"

    @dataclass
    class Options(Retrieval.Options):
        n_layers: int = 2
        n_heads: int = 2
        hidden_size: int = 64
        inner_size: int = 256
        hidden_dropout_prob: float = 0.5
        attn_dropout_prob: float = 0.5
        hidden_act: Activation = "gelu"
        layer_norm_eps: float = 1e-12
        initializer_range: float = 0.02
        loss_type: Literal["CE", "BPR"] = "CE"  # BPR also needs train.negatives

        DEFAULTS: ClassVar[dict[str, Any]] = {
            "data.split.by": "leave_one_out",
            "data.split.order": "time",
            "train.negatives": None,
            "eval.repeatable": True,  # people watch and buy again, and a sequence may say so
        }

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        init = Init("normal", options.initializer_range)
        items = Table("item", options.hidden_size, facts.num_items, init, padding=0)
        self.embed = Embeddings(history=items, target=items, neg_item=items)
        self.positions = nn.Parameter(torch.empty(facts.max_len, options.hidden_size))
        nn.init.normal_(self.positions, std=options.initializer_range)
        self.dropout = Dropout(options.hidden_dropout_prob)
        self.transformer = CausalTransformer(
            layers=options.n_layers,
            heads=options.n_heads,
            width=options.hidden_size,
            inner_width=options.inner_size,
            dropout=options.hidden_dropout_prob,
            attention_dropout=options.attn_dropout_prob,
            activation=options.hidden_act,
            norm_eps=options.layer_norm_eps,
            init_std=options.initializer_range,
        )

    def encode(self, vectors: Tensor) -> Tensor:
        """States of every position: item vectors [b, l, d] -> [b, l, d].

        Pads come after the items, and no position sees a later one: so pads need no mask.
        """
        length = vectors.shape[1]
        if length > self.facts.max_len:
            raise ValueError(
                f"a history of {length} items is longer than the {self.facts.max_len} positions "
                "the model was built with; cut it, or raise data.max_len and train again"
            )
        return self.transformer(self.dropout(vectors + self.positions[:length]))

    def forward(self, batch: Batch) -> Output:
        target: Tensor = batch.ids["target"]  # type: ignore[assignment]
        real = target > 0

        if self.options.loss_type == "CE":
            states = self.encode(self.embed.field("history", batch))[real]  # [n, d]
            loss = self.embed.full_softmax("target", states, target[real])
            return Output(loss, states.shape[0])

        if "neg_item" not in batch.ids:
            raise ValueError(
                "SASRec with loss_type BPR learns from negatives and has none; "
                "set train.negatives.num to 1, or model.loss_type to CE"
            )
        negatives: Tensor = batch.ids["neg_item"][real]  # type: ignore[index]
        states = self.encode(self.embed.field("history", batch))[real]
        positive = self.embed.rows("target", target[real])
        negative = self.embed.rows("neg_item", negatives)
        return Output(bpr_loss(states, positive, negative), negatives.numel())

    def encode_query(self, batch: Batch) -> Tensor:
        history: Tensor = batch.ids["history"]  # type: ignore[assignment]
        states = self.encode(self.embed.field("history", batch))
        last = ((history > 0).sum(1) - 1).clamp(min=0)  # an empty history is its first position
        return states[torch.arange(last.shape[0], device=last.device), last]

    def encode_item(self, ids: Tensor) -> Tensor:
        return self.embed.rows("target", ids)

"""CDAE: Collaborative Denoising Auto-Encoders for Top-N Recommender Systems, Wu et al., WSDM 2016.

A user's items, some of them hidden, and a vector of the user make a hidden layer that answers with
all items, of which each is a yes/no question:

    h = act(sum of rows of the items that are left / (1 - corruption_ratio) + v_user + b)
    y_i = <h, w_i> + b_i        loss = sum over all items of ln(1 + e^-y) of those taken, else of y
"""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Embeddings, Facts, Init, Jagged, Output, Retrieval, Table
from shoal.models.general.autoencoder import Autoencoder
from shoal.models.nn.transformer import ACTIVATIONS
from shoal.models.nn.user_items import multi_hot
from shoal.models.options import NotNegative, Share


class CDAE(Autoencoder):
    """A denoising autoencoder with a vector for each user."""

    fold_in = Retrieval.fold_in  # a history alone has no vector of its user

    class Options(Retrieval.Options):
        embedding_size: int = 64  # width of the hidden layer
        corruption_ratio: Share = 0.5  # share of the items that are hidden in training
        loss_type: Literal["BCE", "MSE"] = "BCE"  # log loss, or squared errors
        # activation of the hidden layer
        hid_activation: Literal["sigmoid", "relu", "tanh"] = "relu"
        out_activation: Literal["sigmoid", "relu"] = "sigmoid"  # activation of answers, with MSE
        # weight of |x| over both tables that are read, added once an epoch
        reg_weight_1: NotNegative = 0.0
        # weight of the length of both tables that are read, added once an epoch
        reg_weight_2: NotNegative = 0.01

        DEFAULTS: ClassVar[dict[str, Any]] = {"train.negatives": None}

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.make_tables(options.embedding_size, options.embedding_size)
        users = Table("user", options.embedding_size, facts.num_users, Init("xavier_normal"))
        self.users = Embeddings({facts.user_field: users})
        self.bias = nn.Parameter(torch.zeros(options.embedding_size))

    def hidden(self, batch: Batch, lists: Jagged) -> Tensor:
        """The hidden layer of users [b] who took lists of items: [b, embedding_size]."""
        kept = self.kept_items(lists, self.options.corruption_ratio)
        own = self.users.field(self.facts.user_field, batch)
        activate = ACTIVATIONS[self.options.hid_activation]()
        return activate(self.pooled(lists, kept, scaled=False) + own + self.bias)

    def forward(self, batch: Batch) -> Output:
        lists = batch.ids["taken"]
        assert isinstance(lists, Jagged)
        logits = self.logits(self.hidden(batch, lists))[:, 1:]  # the padding is no item
        taken = multi_hot(lists, self.facts.num_items)[:, 1:]
        if self.options.loss_type == "BCE":
            loss = F.binary_cross_entropy_with_logits(logits, taken, reduction="sum")
        else:
            answers = ACTIVATIONS[self.options.out_activation]()(logits)
            loss = (answers - taken).square().sum()
        share = batch.size / max(1, self.facts.num_users - 1)  # of an epoch
        return Output(loss + share * self._penalty(), batch.size)

    def _penalty(self) -> Tensor:
        tables = self.users.whole(self.facts.user_field), self.embed.whole("shown")
        one_norm, two_norm = self.options.reg_weight_1, self.options.reg_weight_2
        penalties = [one_norm * table.abs().sum() + two_norm * table.norm() for table in tables]
        return penalties[0] + penalties[1]

    def encode_query(self, batch: Batch) -> Tensor:
        lists = self.taken.lists(batch.tensor(self.facts.user_field))
        return F.pad(self.hidden(batch, lists), (0, 1), value=1.0)  # meets the bias

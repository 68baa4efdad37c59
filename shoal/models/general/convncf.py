"""ConvNCF: Outer Product-based Neural Collaborative Filtering, He et al., IJCAI 2018.

Every number of a user's vector meets every number of an item's, and convolutions read the picture
that they make:

    E = u i^T, an image [d, d]        score = <w, sum over places of conv layers(E)> + b

trained by the BPR loss. Pictures are made for each pair, so an evaluation of all items takes long.
"""

from collections.abc import Mapping
from dataclasses import field
from itertools import pairwise
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from shoal.models.base import Batch, Embeddings, Facts, Init, Model, Output, Table, item_blocks
from shoal.models.nn.dropout import Dropout


class ConvNCF(Model):
    """Convolutions over the outer product of two vectors.

    users [b, 1, d], items and negatives [b, 1 + k, d] -> images [b * (1 + k), 1, d, d] -> scores
    """

    recbole_without_effect: ClassVar[Mapping[str, str]] = {
        "pre_model_path": "rows begin at random; a checkpoint of RecBole's BPR is not read"
    }

    class Options(Model.Options):
        embedding_size: int = 64
        cnn_channels: list[int] = field(default_factory=lambda: [1, 32, 32, 32, 32])  # 1, then more
        cnn_kernels: list[int] = field(default_factory=lambda: [4, 4, 2, 2])  # widths of kernels
        # steps of the kernels
        cnn_strides: list[int] = field(default_factory=lambda: [4, 4, 2, 2])
        dropout_prob: float = 0.2  # dropout of what the convolutions found
        # An epoch adds these once: weights of the lengths of both tables, and of all layers
        reg_weights: list[float] = field(default_factory=lambda: [0.1, 0.1])
        train_method: Literal["no_pretrain"] = "no_pretrain"  # rows begin at random

        def __post_init__(self) -> None:
            layers = len(self.cnn_kernels)
            if (len(self.cnn_channels), len(self.cnn_strides)) != (layers + 1, layers):
                raise ValueError(
                    f"model.cnn_kernels has {layers} layers, so model.cnn_strides has {layers} "
                    f"numbers and model.cnn_channels {layers + 1}, the first of them 1"
                )
            width = self.embedding_size
            for kernel, stride in zip(self.cnn_kernels, self.cnn_strides):
                width = (width - kernel) // stride + 1
            if width < 1:
                raise ValueError(
                    f"model.cnn_kernels {self.cnn_kernels} with strides {self.cnn_strides} shrink "
                    f"an image of {self.embedding_size} x {self.embedding_size} to nothing; "
                    "choose a larger model.embedding_size, or fewer layers"
                )

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width, init = options.embedding_size, Init("normal", 0.1)
        self.embed = Embeddings(
            user=Table("user", width, facts.num_users, init),
            item=Table("item", width, facts.num_items, init),
        )
        layers: list[nn.Module] = []
        sizes = zip(pairwise(options.cnn_channels), options.cnn_kernels, options.cnn_strides)
        for (channels_in, channels_out), kernel, stride in sizes:
            layers += [nn.Conv2d(channels_in, channels_out, kernel, stride), nn.ReLU()]
        self.layers = nn.Sequential(*layers)
        self.dropout = Dropout(options.dropout_prob)
        self.predict = nn.Linear(options.cnn_channels[-1], 1)

    def _scores(self, users: Tensor, items: Tensor) -> Tensor:
        """Scores of pairs; users and items are broadcast: [b, 1, d], [b or 1, n, d] -> [b, n]."""
        users, items = torch.broadcast_tensors(users, items)
        images = users.unsqueeze(3) * items.unsqueeze(2)  # [b, n, d, d]
        maps = self.layers(images.flatten(0, 1).unsqueeze(1))
        pooled = self.dropout(maps.sum((2, 3)).view(*users.shape[:2], maps.shape[1]))
        return self.predict(pooled).squeeze(2)

    def forward(self, batch: Batch) -> Output:
        positives = batch.tensor(self.facts.item_field).unsqueeze(1)
        negatives = self.negatives(batch)
        users = self.embed.rows("user", batch.tensor(self.facts.user_field).unsqueeze(1))
        items = self.embed.rows("item", torch.cat([positives, negatives], 1))
        scores = self._scores(users, items)
        loss = -logsigmoid(scores[:, :1] - scores[:, 1:]).sum()
        of_tables, of_layers = self.options.reg_weights
        share = negatives.numel() / max(1, len(self.facts.train_items))  # of an epoch
        if of_tables:
            lengths = self.embed.whole("user").norm() + self.embed.whole("item").norm()
            loss = loss + share * of_tables * lengths
        if of_layers:
            layers = [*self.layers.parameters(), *self.predict.parameters()]
            norms = [weights.norm() for weights in layers if weights.dim() > 1]
            loss = loss + share * of_layers * torch.stack(norms).sum()
        return Output(loss, negatives.numel())

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        users = self.embed.rows("user", batch.tensor(self.facts.user_field).unsqueeze(1))
        vectors = self.embed.rows("item", torch.atleast_2d(items))  # [1 or b, n, d]
        floats = batch.size * self.options.embedding_size**2
        blocks = item_blocks(items.shape[-1], floats)
        return torch.cat([self._scores(users, vectors[:, block]) for block in blocks], 1)

"""S3Rec: Self-Supervised Learning with Mutual Information Maximization, Zhou et al., CIKM 2020.

SASRec that also learns what items are, from histories with some items hidden, read both ways:

    hidden item        -ln sigmoid(<W h, i> - <W h, i'>)        i' drawn at random
    its features       -ln sigmoid(<W' h, f> - <W' h, f'>)      f' of i'
    features of others the same where nothing is hidden
    loss = next item + pretext_weight * these

The paper learns them first and the next item then; here both are learned together. Its fourth task,
which compares segments of histories, is left out.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Facts, Output
from shoal.models.nn.dropout import uniform_like
from shoal.models.nn.item_features import ItemFeatures
from shoal.models.nn.transformer import Attention
from shoal.models.sequential.sasrec import SASRec


class S3Rec(SASRec):
    """S3-Rec: its layers read a history forwards for the next item and both ways for the rest."""

    reads_features = True
    recbole_without_effect: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("train_stage", "pretrain_epochs", "save_step", "pre_model_path"),
        "items' relations and the next item are learned together, in one stage",
    ) | {"sp_weight": "segments of histories are not compared"}

    class Options(SASRec.Options):
        item_attribute: str | None = None  # the one feature of items that is read; null: all
        mask_ratio: float = 0.2  # share of the items that are hidden
        pretext_weight: float = 0.2  # weight of the losses that relate items and features
        mip_weight: float = 1.0  # weight among them of hidden items
        map_weight: float = 1.0  # weight among them of features of hidden items
        aap_weight: float = 1.0  # weight among them of features of the other items

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        self.cuda_graph_safe = False
        size, std = options.hidden_size, options.initializer_range
        selected = None if options.item_attribute is None else [options.item_attribute]
        self.features = ItemFeatures(type(self).__name__, facts, size, std, selected=selected)
        self.hidden = nn.Parameter(torch.randn(size) * std)
        self.to_item, self.to_features = nn.Linear(size, size), nn.Linear(size, size)

    def forward(self, batch: Batch) -> Output:
        output = super().forward(batch)
        pretext = self.options.pretext_weight * self._pretext(batch)
        return replace(output, loss=output.loss + pretext)

    def _pretext(self, batch: Batch) -> Tensor:
        """The tasks on hidden items and on features, summed: scalar."""
        history = batch.tensor("history")
        real, items = history > 0, self.embed.field("history", batch)
        drawn = uniform_like(torch.empty(*history.shape, 2, device=history.device))
        hidden = (drawn[..., 0] < self.options.mask_ratio) & real
        number = self.facts.num_items - 1
        others = 1 + (drawn[..., 1] * number).long().clamp(max=number - 1)
        read = torch.where(hidden.unsqueeze(2), self.hidden, items)
        states = self._both_ways(read, ~real)
        wrong = self.embed.rows("target", others)
        margins = (self.to_item(states) * (items - wrong)).sum(2)
        of_items = -(F.logsigmoid(margins) * hidden).sum()
        features = self.features(history) - self.features(others)  # [b, l, features, d]
        margins = (self.to_features(states).unsqueeze(2) * features).sum(3)
        weights = torch.where(hidden, self.options.map_weight, self.options.aap_weight) * real
        of_features = -(F.logsigmoid(margins).mean(2) * weights).sum()
        return self.options.mip_weight * of_items + of_features

    def _both_ways(self, vectors: Tensor, pads: Tensor) -> Tensor:
        """States of positions that see all others."""
        layers = [one for one in self.transformer.modules() if isinstance(one, Attention)]
        for layer in layers:
            layer.causal = False
        try:
            places = self.positions[: vectors.shape[1]]
            return self.transformer(self.dropout(vectors + places), pads)
        finally:
            for layer in layers:
                layer.causal = True

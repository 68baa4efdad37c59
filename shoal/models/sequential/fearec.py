"""FEARec: Frequency Enhanced Hybrid Attention Network for Sequential Recommendation, Du et al.,
SIGIR 2023.

Attention that finds how far apart alike parts of a history are (F: Fourier transform, over time):

    R(delay) = mean over numbers of F^-1(F(q) * conj F(k)), with the frequencies of this layer alone
    z_t = sum over the delays with the largest R of softmax(R)(delay) v_(t + delay)

Layer i keeps a band of frequencies, `global_ratio` of them; bands move from high to low. With
`dual_domain` causal attention is mixed in: (1 - spatial_ratio) z + spatial_ratio softmax(q k^T) v.

    loss = next item + lmd * contrast of two passes, whose dropout differs
                     + lmd_sem * contrast of two histories that are followed by the same item

Histories are aligned to their end. Two histories with the same next item are found in the global
batch; where there is no second one, the second pass of the history itself takes its place.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Facts, Output
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.frequency_attention import FrequencyBlock
from shoal.models.nn.mlp import begin_normal
from shoal.models.options import Positive, Share
from shoal.models.sequential.base import AttentionOptions, NextItem, num_places
from shoal.models.sequential.cl4srec import alike
from shoal.models.sequential.fmlp import to_the_end


class FEARec(NextItem):
    """Without `contrast` the loss is that of the next item alone, as RecBole's file has it."""

    samples = "prefixes"
    recbole_without_effect: ClassVar[Mapping[str, str]] = {
        "fredom_type": "the penalty compares the histories that contrast compares",
    }

    class Options(AttentionOptions, NextItem.Options):
        hidden_size: int = 64
        initializer_range: float = 0.02
        global_ratio: Share = 1.0  # share of the frequencies that a layer keeps
        topk_factor: int = 1  # times ln(data.max_len): how many delays are mixed
        dual_domain: bool = False  # whether attention in time is mixed in
        spatial_ratio: Share = 0.0  # share of attention in time
        std: bool = False  # whether attention in time sees the band of its layer alone
        # pairs that are contrasted: two passes (un), histories with the same next item (su), both
        contrast: Literal["un", "su", "us"] | None = None
        lmd: float = 0.1  # weight of the contrast of two passes
        lmd_sem: float = 0.1  # weight of the contrast of histories with the same next item
        tau: Positive = 1.0  # temperature of the contrast
        sim: Literal["dot", "cos"] = "dot"  # how states are compared
        fredom: bool = False  # 0.1 * the distance of compared states' transforms is a penalty

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width = options.hidden_size
        self.make_items(width, options.initializer_range)
        self.positions = nn.Parameter(torch.randn(facts.max_len, width) * options.initializer_range)
        self.norm = nn.LayerNorm(width, eps=options.layer_norm_eps)
        self.dropout = Dropout(options.hidden_dropout_prob)
        numbers = range(options.n_layers)
        self.blocks = nn.ModuleList(
            FrequencyBlock(options, facts.max_len, number) for number in numbers
        )
        begin_normal(self, options.initializer_range)

    def states(self, batch: Batch) -> Tensor:
        history = batch.tensor("history")
        num_places(history, self.facts)
        items = self.embed.field("history", batch)
        items = to_the_end(items, history, self.facts.max_len)
        pads = to_the_end((history > 0).unsqueeze(2), history, self.facts.max_len).squeeze(2) == 0
        x = self.dropout(self.norm(items + self.positions))
        for block in self.blocks:
            x = block(x, pads)
        return x[:, -1]

    def forward(self, batch: Batch) -> Output:
        options, target = self.options, batch.tensor("target")
        negatives = batch.tensor("neg_item") if "neg_item" in batch.ids else None
        states = self.states(batch)
        output = self.loss(states, target, negatives)
        if options.contrast is None:
            return output
        again = self.states(batch)
        pairs: list[tuple[float, Tensor]] = []
        if options.contrast in ("un", "us"):
            pairs.append((options.lmd, again))
        if options.contrast in ("su", "us"):
            partner = next_alike(self.gather_global(target))[batch.first :][: len(target)]
            pairs.append((options.lmd_sem, self.gather_global(again)[partner]))
        loss = output.loss
        for weight, other in pairs:
            first_view, second_view = states, other
            if options.sim == "cos":
                first_view, second_view = (F.normalize(x, dim=1) for x in (states, other))
            term = alike(first_view, second_view, batch.first, self.gather_global, options.tau)
            loss = loss + weight * 0.5 * term * (output.count // max(1, len(target)))
            if options.fredom and len(states):
                apart = torch.fft.rfft(states - other, dim=1, norm="ortho").abs().mean(1).sum()
                loss = loss + 0.1 * apart * (output.count // len(target))
        return replace(output, loss=loss)


def next_alike(targets: Tensor) -> Tensor:
    """For each of n samples the next one with the same target, around in a ring: [n] -> [n]."""
    order = targets.argsort(stable=True)
    ordered = targets[order]
    place = torch.arange(len(targets), device=targets.device)
    first = torch.searchsorted(ordered, ordered)
    last = torch.searchsorted(ordered, ordered, right=True) - 1
    partner = torch.empty_like(order)
    partner[order] = order[torch.where(place < last, place + 1, first)]
    return partner

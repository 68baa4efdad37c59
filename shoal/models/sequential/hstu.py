"""HSTU: Actions Speak Louder than Words: Trillion-Parameter Sequential Transducers for Generative
Recommendations, Zhai et al., ICML 2024.

Attention without a softmax, whose weights may grow with the number of matches, and a gate:

    U, V, Q, K = silu(W norm(x))
    A_ij  = silu(<Q_i, K_j> + position bias(i - j) + time bias(t_i+1 - t_j)) / n,   j <= i
    x    += W' dropout(norm(A V) * U)

The time bias looks at how long before the item that is asked for (t_i+1) an item was taken: times
are in buckets of log2. When asked, that is the time of the request.

On a GPU with Triton attention is computed by kernels, which keep nothing of all pairs of places and
skip pads (shoal/kernels/hstu.py); elsewhere by torch, with scores [b, heads, l, l].
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from shoal.models.base import Batch, Facts
from shoal.models.nn.dropout import Dropout, recomputed
from shoal.models.nn.hstu import (
    HSTULayer,
    HSTUOptions,
    buckets_of,
    places_of,
    with_pads,
    without_pads,
)
from shoal.models.sequential.base import NextItem, num_places
from shoal.models.sequential.extending import Extending


class HSTU(Extending):
    """Pointwise attention with biases of relative position and time."""

    reads_times = True
    recompute = False  # whether backward computes layers again instead of keeping what they made

    class Options(HSTUOptions, NextItem.Options):
        pass

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        # Steps over long histories gain nothing by being recorded: the host waits for lengths once.
        self.cuda_graph_safe = options.loss_type == "CE" and facts.max_len <= 512
        width = options.hidden_size
        self.make_items(width)
        self.positions = nn.Parameter(torch.empty(facts.max_len, width))
        nn.init.trunc_normal_(self.positions, std=width**-0.5)
        self.dropout = Dropout(options.hidden_dropout_prob)
        layers = [HSTULayer(options, facts.max_len) for _ in range(options.n_layers)]
        self.layers = nn.ModuleList(layers)
        self.widest = max((layer.widest for layer in layers), default=0)  # head
        self.state_width = sum(layer.state_width for layer in layers)

    def states(self, batch: Batch) -> Tensor:
        history = batch.tensor("history")
        length = num_places(history, self.facts)
        vectors = self.embed.field("history", batch) * math.sqrt(self.options.hidden_size)
        x = self.dropout(vectors + self.positions[:length])
        x = x * (history > 0).unsqueeze(-1)
        times = batch.tensor("history_time")[:, : length + 1] if self.options.use_times else None
        places = places_of(x, history, times, self.widest)
        x = without_pads(x, places[1])
        for layer in self.layers:
            again = self.recompute and self.training
            x = recomputed(layer, x, *places) if again else layer(x, *places)
        return with_pads(x, places[1], history.shape[0])

    def extended(self, batch: Batch) -> Tensor:
        kept, new = batch.dense["kept"], batch.tensor("new")
        place = torch.arange(kept.shape[0], kept.shape[0] + new.shape[0], device=kept.device)
        vectors = self.embed.rows("history", new) * math.sqrt(self.options.hidden_size)
        x = (vectors + self.positions[place]).unsqueeze(0)
        buckets = None
        if self.options.use_times:
            request_times, event_times = batch.tensor("asked"), batch.tensor("taken")
            event_times = torch.cat([batch.tensor("kept_taken"), event_times])
            buckets = buckets_of(request_times.unsqueeze(0), event_times.unsqueeze(0))
        rows, layers = [], list[Any](self.layers)
        pasts = kept.unsqueeze(0).split([layer.state_width for layer in layers], -1)
        for layer, past in zip(layers, pasts):
            parts = layer.parts(x)
            rows.append(layer.state(parts))
            x = layer.attended(x, parts, buckets, past=layer.past_of(past))
        return torch.cat([*rows, self.project_states(x)], -1).squeeze(0)

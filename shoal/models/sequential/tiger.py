"""TIGER: Recommender Systems with Generative Retrieval, Rajput et al., NeurIPS 2023.

Items are words of a few codes (semantic ids, see nn/semantic_ids.py), and the next item is written
code by code by an encoder and a decoder:

    history    a b         codes  5 1 0  5 7 0          items that are alike begin alike
    next item  c           codes  <begin> 5 3 -> 5 3 0
    score(item) = ln p(first code) + ln p(second | first) + ...

Codes are made when the model is, by an RQ-VAE over vectors of items: of who took them, or of their
features (`codes_from`); or they are given (`data.codes`, which `shoal codes` makes). To recommend,
the history is read once; then the `beam_size` likeliest beginnings continue, all in one call, and
only to codes that some item has. An item whose beginning was dropped ranks behind all others.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Facts, Output
from shoal.models.nn.beam_search import beam_search
from shoal.models.nn.decoder import Decoder, MemoryKeys
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.semantic_ids import item_codes
from shoal.models.nn.transformer import Transformer
from shoal.models.options import Count
from shoal.models.sequential.base import SEQUENCE_DEFAULTS, num_places
from shoal.models.sequential.code_writer import CodeWriter


class TIGER(CodeWriter):
    """Writes the semantic id of the next item. One table holds the vectors of all codes."""

    reads_features = True
    cuda_graph_safe = True

    class Options(CodeWriter.Options):
        hidden_size: int = 128
        inner_size: int = 512
        n_layers: int = 2  # number of layers of the encoder, and of the decoder
        n_heads: int = 4
        dropout_prob: float = 0.1
        # codes of an item, not counting the last one, which tells items with equal codes apart
        code_levels: Count = 3
        code_size: Count = 256  # different codes of a level
        code_steps: int = 300  # steps of the RQ-VAE
        # what items' codes are made of
        codes_from: Literal["interactions", "features"] = "interactions"
        vector_size: int = 64  # width of the vectors that codes are made of
        beam_size: Count = 50  # codes that beam search keeps at a time

        DEFAULTS: ClassVar[dict[str, Any]] = SEQUENCE_DEFAULTS
        RANKING: ClassVar[tuple[str, ...]] = ("beam_size",)

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width = options.hidden_size
        codes, size = item_codes(
            facts,
            source=options.codes_from,
            dim=options.vector_size,
            levels=options.code_levels,
            size=options.code_size,
            steps=options.code_steps,
        )
        self.make_codes(codes, size, width)
        self.begin = nn.Parameter(torch.randn(width) * 0.02)
        self.positions = nn.Parameter(torch.randn(facts.max_len, width) * 0.02)
        self.places = nn.Parameter(torch.randn(self.levels, width) * 0.02)
        self.dropout = Dropout(options.dropout_prob)
        self.encoder = Transformer(
            options.n_layers,
            options.n_heads,
            width,
            options.inner_size,
            options.dropout_prob,
            norm_eps=1e-6,
            causal=False,
        )
        self.decoder = Decoder(
            options.n_layers, options.n_heads, width, options.inner_size, options.dropout_prob
        )

    def read(self, history: Tensor, rows: Tensor) -> MemoryKeys:
        """What the decoder looks at, of histories [b, l]."""
        size, length = history.shape[0], num_places(history, self.facts)
        tokens = self.tokens(history) * (history > 0).unsqueeze(2)
        pads = (tokens == 0).view(size, length * self.levels)
        x = F.embedding(tokens, rows) + self.positions[:length].unsqueeze(1)
        x = self.dropout(x.view(size, length * self.levels, rows.shape[1]))
        return self.decoder.remember(self.encoder(x, pads), pads)

    def forward(self, batch: Batch) -> Output:
        rows, target = self.rows(), batch.tensor("target")
        memory = self.read(batch.tensor("history"), rows)
        begin = self.begin.expand(target.shape[0], 1, rows.shape[1])
        x = torch.cat([begin, F.embedding(self.tokens(target)[:, :-1], rows)], 1) + self.places
        states = self.decoder(self.dropout(x.unsqueeze(1)), memory).squeeze(1)  # [b, levels, d]
        codes = self.codes[target]
        each = rows[1:].view(self.levels, self.size, -1)  # logits of all levels: [b, levels, size]
        logits = (states.transpose(0, 1) @ each.transpose(1, 2)).transpose(0, 1)
        loss = F.cross_entropy(logits.flatten(0, 1), codes.flatten(), reduction="sum")
        return Output(loss, codes.numel())

    def written(self, history: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        return beam_search(
            self.decoder,
            self.read(history, rows),
            self.tree,
            begin=self.begin.expand(history.shape[0], 1, -1),
            places=self.places,
            vectors=rows[1:].view(self.levels, self.size, -1),
            beam_size=self.options.beam_size,
        )

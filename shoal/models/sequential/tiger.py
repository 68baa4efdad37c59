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

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Embeddings, Facts, Init, Model, Output, Table
from shoal.models.nn.code_tree import Beam, CodeTree
from shoal.models.nn.decoder import Decoder, MemoryKeys
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.recorded import Recorded, padded_rows
from shoal.models.nn.semantic_ids import item_vectors, semantic_ids
from shoal.models.nn.transformer import Transformer
from shoal.models.options import Count
from shoal.models.sequential.base import SEQUENCE_DEFAULTS, lengths, num_places


class TIGER(Model):
    """Writes the semantic id of the next item. One table holds the vectors of all codes."""

    kind = "sequential"
    samples = "prefixes"
    reads_features = True
    reads_codes = True
    cuda_graph_safe = True
    codes: Tensor  # [num_items, levels], of item 0 zeros

    class Options(Model.Options):
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
        if facts.codes is None:
            vectors = item_vectors(facts, options.codes_from, options.vector_size)
            codes = semantic_ids(
                vectors[1:], options.code_levels, options.code_size, options.code_steps
            )
            codes = F.pad(codes, (0, 0, 1, 0))
            self.levels, self.size = codes.shape[1], options.code_size
        else:
            codes = facts.codes
            self.levels, self.size = codes.shape[1], int(codes.max()) + 1
        self.register_buffer("codes", codes)
        # row 0 pads; code c of level k is row 1 + k * size + c
        rows = 1 + self.levels * self.size
        self.embed = Embeddings(code=Table("code", width, rows, Init("normal", 0.02), padding=0))
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
        self._tree: CodeTree | None = None
        self._written = Recorded(self.written)

    def train(self, mode: bool = True) -> TIGER:
        """Set the mode as torch does, and drop the tree of codes: a checkpoint may have others."""
        self._tree, self._written = None, Recorded(self.written)
        return super().train(mode)

    @property
    def tree(self) -> CodeTree:
        """The codes that items have."""
        if self._tree is None:
            self._tree = CodeTree(self.codes, self.size)
        return self._tree

    def rows(self) -> Tensor:
        """The vectors of all codes, as layers read them: [1 + levels * size, d]."""
        return self.embed.whole("code").to(self.begin.dtype)

    def read(self, history: Tensor, rows: Tensor) -> MemoryKeys:
        """What the decoder looks at, of histories [b, l]."""
        size, length = history.shape[0], num_places(history, self.facts)
        tokens = self.tokens(history) * (history > 0).unsqueeze(2)
        pads = (tokens == 0).view(size, length * self.levels)
        x = F.embedding(tokens, rows) + self.positions[:length].unsqueeze(1)
        x = self.dropout(x.view(size, length * self.levels, rows.shape[1]))
        return self.decoder.remember(self.encoder(x, pads), pads)

    def tokens(self, items: Tensor) -> Tensor:
        """Rows of items' codes: ids of any shape -> that shape + [levels]."""
        offsets = torch.arange(self.levels, device=items.device) * self.size
        return self.codes[items] + offsets + 1

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

    # ---- what comes next ------------------------------------------------------------------------

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        """Scores as in `Model`: beginnings continue whichever items are asked for, so scores of
        some items are those among all."""
        return self.scorer(batch)(items)

    def scorer(self, batch: Batch) -> Callable[[Tensor], Tensor]:
        history = batch.tensor("history")
        if not torch.compiler.is_exporting():  # pads at the end of all histories are not read
            longest = max(lengths(history).tolist(), default=1)
            history = history[:, : max(8, padded_rows(longest))]
        written, tree = self._written(history, self.rows()), self.tree
        return lambda items: tree.scores(written, torch.atleast_2d(items))

    def written(self, history: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        """The beginnings that continue at each level, and ln p of the next code of each.

        history [b, l] -> nodes [b, w], [b, w, size], nodes of the next level, ...
        """
        size, tree, out = history.shape[0], self.tree, []
        memory, beam = self.read(history, rows), Beam.empty(history.shape[0], rows)
        x = self.begin.expand(size, 1, -1)
        kept = x.new_zeros(size, 1, len(self.decoder.blocks), 2, 0, rows.shape[1])
        each = rows[1:].view(self.levels, self.size, -1)
        for level in range(self.levels):
            states, kept = self.decoder.next(x + self.places[level], memory, kept)
            chances = (states @ each[level].T).float().log_softmax(-1)  # [b, w, size]
            out += [beam.nodes, chances]
            if level + 1 < self.levels:
                beam, place, code = beam.grown(
                    chances, tree.prefixes[level], self.options.beam_size
                )
                texts = kept.shape[1]
                first = torch.arange(size, device=place.device).unsqueeze(1) * texts
                kept, x = kept.flatten(0, 1)[place + first], each[level][code]
        return tuple(out)

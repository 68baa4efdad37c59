"""TIGER: Recommender Systems with Generative Retrieval, Rajput et al., NeurIPS 2023.

Items are words of a few codes (semantic ids, see nn/semantic_ids.py), and the next item is written
code by code by an encoder and a decoder:

    history    a b         codes  5 1 0  5 7 0          items that are alike begin alike
    next item  c           codes  <begin> 5 3 -> 5 3 0
    score(item) = ln p(first code) + ln p(second | first) + ...

Codes are made when the model is, by an RQ-VAE over vectors of items: of who took them, or of their
features (`codes_from`). To recommend, the `beam_size` likeliest beginnings go on, and only to codes
that some item has; an item whose beginning was dropped ranks behind all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.models.base import Batch, Embeddings, Facts, Init, Jagged, Model, Output, Table
from shoal.models.nn.dropout import Dropout
from shoal.models.nn.mlp import begin_normal
from shoal.models.nn.semantic_ids import semantic_ids, taken_vectors
from shoal.models.nn.transformer import (
    HIDDEN,
    Attention,
    Residual,
    Transformer,
    feed_forward,
    split_heads,
)
from shoal.models.nn.user_items import owners
from shoal.models.options import Count
from shoal.models.sequential.base import SEQUENCE_DEFAULTS, num_places


class TIGER(Model):
    """Writes the semantic id of the next item. One table holds the vectors of all codes."""

    kind = "sequential"
    samples = "prefixes"
    reads_features = True
    codes: Tensor  # [num_items, levels + 1], of item 0 zeros

    class Options(Model.Options):
        hidden_size: int = 128
        inner_size: int = 512
        n_layers: int = 2  # of the encoder, and of the decoder
        n_heads: int = 4
        dropout_prob: float = 0.1
        code_levels: Count = 3  # beside the last one, which distinguishes items
        code_size: Count = 256  # different codes of a level
        code_steps: int = 300  # steps of the RQ-VAE
        # what items' codes are made of
        codes_from: Literal["interactions", "features"] = "interactions"
        vector_size: int = 64  # of the vectors that codes are made of
        beam_size: Count = 50  # codes that are written side by side

        DEFAULTS: ClassVar[dict[str, Any]] = SEQUENCE_DEFAULTS
        RANKING: ClassVar[tuple[str, ...]] = ("beam_size",)

    def __init__(self, options: Options, facts: Facts):
        super().__init__(options, facts)
        width = options.hidden_size
        vectors = item_vectors(facts, options.codes_from, options.vector_size)
        made = semantic_ids(vectors[1:], options.code_levels, options.code_size, options.code_steps)
        self.levels, self.size = made.shape[1], options.code_size
        self.register_buffer("codes", F.pad(made, (0, 0, 1, 0)))
        # row 0 pads; code c of level k is row 1 + k * size + c
        rows = 1 + self.levels * self.size
        self.embed = Embeddings(code=Table("code", width, rows, Init("normal", 0.02), padding=0))
        self.begin = nn.Parameter(torch.randn(width) * 0.02)
        self.positions = nn.Parameter(torch.randn(facts.max_len, width) * 0.02)
        self.places = nn.Parameter(torch.randn(self.levels, width) * 0.02)
        self.dropout = Dropout(options.dropout_prob)
        shape = options.n_layers, options.n_heads, width, options.inner_size
        self.encoder = Transformer(*shape, options.dropout_prob, norm_eps=1e-6, causal=False)
        self.decoder = Decoder(*shape, options.dropout_prob)
        self._words: list[Tensor] | None = None

    def train(self, mode: bool = True) -> TIGER:
        """As in torch; it also drops the tree of codes: a checkpoint may have others."""
        self._words = None
        return super().train(mode)

    def read(self, history: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """What the encoder makes of histories [b, l]: [b, l * levels, d], and which are pads."""
        size, length = history.shape[0], num_places(history, self.facts)
        tokens = self.tokens(history) * (history > 0).unsqueeze(2)
        pads = (tokens == 0).view(size, length * self.levels)
        x = F.embedding(tokens, rows) + self.positions[:length].unsqueeze(1)
        x = self.dropout(x.view(size, length * self.levels, rows.shape[1]))
        return self.encoder(x, pads), pads

    def tokens(self, items: Tensor) -> Tensor:
        """Rows of items' codes: ids of any shape -> that shape + [levels]."""
        offsets = torch.arange(self.levels, device=items.device) * self.size
        return self.codes[items] + offsets + 1

    def written(self, tokens: Tensor, read: tuple[Tensor, Tensor], rows: Tensor) -> Tensor:
        """States behind the beginning and each of tokens [b, w, t]: [b, w, t + 1, d]."""
        begin = self.begin.expand(*tokens.shape[:2], 1, rows.shape[1])
        x = torch.cat([begin, F.embedding(tokens, rows)], 2)
        return self.decoder(self.dropout(x + self.places[: x.shape[2]]), *read)

    def logits(self, states: Tensor, level: int, rows: Tensor) -> Tensor:
        """Of the codes of a level: [..., d] -> [..., size]."""
        first = 1 + level * self.size
        return states @ rows[first : first + self.size].T

    def forward(self, batch: Batch) -> Output:
        rows, target = self.embed.whole("code"), batch.tensor("target")
        read = self.read(batch.tensor("history"), rows)
        tokens = self.tokens(target)[:, None, :-1]
        states = self.written(tokens, read, rows).squeeze(1)  # [b, levels, d]
        loss, codes = rows.new_zeros(()), self.codes[target]
        for level in range(self.levels):
            logits = self.logits(states[:, level], level, rows)
            loss = loss + F.cross_entropy(logits, codes[:, level], reduction="sum")
        return Output(loss, codes.numel())

    # ---- what comes next ------------------------------------------------------------------------

    def score(self, batch: Batch, items: Tensor) -> Tensor:
        """As in Model. Beginnings go on or not whatever is asked for, so scores of some items are
        those among all."""
        rows, history = self.embed.whole("code"), batch.tensor("history")
        read, size = self.read(history, rows), history.shape[0]
        asked = torch.atleast_2d(items)  # [b or 1, n]
        total = rows.new_zeros(size, asked.shape[1])
        nodes = torch.zeros(size, 1, dtype=torch.int64, device=rows.device)
        beam = Beam(nodes, rows.new_zeros(size, 1), nodes.new_zeros(size, 1, 0))
        above = torch.zeros_like(asked)  # the node of an item's beginning
        for level in range(self.levels):
            states = self.written(beam.tokens, read, rows)[:, :, -1]
            chances = self.logits(states, level, rows).log_softmax(-1)  # [b, w, size]
            place, found = beam.find(above.expand(size, -1))
            code = place * self.size + self.codes[asked][..., level]
            known = chances.flatten(1).gather(1, code)
            # a code behind a beginning that did not go on: less than any ln p
            total = total + torch.where(found, known, -1e3)
            if level + 1 < self.levels:
                words = self.words()[level]
                above = node_of(words, above * self.size + self.codes[asked][..., level])
                token = 1 + level * self.size
                beam = beam.grown(chances, words, self.options.beam_size, token)
        return total

    def words(self) -> list[Tensor]:
        """Of each level, the beginnings that items have, ascending: node before * size + code.

        The number of a beginning in its list is its node.
        """
        if self._words is None:
            self._words, node = [], torch.zeros_like(self.codes[1:, 0])
            for level in range(self.levels):
                key = node * self.size + self.codes[1:, level]
                self._words.append(torch.unique(key))
                node = torch.searchsorted(self._words[-1], key)
        return self._words


class Decoder(nn.Module):
    """Pre-norm blocks of causal attention, attention to the memory and a feed-forward layer."""

    def __init__(self, layers: int, heads: int, width: int, inner: int, dropout: float):
        super().__init__()
        self.blocks = nn.ModuleList(Block(heads, width, inner, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        begin_normal(self, 0.02)

    def forward(self, x: Tensor, memory: Tensor, pads: Tensor) -> Tensor:
        """States of w texts of t places for each of b memories.

        x [b, w, t, d], memory [b, m, d], pads bool [b, m]: places to ignore -> as x
        """
        hidden = pads[:, None, None, :].to(memory.dtype) * HIDDEN  # [b, 1, 1, m]
        for block in self.blocks:
            x = block(x, memory, hidden)
        return self.norm(x)


class Block(nn.Module):
    """One of them: [b, w, t, d] -> the same."""

    def __init__(self, heads: int, width: int, inner: int, dropout: float):
        super().__init__()
        self.own = Residual(Attention(heads, width, 0.0, causal=True), width, dropout, 1e-6)
        self.cross = CrossAttention(heads, width, dropout)
        self.feed = Residual(feed_forward(width, inner), width, dropout, 1e-6)

    def forward(self, x: Tensor, memory: Tensor, hidden: Tensor) -> Tensor:
        size, texts, length, width = x.shape
        x = self.own(x.reshape(size * texts, length, width))
        x = self.cross(x.view(size, texts * length, width), memory, hidden)
        x = self.feed(x.view(size * texts, length, width))
        return x.view(size, texts, length, width)


class CrossAttention(nn.Module):
    """x + dropout(attention of norm(x) to a memory): [b, n, d], [b, m, d] -> [b, n, d]."""

    def __init__(self, heads: int, width: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor, hidden: Tensor) -> Tensor:
        parts = self.query(self.norm(x)), *self.key_value(memory).chunk(2, -1)
        query, key, value = (split_heads(part, self.heads) for part in parts)
        mixed = F.scaled_dot_product_attention(query, key, value, hidden)
        return x + self.dropout(self.out(mixed.transpose(1, 2).flatten(2)))


@dataclass
class Beam:
    """Beginnings that go on, w for each of b users, by ascending node."""

    nodes: Tensor  # [b, w]
    scores: Tensor  # [b, w], ln p
    tokens: Tensor  # [b, w, t], rows of their codes

    def find(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Where nodes [b, n] stand in it, and whether they do: [b, n] each."""
        place = torch.searchsorted(self.nodes, nodes.contiguous())
        place = place.clamp(max=self.nodes.shape[1] - 1)
        return place, self.nodes.gather(1, place) == nodes

    def grown(self, chances: Tensor, words: Tensor, most: int, token: int) -> Beam:
        """The likeliest of what may follow: chances [b, w, size], of words that items have.

        token: the row of code 0 of this level.
        """
        texts, codes = chances.shape[1:]
        keys = self.nodes.unsqueeze(2) * codes + torch.arange(codes, device=chances.device)
        node = node_of(words, keys.flatten(1))
        scores = (self.scores.unsqueeze(2) + chances).flatten(1)
        scores = scores.masked_fill(node == len(words), -torch.inf)
        scores, best = scores.topk(min(most, len(words), texts * codes), 1)
        node, order = node.gather(1, best).sort(1)
        best, scores = best.gather(1, order), scores.gather(1, order)
        before, code = best // codes, best % codes
        tokens = self.tokens.gather(1, before.unsqueeze(2).expand(-1, -1, self.tokens.shape[2]))
        return Beam(node, scores, torch.cat([tokens, (code + token).unsqueeze(2)], 2))


def node_of(words: Tensor, keys: Tensor) -> Tensor:
    """The numbers of keys among words; len(words) where no item has such a beginning."""
    place = torch.searchsorted(words, keys.contiguous())
    same = words[place.clamp(max=len(words) - 1)] == keys
    return torch.where(same, place, len(words))


def item_vectors(facts: Facts, source: str, dim: int) -> Tensor:
    """What semantic ids are made of: [num_items, dim]."""
    if source == "interactions":
        sizes = facts.num_users, facts.num_items
        return taken_vectors(facts.train_users, facts.train_items, sizes, dim)
    features = [f for f in facts.of_side("item") if f.column != facts.item_field]
    if not features:
        raise ValueError(
            "TIGER with codes_from features reads features of items and the data has none; "
            "describe some with data.features (side: item), or set model.codes_from=interactions"
        )
    batch = facts.side("item", torch.arange(facts.num_items))
    total = torch.zeros(facts.num_items, dim)
    for feature in features:  # a random direction for each value, so that equal ones are equal
        if not feature.is_sparse:
            values = batch.dense[feature.name].view(facts.num_items, feature.width)
            total += values @ torch.randn(feature.width, dim)
            continue
        ids = batch.ids[feature.name]
        directions = torch.randn(int(batch.flat_ids(feature.name).max()) + 1, dim)
        directions[0] = 0.0
        if isinstance(ids, Jagged):
            total.index_add_(0, owners(ids), directions[ids.values])
        else:
            total += directions[ids.view(facts.num_items)]
    return total

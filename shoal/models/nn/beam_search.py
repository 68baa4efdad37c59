"""Beam search: the likeliest texts of codes, code by code, along the tree of those that items have.

A decoder writes texts of a memory. At each level it says how likely each code is behind each text;
the likeliest of all continuations that some item has are the texts of the next level.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.models.nn.code_tree import NOBODY, CodeTree
from shoal.models.nn.decoder import Decoder, MemoryKeys


@dataclass
class Beam:
    """Beginnings that continue, w for each of b users, by ascending node."""

    nodes: Tensor  # [b, w]
    scores: Tensor  # [b, w], ln p

    @classmethod
    def empty(cls, size: int, like: Tensor) -> "Beam":
        """The beginning without codes, for each of so many users."""
        nodes = torch.zeros(size, 1, dtype=torch.int64, device=like.device)
        return cls(nodes, torch.zeros(size, 1, device=like.device))

    def grown(self, chances: Tensor, prefixes: Tensor, most: int) -> tuple["Beam", Tensor, Tensor]:
        """The likeliest of what may follow, at most so many: chances [b, w, size] of each code.

        Also returns the place in this beam that each continues [b, w], and by which code [b, w].
        """
        texts, size = chances.shape[1:]
        keys = self.nodes.unsqueeze(2) * size + torch.arange(size, device=chances.device)
        keys = keys.flatten(1)
        node = torch.searchsorted(prefixes, keys)
        is_node = prefixes[node] == keys
        scores = (self.scores.unsqueeze(2) + chances).flatten(1).masked_fill(~is_node, -torch.inf)
        scores, best = scores.topk(min(most, texts * size), 1)
        # What no item has is chosen where there are too few: it stands last, and is nobody's node.
        node = torch.where(scores == -torch.inf, NOBODY, node.gather(1, best))
        node, order = node.sort(1)
        best = best.gather(1, order)
        return Beam(node, scores.gather(1, order)), best // size, best % size


def beam_search(
    decoder: Decoder,
    memory: MemoryKeys,
    tree: CodeTree,
    begin: Tensor,
    places: Tensor,
    vectors: Tensor,
    beam_size: int,
) -> tuple[Tensor, ...]:
    """The beginnings that continue at each level, and ln p of the next code of each.

    begin      [b, 1, d]: what the decoder reads in front of the first code
    places     [levels, d]: added to what it reads
    vectors    [levels, size, d], of all codes
    beam_size  beginnings that continue, at most

    -> nodes [b, w], [b, w, size], nodes of the next level, ...
    """
    (size, _, width), levels = begin.shape, len(vectors)
    beam, x, out = Beam.empty(size, begin), begin, []
    kept = x.new_zeros(size, 1, len(decoder.blocks), 2, 0, width)
    for level in range(levels):
        states, kept = decoder.next(x + places[level], memory, kept)
        chances = (states @ vectors[level].T).float().log_softmax(-1)  # [b, w, size]
        out += [beam.nodes, chances]
        if level + 1 < levels:
            beam, place, code = beam.grown(chances, tree.prefixes[level], beam_size)
            texts = kept.shape[1]
            first = torch.arange(size, device=place.device).unsqueeze(1) * texts
            kept, x = kept.flatten(0, 1)[place + first], vectors[level][code]
    return tuple(out)

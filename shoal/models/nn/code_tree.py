"""The tree of items' codes as tensors; nn/beam_search.py finds the likeliest texts along it.

    items  5 1 0   5 7 0   6 1 0          levels 3, size 8
    level 0  prefixes  5, 6               a prefix: node before * size + code, ascending
    level 1  prefixes  1, 7, 9            (5 1) (5 7) (6 1): nodes 0, 1, 2 of this level
    level 2  prefixes  0, 8, 16

A node is the number of its prefix. Where a text continues to a code that no item has, its node is
the number of prefixes, which is no node of any item.
"""

import torch
from torch import Tensor


class CodeTree:
    """The beginnings that items have, level by level."""

    def __init__(self, codes: Tensor, size: int):
        """codes [num_items, levels], each below `size`; item 0 is padding."""
        self.codes, self.size = codes, size
        self.prefixes: list[Tensor] = []
        node = torch.zeros_like(codes[:, 0])
        # Of each level [num_items]: the node that an item's codes before it are.
        self.nodes = [node]
        for level in range(codes.shape[1]):
            key = node * size + codes[:, level]
            self.prefixes.append(torch.unique(key[1:]))
            node = torch.searchsorted(self.prefixes[-1], key)
            self.nodes.append(node)

    def scores(self, written: tuple[Tensor, ...], items: Tensor) -> Tensor:
        """ln p of items' codes: items [b, n] or [1, n] -> [b, n].

        written: of each level, which beginnings continued and what may follow them (`Beam.nodes`
        [b, w] and ln p of the next code [b, w, size]). An item whose beginning did not continue is
        less likely than any that did.
        """
        codes, size = self.codes[items], written[0].shape[0]
        total = written[1].new_zeros(size, items.shape[1])
        for level in range(codes.shape[2]):
            nodes, chances = written[2 * level : 2 * level + 2]
            above = self.nodes[level][items].expand(size, -1).contiguous()
            place = torch.searchsorted(nodes, above).clamp(max=nodes.shape[1] - 1)
            log_chances = chances.flatten(1).gather(1, place * self.size + codes[..., level])
            # -1e3: less than any ln p
            total = total + torch.where(nodes.gather(1, place) == above, log_chances, -1e3)
        return total

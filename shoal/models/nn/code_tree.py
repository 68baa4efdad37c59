"""The tree of items' codes as tensors; nn/beam_search.py finds the likeliest texts along it.

    items  5 1 0   5 7 0   6 1 0          levels 3, size 8
    level 0  prefixes  5, 6               a prefix: node before * size + code, ascending
    level 1  prefixes  1, 7, 9            (5 1) (5 7) (6 1): nodes 0, 1, 2 of this level
    level 2  prefixes  0, 8, 16

A node is the number of its prefix; behind all prefixes stands END, so that each search finds a
place. Where a text continues to a code that no item has, its node is NOBODY. A graph that reads the
tree has none of its sizes in it: new items change tensors alone (serving/artifact/new_codes.py).
"""

import torch
from torch import Tensor, nn

NOBODY = 1 << 31  # more than any node
END = 1 << 62  # more than any prefix


class CodeTree(nn.Module):
    """The beginnings that items have, level by level."""

    codes: Tensor  # [num_items, levels]

    def __init__(self, codes: Tensor, size: int):
        """codes [num_items, levels], each below `size`; item 0 is padding."""
        super().__init__()
        self.size, self.levels = size, codes.shape[1]
        self.register_buffer("codes", codes, persistent=False)
        node = torch.zeros_like(codes[:, 0])
        for level in range(self.levels):
            key = node * size + codes[:, level]
            prefixes = torch.cat([torch.unique(key[1:]), key.new_full((1,), END)])
            self.register_buffer(f"nodes{level}", node, persistent=False)
            self.register_buffer(f"prefixes{level}", prefixes, persistent=False)
            node = torch.searchsorted(prefixes, key)

    @property
    def prefixes(self) -> list[Tensor]:
        """The prefixes of each level, and END."""
        return [self.get_buffer(f"prefixes{level}") for level in range(self.levels)]

    @property
    def nodes(self) -> list[Tensor]:
        """The node that an item's codes before a level are, of each level: [num_items]."""
        return [self.get_buffer(f"nodes{level}") for level in range(self.levels)]

    def scores(self, written: tuple[Tensor, ...], items: Tensor) -> Tensor:
        """ln p of items' codes: items [b, n] or [1, n] -> [b, n].

        written: of each level, which beginnings continued and what may follow them (`Beam.nodes`
        [b, w] and ln p of the next code [b, w, size]). An item whose beginning did not continue is
        less likely than any that did.
        """
        codes, size = self.codes[items], written[0].shape[0]
        total = written[1].new_zeros(size, items.shape[1])
        for level, item_nodes in enumerate(self.nodes):
            nodes, chances = written[2 * level : 2 * level + 2]
            above = item_nodes[items].expand(size, -1).contiguous()
            place = torch.searchsorted(nodes, above).clamp(max=nodes.shape[1] - 1)
            log_chances = chances.flatten(1).gather(1, place * self.size + codes[..., level])
            # -1e3: less than any ln p
            total = total + torch.where(nodes.gather(1, place) == above, log_chances, -1e3)
        return total

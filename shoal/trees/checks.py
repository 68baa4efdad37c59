"""What is asked of the text of boosted trees before the library that wrote it reads it again.

Such a text lies in a checkpoint, which somebody else may have made. The parsers of these libraries
follow the numbers of a text without looking whether they lead out of an array, so every number that
they follow is checked here, and they are given a text that was written from the checked numbers.
"""

from __future__ import annotations

import numpy as np

MOST_BYTES = 256 << 20
MOST_TREES = 100_000
MOST_LEAVES = 1 << 16  # of a tree
MOST_DEPTH = 4096  # libraries walk some trees by recursion


class TreeTextError(ValueError):
    """The text of a booster is not one that its library would have written here."""


def check_size(num_bytes: int) -> None:
    """Refuse a text that is too long to be kept and read."""
    if num_bytes > MOST_BYTES:
        raise TreeTextError(
            f"the trees are {num_bytes / 2**20:.0f} MiB of text, and at most "
            f"{MOST_BYTES >> 20} are kept; set fewer rounds or smaller trees"
        )


def check_count(num_trees: int) -> None:
    """Refuse more trees than are read."""
    if num_trees > MOST_TREES:
        raise TreeTextError(f"there are {num_trees} trees, and at most {MOST_TREES} are read")


def check_range(what: str, numbers: np.ndarray, low: int, below: int) -> None:
    """Refuse whole numbers outside of low .. below - 1."""
    if len(numbers) and (numbers.min() < low or numbers.max() >= below):
        raise TreeTextError(f"{what} must lie in {low} .. {below - 1}")


def check_links(left: np.ndarray, right: np.ndarray) -> None:
    """Refuse children that do not make a tree of its nodes: [nodes] each, -1 for a leaf."""
    count, inner = len(left), left != -1
    if not count or ((right != -1) != inner).any():
        raise TreeTextError("every node of a tree has two children or none")
    if count - inner.sum() > MOST_LEAVES:
        raise TreeTextError(f"a tree has more than {MOST_LEAVES} leaves")
    children = np.concatenate([left[inner], right[inner]])
    check_range("children of a tree", children, 1, count)
    if len(np.unique(children)) != len(children):  # so no path leads to a node twice
        raise TreeTextError("a node of a tree is the child of two others")
    level, depth = np.zeros(1, np.int64), 0
    while len(level := level[inner[level]]):
        level, depth = np.concatenate([left[level], right[level]]), depth + 1
        if depth > MOST_DEPTH:
            raise TreeTextError(f"a tree is deeper than {MOST_DEPTH}; set max_depth")

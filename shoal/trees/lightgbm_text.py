"""LightGBM's text of a booster: trees as blocks of lines, KEY=VALUES, behind a head."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from shoal.trees.checks import MOST_LEAVES, TreeTextError, check_count, check_links, check_range
from shoal.trees.columns import TreeColumns

END = "end of trees"
HEAD = {
    "version": "v4",
    "num_class": "1",
    "num_tree_per_iteration": "1",
    "label_index": "0",
}
OBJECTIVES = {"binary": "binary sigmoid:1", "regression": "regression"}  # as the text has them


def trees_alone(text: str) -> bytes:
    """What LightGBM wrote up to the end of its trees; its parameters follow there."""
    return (text[: text.index(f"\n{END}\n")] + f"\n{END}\n").encode()


def checked_text(text: bytes, columns: TreeColumns, objective: str) -> str:
    """The text with its trees alone, written from numbers that were checked.

    objective: by its name as a parameter.
    """
    try:
        head, *trees = _blocks(text.decode("ascii"))
        check_count(len(trees))
        wanted = {
            **HEAD,
            "max_feature_idx": str(columns.width - 1),
            "objective": OBJECTIVES[objective],
        }
        for key, value in wanted.items():
            if head.get(key) != value:
                raise TreeTextError(f"{key} is {head.get(key)!r}, and must be {value!r}")
        blocks = [_checked_tree(number, tree, columns) for number, tree in enumerate(trees)]
    except (KeyError, ValueError, OverflowError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise TreeTextError(f"the checkpoint's trees are not a text of LightGBM: {what}") from error
    lines = ["tree", *(f"{key}={value}" for key, value in wanted.items())]
    lines.append("feature_names=" + " ".join(f"Column_{k}" for k in range(columns.width)))
    lines.append("feature_infos=" + " ".join(["none"] * columns.width))
    lines.append("tree_sizes=" + " ".join(str(len(block)) for block in blocks))
    return "\n".join(lines) + "\n\n" + "".join(blocks) + f"{END}\n"


def _blocks(text: str) -> Iterator[dict[str, str]]:
    """The head, and each tree, as values by key."""
    block: dict[str, str] = {}
    for number, line in enumerate(text.split("\n")):
        if line == END:
            yield block
            return
        key, equals, value = line.partition("=")
        if key == "Tree":
            yield block
            block = {}
        elif equals and key in block:
            raise TreeTextError(f"line {number + 1} repeats {key}")
        elif equals:
            block[key] = value
    raise TreeTextError("it has no end")


def _whole(tree: dict[str, str], key: str, count: int) -> np.ndarray:
    """Whole numbers of a tree: [count]."""
    numbers = np.array(tree[key].split(), np.int64)
    if len(numbers) != count:
        raise TreeTextError(f"{key} has {len(numbers)} numbers, and must have {count}")
    return numbers


def _finite(tree: dict[str, str], key: str, count: int) -> np.ndarray:
    """Finite numbers of a tree: [count]."""
    numbers = np.array(tree[key].split(), np.float64)
    if len(numbers) != count or not np.isfinite(numbers).all():
        raise TreeTextError(f"{key} must have {count} finite numbers")
    return numbers


def _checked_tree(number: int, tree: dict[str, str], columns: TreeColumns) -> str:
    """A tree as LightGBM writes it, from numbers that were checked; without its statistics."""
    (leaves,), (num_cat,) = _whole(tree, "num_leaves", 1), _whole(tree, "num_cat", 1)
    if not 1 <= leaves <= MOST_LEAVES or not 0 <= num_cat < leaves or tree["is_linear"] != "0":
        raise TreeTextError(f"tree {number} has {leaves} leaves, {num_cat} splits of categories")
    inner = int(leaves) - 1
    split_feature = _whole(tree, "split_feature", inner)
    check_range("split_feature", split_feature, 0, columns.width)
    decision_type = _whole(tree, "decision_type", inner)
    check_range("decision_type", decision_type, 0, 12)
    threshold = _finite(tree, "threshold", inner)
    left, right = _whole(tree, "left_child", inner), _whole(tree, "right_child", inner)
    for children in (left, right):
        check_range("children", children, -int(leaves), inner)
    whole_left, whole_right = np.full((2, 2 * int(leaves) - 1), -1, np.int64)
    whole_left[:inner] = np.where(left < 0, inner + ~left, left)
    whole_right[:inner] = np.where(right < 0, inner + ~right, right)
    check_links(whole_left, whole_right)
    parts: dict[str, np.ndarray] = {
        "num_leaves": np.array([leaves]),
        "num_cat": np.array([num_cat]),
        "split_feature": split_feature,
        "threshold": threshold,
        "decision_type": decision_type,
        "left_child": left,
        "right_child": right,
        "leaf_value": _finite(tree, "leaf_value", int(leaves)),
    }
    of_categories = (decision_type & 1) == 1
    if num_cat:
        bounds = _whole(tree, "cat_boundaries", int(num_cat) + 1)
        sets = _whole(tree, "cat_threshold", int(bounds[-1]) if bounds[-1] >= 0 else 0)
        check_range("cat_threshold", sets, 0, 1 << 32)
        if bounds[0] != 0 or (np.diff(bounds) < 0).any():
            raise TreeTextError("cat_boundaries must rise from 0")
        parts |= {"cat_boundaries": bounds, "cat_threshold": sets}
    chosen = threshold[of_categories]
    check_range("splits of categories", chosen, 0, max(1, int(num_cat)))
    if (chosen != np.floor(chosen)).any() or (len(chosen) and not num_cat):
        raise TreeTextError("a split of categories names no set of them")
    lines = [f"Tree={number}"]
    lines += [f"{key}={' '.join(map(_written, values.tolist()))}" for key, values in parts.items()]
    return "\n".join([*lines, "is_linear=0", "shrinkage=1"]) + "\n\n\n"


def _written(value: float) -> str:
    """A number, in as many digits as it has."""
    return repr(value)

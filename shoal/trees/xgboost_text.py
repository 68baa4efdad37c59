"""XGBoost's text of a booster: a JSON document."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

import numpy as np

from shoal.trees.checks import TreeTextError, check_count, check_links, check_range
from shoal.trees.columns import NUMBERS_BELOW, TreeColumns

LARGEST = float(np.finfo(np.float32).max)
VERSION_BELOW = 1000  # each part of it
BASE_SCORE = r"\[?[-+]?[0-9]+(\.[0-9]*)?(E[-+]?[0-9]{1,2})?\]?"


def types_of(columns: TreeColumns) -> list[str]:
    """The type of each column, in XGBoost's words."""
    return ["c" if category else "float" for category in columns.are_categories]


def checked_text(text: bytes, columns: TreeColumns, objective: str) -> bytes:
    """The text with what predictions need alone, written from values that were checked."""
    try:
        document = json.loads(text, parse_constant=_refuse)
        learner, version = document["learner"], _whole(document["version"], 3)
        check_range("version", version, 0, VERSION_BELOW)
        model = learner["gradient_booster"]["model"]
        name, loss = learner["gradient_booster"]["name"], learner["objective"]["name"]
        if (name, loss) != ("gbtree", objective):
            raise TreeTextError(f"it is {name} of {loss}, and must be gbtree of {objective}")
        base_score = learner["learner_model_param"]["base_score"]
        if not re.fullmatch(BASE_SCORE, base_score, re.IGNORECASE):
            raise TreeTextError(f"base_score is {base_score!r}")
        trees = model["trees"]
        check_count(len(trees))
        if model["tree_info"] != [0] * len(trees):
            raise TreeTextError("its trees are of several outputs")
        checked = [_checked_tree(number, tree, columns) for number, tree in enumerate(trees)]
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise TreeTextError(f"the checkpoint's trees are not a text of XGBoost: {what}") from error
    count, width = len(trees), columns.width
    booster = {
        "name": "gbtree",
        "model": {
            "gbtree_model_param": {"num_parallel_tree": "1", "num_trees": str(count)},
            "iteration_indptr": list(range(count + 1)),
            "tree_info": [0] * count,
            "trees": checked,
        },
    }
    if "cats" in model:  # of versions that keep words of categories, of which there are none
        booster["model"]["cats"] = {"enc": [], "feature_segments": [], "sorted_idx": []}  # type: ignore[index]
    written = {
        "attributes": {},
        "feature_names": [],
        "feature_types": types_of(columns),
        "gradient_booster": booster,
        "learner_model_param": {
            "base_score": base_score,
            "boost_from_average": "1",
            "num_class": "0",
            "num_feature": str(width),
            "num_target": "1",
        },
        "objective": {"name": objective, "reg_loss_param": {"scale_pos_weight": "1"}},
    }
    return json.dumps({"learner": written, "version": version.tolist()}).encode()


def _refuse(word: str) -> NoReturn:
    raise TreeTextError(f"it has the number {word}")


def _whole(values: Any, count: int | None = None) -> np.ndarray:
    """Whole numbers of a list, [count]."""
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise TreeTextError("a list is not one of whole numbers")
    if count is not None and len(values) != count:
        raise TreeTextError(f"a list has {len(values)} numbers, and must have {count}")
    return np.array(values, np.int64)


def _numbers(values: Any, count: int) -> list[float]:
    """Numbers of a list that float32 can hold: [count]."""
    if not isinstance(values, list) or len(values) != count:
        raise TreeTextError(f"a list must have {count} numbers")
    if not all(type(one) in (int, float) and abs(one) <= LARGEST for one in values):
        raise TreeTextError("a list is not one of finite numbers")
    return [float(one) for one in values]


def _checked_tree(number: int, tree: dict[str, Any], columns: TreeColumns) -> dict[str, Any]:
    """A tree as XGBoost writes it, from values that were checked."""
    left = _whole(tree["left_children"])
    count = len(left)
    right = _whole(tree["right_children"], count)
    check_links(left, right)
    parents = np.full(count, (1 << 31) - 1, np.int64)
    inner = np.flatnonzero(left != -1)
    parents[left[inner]] = parents[right[inner]] = inner
    split_indices = _whole(tree["split_indices"], count)
    check_range("split_indices", split_indices, 0, columns.width)
    split_type = _whole(tree["split_type"], count)
    check_range("split_type", split_type, 0, 2)
    default_left = _whole(tree["default_left"], count)
    check_range("default_left", default_left, 0, 2)
    categories = _whole(tree["categories"])
    check_range("categories", categories, 0, NUMBERS_BELOW)
    nodes = _whole(tree["categories_nodes"])
    if not np.array_equal(nodes, np.flatnonzero(split_type)):
        raise TreeTextError("categories_nodes are not the splits of categories")
    segments = _whole(tree["categories_segments"], len(nodes))
    sizes = _whole(tree["categories_sizes"], len(nodes))
    if not np.array_equal(segments, np.cumsum(sizes) - sizes) or (sizes < 0).any():
        raise TreeTextError("categories_segments do not follow each other")
    if sizes.sum() != len(categories):
        raise TreeTextError("categories_sizes do not add up")
    param = tree["tree_param"]
    if str(param["size_leaf_vector"]) not in ("0", "1"):
        raise TreeTextError("a leaf has several values")
    return {
        "base_weights": _numbers(tree["base_weights"], count),
        "categories": categories.tolist(),
        "categories_nodes": nodes.tolist(),
        "categories_segments": segments.tolist(),
        "categories_sizes": sizes.tolist(),
        "default_left": default_left.tolist(),
        "id": number,
        "left_children": left.tolist(),
        "loss_changes": _numbers(tree["loss_changes"], count),
        "parents": parents.tolist(),
        "right_children": right.tolist(),
        "split_conditions": _numbers(tree["split_conditions"], count),
        "split_indices": split_indices.tolist(),
        "split_type": split_type.tolist(),
        "sum_hessian": _numbers(tree["sum_hessian"], count),
        "tree_param": {
            "num_deleted": "0",
            "num_feature": str(columns.width),
            "num_nodes": str(count),
            "size_leaf_vector": "1",
        },
    }

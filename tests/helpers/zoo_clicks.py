"""Every click model of the zoo, small: options for quick steps, and batches that fit them."""

from dataclasses import replace
from typing import Any

import torch
from click_batches import DENSE, ROWS, SLOTS, global_batch

from shoal.data.batch import Batch, Jagged
from shoal.data.features import Feature, Label
from shoal.models import find
from shoal.models.base import ClickModel, Facts

SMALL = {"dim": 4, "layers": [8], "initial_range": 0.1, "dropout": 0.2}
# model (and what of it) -> options. A new model joins by its line.
CLICKS: dict[str, dict[str, Any]] = {
    "FFM": {"dim": 3},
    "FwFM": {"dim": 4},
    "NFM": SMALL,
    "AFM": {"dim": 4, "attention_size": 3, "dropout": 0.2},
    "PNN": SMALL,
    "PNN both": {**SMALL, "product": "both"},
    "DCN": SMALL,
    "xDeepFM": {**SMALL, "cross_layers": [5, 3]},
    "AutoInt": {**SMALL, "attention_size": 6, "attention_layers": 2},
    "AutoInt plain": {**SMALL, "attention_size": 6, "layers": []},
    "FiBiNET": SMALL,
    "FiBiNET each": {**SMALL, "bilinear": "each"},
    "FiBiNET all": {**SMALL, "bilinear": "all"},
    "MaskNet": {**SMALL, "blocks": [6, 4]},
    "MaskNet serial": {**SMALL, "blocks": [6, 4], "structure": "serial"},
    "FinalMLP": {**SMALL, "second_layers": [6], "gate_layers": [5], "heads": 2},
    "GDCN": SMALL,
    "GDCN stacked": {**SMALL, "structure": "stacked", "low_rank": 2},
    "FNN": SMALL,
    "EulerNet": {"dim": 4, "initial_range": 0.3, "order_list": [5, 3]},
    "EulerNet norm": {"dim": 4, "order_list": [5], "apply_norm": True},
    "FiGNN": {"dim": 4, "initial_range": 0.1, "attention_size": 6, "n_layers": 3},
    "KD_DAGFM": {"dim": 4, "initial_range": 0.1, "t_depth": 2, "depth": 2, "beta": 1.0},
    "KD_DAGFM inner": {
        "dim": 4,
        "type": "inner",
        "teacher": "CIN",
        "t_cin": [5],
        "depth": 2,
        "beta": 1.0,
    },
    "FinalNet": {**SMALL, "second_layers": [6], "distill": 0.5},
    "FinalNet sum": {**SMALL, "second_layers": [5], "structure": "sum", "distill": 0.2},
    "RankMixer": {**SMALL, "tokens": 3, "hidden_size": 6, "expansion": 2},
    "Wukong": {**SMALL, "crossed": 3, "linear": 2, "rank": 3, "inner": 7},
}
TOWERS = {"dim": 4, "initial_range": 0.1, "dropout": 0.2, "tower_layers": [6]}
EXPERTS = {**TOWERS, "expert_layers": [7]}
LABELS: dict[str, dict[str, Any]] = {
    "SharedBottom": {**TOWERS, "layers": [8]},
    "MMoE": {**EXPERTS, "experts": 3},
    "PLE": EXPERTS,
    "ESMM": TOWERS,
    "AITM": TOWERS,
}
RANKER = {
    **{"hidden_size": 4, "n_heads": 2, "layers": [8], "initial_range": 0.1, "dropout": 0.2},
    **{"hidden_dropout_prob": 0.2, "linear_dropout_prob": 0.2},
}
HISTORIES: dict[str, dict[str, Any]] = {
    "DIN": {**SMALL, "attention_layers": [5]},
    "DIEN": SMALL,
    "BST": SMALL,
    "DSIN": {**SMALL, "sessions": 2},
    "HSTURanker": RANKER,
    "HSTURanker interleaved": {**RANKER, "actions": "interleaved"},
}
CLICKS |= LABELS | HISTORIES
TREES = ["LightGBM", "XGBoost"]  # take no steps: tests/models/test_trees.py
LENGTH = 5
SEEN = (  # what models with histories read
    Feature("item_id", "id", "item", rows=ROWS),
    Feature("seen", "sequence", "user", rows=ROWS, table="item_id", length=LENGTH),
    Feature("genre", "ids", "item", rows=ROWS, dim=3, pooling="mean"),
    Feature("age", "number", "user"),
)
ACTED = (  # and those that read what was done as well
    Feature("user_id", "id", "user", rows=ROWS),
    *SEEN,
    Feature("seen_time", "sequence", vocabulary="growing", length=LENGTH),
    Feature("seen_click", "sequence", rows=3, buckets=(0.5,), length=LENGTH),
    Feature("seen_purchase", "sequence", rows=3, buckets=(0.5,), length=LENGTH),
)
ANY_WIDTH = [
    "DCN",
    "FNN",
    "FinalMLP",
    "FinalNet",
    "GDCN",
    "MMoE",
    "RankMixer",
]  # of features; the others add or multiply their vectors


def make_model(name: str, facts: Facts | None = None, **options: Any) -> ClickModel:
    """A small model of one line above; the same weights every time."""
    facts = facts or facts_of(name)
    torch.manual_seed(5)
    found = find(name.split()[0])
    return found(found.Options(**{**CLICKS[name], **options}), facts)  # type: ignore[return-value]


def facts_of(name: str) -> Facts:
    """What the model of a line is told of its data."""
    two = Label("click"), Label("purchase", weight=0.5)
    if name.startswith("HSTURanker"):
        return Facts(features=ACTED, per_feature=True, num_slots=7, num_dense=1, labels=two)
    if name in HISTORIES:
        return Facts(features=SEEN, per_feature=True, num_slots=3, num_dense=1)
    labels = two if name in LABELS else ()
    return Facts(num_slots=SLOTS, num_dense=DENSE, rows=ROWS, labels=labels)


def batch_of(name: str, step: int) -> Batch:
    """A global batch for the model of a line: lists of ids in every other step."""
    batch = global_batch(step, "lists" if step % 2 else "one", "fixed")
    acted = name.startswith("HSTURanker")
    if name in LABELS or acted:  # who buys has clicked
        assert batch.labels is not None
        bought = batch.labels * (batch.dense["dense"][:, 0] > 0)
        batch = replace(batch, labels=torch.stack([batch.labels, bought], 1))
    if name in HISTORIES:
        batch = with_history(batch, step)
    return with_actions(batch, step) if acted else batch


def with_history(batch: Batch, step: int) -> Batch:
    """Samples of as many candidates with histories of 0 to 7 items, of which the last 5 count."""
    random = torch.Generator().manual_seed(300 + step)

    def lists(most: int) -> Jagged:
        lengths = torch.randint(0, most + 1, (batch.size,), generator=random)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        return Jagged(torch.randint(1, ROWS, (int(offsets[-1]),), generator=random), offsets)

    items = torch.randint(1, ROWS, (batch.size,), generator=random)
    ids = {"item_id": items, "seen": lists(7), "genre": lists(2)}
    return Batch(batch.size, ids, {"age": batch.dense["dense"][:, 0]}, batch.labels)


def with_actions(batch: Batch, step: int) -> Batch:
    """The same with users, and with times and labels of what is in their histories."""
    random = torch.Generator().manual_seed(400 + step)
    seen = batch.ids["seen"]
    assert isinstance(seen, Jagged)
    number, ends = len(seen.values), seen.offsets + torch.arange(len(seen.offsets))
    times = [
        torch.randint(1, 10**6, (int(count) + 1,), generator=random).sort().values
        for count in seen.lengths
    ]
    flat = torch.cat([torch.zeros(0, dtype=torch.int64), *times])
    ids = {
        "user_id": torch.randint(1, ROWS, (batch.size,), generator=random),
        "seen_time": Jagged(flat, ends),
        **{
            name: Jagged(torch.randint(1, 3, (number,), generator=random), seen.offsets)
            for name in ("seen_click", "seen_purchase")
        },
    }
    return replace(batch, ids={**batch.ids, **ids})

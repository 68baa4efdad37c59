"""Whether runs were tested on the same, and how far they differ: user by user."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shoal.config.yaml_io import inline
from shoal.experiments.report.statistics import holm, paired
from shoal.runs.run_record import RunRecord

if TYPE_CHECKING:
    import polars as pl

SIGNIFICANT = 0.05
FEW_USERS = 20  # of fewer, no test means much
SPLIT = ("by", "order", "at", "group_by", "ratio", "leave", "seed")  # keys of data.split
EVALUATION = ("eval.mode", "eval.repeatable", "eval.tail_ratio")  # keys that decide what is ranked


@dataclass(frozen=True)
class Difference:
    """How far a metric of a run is from that of the first one, over the users of both."""

    metric: str
    users: int
    difference: float
    low: float
    high: float
    p: float  # corrected for all comparisons of the page
    better: float  # share of users with a higher value
    worse: float

    @property
    def is_significant(self) -> bool:
        return self.p < SIGNIFICANT


def why_not(first: RunRecord, other: RunRecord) -> str | None:
    """Why the users of two runs cannot be compared; None where they can."""
    for record in (first, other):
        if record.users is None:
            return f"{record.name} has no values of single users (evaluation/users.parquet)"
        if not _digests(record):
            return f"result.json of {record.name} does not say which data it was tested on"
    return protocol_difference(first, other) or _other_users(first, other)


def protocol_difference(first: RunRecord, other: RunRecord) -> str | None:
    """How the protocols of two runs differ; None where both were tested on the same.

    "data.split.by is ratio in A, leave_one_out in B": no test of such runs means anything.
    """
    if _digests(first).get("interactions") != _digests(other).get("interactions"):
        return f"{other.name} has other interactions than {first.name}"
    is_split_alike = same_data(first, other)
    keys = [] if is_split_alike else [f"data.split.{key}" for key in SPLIT]
    keys += EVALUATION
    is_random = not is_split_alike and _value(first, "data.split.order") == "random"
    if _value(first, "eval.mode") not in (None, "full") or is_random:
        keys.append("run.seed")  # it draws the candidates, and a split at random
    for key in keys:
        values = [_value(record, key) for record in (first, other)]
        if values[0] != values[1]:
            first_text, other_text = map(inline, values)
            return f"{key} is {first_text} in {first.name}, {other_text} in {other.name}"
    if not is_split_alike:
        return f"{other.name} has its interactions split otherwise than {first.name}"
    return None


def _value(record: RunRecord, key: str) -> object:
    """The value of a key, which may be a mapping."""
    config = record.config
    entries = {name: value for name, value in config.items() if name.startswith(f"{key}.")}
    return config.get(key, entries or None)


def same_data(first: RunRecord, other: RunRecord) -> bool:
    """Whether both were validated and tested on the same splits of the same data."""
    first_digests, other_digests = _digests(first), _digests(other)
    return all(
        first_digests.get(key) == other_digests.get(key) for key in ("interactions", "splits")
    )


def _other_users(first: RunRecord, other: RunRecord) -> str | None:
    shared_users = common_users(first, other)
    first_users, other_users = first.users, other.users
    assert first_users is not None and other_users is not None
    sampled = first.is_sample and other.is_sample
    if not len(shared_users) or (
        not sampled and not len(shared_users) == len(first_users) == len(other_users)
    ):
        return f"it was tested on other users than {first.name}"
    if (shared_users["positives"] != shared_users["positives_other"]).any():
        return f"its users have other items in the test split than those of {first.name}"
    return None


def common_users(first: RunRecord, other: RunRecord) -> "pl.DataFrame":
    """Users of both runs, in the order of the first; columns of the other run end with _other."""
    assert first.users is not None and other.users is not None
    return first.users.join(other.users, on="user", suffix="_other", maintain_order="left")


def compare(
    first: RunRecord, others: Sequence[RunRecord], metrics: Sequence[str]
) -> dict[str, list[Difference]]:
    """Differences of each comparable run from the first, by its name; p-values are corrected."""
    assert first.users is not None or not others
    shared = [
        (other, metric)
        for other in others
        for metric in metrics
        if _both_have(metric, first, other)
    ]
    if first.users is None or not shared:
        return {}
    joined = {other.name: _join_users(first, other) for other in others}
    a = np.stack([first.users[metric].to_numpy() for _, metric in shared], axis=1)
    b = np.stack([joined[other.name][metric].to_numpy() for other, metric in shared], axis=1)
    tested = paired(a, b)
    ps = holm(tested.p.tolist())
    user_counts = np.isfinite(b - a).sum(axis=0)
    differences: dict[str, list[Difference]] = {}
    for k, (other, metric) in enumerate(shared):
        users = int(user_counts[k])
        difference = Difference(
            metric=metric,
            users=users,
            difference=float(tested.difference[k]),
            low=float(tested.low[k]),
            high=float(tested.high[k]),
            p=ps[k],
            better=float((b > a)[:, k].sum() / max(1, users)),
            worse=float((b < a)[:, k].sum() / max(1, users)),
        )
        differences.setdefault(other.name, []).append(difference)
    return differences


def _both_have(metric: str, *records: RunRecord) -> bool:
    return all(metric in record.user_metrics for record in records)


def _join_users(first: RunRecord, other: RunRecord) -> "pl.DataFrame":
    """Values of the other run for the users of the first, null where it has none."""
    assert first.users is not None and other.users is not None
    return first.users.select("user").join(
        other.users, on="user", how="left", maintain_order="left"
    )


def overlap(first: RunRecord, other: RunRecord) -> float:
    """The share of a user's list that both runs have, the mean over users."""
    shared_users = common_users(first, other)
    shared_items = (
        shared_users["items"].list.set_intersection(shared_users["items_other"]).list.len()
    )
    return float((shared_items / shared_users["items"].list.len().clip(1)).mean())  # type: ignore[arg-type]


def _digests(record: RunRecord) -> dict[str, object]:
    digests = record.result.get("data")
    return digests if isinstance(digests, dict) else {}

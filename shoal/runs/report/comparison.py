"""Whether runs were tested on the same, and how far they differ: user by user."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from shoal.runs.report.reading import RunRecord
from shoal.runs.report.statistics import holm, paired

if TYPE_CHECKING:
    import polars as pl

SIGNIFICANT = 0.05
FEW_USERS = 20  # of fewer, no test means much
DIGESTS = {
    "interactions": "it has other interactions",
    "splits": "its interactions are split otherwise",
}
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
    if (text := _other_data(first, other)) is not None:
        return f"{text} than {first.name}"
    keys = [*EVALUATION]
    if first.config.get("eval.mode", "full") != "full":
        keys.append("run.seed")  # it draws the candidates
    for key in keys:
        values = [record.config.get(key) for record in (first, other)]
        if values[0] != values[1]:
            return f"{key} is {values[1]}, and {values[0]} in {first.name}"
    return _other_users(first, other)


def same_data(first: RunRecord, other: RunRecord) -> bool:
    """Whether both were validated and tested on the same parts of the same data."""
    return _other_data(first, other) is None


def _other_data(first: RunRecord, other: RunRecord) -> str | None:
    mine, theirs = _digests(first), _digests(other)
    differ = [text for key, text in DIGESTS.items() if mine.get(key) != theirs.get(key)]
    return differ[0] if differ else None


def _other_users(first: RunRecord, other: RunRecord) -> str | None:
    both, (mine, theirs) = common_users(first, other), (first.users, other.users)
    assert mine is not None and theirs is not None
    sampled = first.is_sample and other.is_sample
    if not len(both) or (not sampled and not len(both) == len(mine) == len(theirs)):
        return f"it was tested on other users than {first.name}"
    if (both["positives"] != both["positives_other"]).any():
        return f"its users have other items in the test part than those of {first.name}"
    return None


def common_users(first: RunRecord, other: RunRecord) -> "pl.DataFrame":
    """The users of both, in the order of the first; columns of the other end with _other."""
    assert first.users is not None and other.users is not None
    return first.users.join(other.users, on="user", suffix="_other", maintain_order="left")


def compare(
    first: RunRecord, others: Sequence[RunRecord], metrics: Sequence[str]
) -> dict[str, list[Difference]]:
    """Differences of each comparable run from the first, by its name; p-values are corrected."""
    assert first.users is not None or not others
    shared = [(other, one) for other in others for one in metrics if _have(one, first, other)]
    if first.users is None or not shared:
        return {}
    joined = {other.name: _beside(first, other) for other in others}
    a = np.stack([first.users[metric].to_numpy() for _, metric in shared], axis=1)
    b = np.stack([joined[other.name][metric].to_numpy() for other, metric in shared], axis=1)
    tested = paired(a, b)
    ps = holm(tested.p.tolist())
    known = np.isfinite(b - a).sum(axis=0)
    found: dict[str, list[Difference]] = {}
    for k, (other, metric) in enumerate(shared):
        middle, low, high = (float(part[k]) for part in tested[:3])
        shares = [float(one[:, k].sum() / max(1, known[k])) for one in (b > a, b < a)]
        one = Difference(metric, int(known[k]), middle, low, high, ps[k], *shares)
        found.setdefault(other.name, []).append(one)
    return found


def _have(metric: str, *records: RunRecord) -> bool:
    return all(metric in record.user_metrics for record in records)


def _beside(first: RunRecord, other: RunRecord) -> "pl.DataFrame":
    """The other's values for the users of the first, null where it has none."""
    assert first.users is not None and other.users is not None
    return first.users.select("user").join(
        other.users, on="user", how="left", maintain_order="left"
    )


def overlap(first: RunRecord, other: RunRecord) -> float:
    """The share of a user's list that both runs have, the mean over users."""
    both = common_users(first, other)
    same = both["items"].list.set_intersection(both["items_other"]).list.len()
    return float((same / both["items"].list.len().clip(1)).mean())  # type: ignore[arg-type]


def _digests(record: RunRecord) -> dict[str, object]:
    found = record.result.get("data")
    return found if isinstance(found, dict) else {}

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
    mine, theirs = _digests(first), _digests(other)
    for key, text in DIGESTS.items():
        if mine.get(key) != theirs.get(key):
            return f"{text} than {first.name}"
    keys = [*EVALUATION]
    if first.config.get("eval.mode", "full") != "full":
        keys.append("run.seed")  # it draws the candidates
    for key in keys:
        values = [record.config.get(key) for record in (first, other)]
        if values[0] != values[1]:
            return f"{key} is {values[1]}, and {values[0]} in {first.name}"
    return _other_users(first, other)


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
    found: dict[str, list[Difference]] = {}
    for other in others:
        both = common_users(first, other)
        shared = [name for name in metrics if name in first.user_metrics]
        shared = [name for name in shared if name in other.user_metrics]
        if not shared:
            continue
        a = both.select(shared).to_numpy()
        b = both.select([f"{name}_other" for name in shared]).to_numpy()
        tested = paired(a, b)
        found[other.name] = [
            Difference(
                name,
                len(both),
                *(float(part[k]) for part in tested),
                float(np.mean(b[:, k] > a[:, k])),
                float(np.mean(b[:, k] < a[:, k])),
            )
            for k, name in enumerate(shared)
        ]
    return _corrected(found)


def _corrected(found: dict[str, list[Difference]]) -> dict[str, list[Difference]]:
    from dataclasses import replace

    ps = iter(holm([one.p for row in found.values() for one in row]))
    return {name: [replace(one, p=next(ps)) for one in row] for name, row in found.items()}


def overlap(first: RunRecord, other: RunRecord) -> float:
    """The share of a user's list that both runs have, the mean over users."""
    both = common_users(first, other)
    same = both["items"].list.set_intersection(both["items_other"]).list.len()
    return float((same / both["items"].list.len().clip(1)).mean())  # type: ignore[arg-type]


def _digests(record: RunRecord) -> dict[str, object]:
    found = record.result.get("data")
    return found if isinstance(found, dict) else {}

"""Doubts: what makes the metrics of a data set tell little, with counts and the remedy.

The log of a run, `shoal data describe` and its page show the same sentences.
"""

from __future__ import annotations

from typing import Any

from shoal.data.dataset import Dataset
from shoal.data.pairs import PHASES
from shoal.data.statistics import left_out

FEW = 30  # users; of fewer, one more or less moves a mean by several per cent
DOES = {"train": "train", "valid": "validate", "test": "test"}


def doubts(data: Any, evaluated: bool = True, repeatable: bool = False) -> list[str]:
    """A sentence for each, of a Dataset or ClickData.

    evaluated: metrics will be computed; repeatable: what was taken may come again.
    """
    if not isinstance(data, Dataset):
        return data.doubts() if evaluated else []
    told = [
        f"{count:,} of {rows:,} interactions are left out, because their user or item has no row "
        f"in the files of users and items; {key}=false keeps them"
        for key, count, rows in left_out(data)
        if key == "data.filter.by_user_or_item"
    ]
    found = data.counted()
    # Where repeated pairs are tested on, the sentence below says more.
    if found.repeated and not repeatable and not (evaluated and any(found.earlier)):
        told.append(
            f"{found.repeated:,} of {found.rows:,} interactions repeat a (user, item) pair that is "
            "there already; where a pair counts once, data.filter.duplicates=first (or last) keeps "
            "one of each"
        )
    for number, phase in enumerate(PHASES) if evaluated and not repeatable else ():
        if earlier := found.earlier[number]:
            told.append(
                f"{earlier:,} of {found.pairs[number]:,} (user, item) pairs to {DOES[phase]} on "
                f"are among those to {' or '.join(DOES[p] for p in PHASES[:number])} on; ranking "
                "leaves out what a user has seen, so they count as misses: keep one of each with "
                "data.filter.duplicates=first, or rank them with eval.repeatable=true"
            )
    counts = dict(zip(PHASES[1:], found.users[1:])) if evaluated else {}
    return told + [few(phase, count, "user") for phase, count in counts.items() if 0 < count < FEW]


def few(phase: str, count: int, what: str) -> str:
    """Of a part with fewer than FEW users or samples."""
    return (
        f"metrics of the {phase} part are over {count} {what}{'s' * (count > 1)}, fewer than "
        f"{FEW}: chance moves them far; give that part more data (data.split)"
    )

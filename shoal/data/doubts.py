"""Doubts: what makes the metrics of a data set tell little, with counts and the remedy.

The log of a run, `shoal data describe` and its page show the same sentences.
"""

from __future__ import annotations

from shoal.data.clicks import ClickData
from shoal.data.dataset import Dataset
from shoal.data.pairs import PHASES
from shoal.data.statistics import left_out

FEW = 30  # users; of fewer, one more or less moves a mean by several per cent
KNOWN_SIDES = "data.filter.by_user_or_item"
DOES = {"train": "train", "valid": "validate", "test": "test"}


def doubts(data: Dataset | ClickData, evaluated: bool = True) -> list[str]:
    """A sentence for each; `evaluated`: metrics will be computed."""
    if isinstance(data, ClickData):
        return _of_log(data) if evaluated else []
    told = [
        f"{count:,} of {rows:,} interactions are left out, because their user or item has no row "
        f"in the files of users and items; {key}=false keeps them"
        for key, count, rows in left_out(data)
        if key == KNOWN_SIDES
    ]
    found = data.counted()
    if found.repeated:
        told.append(
            f"{found.repeated:,} of {found.rows:,} interactions repeat a (user, item) pair that is "
            "there already; where a pair counts once, data.filter.duplicates=first (or last) keeps "
            "one of each"
        )
    for number, phase in enumerate(PHASES) if evaluated else ():
        if earlier := found.earlier[number]:
            told.append(
                f"{earlier:,} of {found.pairs[number]:,} (user, item) pairs to {DOES[phase]} on "
                f"are among those to {' or '.join(DOES[p] for p in PHASES[:number])} on; ranking "
                "leaves out what a user has seen, so they count as misses (eval.repeatable=true "
                "ranks them): remove repeated pairs, or the overlap of the files"
            )
    for number, phase in enumerate(PHASES) if evaluated else ():
        if number and 0 < found.users[number] < FEW:
            told.append(_few(phase, found.users[number], "user"))
    return told


def _of_log(data: ClickData) -> list[str]:
    told = []
    for phase, names in data.trained_on.items():
        told.append(
            f"{len(names):,} of the files to {DOES[phase]} on are trained on too ({names[0]}"
            f"{', ...' if len(names) > 1 else ''}); metrics then tell what was remembered: name "
            f"other files with data.clicks.{phase}"
        )
    for phase, reader in data.readers.items():
        if 0 < (reader.known_samples or 0) < FEW:
            told.append(_few(phase, reader.known_samples or 0, "sample"))
    return told


def _few(phase: str, count: int, what: str) -> str:
    return (
        f"metrics of the {phase} part are over {count} {what}{'s' * (count > 1)}, fewer than "
        f"{FEW}: chance moves them far; give that part more data (data.split)"
    )

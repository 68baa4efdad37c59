"""Questions to a pipeline, and its answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MOST_NUMBER = 1_000  # items that a question may ask for
MOST_LISTED = 10_000  # items of a history, or of what a question excludes
MOST_CONTEXT = 1_000  # columns of a context


@dataclass(frozen=True)
class PipelineQuestion:
    """Items for a user, for a history (oldest first), or for a user with a newer history.

    times    of the history's items, in seconds since 1970; one more is that of the question
    number   how many items
    context  columns that the click model reads besides user and item
    exclude  items that may not come
    time     when it is asked, in seconds since 1970; None: now
    """

    user: Any = None
    history: Sequence[Any] | None = None
    times: Sequence[int] | None = None
    number: int = 10
    context: Mapping[str, Any] = field(default_factory=dict)
    exclude: Sequence[Any] = ()
    time: float | None = None

    def check(self) -> None:
        """Refuse what is no question, or is over a limit."""
        if self.user is None and self.history is None:
            raise ValueError("give a user, a history, or both")
        if isinstance(self.number, bool) or not isinstance(self.number, int):
            raise ValueError(f"number is {self.number!r}; it is a whole number")
        if not 1 <= self.number <= MOST_NUMBER:
            raise ValueError(f"number is {self.number}; it is from 1 to {MOST_NUMBER:,}")
        for name in ("history", "exclude"):
            values = getattr(self, name)
            if isinstance(values, str):
                raise ValueError(f"{name} is the text {values[:80]!r}; give a list of items")
            if len(values or ()) > MOST_LISTED:
                raise ValueError(
                    f"{name} has {len(values):,} items; at most {MOST_LISTED:,} are read"
                )
        if len(self.context) > MOST_CONTEXT:
            raise ValueError(
                f"context has {len(self.context):,} columns; at most {MOST_CONTEXT:,} are read"
            )
        if self.times is not None:
            length = len(self.history or ())
            if len(self.times) not in (length, length + 1):
                raise ValueError(
                    f"there are {len(self.times)} times for {length} items of the history; one "
                    "more may be that of the question"
                )


@dataclass(frozen=True)
class RecommendedItem:
    """An item of an answer.

    score       of the last stage that scored it; None: none did (a rule or the fallback added it)
    sources     which sources brought it; none: a rule or the fallback added it
    moved       stage -> by how many places it moved the item; up is positive
    propensity  the chance with which an exploring rule put it into its place, given the items above
    place_propensity  the chance that it stands at its place, whoever is above; None: not known
    """

    item: Any
    score: float | None
    sources: tuple[str, ...] = ()
    moved: Mapping[str, int] = field(default_factory=dict)
    propensity: float | None = None
    place_propensity: float | None = None


class PipelineAnswer(list[RecommendedItem]):
    """The items of one question, the best first.

    unknown    sources that know nothing of who asks
    fallbacks  stages that failed; `retrieve` where the fallback filled a short list up

    >>> answer = PipelineAnswer([RecommendedItem("i7", 0.5, ("bpr",))], unknown=("sasrec",))
    >>> answer[0].item, answer.unknown
    ('i7', ('sasrec',))
    """

    def __init__(
        self,
        items: Iterable[RecommendedItem],
        unknown: Iterable[str] = (),
        fallbacks: Iterable[str] = (),
    ):
        super().__init__(items)
        self.unknown = tuple(unknown)
        self.fallbacks = tuple(fallbacks)

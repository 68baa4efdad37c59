"""Lists of recommendations, which show themselves in notebooks."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from shoal.pages import html as look

Titles = Mapping[Any, str] | Callable[[Iterable[Any]], Mapping[Any, str]]
MOST_USERS, MOST_ITEMS = 20, 5  # of several users, as a table


class RankedItems(list[tuple[Any, float]]):
    """The best items of one question, the best first: (item, score) each.

    by        `model`; `popularity` where it knows nothing of the user or the history
    unknown   what it does not know of the question: the user, items of the history

    >>> ranking = RankedItems([("i7", 2.5)], by="popularity", unknown=("nobody",))
    >>> ranking[0], ranking.by, ranking.unknown
    (('i7', 2.5), 'popularity', ('nobody',))
    """

    def __init__(
        self,
        items: Iterable[tuple[Any, float]],
        by: str = "model",
        unknown: Iterable[Any] = (),
        titles: Mapping[Any, str] | Callable[[Iterable[Any]], dict[Any, str]] = MappingProxyType(
            {}
        ),
    ):
        """titles: of the items that have one, or what finds them when they are shown."""
        super().__init__(items)
        self.by = by
        self.unknown = tuple(unknown)
        self._titles = titles

    @property
    def titles(self) -> Mapping[Any, str]:
        """Item -> its title, of the items that have one in the data."""
        if callable(self._titles):
            self._titles = self._titles(item for item, _ in self)
        return self._titles

    def __reduce__(self) -> Any:
        """Another process gets the titles, not the model that finds them."""
        return RankedItems, (list(self), self.by, self.unknown, dict(self.titles))

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        titles = self.titles
        rows: list[Any] = [
            (rank, str(item), titles.get(item, ""), score)  # an id is a name, no amount
            for rank, (item, score) in enumerate(self, 1)
        ]
        heads: tuple[str, ...] = ("", "item", "title", "score")
        if not titles:
            heads, rows = ("", "item", "score"), [(rank, item, x) for rank, item, _, x in rows]
        head = "The most popular items" if self.by == "popularity" else ""
        lost = f"not known: {', '.join(map(str, self.unknown[:10]))}" if self.unknown else ""
        return look.inline(head, lost, look.table(heads, rows))


class UserRankings(dict[Any, RankedItems]):
    """User -> ranking, of several users."""

    def _repr_html_(self) -> str:
        """A table for notebooks, of the first users."""
        shown = list(self.items())[:MOST_USERS]
        width = min(MOST_ITEMS, max((len(one) for _, one in shown), default=0))
        rows = [
            (str(user), *(str(ranking.titles.get(item, item)) for item, _ in ranking[:width]))
            + ("",) * (width - len(ranking))
            for user, ranking in shown
        ]
        left = [f"and {len(self) - len(shown)} more users"] if len(self) > len(shown) else []
        heads = ("user", *(str(rank) for rank in range(1, width + 1)))
        return look.inline(f"The best items of {len(self)} users", look.table(heads, rows), *left)

"""Sources of interactions: one class each, registered under its name.

`register(MySource())` makes data.format=NAME known, here or in a package of your own.
"""

from __future__ import annotations

from pathlib import Path

from shoal.config.schema import DataSection, add_format
from shoal.data.raw_columns import Raw


class Source:
    """Where interactions come from.

    >>> class Two(Source):
    ...     name = "two"
    ...     def read(self, config):
    ...         ids = RawColumn(np.array([0, 1]), np.array(["a", "b"], dtype=object))
    ...         types = {"user_id": "token", "item_id": "token"}
    ...         return Raw(RawTable("two", types, {"user_id": ids, "item_id": ids}))
    """

    name = ""  # data.format

    def matches(self, config: DataSection) -> bool:
        """Whether it is what data.path and data.name name, where data.format is auto."""
        return False

    def files(self, config: DataSection) -> list[Path]:
        """The files that it reads, whose columns are cached; none: what is generated is not."""
        return []

    def read(self, config: DataSection) -> Raw:
        """Interactions, and the tables of users, items and others."""
        raise NotImplementedError  # every source writes its own


SOURCES: dict[str, Source] = {}


def register(source: Source) -> None:
    """Make a source known by data.format; those that come first are looked for first."""
    SOURCES[source.name] = source
    add_format(source.name)

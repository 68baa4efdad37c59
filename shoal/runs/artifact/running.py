"""Running: what the graph of an artifact answers, in parts that are within its bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from shoal.data.batch import Jagged
from shoal.runs.artifact.bounds import TooLarge
from shoal.runs.artifact.graph import Graph
from shoal.runs.artifact.tables import RowTable

MOST = 1 << 16  # samples, or pairs of a query and an item, that a graph is given at a time
Fields = Mapping[str, "Tensor | Jagged"]


class Running:
    """A graph with the tables that it reads."""

    def __init__(self, graph: Graph, tables: Mapping[str, RowTable]):
        self.graph, self.tables = graph, tables
        self._fit = MOST  # known to fit, or not yet known not to

    def samples(self, fields: Fields) -> Tensor:
        """The answer for samples by field: [b, ...]."""
        count = self._count(fields)
        return self._in_parts(count, 1, 0, lambda a, b: _part(fields, count, a, b))

    def pairs(self, query: Fields, size: int, items: Tensor) -> Tensor:
        """The answer for every query and items [n]: [size, n]."""
        return self._in_parts(len(items), size, 1, lambda a, b: {**query, "items": items[a:b]})

    def _count(self, fields: Fields) -> int:
        """How many samples these are."""
        for name, facts in self.graph.inputs.items():
            if facts["used"]:
                one = fields[name]
                places = math.prod(facts["shape"][1:]) if isinstance(one, Jagged) else 1
                return len(one) // max(1, places)
        return 1

    def _in_parts(
        self, count: int, each: int, axis: int, part: Callable[[int, int], Fields]
    ) -> Tensor:
        """`each`: how many samples one of `count` is; answers are joined along the axis."""
        answers: list[Tensor] = []
        first = 0
        with torch.inference_mode():
            while first < count or not answers:
                some = max(1, self._fit // max(1, each))
                last = min(count, first + some)
                try:
                    answers.append(self.graph(part(first, last), self._look_up))
                except TooLarge:
                    if last - first <= 1:
                        raise
                    self._fit = (last - first) // 2 * each
                    continue
                first = last
            return answers[0] if len(answers) == 1 else torch.cat(answers, axis)

    def _look_up(self, table: str, ids: Tensor | Jagged, how: str) -> Tensor:
        return self.tables[table].pooled(ids, how)


def _part(fields: Fields, count: int, first: int, last: int) -> dict[str, Tensor | Jagged]:
    """Samples first..last-1 of `count`."""
    if (first, last) == (0, count):
        return dict(fields)
    found: dict[str, Tensor | Jagged] = {}
    for name, one in fields.items():
        if isinstance(one, Jagged):
            each = len(one) // count  # lists of a sample
            found[name] = one.lists(first * each, last * each)
        else:
            found[name] = one[first:last]
    return found

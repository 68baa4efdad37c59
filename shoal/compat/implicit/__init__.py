"""Scripts of `implicit` on Shoal's models: one import changes.

    from shoal.compat.implicit.als import AlternatingLeastSquares

als.py                 AlternatingLeastSquares: the model IALS
bpr.py                 BayesianPersonalizedRanking: the model BPR
nearest_neighbours.py  neighbours of items, four of them: the model ItemKNN
evaluation.py          train_test_split, leave_k_out_split, ranking_metrics_at_k and its parts
factors.py             what models with vectors share: recommend, similar_items, save
matrix.py              matrices of users and items: checked, and trained on

Arguments have implicit's names and defaults, results its shapes and types. An argument that cannot
be honoured is refused, never ignored. See docs/from/implicit.md.
"""

from importlib import import_module
from typing import Any

_MODULES = ("als", "bpr", "evaluation", "nearest_neighbours")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"shoal.compat.implicit.{name}")
    raise AttributeError(f"module 'shoal.compat.implicit' has no attribute {name!r}")

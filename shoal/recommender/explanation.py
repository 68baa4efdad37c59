"""Why a score is what it is: shares that add up to it.

Each model is explained in the way that fits what it reads:

    terms     the score is a sum over the items taken: its terms (EASE, SLIM, ItemKNN, IALS, ...),
              or of none of them (Pop)
    history   the model reads a history, or folds one in: what each item adds, by Shapley's rule
    vectors   a learned vector of the user: the part of it that the items taken account for
    features  a click model: what each feature adds to the log odds, by Shapley's rule

What none of the shares accounts for is the rest, and the rest is named.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.data.batch import Batch, Jagged
from shoal.data.features import Feature
from shoal.pages import html as look

MOST_SUBSETS = 2048  # scores that are computed for one explanation, where one round allows it
MOST_ITEMS = 100  # of a sequence, the latest: older ones belong to the rest
CLOSE = 0.01  # of the largest share: no more rounds where all are known so well
DESCENTS = 500  # steps towards the weights of items in a user's vector


@dataclass(frozen=True)
class Breakdown:
    """A score as a sum: shares [n] of `what` (numbers of items, or names of features), and a rest.

    rest_is: what the rest stands for; error: how far a share may be off (a standard error), 0 where
    they are exact; of: `items` or `features`.
    """

    what: Sequence[Any]
    shares: np.ndarray
    rest: float
    rest_is: str
    error: float = 0.0
    of: str = "items"


class Explanation(list[tuple[Any, float]]):
    """(what, share) each, the largest first: items of the history, or features of a click model.

    score     sum of the shares and `rest`
    rest_is   what the rest stands for
    of        `items` or `features`
    error     how far a share may be off (a standard error), 0 where shares are exact

    >>> shares = [("i2", -0.5), ("i7", 2.0)]
    >>> explanation = Explanation(shares, rest=0.25, rest_is="an empty history")
    >>> explanation[0], explanation.score
    (('i7', 2.0), 1.75)
    """

    def __init__(
        self,
        shares: Iterable[tuple[Any, float]],
        rest: float,
        rest_is: str,
        of: str = "items",
        error: float = 0.0,
        titles: Mapping[Any, str] | None = None,
    ):
        super().__init__(sorted(shares, key=lambda entry: -abs(entry[1])))
        self.rest = rest
        self.rest_is = rest_is
        self.of = of
        self.error = error
        self.titles = titles or {}  # of items that have one
        self.score = float(sum(share for _, share in self) + rest)

    def rows(self, most: int = 20) -> list[tuple[str, str, float]]:
        """What, its title and its share, the largest; then those left out, the rest, the score."""
        shown = [(_plain(what), _plain(self.titles.get(what, "")), x) for what, x in self[:most]]
        if len(self) > most:
            left = float(sum(share for _, share in self[most:]))
            shown.append((f"{len(self) - most} more", "", left))
        return [*shown, ("rest", self.rest_is, self.rest), ("score", "", self.score)]

    def __repr__(self) -> str:
        rows = self.rows()
        first, second = max(len(row[0]) for row in rows), max(len(row[1]) for row in rows)
        lines = [f"{a:<{first}}  {b:<{second}}  {share:+.4f}" for a, b, share in rows]
        lines += [f"shares are known to ± {self.error:.2g}"] if self.error else []
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        return look.inline("", look.table([self.of, "", "share"], self.rows()))


def _plain(value: Any) -> str:
    """Text of the data as it may stand on a terminal."""
    return "".join(one if one.isprintable() else "\ufffd" for one in str(value))


def shapley(
    count: int, values: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, float, float]:
    """Shares [count] of the parts of a value, the value without any, and the shares' error.

    values: of the parts that are kept, bool [m, count] -> [m].

    Parts come one after the other, in a random order; a part's share is what it adds when it comes,
    averaged over orders (Shapley, 1953; by sampling: Strumbelj and Kononenko, JMLR 2010). What is
    added in one order sums up to the whole, so shares do too, however many orders there are. An
    order comes with its reverse: where parts act alone or by twos, one pair of orders is exact. Of
    few parts all subsets are computed.
    """
    if 2**count <= MOST_SUBSETS:
        shares, none = _every_subset(count, values)
        return shares, none, 0.0
    none, whole = values(np.stack([np.zeros(count, bool), np.ones(count, bool)])).tolist()
    random = np.random.default_rng(0)
    added: list[np.ndarray] = []  # of each pair: what parts add on average
    for _ in range(max(1, MOST_SUBSETS // (2 * count))):
        order = random.permutation(count)
        orders = [order, order[::-1]]
        kept = [np.argsort(one)[None] < np.arange(1, count)[:, None] for one in orders]
        between = np.split(values(np.concatenate(kept)), 2)
        gains = np.empty((2, count))
        for order_gains, parts, steps in zip(gains, orders, between):
            order_gains[parts] = np.diff([none, *steps, whole])
        added.append(gains.mean(0))
        shares, spread = np.mean(added, 0), np.abs(gains[0] - gains[1]).max() / 2
        if len(added) > 1:
            spread = np.std(added, 0, ddof=1).max() / len(added) ** 0.5
        error = float(spread)
        if error <= CLOSE * np.abs(shares).max():
            break
    tiny = 1e-6 * max(abs(none), abs(whole), float(np.abs(shares).max()))  # rounding
    return shares, none, error if error > tiny else 0.0


def _every_subset(
    count: int, values: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, float]:
    """Shapley's shares as they are defined: over all subsets that a part may come to."""
    numbers = np.arange(2**count)
    kept = (numbers[:, None] >> np.arange(count)) & 1 > 0  # subset k has the parts of k's bits
    scores, sizes = values(kept), kept.sum(1)
    shares = np.empty(count)
    for part in range(count):
        before = numbers[~kept[:, part]]
        orders = [1 / (count * comb(count - 1, size)) for size in sizes[before].tolist()]
        shares[part] = ((scores[before | 1 << part] - scores[before]) * orders).sum()
    return shares, float(scores[0])


def of_terms(
    taken: np.ndarray, terms: np.ndarray, rest: float = 0.0, rest_is: str | None = None
) -> Breakdown:
    """Terms [n] of a score, one for each item taken; those of 0 are no reason, and left out."""
    places = np.flatnonzero(terms)
    about = rest_is or "nothing, it is a plain sum"
    return Breakdown(taken[places].tolist(), terms[places], rest, about)


def of_vectors(user: Tensor, taken: np.ndarray, vectors: Tensor, item: int) -> Breakdown:
    """Shares of the items taken in <user, item>: vectors [d] and [num_items, d].

    The user's vector is written as a sum of the vectors of the items taken, each with a weight of 0
    or more, as nearly as such a sum comes, and a remainder. Each of them times the vector of the
    item is its share.
    """
    user, items = user.double(), vectors[torch.from_numpy(taken)].double()
    steep = (items.T @ items).abs().sum(1).max().clamp(min=1e-12)  # no direction is steeper
    weights = before = ahead = items.new_zeros(len(items))
    for step in range(DESCENTS):  # accelerated: Beck and Teboulle, SIAM 2009
        weights = (ahead - items @ (items.T @ ahead - user) / steep).clamp(min=0.0)
        ahead = weights + step / (step + 3) * (weights - before)
        before = weights
    target = vectors[item].double()
    shares = weights * (items @ target)
    rest = float(user @ target - shares.sum())
    about = "what the items taken do not account for"
    return Breakdown(taken.tolist(), shares.numpy(), rest, about)


# ---- features of click models -------------------------------------------------------------------


def of_features(
    pair: Batch, features: Sequence[Feature], logits: Callable[[Batch], Tensor]
) -> Breakdown:
    """Shares of features in the log odds of sample 0 of a pair; sample 1 has none of them.

    Of several labels the first counts.
    """
    names = [one.name for one in features]

    def values(kept: np.ndarray) -> np.ndarray:
        parts = [logits(_mixed(pair, features, one)) for one in torch.from_numpy(kept).split(64)]
        log_odds = torch.cat(parts)
        return (log_odds if log_odds.dim() == 1 else log_odds[:, 0]).double().cpu().numpy()

    with torch.inference_mode():
        shares, rest, error = shapley(len(names), values)
    return Breakdown(names, shares, rest, "a sample without any of them", error, "features")


def _mixed(pair: Batch, features: Sequence[Feature], kept: Tensor) -> Batch:
    """Samples that have the features that are kept [m, n] of sample 0, and the others of 1."""
    source = (~kept).long()  # which sample each feature is of
    place = {values.name: number for number, values in enumerate(features)}
    ids: dict[str, Tensor | Jagged] = {}
    dense: dict[str, Tensor] = {}
    if "slots" in pair.ids:
        sparse = source[:, [place[values.name] for values in features if values.is_sparse]]
        slots, columns = pair.ids["slots"], torch.arange(sparse.shape[1])
        if isinstance(slots, Jagged):
            ids["slots"] = slots.take((sparse * len(columns) + columns).reshape(-1))
        else:
            ids["slots"] = slots[sparse, columns]
        if pair.dense:
            wide = [place[f.name] for f in features if not f.is_sparse for _ in range(f.width)]
            dense["dense"] = pair.dense["dense"][source[:, wide], torch.arange(len(wide))]
        return Batch(len(kept), ids, dense)
    everyone = torch.zeros(len(kept), dtype=torch.int64)
    for name, values in pair.ids.items():
        rows = source[:, place[name]] if name in place else everyone
        ids[name] = values.take(rows) if isinstance(values, Jagged) else values[rows]
    for name, numbers in pair.dense.items():
        dense[name] = numbers[source[:, place[name]]]
    return Batch(len(kept), ids, dense)

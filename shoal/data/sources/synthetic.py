"""Synthetic data: generated interactions whose hidden taste is known, so learning can be checked.

    score(user, item, t) = strength * <taste of user at t, item> - popularity * log(rank of item)

A user draws items without replacement with probability proportional to exp(score) (the Gumbel
trick: add noise, take the best), in STAGES steps from t = 0 to t = 1 while the taste turns.

Everything that decides an outcome is an integer (held in float64, far below 2**53): random words
of Philox, tables rounded to integers, exact products. So the data is the same on every machine.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from shoal.config.schema import DataSection, SyntheticSection
from shoal.data.raw_columns import Raw, RawColumn, RawTable
from shoal.data.sources.source import Source
from shoal.data.sources.tables import interaction_columns

STAGES = 8  # steps in which a user's taste turns
MIN_PER_USER = 5
FEATURE_VALUES = 12  # that a feature of an item may have
TOLD = 0.95  # of the variance of items' factors, by their features where there are any
UNIT = 64.0  # integers per 1.0 in a factor; a score has UNIT * UNIT per 1.0


@dataclass(frozen=True)
class Truth:
    """The hidden factors. Row u belongs to the user token str(u + 1), row i to the item str(i + 1).

    first, other  the users' taste turns from the one towards the other, [users, factors]
    items         [items, factors]
    bias          log popularity, [items]
    """

    first: np.ndarray
    other: np.ndarray
    items: np.ndarray
    bias: np.ndarray
    drift: float

    def taste(self, t: float) -> np.ndarray:
        """Taste of the users at time t of 0 to 1, [users, factors], integers."""
        # `first` and `other` are unrelated, as if at right angles; drift 1 ends at a quarter turn.
        angle = self.drift * t * np.pi / 2
        return np.rint(
            np.rint(np.cos(angle) * 4096) * self.first / 4096
            + np.rint(np.sin(angle) * 4096) * self.other / 4096
        )

    def scores(
        self, user_tokens: np.ndarray, item_tokens: np.ndarray, t: float = 1.0
    ) -> np.ndarray:
        """Log-odds of the given users (str tokens) for the given items, [users, items]."""
        users, items = user_tokens.astype(np.int64) - 1, item_tokens.astype(np.int64) - 1
        return (self.taste(t)[users] @ self.items[items].T + self.bias[items]) / (UNIT * UNIT)


def synthetic_truth(section: SyntheticSection) -> Truth:
    """The hidden factors behind the data that this section generates."""
    users, items, factors = section.users, section.items, section.factors
    spread = section.strength / np.sqrt(factors)  # <taste, item> has deviation `strength`
    rank = np.argsort(_random(section, "rank", items), kind="stable") + 1
    return Truth(
        first=np.rint(_normal(section, "first", users, factors) * (spread * UNIT)),
        other=np.rint(_normal(section, "other", users, factors) * (spread * UNIT)),
        items=_item_factors(section),
        bias=np.rint(-section.popularity * np.log(rank) * (UNIT * UNIT)),
        drift=section.drift,
    )


def _item_factors(section: SyntheticSection) -> np.ndarray:
    """What items are, [items, factors]: drawn, or for the most part the sum of their features'."""
    drawn = _normal(section, "items", section.items, section.factors)
    if not section.item_features:
        return np.rint(drawn * UNIT)
    explained = np.zeros_like(drawn)
    for k, values in enumerate(item_features(section)):
        explained += _normal(section, f"values {k}", FEATURE_VALUES, section.factors)[values]
    share = np.rint(UNIT * np.sqrt(TOLD / section.item_features))
    return np.rint(explained * share + drawn * np.rint(UNIT * np.sqrt(1 - TOLD)))


def item_features(section: SyntheticSection) -> list[np.ndarray]:
    """The value of every item, int64 [items] below FEATURE_VALUES, for each feature."""
    return [
        (_random(section, f"feature {k}", section.items) % np.uint64(FEATURE_VALUES)).astype(
            np.int64
        )
        for k in range(section.item_features)
    ]


def new_items(section: SyntheticSection) -> np.ndarray:
    """bool [items]: those that come in the last stage alone."""
    order = np.argsort(_random(section, "new", section.items), kind="stable")
    new = np.zeros(section.items, dtype=bool)
    new[order[: int(section.items * section.new_items)]] = True
    return new


class Synthetic(Source):
    """Generated interactions whose best possible metrics are known."""

    name = "synthetic"

    def matches(self, config: DataSection) -> bool:
        return config.name == self.name and not config.folder.exists()

    def read(self, config: DataSection) -> Raw:
        """In order of time, with user, item, rating and time named as in data.fields."""
        section, fields = config.synthetic, config.fields
        kinds, load = interaction_columns(config, "synthetic data")
        _check(section)
        truth = synthetic_truth(section)
        sizes = _sizes(section)
        users, items, stages = _draw(section, truth, sizes)
        times = _times(section, users, sizes)
        order = np.argsort(times, kind="stable")
        # One second more per row: times rise strictly over the whole data set.
        times = times[order] + np.arange(len(order)) + 880_000_000
        users, items, stages = users[order], items[order], stages[order]
        ratings = _ratings(section, truth, users, items, stages)

        columns = {
            fields.user: RawColumn(users, _names(section.users)),
            fields.item: RawColumn(items, _names(section.items)),
            fields.rating: RawColumn(ratings.astype(np.float64)),
            fields.time: RawColumn(times.astype(np.float64)),
        }
        table = RawTable(
            "synthetic data", {n: kinds[n] for n in load}, {n: columns[n] for n in load}
        )
        return Raw(table, _side_tables(config) if section.item_features else {})


def _side_tables(config: DataSection) -> dict[str, RawTable]:
    """What describes an item: as columns, and as a knowledge graph with the same facts."""
    section = config.synthetic
    names, values = _names(section.items), item_features(section)
    entities = np.array([f"entity_{name}" for name in names], dtype=object)
    number = len(values)
    tails = np.array(
        [f"feature_{k}_v{v}" for k in range(number) for v in range(FEATURE_VALUES)], dtype=object
    )
    all_items = np.arange(section.items)
    triples = {
        "head_id": RawColumn(np.tile(all_items, number), entities),
        "relation_id": RawColumn(
            np.repeat(np.arange(number), section.items),
            np.array([f"feature_{k}" for k in range(number)], dtype=object),
        ),
        "tail_id": RawColumn(
            np.concatenate(
                [k * FEATURE_VALUES + item_values for k, item_values in enumerate(values)]
            ),
            tails,
        ),
    }
    item = RawColumn(all_items, names)
    words = np.array([f"v{value}" for value in range(FEATURE_VALUES)], dtype=object)
    features = {
        f"feature_{k}": RawColumn(item_values, words) for k, item_values in enumerate(values)
    }
    tables = {
        "item": {config.fields.item: item, **features},
        "kg": triples,
        "link": {config.fields.item: item, "entity_id": RawColumn(all_items, entities)},
    }
    return {
        suffix: RawTable(f"synthetic {suffix}", dict.fromkeys(columns, "token"), columns)
        for suffix, columns in tables.items()
    }


def _check(section: SyntheticSection) -> None:
    low, high = section.users * MIN_PER_USER, section.users * (section.items // 2)
    if not low <= section.interactions <= high:
        raise ValueError(
            f"data.synthetic: {section.interactions} interactions of {section.users} users with "
            f"{section.items} items; each user has at least {MIN_PER_USER} and at most half of "
            f"the items, so give {low} to {high} interactions (and at least "
            f"{2 * MIN_PER_USER} items)"
        )


def _sizes(section: SyntheticSection) -> np.ndarray:
    """Interactions of each user, int64 [users]: skewed, and exactly section.interactions in all."""
    uniform = (_random(section, "sizes", section.users) >> np.uint64(44)).astype(np.int64)  # 20 bit
    weights = (1 << 40) // (uniform + (1 << 15))  # a heavy tail, up to 33 times the lightest
    sizes = np.full(section.users, MIN_PER_USER, dtype=np.int64)
    limit = section.items // 2
    while (remaining := section.interactions - int(sizes.sum())) > 0:
        open_weights = np.where(sizes < limit, weights, 0)
        share = remaining * open_weights // int(open_weights.sum())
        if not share.any():  # less than one each: the heaviest open users take one
            heaviest = np.argsort(-open_weights, kind="stable")[:remaining]
            share[heaviest[open_weights[heaviest] > 0]] = 1
        sizes = np.minimum(sizes + share, limit)
    return sizes


def _draw(
    section: SyntheticSection, truth: Truth, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(user, item, stage) of every interaction, by user and within a user in order of time."""
    # Scores are whole numbers times `items`; the item in the low digits makes all of a user's
    # distinct, so that no tie is left to the sort.
    noises = -np.log(-np.log((np.arange(65_536) + 0.5) / 65_536))  # Gumbel's, by 16-bit word
    gumbel = np.rint(noises * (UNIT * UNIT)) * section.items
    tastes = [truth.taste(stage / (STAGES - 1)) * section.items for stage in range(STAGES)]
    by_factor = np.ascontiguousarray(truth.items.T)
    bias = truth.bias * section.items + np.arange(section.items)
    largest = max(np.abs(taste).max() for taste in tastes) * np.abs(by_factor).sum(0).max()
    largest += np.abs(bias).max() + np.abs(gumbel).max()
    number = np.int32 if largest < 2**31 else np.float64  # half the bytes, where they suffice
    gumbel, bias, by_factor = gumbel.astype(number), bias.astype(number), by_factor.astype(number)
    tastes = [taste.astype(number) for taste in tastes]
    none = np.iinfo(np.int32).min if number is np.int32 else -np.inf
    step = max(1, (1 << 16) // section.items)
    steps = np.arange(STAGES + 1)
    later = new_items(section) if section.new_items else None

    def draw_block(begin: int) -> list[np.ndarray]:
        draws = []
        block = np.arange(begin, min(begin + step, section.users))
        # after[u, s]: how many of the user's interactions come before stage s
        after = sizes[block, None] * steps // STAGES
        seen = np.zeros((len(block), section.items), dtype=bool)
        drawn = np.empty(seen.shape, number)
        for stage in range(STAGES):
            counts = after[:, stage + 1] - after[:, stage]
            most = int(counts.max())
            if most == 0:
                continue
            noise = _random(section, f"noise {begin} {stage}", (seen.size + 3) // 4)
            noise = noise.view(np.uint16)[: seen.size].reshape(seen.shape)
            # einsum, not @: one thread is faster here, and it runs on every rank of a host at once
            scores = np.einsum("uf,fi->ui", tastes[stage][block], by_factor)
            scores += bias
            scores += gumbel.take(noise, out=drawn, mode="clip")  # clip: without a buffer
            np.copyto(scores, none, where=seen)
            if later is not None and stage < STAGES - 1:
                scores[:, later] = none
            scores.partition(section.items - most, axis=1)
            top = np.sort(scores[:, -most:], axis=1)[:, ::-1]
            user, place = np.nonzero(np.arange(most) < counts[:, None])
            item = (top[user, place] % section.items).astype(np.int64)
            seen[user, item] = True
            draws.append(np.stack([block[user], item, np.full(len(user), stage)]))
        return draws

    with ThreadPoolExecutor(2) as pool:  # a few: every rank of a host does it
        blocks = pool.map(draw_block, range(0, section.users, step))
        users, items, stages = np.concatenate([draw for draws in blocks for draw in draws], axis=1)
    # Within a stage the best came first; a random order hides that.
    shuffle = _random(section, "order", len(users))
    order = np.lexsort((shuffle, stages, users))
    return users[order], items[order], stages[order]


def _times(section: SyntheticSection, users: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Seconds of each interaction: users come over half a year, and act at most daily apart."""
    begin = (_random(section, "begin", section.users) >> np.uint64(40)).astype(
        np.int64
    )  # < 194 days
    gaps = 1 + (_random(section, "gaps", len(users)) % np.uint64(86_400)).astype(np.int64)
    first = np.cumsum(sizes) - sizes
    total = np.cumsum(gaps)
    return begin[users] + total - (total[first] - gaps[first])[users]


def _ratings(
    section: SyntheticSection,
    truth: Truth,
    users: np.ndarray,
    items: np.ndarray,
    stages: np.ndarray,
) -> np.ndarray:
    """1 to 5: the better an item fits the taste, the higher; shares as in MovieLens."""
    liking = np.empty(len(users))
    for stage in range(STAGES):
        rows = np.flatnonzero(stages == stage)
        taste = truth.taste(stage / (STAGES - 1))
        liking[rows] = (taste[users[rows]] * truth.items[items[rows]]).sum(axis=1)
    spread = max(section.strength, 0.1) * UNIT * UNIT / 2
    liking += np.rint(_normal(section, "ratings", len(users), 1)[:, 0] * spread)
    ranked = np.sort(liking)
    limits = ranked[[len(ranked) * percent // 100 for percent in (6, 17, 44, 78)]]
    return 1 + np.searchsorted(limits, liking, side="right")


def _names(count: int) -> np.ndarray:
    return np.array([str(i + 1) for i in range(count)], dtype=object)


def _random(section: SyntheticSection, stream: str, count: int) -> np.ndarray:
    """uint64 [count], a pure function of (seed, stream)."""
    name = int.from_bytes(hashlib.blake2b(stream.encode(), digest_size=8).digest(), "little")
    key = np.array([section.seed & 0xFFFFFFFFFFFFFFFF, name], dtype=np.uint64)
    return np.random.Philox(key=key).random_raw(count)


def _normal(section: SyntheticSection, stream: str, rows: int, width: int) -> np.ndarray:
    """Nearly normal numbers, [rows, width]: sums of four uniform ones, exact on every machine."""
    words = _random(section, stream, rows * width).view(np.uint16).reshape(rows, width, 4)
    total = words.sum(axis=2, dtype=np.int64) - 2 * 65_535
    return total / (65_536 / np.sqrt(3.0))

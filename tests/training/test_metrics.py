"""Metrics against values worked out by hand, by scikit-learn, by brute force and by RecBole."""

import math
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import sklearn.metrics
import torch

from shoal.training.metrics import (
    METRICS,
    MetricSet,
    Ranked,
    Valued,
    canonical,
    higher_is_better,
)
from shoal.training.metrics.pairs import pair_counts

VALUE = ["AUC", "LogLoss", "MAE", "RMSE"]

# Three users, five items (1 to 5) and the padding. The third user has two candidates only.
#
#   user  list      hits    positives
#   a     2 4 1     . x x   2
#   b     2 3 4     . . .   1
#   c     5 2 -     x . -   4
ITEMS = torch.tensor([[2, 4, 1], [2, 3, 4], [5, 2, 0]])
HITS = torch.tensor([[0, 1, 1], [0, 0, 0], [1, 0, 0]]).bool()
POSITIVES = torch.tensor([2, 1, 4])
POPULARITY = torch.tensor([99, 6, 10, 3, 0, 3])  # the entry of the padding must not matter


def by_hand(names, topk=(1, 3), tail_ratio=0.4, **pairs):
    metrics = MetricSet(names, topk, 6, POPULARITY, tail_ratio)
    metrics.update(Ranked(ITEMS, HITS, POSITIVES, **pairs))
    return metrics.compute()


LOG3 = 1 / math.log2(3)  # what a hit at rank 2 is worth; rank 1 is worth 1, rank 3 one half


@pytest.mark.parametrize(
    ("name", "at_1", "at_3"),
    [
        ("Recall", (0 + 0 + 1 / 4) / 3, (2 / 2 + 0 + 1 / 4) / 3),
        ("Precision", (0 + 0 + 1) / 3, (2 / 3 + 0 + 1 / 3) / 3),
        ("Hit", (0 + 0 + 1) / 3, (1 + 0 + 1) / 3),
        ("MRR", (0 + 0 + 1) / 3, (1 / 2 + 0 + 1) / 3),
        # ideal lists: a has 2 positives (1 + LOG3), c has 4, of which 3 fit (1 + LOG3 + 1/2)
        (
            "NDCG",
            (0 + 0 + 1) / 3,
            ((LOG3 + 0.5) / (1 + LOG3) + 0 + 1 / (1.5 + LOG3)) / 3,
        ),
        # a: precision 1/2 at its first hit, 2/3 at its second, over 2; c: 1 at its hit, over 3
        ("MAP", (0 + 0 + 1) / 3, ((1 / 2 + 2 / 3) / 2 + 0 + 1 / 3) / 3),
        # first places 2 2 5; all places: 2 three times, 4 twice, 1 3 5 once
        ("ItemCoverage", 2 / 5, 5 / 5),
        # counts 10 10 3; a: (10+0+6)/3, b: (10+3+0)/3, c: (3+10)/2
        ("AveragePopularity", 23 / 3, (16 / 3 + 13 / 3 + 13 / 2) / 3),
        # counts in order 0 0 0 1 2 with weights -4 -2 0 2 4; and 1 1 1 2 3
        ("GiniIndex", (1 * 2 + 2 * 4) / (5 * 3), (-4 - 2 + 0 + 2 * 2 + 3 * 4) / (5 * 8)),
        (
            "ShannonEntropy",
            -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3)),
            -(3 / 8 * math.log(3 / 8) + 2 / 8 * math.log(2 / 8) + 3 * (1 / 8 * math.log(1 / 8))),
        ),
        # two of five items are the tail: 4 (never seen) and 3 (before 5, of the same count)
        ("TailPercentage", 0, (1 / 3 + 2 / 3 + 0) / 3),
    ],
)
def test_by_hand(name, at_1, at_3):
    result = by_hand([name])
    assert list(result) == [f"{name.lower()}@1", f"{name.lower()}@3"]
    assert list(result.values()) == pytest.approx([at_1, at_3], abs=1e-12)


def test_gauc_by_hand():
    # a: 2 positives, 3 negatives, 4.5 of 6 pairs right; b: no negatives, left out;
    # c: 4 positives, 1 negative, 1 of 4 pairs right. Weights 2 and 4.
    result = by_hand(
        ["GAUC"],
        auc_numerator=torch.tensor([4.5, 0.0, 1.0], dtype=torch.float64),
        num_negatives=torch.tensor([3, 0, 1]),
    )
    assert result == {"gauc": pytest.approx((2 * 4.5 / 6 + 4 * 1 / 4) / (2 + 4), abs=1e-12)}


def test_value_metrics_by_hand():
    rows = Valued(
        users=torch.tensor([1, 1, 2, 2]),
        scores=torch.tensor([0.5, 0.25, 0.5, 0.75], dtype=torch.float64),
        labels=torch.tensor([1.0, 0.0, 0.0, 1.0]),
    )
    metrics = MetricSet(["RMSE", "MAE", "LogLoss", "AUC", "GAUC"], [1], 6, POPULARITY)
    metrics.update(rows)
    # pairs: .5 > .25, .5 = .5, .75 > .25, .75 > .5; within users: .5 > .25, .75 > .5
    assert metrics.compute() == {
        "rmse": pytest.approx(math.sqrt((0.25 + 0.0625 + 0.25 + 0.0625) / 4)),
        "mae": pytest.approx((0.5 + 0.25 + 0.5 + 0.25) / 4),
        "logloss": pytest.approx(-2 * (math.log(0.5) + math.log(0.75)) / 4),
        "auc": pytest.approx(3.5 / 4),
        "gauc": pytest.approx(1.0),
    }


def test_topk_beyond_the_catalogue():
    # A list of three for k = 10: hits are divided by 10, the ideal list has min(positives, 10).
    result = by_hand(["Precision", "NDCG", "MAP", "Recall", "AveragePopularity"], topk=[10])
    assert result["precision@10"] == pytest.approx((2 / 10 + 0 + 1 / 10) / 3)
    assert result["recall@10"] == pytest.approx((2 / 2 + 0 + 1 / 4) / 3)
    ideal_4 = 1 + LOG3 + 0.5 + 1 / math.log2(5)
    assert result["ndcg@10"] == pytest.approx(((LOG3 + 0.5) / (1 + LOG3) + 1 / ideal_4) / 3)
    assert result["map@10"] == pytest.approx(((1 / 2 + 2 / 3) / 2 + 1 / 4) / 3)
    assert result["averagepopularity@10"] == pytest.approx((16 / 3 + 13 / 3 + 13 / 2) / 3)


def test_the_tail():
    def tail(ratio):
        return MetricSet([], [1], 6, POPULARITY, ratio).setting.tail.nonzero().squeeze(1).tolist()

    assert tail(0.01) == [4]  # at least one item
    assert tail(0.6) == [3, 4, 5]
    assert tail(1.0) == [1, 2, 3, 4, 5]
    assert tail(3) == [3, 4, 5]  # above 1: at most so many interactions
    hundred = MetricSet([], [1], 101, torch.arange(101), 0.29).setting.tail
    assert hundred.sum() == 29


def test_sklearn_agrees_on_many_rows_with_ties():
    rng = np.random.default_rng(1)
    labels = (rng.random(5000) < 0.3).astype(np.float64)
    scores = np.round(np.clip(0.2 * labels + 0.8 * rng.random(5000), 0.01, 0.99), 2)
    metrics = MetricSet(VALUE, [10], 6, POPULARITY)
    for start in range(0, 5000, 999):
        part = slice(start, start + 999)
        users = torch.zeros(len(labels[part]), dtype=torch.int64)
        metrics.update(Valued(users, torch.tensor(scores[part]), torch.tensor(labels[part])))
    assert metrics.compute() == {
        "auc": pytest.approx(sklearn.metrics.roc_auc_score(labels, scores), abs=1e-12),
        "logloss": pytest.approx(sklearn.metrics.log_loss(labels, scores), abs=1e-12),
        "mae": pytest.approx(sklearn.metrics.mean_absolute_error(labels, scores), abs=1e-12),
        "rmse": pytest.approx(sklearn.metrics.mean_squared_error(labels, scores) ** 0.5, abs=1e-12),
    }


def pairs_by_brute_force(scores, labels):
    numerator = 0.0
    for positive in scores[labels == 1]:
        for negative in scores[labels == 0]:
            numerator += 1.0 if positive > negative else 0.5 if positive == negative else 0.0
    return numerator, int((labels == 1).sum()), int((labels == 0).sum())


def test_gauc_of_rows_by_brute_force():
    rng = np.random.default_rng(7)
    users, labels = rng.integers(1, 40, 600), (rng.random(600) < 0.3).astype(np.float64)
    scores = rng.integers(0, 12, 600) / 4.0  # many ties
    labels[users == 5], labels[users == 6] = 0, 1  # users of one class
    total = weight = 0.0
    for user in np.unique(users):
        mine = users == user
        numerator, positives, negatives = pairs_by_brute_force(scores[mine], labels[mine])
        if positives and negatives:
            total += positives * numerator / (positives * negatives)
            weight += positives
    metrics = MetricSet(["GAUC"], [10], 6, POPULARITY)
    for start in range(0, 600, 77):  # rows of a user are spread over blocks
        part = slice(start, start + 77)
        block = (torch.tensor(column[part]) for column in (users, scores, labels))
        metrics.update(Valued(*block))
    assert metrics.compute()["gauc"] == pytest.approx(total / weight, abs=1e-12)
    columns = [torch.tensor(column) for column in (users, scores, labels)]
    for user, *counts in zip(np.unique(users), *pair_counts(*columns)):
        mine = users == user
        assert tuple(counts) == pairs_by_brute_force(scores[mine], labels[mine])


# A fixed example, and what RecBole 1.2.1 makes of it.


def example():
    """60 users, 40 items and the padding, scores of two decimals (so with ties), 500 rows."""
    rng = np.random.RandomState(2020)
    num_users, num_items = 60, 41
    scores = np.round(rng.random_sample((num_users, num_items)), 2)
    positive = rng.random_sample((num_users, num_items)) < 0.12
    positive[np.arange(num_users), 1 + np.arange(num_users) % 40] = True
    positive[:, 0] = False
    scores = np.round(scores + 0.3 * positive * rng.random_sample(scores.shape), 2)
    scores[:, 0] = -np.inf
    items = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    popularity = np.concatenate([[0], rng.permutation(np.arange(1, 41) ** 2 // 4 + 1)])
    labels = (rng.random_sample(500) < 0.4).astype(np.float64)
    values = np.round(np.clip(0.35 * labels + 0.65 * rng.random_sample(500), 0.01, 0.99), 2)
    return scores, positive, items, popularity, values, labels


TOPK = [1, 3, 5, 10]

# Recipe: with recbole==1.2.1 installed (and np.float = float, np.bool = bool for a new numpy), call
# METRIC({"topk": TOPK, "metric_decimal_place": 17, "tail_ratio": 0.1}).calculate_metric(data) for
# each class of recbole.evaluator.metrics, where `data` is a dict of
#   rec.topk          tensor of [hits | positives] of each user,     rec.items  tensor of items
#   data.num_items    40,                                  data.count_items  Counter of popularity
#   rec.meanrank      tensor of [sum of the positives' scipy rankdata(-scores), 40, positives]
#   rec.score, data.label  tensors of values and labels
RECBOLE = {
    "recall": [0.10953763828763832, 0.2201659451659452, 0.28238215488215485, 0.3861670274170273],
    "mrr": [0.6, 0.675, 0.7024999999999999, 0.70765873015873],
    "ndcg": [0.6, 0.44199317408617794, 0.3870319390387504, 0.40823813455771973],
    "hit": [0.6, 0.7666666666666667, 0.8833333333333333, 0.9166666666666665],
    "map": [0.6, 0.3509259259259259, 0.262625, 0.2594631991685563],
    "precision": [0.6, 0.39444444444444454, 0.30999999999999983, 0.21833333333333327],
    "gauc": 0.6333575694857572,
    "itemcoverage": [0.8, 1.0, 1.0, 1.0],
    "averagepopularity": [
        166.46666666666667,
        136.16666666666666,
        133.6333333333333,
        130.71166666666667,
    ],
    "giniindex": [0.43666666666666665, 0.24944444444444444, 0.18866666666666668, 0.12375],
    # RecBole divides the entropy by the number of distinct items recommended: 32, 40, 40, 40 here.
    "shannonentropy": [
        0.10317215825305225 * 32,
        0.08968346395168082 * 40,
        0.09074303245054544 * 40,
        0.09158271890996154 * 40,
    ],
    "tailpercentage": [0.05, 0.07777777777777777, 0.09000000000000004, 0.10000000000000002],
    "auc": 0.8953494226638024,
    "logloss": 0.4410760451849828,
    "mae": 0.33086,
    "rmse": 0.3773165779554352,
}


def example_blocks():
    """The example as one Ranked (with pairs counted by brute force) and one Valued."""
    scores, positive, items, popularity, values, labels = example()
    pairs = [pairs_by_brute_force(s[1:], p[1:]) for s, p in zip(scores, positive)]
    ranked = Ranked(
        torch.tensor(items),
        torch.tensor(np.take_along_axis(positive, items, 1)),
        torch.tensor(positive.sum(1)),
        torch.tensor([numerator for numerator, _, _ in pairs], dtype=torch.float64),
        torch.tensor([negatives for _, _, negatives in pairs]),
        torch.ones(60, dtype=torch.float64),
        torch.arange(1, 61),
    )
    users = torch.arange(500) % 17
    return ranked, Valued(users, torch.tensor(values), torch.tensor(labels)), popularity


def part(block, start, stop):
    """Rows start to stop of a block."""
    return type(block)(*[column[start:stop] for column in vars(block).values()])


def flat(name, value):
    values = value if isinstance(value, list) else [value]
    keys = [f"{name}@{k}" for k in TOPK] if isinstance(value, list) else [name]
    return dict(zip(keys, values))


IN_RECBOLE = [name for name in METRICS if name.lower() in RECBOLE]


def test_recbole_agrees():
    ranked, valued, popularity = example_blocks()
    metrics = MetricSet(IN_RECBOLE, TOPK, 41, torch.tensor(popularity))
    metrics.update(ranked)
    metrics.update(valued)
    expected = {}
    for name in IN_RECBOLE:
        expected |= flat(name.lower(), RECBOLE[name.lower()])
    result = metrics.compute()
    assert list(result) == list(expected)  # names × topk, in order
    assert result == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [1, 7, 64])
@pytest.mark.parametrize("flush_entries", [1, 100, 2**20])
def test_any_split_over_blocks_and_ranks_gives_the_same(
    monkeypatch, world_size, size, flush_entries
):
    monkeypatch.setattr(MetricSet, "flush_entries", flush_entries)
    ranked, valued, popularity = example_blocks()
    ranks = [MetricSet(IN_RECBOLE, TOPK, 41, torch.tensor(popularity)) for _ in range(world_size)]
    # All users on the ranks before the last one, if there are several: the last has rows only.
    for number, start in enumerate(range(0, 60, size)):
        ranks[number % max(world_size - 1, 1)].update(part(ranked, start, start + size))
    for number, start in enumerate(range(0, 500, size)):
        ranks[-1 - number % world_size].update(part(valued, start, start + size))
    results = merge(ranks)
    expected = {}
    for name in IN_RECBOLE:
        expected |= flat(name.lower(), RECBOLE[name.lower()])
    for result in results:
        assert result == results[0]
        assert result == pytest.approx(expected, abs=1e-10, rel=1e-12)


def merge(ranks):
    """Reduce simulated ranks in lockstep, as collectives would, and compute on each."""
    slots = [None] * len(ranks)
    barrier = threading.Barrier(len(ranks), timeout=20)
    results = [None] * len(ranks)

    def run(rank):
        def collective(combine):
            def call(tensor):
                slots[rank] = tensor
                barrier.wait()
                shapes = {(one.dtype, one.dim()) for one in slots}
                assert len(shapes) == 1  # the ranks talk about the same thing
                combined = combine(list(slots))
                barrier.wait()
                return combined

            return call

        def total(tensors):
            assert len({one.shape for one in tensors}) == 1
            return torch.stack(tensors).sum(0)

        calls = {"all_reduce": collective(total), "all_gather": collective(torch.cat)}
        ranks[rank].reduce(SimpleNamespace(device="cpu", **calls))
        results[rank] = ranks[rank].compute()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert None not in results
    return results


def test_blocks_of_different_widths():
    metrics = MetricSet(["Recall", "ItemCoverage"], [1, 3], 6, POPULARITY)
    metrics.update(Ranked(ITEMS[:2], HITS[:2], POSITIVES[:2]))
    metrics.update(Ranked(ITEMS[2:, :2], HITS[2:, :2], POSITIVES[2:]))
    assert metrics.compute() == by_hand(["Recall", "ItemCoverage"])


def test_a_list_longer_than_the_longest_k_is_cut():
    result = by_hand(["Recall", "MRR", "NDCG", "MAP", "ItemCoverage", "AveragePopularity"], [2])
    assert result == {
        "recall@2": pytest.approx((1 / 2 + 0 + 1 / 4) / 3),
        "mrr@2": pytest.approx((1 / 2 + 0 + 1) / 3),
        "ndcg@2": pytest.approx((LOG3 / (1 + LOG3) + 0 + 1 / (1 + LOG3)) / 3),
        "map@2": pytest.approx((1 / 2 / 2 + 0 + 1 / 2) / 3),
        "itemcoverage@2": pytest.approx(4 / 5),
        "averagepopularity@2": pytest.approx((10 / 2 + 13 / 2 + 13 / 2) / 3),
    }


def test_one_class_and_nan_scores_have_no_auc():
    def value(labels, scores):
        metrics = MetricSet(["AUC", "GAUC"], [1], 6, POPULARITY)
        metrics.update(
            Valued(torch.zeros(2, dtype=torch.int64), torch.tensor(scores), torch.tensor(labels))
        )
        return list(metrics.compute().values())

    assert np.isnan(value([1.0, 1.0], [0.2, 0.3])).all()
    assert np.isnan(value([0.0, 0.0], [0.2, 0.3])).all()
    assert np.isnan(value([0.0, 1.0], [0.2, math.nan])).all()
    assert value([0.0, 1.0], [-math.inf, math.inf]) == [1.0, 1.0]


def test_extreme_probabilities_keep_the_log_loss_finite():
    metrics = MetricSet(["LogLoss"], [1], 6, POPULARITY)
    metrics.update(
        Valued(
            torch.zeros(2, dtype=torch.int64), torch.tensor([0.0, 1.0]), torch.tensor([1.0, 1.0])
        )
    )
    assert metrics.compute()["logloss"] == pytest.approx(-math.log(1e-15) / 2)


def test_names():
    assert canonical("ndcg") == "NDCG" and canonical("ITEMCOVERAGE") == "ItemCoverage"
    ours = [name for name, one in METRICS.items() if one.__module__.startswith("shoal.")]
    assert len(ours) == 27
    assert {name for name in ours if not higher_is_better(name)} == {
        "MAE",
        "RMSE",
        "LogLoss",
        "GiniIndex",
        "AveragePopularity",
        "MedRank",
        "Miscalibration",
        "UserGap",
        "ItemGap",
    }
    assert higher_is_better("mrr@10") and not higher_is_better("giniindex@5")
    with pytest.raises(ValueError, match=r"unknown metric 'recal'; known .* did you mean Recall\?"):
        canonical("recal")
    assert list(by_hand(["recall", "Recall"], topk=[3, 3])) == ["recall@3"]


def test_wrong_rows():
    def feed(name, score, label):
        metrics = MetricSet([name], [1], 6, POPULARITY)
        metrics.update(
            Valued(torch.zeros(1, dtype=torch.int64), torch.tensor([score]), torch.tensor([label]))
        )
        return metrics.compute()

    for name in ("AUC", "GAUC", "LogLoss"):
        with pytest.raises(
            ValueError, match=rf"{name} needs labels that are 0 or 1, got 4.*thresh"
        ):
            feed(name, 0.5, 4.0)
    with pytest.raises(ValueError, match=r"between 0 and 1, got scores from 1\.5 to"):
        feed("LogLoss", 1.5, 1.0)
    assert feed("MAE", 1.5, 4.0) == {"mae": 2.5}


@pytest.mark.parametrize("name", ["MRR", "ItemCoverage", "GAUC", "AUC", "RMSE"])
def test_nothing_evaluated_is_an_error(name):
    with pytest.raises(ValueError, match=f"{name}: nothing was evaluated"):
        MetricSet([name], [10], 6, POPULARITY).compute()


def test_labeled_rows_of_one_user_on_several_ranks_make_one_gauc():
    _, valued, popularity = example_blocks()
    expected, weight = 0.0, 0
    for user in range(17):
        mine = (valued.users == user).numpy()
        labels, scores = valued.labels.numpy()[mine], valued.scores.numpy()[mine]
        expected += sklearn.metrics.roc_auc_score(labels, scores) * labels.sum()
        weight += labels.sum()
    ranks = [MetricSet(["GAUC"], [1], 41, torch.tensor(popularity)) for _ in range(3)]
    for number, start in enumerate(range(0, 500, 50)):
        ranks[number % 3].update(part(valued, start, start + 50))
    for result in merge(ranks):
        assert result["gauc"] == pytest.approx(expected / weight, abs=1e-12)

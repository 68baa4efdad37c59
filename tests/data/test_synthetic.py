"""Synthetic data: the promised shape, the same everywhere, and a taste that can be found."""

import hashlib

import numpy as np
import pytest

from shoal.config.schema import DataSection, SyntheticSection
from shoal.data.loading.load import load_dataset
from shoal.data.sources.synthetic import synthetic_truth

SMALL = {"users": 60, "items": 90, "interactions": 1200}


def load(synthetic=None, **options):
    return load_dataset(DataSection(name="synthetic", synthetic=synthetic or {}, **options), 1)


@pytest.fixture(scope="module")
def default():
    return load(split={"by": "ratio", "order": "random"})


def fingerprint(data):
    """A hash of every interaction in original tokens, rating and time."""
    text = "\n".join(
        f"{data.vocab['user_id'][u]} {data.vocab['item_id'][i]} {r:g} {t:.0f}"
        for u, i, r, t in zip(
            *(data.inter[f] for f in ("user_id", "item_id", "rating", "timestamp"))
        )
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def recall_at_10(data, scores):
    """Mean share of a user's test items among the ten best unseen, by the definition."""
    seen = {phase: {} for phase in ("train", "valid", "test")}
    for phase, by_user in seen.items():
        for user, item in zip(data.user_ids(phase).tolist(), data.item_ids(phase).tolist()):
            by_user.setdefault(user, []).append(item)
    recalls = []
    for user, wanted in seen["test"].items():
        row = scores[user].astype(np.float64).copy()
        row[[0, *seen["train"].get(user, []), *seen["valid"].get(user, [])]] = -np.inf
        best = np.argsort(-row, kind="stable")[:10]
        recalls.append(len(set(best.tolist()) & set(wanted)) / len(wanted))
    return float(np.mean(recalls))


def true_scores(data, section, t=1.0):
    scores = np.full((data.num_users, data.num_items), -np.inf)
    users, items = data.vocab["user_id"][1:], data.vocab["item_id"][1:]
    scores[1:, 1:] = synthetic_truth(section).scores(users, items, t)
    return scores


def popularity(data):
    counts = np.bincount(data.item_ids("train"), minlength=data.num_items)
    return np.broadcast_to(counts, (data.num_users, data.num_items))


def test_the_promised_shape(default):
    users, items = default.inter["user_id"], default.inter["item_id"]
    times, ratings = default.inter["timestamp"], default.inter["rating"]
    assert default.num_inter == 100_000
    assert default.num_users == 944
    assert 1600 <= default.num_items <= 1683
    assert len(np.unique(users * 10_000 + items)) == 100_000
    assert np.bincount(users)[1:].min() >= 5
    assert (np.diff(times) > 0).all()
    assert sorted(set(ratings.tolist())) == [1, 2, 3, 4, 5]
    counts = np.sort(np.bincount(items)[1:])[::-1]
    assert counts[:168].sum() > 0.2 * 100_000  # a tenth of the items draws more than its share
    assert counts[0] > 5 * np.median(counts)


def test_the_same_on_every_machine(default):
    assert fingerprint(load(SMALL)) == "547018d42d83a93b"
    assert fingerprint(default) == "3856dc899e41ad99"


def test_truth_ranks_far_better_than_popularity(default):
    section = SyntheticSection()
    truth = recall_at_10(default, true_scores(default, section, 0.5))
    popular = recall_at_10(default, popularity(default))
    chance = 10 / default.num_items
    assert truth > 0.35
    assert truth > 5 * popular
    assert popular > 3 * chance


def test_recent_taste_predicts_the_last_item_better_than_early_taste():
    data = load(split={"by": "leave_one_out", "order": "time"})
    section = SyntheticSection()
    late = recall_at_10(data, true_scores(data, section, 1.0))
    early = recall_at_10(data, true_scores(data, section, 0.0))
    assert late > 2 * early


def test_ratings_follow_taste(default):
    scores = true_scores(default, SyntheticSection(popularity=0.0), 0.5)
    liking = scores[default.inter["user_id"], default.inter["item_id"]]
    means = [liking[default.inter["rating"] == stars].mean() for stars in range(1, 6)]
    assert means == sorted(means)


@pytest.mark.parametrize(
    "synthetic",
    [
        {"users": 2, "items": 10, "interactions": 10},
        {"users": 3, "items": 11, "interactions": 15},
        {"users": 50, "items": 40, "interactions": 1000},
        {"users": 300, "items": 700, "interactions": 1501},
        {**SMALL, "factors": 1, "drift": 3.0, "strength": 50.0, "popularity": 5.0, "seed": -1},
    ],
)
def test_odd_sizes(synthetic):
    data = load(synthetic, split={"order": "time"})
    users, items = data.inter["user_id"], data.inter["item_id"]
    assert data.num_inter == synthetic["interactions"]
    assert data.num_users == synthetic["users"] + 1
    assert len(np.unique(users * 10_000 + items)) == len(users)
    assert np.bincount(users)[1:].min() >= 5
    assert (np.diff(data.inter["timestamp"]) > 0).all()


@pytest.mark.parametrize("interactions", [299, 60 * 45 + 1])
def test_impossible_sizes(interactions):
    with pytest.raises(ValueError, match=r"data\.synthetic: .* so give 300 to 2700 interactions"):
        load({**SMALL, "interactions": interactions})


def test_columns_and_names_follow_the_config():
    data = load(SMALL, fields={"user": "who"}, load={"inter": ["who", "item_id"]})
    assert list(data.inter) == ["who", "item_id"]
    with pytest.raises(ValueError, match="synthetic data holds interactions in one file only"):
        load(SMALL, load={"item": ["*"]})

"""The sampler: pure functions of their keys, the right distribution, never a known positive."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shoal.data.sampler as sampler_module
from shoal.data.random import hash64, permutation, uniform, uniform_below
from shoal.data.sampler import NegativeSampler, SeenPairs, alias_table
from shoal.kernels.core import has_core

NUM_USERS, NUM_ITEMS = 50, 120


@pytest.fixture(params=["bitmap", "keys"])
def storage(request, monkeypatch):
    """Both ways of keeping the known pairs."""
    if request.param == "keys":
        monkeypatch.setattr(sampler_module, "BITMAP_BYTES", 0)
    return request.param


def interactions(count=900, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(1, NUM_USERS, count), rng.integers(1, NUM_ITEMS, count)


def chi_square(observed, expected):
    """The statistic in units of its standard deviation above its mean."""
    freedom = len(expected) - 1
    return (((observed - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)


# random.py


def splitmix_reference(*keys):
    """The documented mixing, in plain integers."""
    mask = 2**64 - 1
    state = 0x2545F4914F6CDD1D
    for key in keys:
        z = (state + key * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        state = z ^ (z >> 31)
    return state


def test_hash64_matches_integer_arithmetic_whatever_the_kind_of_key():
    a, b = np.array([-3, 0, 7, 2**62]), np.array([[5], [-1]])
    got = hash64(11, a, b, -2)
    assert got.shape == (2, 4) and got.dtype == np.uint64
    for row in range(2):
        for column in range(4):
            expected = splitmix_reference(11, int(a[column]), int(b[row, 0]), -2)
            assert int(got[row, column]) == expected
    assert int(hash64(1, 2)) == splitmix_reference(1, 2)
    assert int(hash64(np.array([5], dtype=np.int32))[0]) == splitmix_reference(5)
    assert int(hash64(np.array([2**64 - 1], dtype=np.uint64))[0]) == splitmix_reference(-1)


def test_uniform_stays_below_its_bound():
    extremes = np.array([0, 2**64 - 1], dtype=np.uint64)
    for bound in (1, 2, 3, 1682, 2**31 - 1, 10**12 + 7):
        assert uniform_below(extremes, bound).tolist() == [0, bound - 1]
        assert uniform(extremes, float(bound))[1] < bound
    bounds = np.array([1, 10])
    assert uniform_below(np.array([2**63, 2**63], dtype=np.uint64), bounds).tolist() == [0, 5]


def test_permutation_is_a_pure_function_of_seed_and_epoch():
    one = permutation(1000, seed=5, epoch=2)
    assert np.array_equal(one, permutation(1000, seed=5, epoch=2))
    assert np.array_equal(np.sort(one), np.arange(1000))
    assert not np.array_equal(one, permutation(1000, seed=5, epoch=3))
    assert not np.array_equal(one, permutation(1000, seed=6, epoch=2))
    assert permutation(0, 1, 1).size == 0


# Seen


def test_seen_equals_a_set(storage):
    users, items = interactions()
    known = set(zip(users.tolist(), items.tolist()))
    seen = SeenPairs(users, items, NUM_USERS, NUM_ITEMS)
    assert (seen._bitmap is not None) == (storage == "bitmap")
    grid = seen.contains(np.arange(NUM_USERS)[:, None], np.arange(NUM_ITEMS))
    assert grid.shape == (NUM_USERS, NUM_ITEMS) and grid.dtype == bool
    for user in range(NUM_USERS):
        for item in range(NUM_ITEMS):
            assert grid[user, item] == ((user, item) in known)


def test_items_of_gathers_the_rows_of_any_users(storage):
    users, items = interactions()
    seen = SeenPairs(users, items, NUM_USERS, NUM_ITEMS)
    block = np.array([7, 0, 49, 7, 3])  # 0 has none, 7 comes twice
    offsets, found = seen.items_of(block)
    assert offsets[0] == 0 and offsets[-1] == len(found)
    for row, user in enumerate(block):
        expected = sorted(set(items[users == user].tolist()))
        assert found[offsets[row] : offsets[row + 1]].tolist() == expected


# NegativeSampler


def make(distribution="uniform", seed=1, alpha=1.0, count=900):
    users, items = interactions(count)
    popularity = np.bincount(items, minlength=NUM_ITEMS)
    sampler = NegativeSampler(
        SeenPairs(users, items, NUM_USERS, NUM_ITEMS),
        NUM_ITEMS,
        distribution=distribution,
        alpha=alpha,
        popularity=popularity,
        seed=seed,
    )
    return sampler, users, set(zip(users.tolist(), items.tolist()))


@pytest.mark.parametrize("distribution", ["uniform", "popularity"])
@pytest.mark.parametrize("count", [900, 12_000])  # the second: most items seen by everyone
def test_never_the_padding_never_a_positive(storage, distribution, count):
    sampler, users, known = make(distribution, count=count)
    drawn = sampler.draw(users, np.arange(len(users)), epoch=0, num=3)
    assert drawn.shape == (len(users), 3) and drawn.dtype == np.int64
    assert drawn.min() >= 1 and drawn.max() < NUM_ITEMS
    pairs = set(zip(np.repeat(users, 3).tolist(), drawn.reshape(-1).tolist()))
    assert not pairs & known


@pytest.mark.parametrize("distribution", ["uniform", "popularity"])
def test_any_slicing_gives_the_same_negatives(storage, distribution):
    sampler, users, _ = make(distribution, count=3000)
    index = np.arange(len(users))
    whole = sampler.draw(users, index, epoch=4, num=3)
    for size in (1, 7, 64, 1024):
        stop = 50 * size
        parts = [
            sampler.draw(users[at : at + size], index[at : at + size], 4, 3)
            for at in range(0, min(len(users), stop), size)
        ]
        assert np.array_equal(np.concatenate(parts), whole[:stop])
    for world_size in (2, 3, 4):  # interleaved, as ranks may take them
        for rank in range(world_size):
            part = sampler.draw(users[rank::world_size], index[rank::world_size], 4, 3)
            assert np.array_equal(part, whole[rank::world_size])
    assert np.array_equal(sampler.draw(users, index, 4, 1), whole[:, :1])
    assert np.array_equal(sampler.draw(users, index, 4, 5)[:, :3], whole)


# It holds the core against numpy: without a compiler there is only numpy, which the others test.
@pytest.mark.skipif(not has_core(), reason="the native core is not built")
@given(
    count=st.sampled_from([0, 30, 900, 12_000]),  # the last: most items seen by everyone
    distribution=st.sampled_from(["uniform", "popularity"]),
    sorted_keys=st.booleans(),
    seed=st.integers(-(2**63), 2**63 - 1),
    epoch=st.integers(0, 2**31),
    start=st.integers(0, 2**42),
    num=st.integers(1, 5),
)
@settings(deadline=None, max_examples=60)
def test_the_native_core_draws_what_numpy_draws(
    count, distribution, sorted_keys, seed, epoch, start, num
):
    users, items = interactions(count, seed=count)
    with pytest.MonkeyPatch.context() as patch:
        if sorted_keys:
            patch.setattr(sampler_module, "BITMAP_BYTES", 0)
        sampler = NegativeSampler(
            SeenPairs(users, items, NUM_USERS, NUM_ITEMS),
            NUM_ITEMS,
            distribution=distribution,
            alpha=0.7,
            popularity=np.bincount(items, minlength=NUM_ITEMS) + 0.5,
            seed=seed,
        )
    who = np.arange(3 * NUM_USERS) % NUM_USERS
    index = start + np.arange(len(who)) * 7
    drawn = sampler.draw(who, index, epoch, num)
    assert np.array_equal(drawn, sampler._draw(who, index, epoch, num))


def test_users_who_are_not_there_are_refused(storage):
    sampler, _, _ = make()
    for user in (-1, NUM_USERS):
        with pytest.raises((ValueError, IndexError)):
            sampler.draw(np.array([1, user]), np.arange(2), 0, 1)


def test_seed_epoch_sample_and_column_all_matter():
    sampler, users, _ = make()
    index = np.arange(len(users))
    base = sampler.draw(users, index, 0, 2)
    others = [
        make(seed=2)[0].draw(users, index, 0, 2),
        sampler.draw(users, index, 1, 2),
        sampler.draw(users, index + len(users), 0, 2),
        base[:, ::-1],
    ]
    for other in others:
        assert (other == base).mean() < 0.05  # independent draws agree in about 1 of 100


def test_uniform_over_the_unseen_items():
    sampler, users, known = make(count=3000)
    rows = 60_000
    user = int(users[0])
    unseen = [item for item in range(1, NUM_ITEMS) if (user, item) not in known]
    assert len(unseen) < 90  # many are rejected
    drawn = sampler.draw(np.full(rows, user), np.arange(rows), 0, 1).reshape(-1)
    observed = np.bincount(drawn, minlength=NUM_ITEMS)[unseen]
    assert observed.sum() == rows
    assert abs(chi_square(observed, np.full(len(unseen), rows / len(unseen)))) < 4


@pytest.mark.parametrize("alpha", [1.0, 0.5, 0.0])
def test_popularity_over_the_unseen_items(alpha):
    rng = np.random.default_rng(3)
    popularity = rng.integers(1, 200, 40) ** 2
    popularity[7] = 0
    seen_items = np.array([1, 2, 3, 30])
    sampler = NegativeSampler(
        SeenPairs(np.ones(4, np.int64), seen_items, 2, 40),
        40,
        distribution="popularity",
        alpha=alpha,
        popularity=popularity,
        seed=9,
    )
    rows = 100_000
    drawn = sampler.draw(np.ones(rows, np.int64), np.arange(rows), 0, 1).reshape(-1)
    weights = popularity.astype(float) ** alpha
    weights[[0, *seen_items]] = 0
    observed = np.bincount(drawn, minlength=40)
    assert (observed[7] == 0) == (alpha > 0)
    kept = weights > 0
    assert observed[~kept].sum() == 0
    expected = rows * weights[kept] / weights.sum()
    assert abs(chi_square(observed[kept], expected)) < 4


@pytest.mark.parametrize("kind", ["pareto", "equal", "one", "zeros", "single"])
def test_alias_table_holds_exactly_the_given_distribution(kind):
    rng = np.random.default_rng(1)
    weights = {
        "pareto": rng.pareto(0.7, 5000),
        "equal": np.full(100, 0.1),
        "one": np.eye(1, 50, 20)[0],
        "zeros": np.where(rng.random(300) < 0.6, 0, rng.random(300)),
        "single": np.ones(1),
    }[kind]
    keep, alias = alias_table(weights)
    assert keep.min() >= 0 and keep.max() <= 1
    held = keep.copy()
    np.add.at(held, alias, 1 - keep)
    assert np.allclose(held / len(weights), weights / weights.sum(), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("distribution", ["uniform", "popularity"])
def test_a_user_with_one_item_left_gets_it(storage, distribution):
    num_items = 3000
    items = np.delete(np.arange(1, num_items), 41)
    sampler = NegativeSampler(
        SeenPairs(np.ones_like(items), items, 3, num_items),
        num_items,
        distribution=distribution,
        popularity=np.arange(num_items),
        seed=0,
    )
    assert (sampler.draw(np.array([1, 1, 1]), np.arange(3), 0, 4) == 42).all()


def test_the_exact_choice_follows_the_distribution():
    num_items = 20_000
    left = np.array([5, 6, 7])
    items = np.setdiff1d(np.arange(1, num_items), left)
    popularity = np.full(num_items, 1)
    popularity[left] = [1, 3, 0]
    options = dict(distribution="popularity", popularity=popularity, seed=0)
    seen = SeenPairs(np.ones_like(items), items, 2, num_items)
    rows = 20_000
    drawn = NegativeSampler(seen, num_items, **options).draw(
        np.ones(rows, np.int64), np.arange(rows), 0, 1
    )
    observed = np.bincount(drawn.reshape(-1), minlength=8)[left]
    assert observed[2] == 0
    assert abs(chi_square(observed[:2], np.array([rows / 4, rows * 3 / 4]))) < 4
    popularity[left] = 0  # nothing left by popularity: any unseen item, evenly
    drawn = NegativeSampler(seen, num_items, **options).draw(
        np.ones(rows, np.int64), np.arange(rows), 0, 1
    )
    observed = np.bincount(drawn.reshape(-1), minlength=8)[left]
    assert abs(chi_square(observed, np.full(3, rows / 3))) < 4


def test_a_user_who_has_seen_everything_is_named(storage):
    items = np.arange(1, 30)
    sampler = NegativeSampler(SeenPairs(np.full(29, 4), items, 6, 30), 30, seed=0)
    assert sampler.draw(np.array([3]), np.array([0]), 0, 1).shape == (1, 1)
    with pytest.raises(ValueError, match=r"user 4 .*all 29 items.*data\.filter"):
        sampler.draw(np.array([3, 4]), np.arange(2), 0, 1)


# different negatives


def test_different_negatives_are_draws_without_those_before():
    popularity = np.array([9, 5, 4, 3, 2, 1, 1.0])
    sampler = NegativeSampler(
        SeenPairs(np.array([1]), np.array([2]), 3, 7),
        7,
        distribution="popularity",
        popularity=popularity,
        seed=1,
    )
    count = 20_000
    drawn = sampler.draw_distinct(np.ones(count, int), np.arange(count), 0, 3)
    assert (np.diff(np.sort(drawn, 1), axis=1) > 0).all()
    weights = popularity.copy()
    weights[[0, 2]] = 0
    weights /= weights.sum()
    # The probability of each ordered triple, by hand.
    expected, observed = [], []
    codes = drawn @ np.array([49, 7, 1])
    for a, b, c in np.ndindex(7, 7, 7):
        if weights[a] and weights[b] and weights[c] and len({a, b, c}) == 3:
            rest = weights[b] / (1 - weights[a]) * weights[c] / (1 - weights[a] - weights[b])
            expected.append(count * weights[a] * rest)
            observed.append((codes == 49 * a + 7 * b + c).sum())
    assert sum(observed) == count
    assert chi_square(np.array(observed), np.array(expected)) < 5


def test_different_negatives_do_not_depend_on_the_slicing():
    users, items = interactions()
    sampler = NegativeSampler(SeenPairs(users, items, NUM_USERS, NUM_ITEMS), NUM_ITEMS, seed=4)
    who, index = np.arange(NUM_USERS), np.arange(NUM_USERS) * 3
    whole = sampler.draw_distinct(who, index, 2, 60)
    assert not sampler.seen.contains(who[:, None], whole).any()
    parts = [sampler.draw_distinct(who[k::4], index[k::4], 2, 60) for k in range(4)]
    for k, part in enumerate(parts):
        assert np.array_equal(whole[k::4], part)


def test_users_with_too_few_unseen_items_get_all_of_them_and_zeros():
    items = np.arange(1, 20)
    sampler = NegativeSampler(
        SeenPairs(np.ones(15, int), items[:15], 2, 20),
        20,
        distribution="popularity",
        popularity=np.where(np.arange(20) < 18, 3.0, 0.0),
        seed=1,
    )
    (drawn,) = sampler.draw_distinct(np.array([1]), np.array([8]), 0, 6)
    assert sorted(drawn[:4].tolist()) == [16, 17, 18, 19] and (drawn[4:] == 0).all()
    assert set(drawn[:2].tolist()) == {16, 17}  # those never counted come last


def test_pairs_drawn_by_user_count_users_alike_and_hold_only_what_was_seen():
    users, items = np.array([1, 1, 1, 1, 3, 4, 4]), np.array([1, 2, 3, 4, 2, 1, 5])
    seen = SeenPairs(users, items, 6, 7)
    samples = np.arange(30_000)
    drawn = np.stack(seen.draw(samples, seed=3, epoch=1))
    assert {*zip(*drawn.tolist())} == {*zip(users.tolist(), items.tolist())}
    share = np.bincount(drawn[0], minlength=6) / len(samples)
    np.testing.assert_allclose(share, [0, 1 / 3, 0, 1 / 3, 1 / 3, 0], atol=0.02)
    ones = np.bincount(drawn[1][drawn[0] == 1], minlength=7) / (drawn[0] == 1).sum()
    np.testing.assert_allclose(ones[1:5], 0.25, atol=0.02)
    # a sample's pair depends on (seed, epoch, sample) alone
    np.testing.assert_array_equal(np.stack(seen.draw(samples[70:90], 3, 1)), drawn[:, 70:90])
    assert (np.stack(seen.draw(samples, 3, 2)) != drawn).any()


def test_every_bit_of_the_hash_is_fair_and_every_key_changes_half_of_them():
    bits = hash64(1, np.arange(20_000))
    neighbour = hash64(2, np.arange(20_000))
    for place in range(64):
        share = ((bits >> np.uint64(place)) & np.uint64(1)).mean()
        flips = (((bits ^ neighbour) >> np.uint64(place)) & np.uint64(1)).mean()
        assert abs(share - 0.5) < 0.02 and abs(flips - 0.5) < 0.02


def test_uniform_below_is_uniform():
    drawn = uniform_below(hash64(4, np.arange(100_000)), 97)
    assert abs(chi_square(np.bincount(drawn, minlength=97), np.full(97, 100_000 / 97))) < 4


def test_columns_are_independent():
    nobody = SeenPairs(np.zeros(0, np.int64), np.zeros(0, np.int64), 2, 11)
    sampler = NegativeSampler(nobody, 11, seed=0)
    drawn = sampler.draw(np.ones(40_000, np.int64), np.arange(40_000), 0, 3) - 1
    for a, b in ((0, 1), (0, 2), (1, 2)):
        pairs = np.bincount(drawn[:, a] * 10 + drawn[:, b], minlength=100)
        assert abs(chi_square(pairs, np.full(100, 400.0))) < 4


def test_alias_table_is_exact_for_counts_that_come_out_even():
    rng = np.random.default_rng(1)
    for _ in range(2000):
        weights = rng.integers(0, 5, rng.integers(1, 9)).astype(float)
        if weights.sum() == 0:
            continue
        keep, alias = alias_table(weights)
        share = keep / len(weights)
        np.add.at(share, alias, (1 - keep) / len(weights))
        np.testing.assert_allclose(share, weights / weights.sum(), atol=1e-12)

"""Splits: counts by the stated rule, order, grouping; nothing but the seed decides a random one."""

import hashlib
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.config.data_section import seconds_of
from shoal.config.schema import DataSection, SplitSection
from shoal.data.loading.load import load_dataset
from shoal.data.prepared import preparation as preparing
from shoal.data.prepared.folder import PrepareJob
from shoal.data.split import SPLITS, rows_by_split, split_of_rows
from shoal.runs.run import resolve


def split(users, times=None, seed=0, **options):
    users = np.array(users, dtype=np.int64)
    times = None if times is None else np.array(times, dtype=np.float64)
    return rows_by_split(split_of_rows(SplitSection(**options), seed, users, times))


def plain_counts(total, ratio):
    """The counting rule, said again in plain words of one group."""
    shares = [r / sum(ratio) * total for r in ratio]
    counts = [0, int(shares[1]), int(shares[2])]
    counts[0] = total - counts[1] - counts[2]
    for part in (2, 1):
        if counts[0] > 1 and 0 < shares[part] < 1:
            counts[part] += 1
            counts[0] -= 1
    return counts


@pytest.mark.parametrize(
    ("total", "ratio", "counts"),
    [
        (10, [0.8, 0.1, 0.1], [8, 1, 1]),
        (19, [0.8, 0.1, 0.1], [17, 1, 1]),
        (20, [8, 1, 1], [16, 2, 2]),
        (5, [0.8, 0.1, 0.1], [3, 1, 1]),
        (3, [0.8, 0.1, 0.1], [1, 1, 1]),
        (2, [0.8, 0.1, 0.1], [1, 0, 1]),
        (1, [0.8, 0.1, 0.1], [1, 0, 0]),
        (4, [0.5, 0.5, 0.0], [2, 2, 0]),
        (4, [1, 0, 0], [4, 0, 0]),
        (4, [0, 0, 1], [0, 0, 4]),
        (7, [0.5, 0.25, 0.25], [5, 1, 1]),
    ],
)
@pytest.mark.parametrize("group_by", ["user", "none"])
def test_ratio_counts(total, ratio, counts, group_by):
    parts = split([3] * total, by="ratio", ratio=ratio, group_by=group_by)
    assert [len(parts[p]) for p in ("train", "valid", "test")] == counts


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=60),
    st.tuples(*[st.sampled_from([0, 0.1, 0.2, 1, 3])] * 3).filter(any),
    st.sampled_from(["random", "time"]),
    st.integers(-5, 2**63),
)
def test_every_row_is_in_one_phase_and_every_user_is_cut_by_the_rule(users, ratio, order, seed):
    times = [7 * u % 5 for u in users]
    parts = split(users, times, seed, by="ratio", ratio=list(map(float, ratio)), order=order)
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(len(users)))
    for user in set(users):
        found = [sum(users[r] == user for r in parts[p]) for p in ("train", "valid", "test")]
        assert found == plain_counts(users.count(user), ratio)


def test_time_order_by_user_and_over_all():
    users = [1, 2, 1, 2, 1, 2, 1, 2]
    times = [5, 1, 4, 2, 3, 3, 2, 4]
    by_user = split(users, times, by="ratio", order="time", ratio=[2.0, 1.0, 1.0])
    assert {p: r.tolist() for p, r in by_user.items()} == {
        "train": [1, 3, 4, 6],
        "valid": [2, 5],
        "test": [0, 7],
    }
    overall = split(users, times, by="ratio", order="time", ratio=[2.0, 1.0, 1.0], group_by="none")
    # by time, ties by row: 1 | 3 6 | 4 5 | 2 7 | 0
    assert {p: r.tolist() for p, r in overall.items()} == {
        "train": [1, 3, 4, 6],
        "valid": [2, 5],
        "test": [0, 7],
    }


@pytest.mark.parametrize(
    ("leave", "expected"),
    [
        ("valid_and_test", {"train": [0, 1, 2, 5], "valid": [3], "test": [4, 6]}),
        ("valid_only", {"train": [0, 1, 2, 3, 5], "valid": [4, 6], "test": []}),
        ("test_only", {"train": [0, 1, 2, 3, 5], "valid": [], "test": [4, 6]}),
    ],
)
def test_leave_one_out(leave, expected):
    # user 4 has one interaction (it trains), user 2 has two, user 9 has four
    users = [4, 9, 9, 9, 9, 2, 2]
    parts = split(users, range(7), by="leave_one_out", leave=leave, order="time")
    assert {p: r.tolist() for p, r in parts.items()} == expected


def test_a_split_may_have_a_seed_of_its_own():
    users = np.repeat(np.arange(1, 51), 20)
    one, other = (split(users, seed=s)["test"] for s in (1, 2))
    own = rows_by_split(split_of_rows(SplitSection(seed=1), 2, users, None))["test"]
    assert own.tolist() == one.tolist() != other.tolist()


def test_random_order_is_written_down():
    # So that a change of the generator or of the rule cannot pass unnoticed.
    parts = split([1] * 10, seed=2020, ratio=[0.5, 0.2, 0.3])
    assert [parts[p].tolist() for p in SPLITS] == [[0, 2, 4, 5, 7], [1, 6], [3, 8, 9]]


# MovieLens may not be handed on, so a clone has it only where somebody names its folder.
@pytest.mark.skipif(not os.environ.get("SHOAL_TEST_DATA"), reason="SHOAL_TEST_DATA is not set")
def test_the_split_of_ml_100k_is_the_one_recbole_makes():
    """The hash of RecBole 1.2.1's own test split for seed 2020, as sorted `user<tab>item` lines."""
    words = ["--model=BPR", "--dataset=ml-100k", f"--data_path={os.environ['SHOAL_TEST_DATA']}"]
    config = resolve(overrides=[*words, "--data.cache=false"]).config.data
    dataset = load_dataset(config, seed=2020)
    users = dataset.vocab["user_id"][dataset.user_ids("test")]
    items = dataset.vocab["item_id"][dataset.item_ids("test")]
    lines = sorted(f"{user}\t{item}" for user, item in zip(users, items))
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    assert digest == "44178b5362793b89c474e0ea1c6d8b6cff40f68d0f86b6e0e4265b516b6a4c0a"


@pytest.mark.parametrize("ratio", [[0.8, -0.1, 0.3], [0.0, 0.0, 0.0], [1.0, float("inf"), 0.0]])
def test_impossible_ratio(ratio):
    with pytest.raises(ValueError, match="ratio"):
        split([1, 1], ratio=ratio)


def test_impossible_combinations():
    with pytest.raises(ValueError, match=r"data\.split\.order: time needs a time column"):
        split([1, 1], order="time")
    with pytest.raises(ValueError, match=r"set data\.split\.group_by: user"):
        split([1, 1], by="leave_one_out", group_by="none")


def test_random_order_is_uniform():
    hits = np.zeros(20)
    for seed in range(2000):
        hits[split([1] * 20, seed=seed, by="leave_one_out", leave="test_only")["test"]] += 1
    assert np.abs(hits / 2000 - 1 / 20).max() < 0.02  # four deviations


# ---- at a date --------------------------------------------------------------------------------

DAYS = ["2024-01-31", "2024-02-01", "2024-02-01T12:00", "2024-02-29", "2024-03-01"]


def at_dates(*dates, **more):
    times = [seconds_of(day) for day in DAYS]
    return {
        p: rows.tolist()
        for p, rows in split([1, 2, 1, 2, 3], times, at=list(dates), **more).items()
    }


def test_two_dates_begin_valid_and_test():
    wanted = {"train": [0], "valid": [1, 2], "test": [3, 4]}
    assert at_dates("2024-02-01", "2024-02-29") == wanted
    assert at_dates(seconds_of("2024-02-01"), "2024-02-29T00:00+00:00") == wanted
    # in place of whatever else a split says
    assert at_dates("2024-02-01", "2024-02-29", by="leave_one_out", order="time") == wanted


def test_one_date_begins_test():
    assert at_dates("2024-02-01T12:00") == {"train": [0, 1], "valid": [], "test": [2, 3, 4]}
    assert SplitSection(at="2024-02-01").moments == [seconds_of("2024-02-01")]


@pytest.mark.parametrize(
    ("dates", "told"),
    [
        (("2023-01-01", "2024-02-01"), "no interaction is left to train on; times run from 2024-0"),
        (("2024-02-02", "2024-02-03"), "2024-02-02, 2024-02-03: no interaction is left to valid"),
        (("2024-02-02", "2024-03-02"), "left to test on; times run from 2024-01-31 to 2024-03-01"),
        (("2024-03-01", "2024-02-01"), "the second date must come after the first"),
        (("yesterday",), "'yesterday' is no date; write 2024-01-31"),
        (("2024-01-01", "2024-02-01", "2024-03-01"), "one date, or two"),
    ],
)
def test_dates_that_leave_a_part_empty_or_are_none(dates, told):
    with pytest.raises(ValueError, match=told):
        at_dates(*dates)


def test_dates_need_times_and_rows_that_are_not_split_yet(tmp_path):
    with pytest.raises(ValueError, match=r"data\.split\.at needs a time column"):
        split([1, 1], at=["2024-01-01"])
    (tmp_path / "t.csv").write_text("user_id,item_id,timestamp\nu,i,1\nu,j,2\n")
    files = dict.fromkeys(SPLITS, "t.csv")
    given = {"path": str(tmp_path), "files": files, "split": {"at": "1970-01-01"}, "cache": False}
    with pytest.raises(ValueError, match="are train, valid and test parts already"):
        load_dataset(DataSection.model_validate(given), 1)


@pytest.mark.parametrize("order", ["random", "time"])
def test_dates_split_a_prepared_folder_alike(order, tmp_path):
    rng = np.random.default_rng(3)
    rows = [f"u{u},i{i},{t}" for u, i, t in rng.integers(0, [30, 40, 1000], (600, 3))]
    (tmp_path / "a.csv").write_text("\n".join(["user_id,item_id,timestamp", *rows]) + "\n")
    given = {"path": str(tmp_path), "cache": False, "split": {"at": [700, 850], "order": order}}
    raw = DataSection.model_validate({**given, "files": {"inter": "a.csv"}})
    one = DataSection.model_validate(given)
    preparing.prepare(PrepareJob([str(tmp_path / "a.csv")], tmp_path / "made", one, 1, 100 * 160))
    made = load_dataset(one.model_copy(update={"path": str(tmp_path / "made")}), 1)
    expected = load_dataset(raw, 1)
    for phase, low, high in (("train", 0, 700), ("valid", 700, 850), ("test", 850, 1000)):
        rows = expected.splits[phase]
        assert made.splits[phase].tolist() == rows.tolist()
        assert made.item_ids(phase).tolist() == expected.item_ids(phase).tolist()
        times = expected.inter["timestamp"][rows]
        assert len(times) > 50 and times.min() >= low and times.max() < high
    assert made.counted() == expected.counted()

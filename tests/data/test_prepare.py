"""From raw tables to a Dataset: which source, filters, labels, side features, scaling."""

import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.config.intervals import parse_intervals
from shoal.config.schema import DataSection
from shoal.data.column_store import EVERYTHING
from shoal.data.filters import kept_rows, within
from shoal.data.loading.load import load_dataset
from shoal.data.loading.location import interactions_of

HEADER = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"


@pytest.fixture
def toy(tmp_path):
    """A function that writes toy files and loads them."""

    def load(inter, *, seed=1, user=None, item=None, **options):
        folder = tmp_path / "toy"
        folder.mkdir(exist_ok=True)
        rows = inter if isinstance(inter, str) else "\n".join("\t".join(map(str, r)) for r in inter)
        (folder / "toy.inter").write_text(HEADER + rows)
        for suffix, text in (("user", user), ("item", item)):
            if text is not None:
                (folder / f"toy.{suffix}").write_text(text)
                options.setdefault("load", {})[suffix] = ["*"]
        config = DataSection(name="toy", path=str(tmp_path), cache=False, **options)
        return load_dataset(config, seed)

    return load


def pairs(data):
    """The kept interactions, in original tokens."""
    users = data.vocab["user_id"][data.inter["user_id"]]
    items = data.vocab["item_id"][data.inter["item_id"]]
    return list(zip(users.tolist(), items.tolist()))


# -- intervals ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("[3,inf)", [3, 4, 5, 7, 9]),
        ("(3,5]", [4, 5]),
        ("[3,5)", [3, 4]),
        ("(0,1);[ 4 , 5 ];(7,9]", [4, 5, 9]),
        ("(-inf,inf)", [0, 1, 3, 4, 5, 7, 9]),
    ],
)
def test_intervals(text, inside):
    values = np.array([0, 1, 3, 4, 5, 7, 9])
    assert values[within(values, parse_intervals(text, "x"))].tolist() == inside


@pytest.mark.parametrize("text", ["", "3", "[3,4", "[3]", "[a,4]", "[1,2],[3,4]", "[nan,3]", "1,2"])
def test_wrong_intervals_are_refused(text):
    with pytest.raises(ValueError, match=r"data\.filter\.x: .* is not an interval; write"):
        parse_intervals(text, "data.filter.x")


# -- filters -----------------------------------------------------------------------------------

ROWS = [
    ("a", "x", 1, 30),
    ("a", "y", 5, 20),
    ("b", "x", 4, 10),
    ("a", "x", 3, 10),
    ("b", "z", 2, 50),
    ("a", "x", 4, 40),
]


def test_filter_by_value(toy):
    data = toy(ROWS, filter={"values": {"rating": "[2,3];[5,5]", "timestamp": "[20,inf)"}})
    assert pairs(data) == [("a", "y"), ("b", "z")]
    assert data.vocab["user_id"].tolist() == ["[PAD]", "a", "b"]
    assert data.vocab["item_id"].tolist() == ["[PAD]", "y", "z"]


@pytest.mark.parametrize(
    ("which", "times"), [("first", [20, 10, 10, 50]), ("last", [20, 10, 50, 40])]
)
def test_duplicates_keep_the_first_or_last_by_time_in_file_order(toy, which, times):
    data = toy(ROWS, filter={"duplicates": which})
    assert data.inter["timestamp"].tolist() == times


def test_duplicates_without_time_go_by_file_order(toy):
    load = {"inter": ["user_id", "item_id", "rating"]}
    first = toy(ROWS, filter={"duplicates": "first"}, load=load)
    last = toy(ROWS, filter={"duplicates": "last"}, load=load)
    assert first.inter["rating"].tolist() == [1, 5, 4, 2]
    assert last.inter["rating"].tolist() == [5, 4, 2, 4]


def core(rows, user_k, item_k):
    """k-core by the definition, one loop at a time."""
    while True:
        users = [u for u, _ in rows]
        items = [i for _, i in rows]
        kept = [(u, i) for u, i in rows if users.count(u) >= user_k and items.count(i) >= item_k]
        if len(kept) == len(rows):
            return kept
        rows = kept


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=50),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_core_filter_repeats_until_stable(rows, user_k, item_k):
    columns = dict(zip(("user_id", "item_id"), np.array(rows).T + 1))
    counts = {"user_inter_num": f"[{user_k},inf)", "item_inter_num": f"[{item_k},inf)"}
    sizes = {name: 8 for name in columns}
    how = (columns, sizes, DataSection(filter=counts), {}, {}, EVERYTHING, None)
    expected = core(rows, user_k, item_k)
    if not expected:
        with pytest.raises(ValueError, match=r"_inter_num leaves no interactions"):
            kept_rows(*how)
        return
    keep, _ = kept_rows(*how)
    kept = np.ones(len(rows), bool) if keep is None else keep
    assert [row for row, stays in zip(rows, kept) if stays] == expected


def test_upper_bound_of_interactions(toy):
    data = toy(ROWS, filter={"user_inter_num": "[1,3]"})
    assert pairs(data) == [("b", "x"), ("b", "z")]


USERS = "user_id:token\tage:float\tjob:token\nb\t20\tcook\nq\t40\tpilot\nb\t99\tnobody\n"


def test_interactions_of_absent_users_are_left_out_by_default(toy):
    assert pairs(toy(ROWS, user=USERS)) == [("b", "x"), ("b", "z")]
    assert len(pairs(toy(ROWS, user=USERS, filter={"by_user_or_item": False}))) == 6


def test_side_features_stand_at_their_ids(toy, caplog):
    with caplog.at_level(logging.WARNING):
        data = toy(ROWS, user=USERS, filter={"by_user_or_item": False})
    assert "1 rows repeat a user_id" in caplog.text
    # a and b come from the interactions, q only from the file of users
    assert data.vocab["user_id"].tolist() == ["[PAD]", "a", "b", "q"]
    assert data.users["age"].tolist() == [0.0, 30.0, 20.0, 40.0]  # a: mean of the others
    assert data.vocab["job"].tolist() == ["[PAD]", "cook", "pilot"]
    assert data.users["job"].tolist() == [0, 0, 1, 2]
    assert list(data.types) == ["user_id", "item_id", "rating", "timestamp", "age", "job"]
    assert (data.users["age"].dtype, data.users["job"].dtype) == (np.float32, np.int64)


def test_users_without_interactions_go_when_a_number_is_asked_for(toy):
    options = {"by_user_or_item": False, "user_inter_num": "[1,inf)"}
    data = toy(ROWS, user=USERS, filter=options)
    assert data.vocab["user_id"].tolist() == ["[PAD]", "a", "b"]


def test_filtered_side_rows_take_their_interactions_along(toy):
    items = "item_id:token\tyear:float\nx\t1990\ny\t2001\nz\t\n"
    data = toy(ROWS, item=items, filter={"values": {"year": "[2000,inf)"}})
    assert pairs(data) == [("a", "y")]
    assert data.items["year"].tolist() == [0.0, 2001.0]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"values": {"rating": "[9,inf)"}}, r"data\.filter\.values\.rating leaves no interactions"),
        ({"user_inter_num": "[9,inf)"}, r"data\.filter\.user_inter_num leaves no interactions"),
        ({"item_inter_num": "[0,0]"}, r"data\.filter\.item_inter_num leaves no interactions"),
        ({"values": {"ratings": "[1,2]"}}, r"not a loaded field; .*; did you mean rating\?"),
        ({"values": {"user_id": "[1,2]"}}, r"'user_id' is a token field.*rating, timestamp"),
        ({"values": {"rating": "1-2"}}, "'1-2' is not an interval"),
    ],
)
def test_filters_that_cannot_be(toy, options, named):
    with pytest.raises(ValueError, match=named):
        toy(ROWS, filter=options)


def test_a_user_file_without_known_users(toy):
    with pytest.raises(ValueError, match=r"data\.filter\.by_user_or_item leaves no interactions"):
        toy(ROWS, user="user_id:token\tage:float\nnobody\t1\n")


# -- label and scale ---------------------------------------------------------------------------


def test_threshold_makes_the_label_and_takes_the_field(toy):
    data = toy(ROWS, threshold={"rating": 4})
    assert data.inter["label"].tolist() == [0, 1, 1, 0, 0, 1]
    assert data.inter["label"].dtype == np.float32
    assert data.label_field == "label"
    assert "rating" not in data.inter and "rating" not in data.types
    own = toy(ROWS, threshold={"rating": 4}, fields={"label": "rating"})
    assert own.inter["rating"].tolist() == [0, 1, 1, 0, 0, 1]
    with pytest.raises(ValueError, match=r"data\.threshold: .*name one loaded float field"):
        toy(ROWS, threshold={"item_id": 4})


def test_normalize(toy, caplog):
    users = "user_id:token\tage:float\tconst:float\na\t20\t7\nb\t60\t7\n"
    data = toy(ROWS, user=users, normalize="all")
    assert data.inter["rating"].tolist() == [0, 1, 0.75, 0.5, 0.25, 0.75]
    assert data.inter["timestamp"].tolist() == [0.5, 0.25, 0, 0, 1, 0.75]
    assert data.users["age"].tolist() == [0, 0, 1]
    assert data.users["const"].tolist() == [0, 1, 1]
    assert "all values of const" in caplog.text
    some = toy(ROWS, normalize=["rating"])
    assert some.inter["timestamp"].tolist() == [30, 20, 10, 10, 50, 40]
    with pytest.raises(
        ValueError, match=r"'raiting' is not a loaded float field; .* did you mean rat"
    ):
        toy(ROWS, normalize=["raiting"])


def test_field_with_two_types(toy):
    with pytest.raises(ValueError, match=r"'rating' has the type float in .* and token in"):
        toy(ROWS, user="user_id:token\trating:token\na\tx\n")


# -- sources -----------------------------------------------------------------------------------


def test_auto_picks_the_source(tmp_path):
    def picked(name, **options):
        return interactions_of(DataSection(name=name, path=str(tmp_path), **options))

    assert picked("synthetic") == "synthetic"
    for name, file in [
        ("one", "one.inter"),
        ("two", "ratings.dat"),
        ("synthetic", "synthetic.inter"),
    ]:
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    assert picked("one") == "atomic"
    assert picked("two") == "movielens"
    assert picked("synthetic") == "atomic"
    assert picked("two", format="atomic") == "atomic"
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "parts.tr.inter").touch()
    assert picked("parts", presplit=["tr", "va", "te"]) == "atomic"
    with pytest.raises(
        ValueError, match=r"no data set 'tow' .*shoal data fetch.*did you mean two\?"
    ):
        picked("tow")


def test_the_log_names_filters_ids_and_splits(toy, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("shoal"), "propagate", True)
    caplog.set_level(logging.INFO, "shoal")
    rows = [(u, i, 3, 10 * u + i) for u in range(6) for i in range(5)]
    toy([*rows, (99, 1, 3, 0)], filter={"user_inter_num": "[5,inf)"})
    said = list(dict.fromkeys(record.getMessage() for record in caplog.records))
    assert said[0] == "filters keep 30 of 31 interactions"
    assert said[1] == "densified ids: 6 users, 5 items"
    assert said[2].startswith("split interactions: train ") and "test 6" in said[2]

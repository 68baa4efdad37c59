"""Public data sets as they are published: each by its name, from small files of its form."""

from __future__ import annotations

import gzip
import lzma
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.data.dataset import Dataset
from shoal.data.loading.load import load_dataset
from shoal.data.loading.published import describe_absent
from shoal.data.sources.published import CATEGORIES_2014, CATEGORIES_2023, PUBLIC_SETS
from shoal.runs.run import resolve

Rows = list[tuple[str, str]]
PARTS = ("train", "test")

AMAZON_2014 = "".join(
    f'{{"reviewerID": "{user}", "asin": "{item}", "name": "n, \\"q\\"", "helpful": [0, 1], '
    f'"reviewText": "t", "overall": {rating}, "unixReviewTime": {time}, "x": "01 1, 2014"}}\n'
    for user, item, rating, time in (
        ("A1", "B0", 5.0, 1390000000),
        ("A1", "B1", 3.0, 1380000000),
        ("A2", "B1", 4.0, 1370000000),
    )
)
AMAZON_2023 = (
    "user_id,parent_asin,rating,timestamp\n"
    "A1,B0,5.0,1590000000123\nA1,B1,3.0,1580000000000\nA2,B1,4.0,1570000000000\n"
)
STEAM = (
    "{u'username': u'A1', u'hours': 1.5, u'product_id': u'B0', u'date': u'2018-03-02', "
    "u'text': u'it\\'s \"fine\"', u'early_access': False, u'page': 1}\n"
    "{u'username': u'A1', u'product_id': u'B1', u'date': u'2018-03-01', u'early_access': True}\n"
    "{u'username': u'A2', u'product_id': u'B1', u'date': u'2017-01-01', u'text': u'\\xe9'}\n"
)
AUSTRALIA = (
    "{'user_id': 'A1', 'user_url': 'u', 'reviews': [{'funny': '', 'posted': 'Posted November 5, "
    "2011.', 'item_id': 'B0', 'recommend': True}, {'posted': 'Posted July 3.', 'item_id': 'B1', "
    "'recommend': False}]}\n{'user_id': 'A3', 'user_url': 'u', 'reviews': []}\n"
    "{'user_id': 'A2', 'user_url': 'u', 'reviews': [{'item_id': 'B1', 'recommend': True}]}\n"
)
PLAYS = "".join(
    f'{user}\t2009-05-0{day}T23:08:57Z\t\t{artist}\t\t"Track\n'
    for user, artist, day in (("A1", "B0", 4), ("A1", "B1", 3), ("A2", "B1", 2))
)
BOOKS = '"User-ID";"ISBN";"Book-Rating"\n"A1";"B0";"0"\n"A1";"B1";"5"\n"A2";"B1";"7"\n'
WATCHED = (
    "user_id,video_id,play_duration,video_duration,time,date,timestamp,watch_ratio\n"
    "A1,B0,10,20,2020-07-05 05:27:48.378,20200705,1593898068.378,0.5\n"
    "A1,B1,10,20,2020-07-05 00:08:23.438,20200705,1593878903.438,0.5\n"
    "A2,B1,10,20,2020-07-05 00:08:23.438,20200705,1593878903.438,1.5\n"
)
FOUND: Rows = [("A1", "B0"), ("A1", "B1"), ("A2", "B1")]
# Sets whose parts data.split makes: name, file, its text, whether it has times.
WHOLE = [
    ("amazon-2014-Beauty", "reviews_Beauty_5.json", AMAZON_2014, True),
    ("amazon-2014-Beauty", "reviews_Beauty.json", AMAZON_2014, True),
    (
        "amazon-2014-Beauty",
        "ratings_Beauty.csv",
        "A1,B0,5.0,1390000000\nA1,B1,3.0,1380000000\nA2,B1,4.0,1370000000\n",
        True,
    ),
    ("amazon-2023-All_Beauty", "All_Beauty.csv", AMAZON_2023, True),
    (
        "amazon-2023-All_Beauty",
        "All_Beauty.jsonl",
        "".join(
            f'{{"rating": 5.0, "title": "t", "images": [], "asin": "X", "parent_asin": "{item}", '
            f'"user_id": "{user}", "timestamp": {time}, "verified_purchase": true}}\n'
            for (user, item), time in zip(FOUND, (1590000000123, 1580000000000, 1570000000000))
        ),
        True,
    ),
    ("steam", "steam_reviews.json", STEAM, True),
    ("steam-australia", "australian_user_reviews.json", AUSTRALIA, False),
    (
        "lastfm",
        "user_artists.dat",
        "userID\tartistID\tweight\nA1\tB0\t13883\nA1\tB1\t11690\nA2\tB1\t1\n",
        False,
    ),
    ("lastfm-1k", "userid-timestamp-artid-artname-traid-traname.tsv", PLAYS, True),
    ("book-crossing", "BX-Book-Ratings.csv", BOOKS, False),
    ("kuairec", "big_matrix.csv", WATCHED, True),
    ("kuairec-small", "small_matrix.csv", WATCHED + "A9,B1,1,2,,,,0.5\n", True),
    (
        "taobao",
        "UserBehavior.csv",
        "A1,B0,7,pv,1511544070\nA1,B1,7,buy,1511500000\nA2,B1,7,pv,1511500000\n",
        True,
    ),
    (
        "frappe",
        "frappe.csv",
        "user\titem\tcnt\tdaytime\tweekday\nA1\tB0\t1\tmorning\tsunday\n"
        "A1\tB1\t9\tnoon\tsunday\nA2\tB1\t2\tnoon\tmonday\n",
        False,
    ),
]


def written(folder: Path, name: str, files: dict[str, str | bytes]) -> Path:
    for file, text in files.items():
        path = folder / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def load(folder: Path, name: str, model: str = "SASRec", *overrides: str) -> Dataset:
    args = [f"--dataset={name}", f"--model={model}", f"--data.path={folder}", "--data.cache=false"]
    config = resolve((), [*args, *overrides]).config
    return load_dataset(config.data, 1)


def pairs(data: Dataset, rows: Any = slice(None)) -> Rows:
    names = (data.user_field, data.item_field)
    users, items = (data.vocab[name][data.flat(name)[rows]].tolist() for name in names)
    return list(zip(users, items))


@pytest.mark.parametrize("is_packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize(("name", "file", "text", "timed"), WHOLE, ids=[case[1] for case in WHOLE])
def test_whole_sets(
    tmp_path: Path, name: str, file: str, text: str, timed: bool, is_packed: bool
) -> None:
    body = gzip.compress(text.encode()) if is_packed else text
    folder = written(tmp_path, name, {file + ".gz" * is_packed: body})
    data = load(folder, name, "SASRec" if timed else "BPR")
    assert pairs(data) == FOUND
    assert (data.time_field is not None) == timed
    if timed:
        times = data.flat(str(data.time_field))
        assert times[0] > times[1] and 1e9 < times.min() < times.max() < 2e9
    if name == "kuairec-small":
        assert data.left_out == {"data.bad_rows": 1}


def test_files_of_archives_lie_deeper(tmp_path: Path) -> None:
    text = WATCHED + "A2,B0,1,2,x,20200705,1593878904,0.1\n"
    folder = written(tmp_path, "kuairec", {"KuaiRec/KuaiRec 2.0/data/big_matrix.csv": text})
    with pytest.raises(ValueError, match="no data set"):
        load(folder, "kuairec")
    written(tmp_path, "kuairec", {"KuaiRec 2.0/data/big_matrix.csv": text})
    assert pairs(load(folder, "kuairec")) == [*FOUND, ("A2", "B0")]


TRAIN = "0 10 11 12 13 14 15 16 17 18 19\n1 10 12 \n2 11\n"
TEST = "0 20 21\n1 11\n2 \n3\n"


@pytest.mark.parametrize("model", ["LightGCN", "SASRec"])
@pytest.mark.parametrize("name", ["gowalla", "yelp2018", "amazon-book"])
def test_lightgcn_keeps_the_published_test(tmp_path: Path, name: str, model: str) -> None:
    folder = written(tmp_path, name, {"train.txt": TRAIN, "test.txt": TEST})
    data = load(folder, name, model)
    assert pairs(data, data.splits["test"]) == [("0", "20"), ("0", "21"), ("1", "11")]
    rest = pairs(data, data.splits["train"]) + pairs(data, data.splits["valid"])
    lines = [line.split() for line in TRAIN.splitlines()]
    assert sorted(rest) == sorted((user, item) for user, *items in lines for item in items)
    users = [user for user, _ in pairs(data, data.splits["valid"])]
    assert users == ["0", "1"]  # a tenth of each user's, and one of two; one alone trains
    whole = load(folder, name, model, "--data.split.ratio=[1,0,0]")
    assert len(whole.splits["valid"]) == 0 and len(whole.splits["test"]) == 3
    last = load(folder, name, model, "--data.split.by=leave_one_out", "--data.split.order=file")
    assert pairs(last, last.splits["valid"]) == [("0", "19"), ("1", "12")]
    assert len(last.splits["test"]) == 3


def test_atomic_files_of_a_public_name_are_read_as_such(tmp_path: Path) -> None:
    head = "user_id:token\titem_id:token\ttimestamp:float\n"
    files: dict[str, str | bytes] = {
        "gowalla.inter": head + "a\tb\t1\na\tc\t2\na\td\t3\n",
        "train.txt": TRAIN,
        "test.txt": TEST,
    }
    assert load(written(tmp_path, "gowalla", files), "gowalla").num_inter == 3


# ---- sessions ------------------------------------------------------------------------------------

HEADERS = {
    "official": "sessionId;userId;itemId;timeframe;eventdate\n",
    "older": "session_id;user_id;item_id;timeframe;eventdate\n",
}
# Sessions of items in order; each is one day, and those from 2016-05-26 on are tested.
SESSIONS = [
    ("s1", "2016-05-01", "abcab"),
    ("s2", "2016-05-02", "bcaab"),
    ("s3", "2016-05-19", "abc"),
    ("s4", "2016-05-25", "cb"),
    ("s5", "2016-05-26", "bacb"),
    ("s6", "2016-06-01", "ca"),
    ("s7", "2016-06-01", "c"),
    ("s8", "2016-06-01", "xa"),
]


def views(header: str) -> str:
    """The sessions as Diginetica has them, each with its newest view first."""
    rows = [
        f"{session};NA;{item};{1000 * place};{day}\n"
        for session, day, items in SESSIONS
        for place, item in reversed([*enumerate(items)])
    ]
    return header + "".join(rows)


def histories(data: Dataset, split: Any) -> list[tuple[str, str, str]]:
    """(session, what stands before the item to find, that item) of a split, sorted."""
    from shoal.data.history import Histories

    earlier: Any = ("train",) if split == "valid" else ("train", "valid")
    all_items = Histories(data, earlier, 50, with_context=True)
    names = data.vocab[data.user_field], data.vocab[data.item_field]
    found = []
    for row in data.splits[split]:
        user, item = (int(data.flat(n)[row]) for n in (data.user_field, data.item_field))
        before = all_items.latest(np.array([user]))[0]
        words = "".join(names[1][before[before > 0]].tolist())
        found.append((str(names[0][user]), words, str(names[1][item])))
    return sorted(found)


PREFIXES = [
    ("s5", "bac", "b"),
    ("s5#1", "b", "a"),
    ("s5#2", "ba", "c"),
    ("s6", "c", "a"),
]


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
def test_diginetica(tmp_path: Path, header: str) -> None:
    folder = written(tmp_path, "diginetica", {"train-item-views.csv": views(header)})
    data = load(folder, "diginetica", "SRGNN", "--data.filter.item_inter_num=[2,inf)")
    assert histories(data, "test") == PREFIXES
    assert histories(data, "valid") == [("s3", "ab", "c"), ("s3#1", "a", "b"), ("s4", "c", "b")]
    assert {user for user, _ in pairs(data, data.splits["train"])} == {"s1", "s2"}
    times = data.flat("eventdate")
    assert times[0] == 1462060800 + 4  # the first row is the newest view of s1
    last = load(
        folder,
        "diginetica",
        "NARM",
        "--data.filter.item_inter_num=[2,inf)",
        "--data.split.targets=last",
    )
    assert histories(last, "test") == [PREFIXES[0], PREFIXES[3]]


def test_filters_count_before_sessions_become_prefixes(tmp_path: Path) -> None:
    folder = written(tmp_path, "diginetica", {"train-item-views.csv": views(HEADERS["official"])})
    data = load(folder, "diginetica", "SRGNN")  # x is there once, and s7 has one item
    assert data.left_out == {
        "data.filter.user_inter_num": 2,
        "data.filter.item_inter_num": 1,
    }
    assert histories(data, "test") == PREFIXES


def test_prepared_sessions_are_lines(tmp_path: Path) -> None:
    train = "".join(f"{n % 3 + 1} {n % 2 + 1} 3\n" for n in range(20))
    folder = written(
        tmp_path, "diginetica", {"train.txt": train, "test.txt": "1 2 3\n1 2\n9 1 3\n3 9\n"}
    )
    data = load(folder, "diginetica", "STAMP")
    assert histories(data, "test") == [
        ("test:1", "12", "3"),
        ("test:2", "1", "2"),
        ("test:3", "1", "3"),  # no training session has 9
    ]
    assert [user for user, _, _ in histories(data, "valid")] == ["train:19", "train:20"]
    assert data.left_out == {"data.split.by": 3}
    whole = load(folder, "diginetica", "STAMP", "--data.split.ratio=[1,0,0]")  # all of it trains
    assert histories(whole, "test") == histories(data, "test")
    assert len(whole.splits["valid"]) == 0
    assert {user for user, _ in pairs(whole, whole.splits["train"])} == {
        f"train:{line}" for line in range(1, 21)
    }


@pytest.mark.parametrize(
    ("name", "said", "by", "at"),
    [
        ("diginetica", "data.split.ratio=[0.7,0.1,0.2]", "sessions", None),  # of its sessions
        ("diginetica", "data.split.leave=valid_and_test", "leave_one_out", None),
        ("steam", "data.split.ratio=[0.7,0.1,0.2]", "ratio", None),
    ],
)
def test_an_option_of_another_split_takes_its_place(
    tmp_path: Path, name: str, said: str, by: str, at: None
) -> None:
    files = {
        "diginetica": {"train-item-views.csv": views(HEADERS["official"])},
        "steam": {"steam_reviews.json.gz": b""},
    }
    folder = written(tmp_path, name, files[name])
    split = resolve(
        (), [f"--data.name={name}", f"--data.path={folder}", f"--{said}"]
    ).config.data.split
    assert (split.by, split.at) == (by, at)


def test_yoochoose(tmp_path: Path) -> None:
    days = {"s1": "09-01", "s2": "09-02", "s3": "09-28", "s5": "09-29", "s6": "09-30"}
    rows = [
        f"{session},2014-{days[session]}T03:00:{place:02d}.426Z,{item},0\n"
        for session, _, items in SESSIONS
        if session in days
        for place, item in enumerate(items)
    ]
    folder = written(tmp_path, "yoochoose", {"yoochoose-clicks.dat": "".join(rows)})
    data = load(folder, "yoochoose", "GRU4Rec", "--data.filter.item_inter_num=[2,inf)")
    assert histories(data, "test") == PREFIXES
    assert [user for user, _, _ in histories(data, "valid")] == ["s3", "s3#1"]


def test_retailrocket_cuts_visits_by_pauses(tmp_path: Path) -> None:
    def seconds(day: int, minute: int) -> int:
        return 1_000 * (1_438_387_200 + 86_400 * day + 60 * minute)  # 2015-08-01 and later

    events = [(0, 0, "a"), (0, 10, "b"), (0, 41, "c"), (0, 50, "a"), (36, 0, "a"), (36, 1, "b")]
    events += [(45, 0, "b"), (45, 1, "a"), (45, 2, "b")]
    text = "timestamp,visitorid,event,itemid,transactionid\n" + "".join(
        f"{seconds(day, minute)},7,view,{item},\n" for day, minute, item in reversed(events)
    )
    folder = written(tmp_path, "retailrocket", {"events.csv": text})
    data = load(folder, "retailrocket", "CORE", "--data.filter.item_inter_num=[0,inf)")
    assert {user for user, _ in pairs(data, data.splits["train"])} == {"7/1", "7/2"}
    assert histories(data, "valid") == [("7/3", "a", "b")]
    assert histories(data, "test") == [("7/4", "ba", "b"), ("7/4#1", "b", "a")]


def test_own_sessions_are_split_by_ratio(tmp_path: Path) -> None:
    rows = [f"s{n},{item},{100 * n + k}\n" for n in range(20) for k, item in enumerate("abc")]
    (tmp_path / "own.csv").write_text("session_id,item_id,timestamp\n" + "".join(rows))
    files = ["--data.files.inter=own.csv", f"--data.path={tmp_path}", "--data.cache=false"]
    fields = ["--data.fields.user=session_id", "--data.split.by=sessions", "--model=NARM"]
    data = load_dataset(resolve((), [*files, *fields]).config.data, 1)
    assert [user for user, _, _ in histories(data, "test")] == ["s18", "s18#1", "s19", "s19#1"]
    assert [user for user, _, _ in histories(data, "valid")] == ["s16", "s16#1", "s17", "s17#1"]
    assert len(data.splits["train"]) == 48


# ---- what is wrong -------------------------------------------------------------------------------

BAD = [
    ("gowalla", {"train.txt": "0 1 2\n1 x\n", "test.txt": "0 1\n"}, r"train\.txt, line 2: '1 x'"),
    ("gowalla", {"train.txt": "user,item\n", "test.txt": "0 1\n"}, r"train\.txt, line 1: 'user"),
    ("gowalla", {"train.txt": b"\x80\x03]q\x00\xff", "test.txt": "0 1\n"}, r"train\.txt, line 1"),
    (
        "taobao",
        {"UserBehavior.csv": "1,2,3,pv\n"},
        r"UserBehavior\.csv, line 1: 4 cells where .* 5",
    ),
    (
        "taobao",
        {"UserBehavior.csv": "1,2,3,pv,1511544070\n1,2,3\n"},
        r"UserBehavior\.csv, line 2: 3 cells where",
    ),
    ("lastfm", {"user_artists.dat": "a\tb\n1\t2\n"}, r"has no column '(artistID|userID|weight)'"),
    ("steam", {"steam_reviews.json": STEAM + "{u'username': u'A"}, r"json, line 4: not a dict"),
    ("steam", {"steam_reviews.json": "__import__('os').getcwd()\n"}, r"json, line 1: not a dict"),
    ("steam", {"steam_reviews.json": "{'username': " + "[" * 99 + "\n"}, r"json.*line 1.* deep"),
    ("steam", {"steam_reviews.json": "{'a': '" + "x" * (1 << 20) + "'}\n"}, r"line 1: more than"),
    (
        "book-crossing",
        {"BX-Book-Ratings.csv": '"User-ID";"ISBN";"Book-Rating"\n"1";"2";"many"\n"1";"3";"4"\n'},
        r"BX-Book-Ratings\.csv, line 2: 'many' in 'Book-Rating'",
    ),
    (
        "diginetica",
        {
            "train-item-views.csv": HEADERS["official"]
            + "1;NA;2;3;2016-13-01\n1;NA;2;3;2016-05-01\n"
        },
        r"train-item-views\.csv, line 2: '2016-13-01 \?' in 'eventdate' is no time",
    ),
    (
        "amazon-2023-Books",
        {"Books.csv": b"user_id,parent_asin,rating,timestamp\nA,\xe9,1,1590000000123\n"},
        r"Books\.csv, line 2: byte 0xe9 is not utf-8",
    ),
]


@pytest.mark.parametrize(("name", "files", "message"), BAD)
def test_bad_files(tmp_path: Path, name: str, files: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(written(tmp_path, name, files), name, "Pop")


def test_bad_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    files: dict[str, Any] = {"train.txt": TRAIN + "5 x\n", "test.txt": TEST}
    data = load(written(tmp_path, "gowalla", files), "gowalla", "BPR", "--data.bad_rows=skip")
    assert data.left_out == {"data.bad_rows": 1}
    files = {"steam_reviews.json": STEAM + "{u'username'\n" + "[1]\n"}
    data = load(written(tmp_path, "steam", files), "steam", "BPR", "--data.bad_rows=skip")
    assert data.left_out == {"data.bad_rows": 2} and pairs(data) == FOUND


def test_a_public_name_without_files_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"steam_reviews\.json.*`shoal data fetch steam` gets them"
    ):
        load(tmp_path, "steam")
    with pytest.raises(ValueError, match=r"UserBehavior\.csv.*Tianchi"):
        load(tmp_path, "taobao")


def test_a_set_of_which_a_file_is_missing(tmp_path: Path) -> None:
    folder = written(tmp_path, "gowalla", {"train.txt": TRAIN})
    with pytest.raises(ValueError, match=r"hold the files of gowalla \(train\.txt and test"):
        load(folder, "gowalla")
    text = views("visit;visitor;thing;timeframe;eventdate\n")
    folder = written(tmp_path, "diginetica", {"train-item-views.csv": text})
    with pytest.raises(ValueError, match=r"files of diginetica .*header sessionId"):
        load(folder, "diginetica")


def test_what_a_config_says_stands(tmp_path: Path) -> None:
    name, file, text, _ = WHOLE[3]
    folder = written(tmp_path, name, {file: text})
    resolved = resolve(
        (), [f"--data.name={name}", f"--data.path={folder}", "--data.load.inter=['*']"]
    )
    assert resolved.config.data.load == {"inter": ["*"]}
    assert resolved.origins["data.fields.item"] == f"the public set {name}"
    again = resolve(
        (), ["--data.split.by=ratio", f"--data.path={folder}", "--data.name=diginetica"]
    )
    assert again.config.data.split.at is None


def test_sets_are_described() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "public_sets.md").read_text()
    names = [name for name in PUBLIC_SETS if not name.startswith("amazon-20")]
    assert [name for name in names if f"`{name}`" not in page] == []
    assert len(CATEGORIES_2014) == 24 and len(CATEGORIES_2023) == 34
    for name, public in PUBLIC_SETS.items():
        assert bool(public.downloads) != bool(public.by_hand), name
        assert public.forms and public.what
        assert name in describe_absent(name, Path("dataset") / name)


# ---- the sets themselves -------------------------------------------------------------------------


def unpacked(folder: Path, source: str, name: str) -> Path:
    """train.txt and test.txt of a set, of SHOAL_TEST_DATA/public/SOURCE.*.txt.xz."""
    root = os.environ.get("SHOAL_TEST_DATA")
    files = {part: Path(root or "", "public", f"{source}.{part}.txt.xz") for part in PARTS}
    # The sets are no part of a clone: 810,128 and 217,242 pairs of others.
    if root is None or not all(file.is_file() for file in files.values()):
        pytest.skip(f"SHOAL_TEST_DATA names no folder with public/{source}.train.txt.xz")
    texts = {f"{part}.txt": lzma.decompress(file.read_bytes()) for part, file in files.items()}
    return written(folder, name, dict(texts))


def test_gowalla(tmp_path: Path) -> None:
    data = load(unpacked(tmp_path, "gowalla", "gowalla"), "gowalla", "LightGCN")
    # figures of the paper: 29,858 users, 40,981 items, 1,027,370 pairs
    assert (data.num_users, data.num_items, data.num_inter) == (29_859, 40_982, 1_027_370)
    sizes = [len(data.splits[split]) for split in ("train", "valid", "test")]
    assert sizes[2] == 217_242 and sum(sizes[:2]) == 810_128
    assert 0.08 < sizes[1] / 810_128 < 0.1  # a tenth of each user's, rounded down


def test_diginetica_as_sr_gnn_prepares_it(tmp_path: Path) -> None:
    data = load(unpacked(tmp_path, "diginetica", "diginetica"), "diginetica", "SRGNN")
    assert len(data.splits["test"]) == 60_858  # the paper's number of test samples
    users = [len(np.unique(data.user_ids(split))) for split in ("train", "valid")]
    assert sum(users) + data.left_out.get("data.split.by", 0) >= 186_670

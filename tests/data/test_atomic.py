"""Atomic files: what is read, and what each kind of bad file is told."""

import numpy as np
import pytest

from shoal.config.schema import DataSection
from shoal.data.loading.load import load_dataset

INTER = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"


def write(folder, files, name="toy"):
    (folder / name).mkdir(exist_ok=True)
    for suffix, content in files.items():
        data = content if isinstance(content, bytes) else content.encode()
        (folder / name / f"{name}.{suffix}").write_bytes(data)


def load(folder, **options):
    return load_dataset(DataSection(name="toy", path=str(folder), cache=False, **options), 1)


def test_ids_are_numbered_as_they_appear_and_zero_is_padding(tmp_path):
    write(tmp_path, {"inter": INTER + "b\ty\t3\t10\na\tx\t4.5\t11\nb\tx\t1e0\t12\n"})
    data = load(tmp_path)
    assert data.vocab["user_id"].tolist() == ["[PAD]", "b", "a"]
    assert data.vocab["item_id"].tolist() == ["[PAD]", "y", "x"]
    assert data.inter["user_id"].tolist() == [1, 2, 1]
    assert data.inter["item_id"].tolist() == [1, 2, 2]
    assert data.inter["rating"].tolist() == [3.0, 4.5, 1.0]
    assert data.inter["user_id"].dtype == np.int64
    assert data.inter["rating"].dtype == np.float32
    assert data.inter["timestamp"].dtype == np.float64
    assert (data.num_users, data.num_items, data.num_inter) == (3, 3, 3)
    assert (data.time_field, data.label_field) == ("timestamp", None)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\ufeff" + text,
        lambda text: text + "\n\n",
        lambda text: text.rstrip("\n"),
        lambda text: text.replace("\t 4", "\t4"),
    ],
    ids=["crlf", "byte-order mark", "blank lines at the end", "no last newline", "no space"],
)
def test_harmless_variations_read_the_same(tmp_path, change):
    text = INTER + 'é ü\tx y\t3\t10\nb\t日本 "q\t 4\t11\n'
    write(tmp_path, {"inter": change(text)})
    data = load(tmp_path)
    assert data.vocab["user_id"].tolist() == ["[PAD]", "é ü", "b"]
    assert data.vocab["item_id"].tolist() == ["[PAD]", "x y", '日本 "q']
    assert data.inter["rating"].tolist() == [3.0, 4.0]
    assert data.inter["timestamp"].tolist() == [10.0, 11.0]


@pytest.mark.parametrize("separator", [",", "§", "|"])
def test_any_separator(tmp_path, separator):
    text = (INTER + "a\tx\t3\t10\nb\ty\t4\t11\n").replace("\t", separator)
    # the types keep their single colon whatever the separator is
    write(tmp_path, {"inter": text})
    data = load(tmp_path, separator=separator)
    assert data.vocab["item_id"].tolist() == ["[PAD]", "x", "y"]
    assert data.inter["timestamp"].tolist() == [10.0, 11.0]


def test_sequences_become_ragged_columns(tmp_path):
    write(
        tmp_path,
        {
            "inter": INTER + "a\tx\t3\t10\nb\ty\t4\t11\na\tz\t4\t11\n",
            "item": "item_id:token\ttags:token_seq\tvector:float_seq\n"
            "x\tred  blue\t1 2.5\ny\t\t\nz\tblue\t-1\n",
        },
    )
    items = load(tmp_path, load={"item": ["*"]}).items
    assert items["tags"].offsets.tolist() == [0, 0, 2, 2, 3]
    assert items["tags"].values.tolist() == [1, 2, 2]
    assert items["vector"].offsets.tolist() == [0, 0, 2, 2, 3]
    assert items["vector"].values.tolist() == [1.0, 2.5, -1.0]
    assert load(tmp_path, load={"item": ["*"]}).vocab["tags"].tolist() == ["[PAD]", "red", "blue"]


def test_sequence_separator(tmp_path):
    text = "user_id:token\titem_id:token\twords:token_seq\na\tx\tone two|three\n"
    write(tmp_path, {"inter": text})
    data = load(tmp_path, seq_separator="|")
    assert data.vocab["words"].tolist() == ["[PAD]", "one two", "three"]


def test_load_and_unload_choose_columns(tmp_path):
    files = {
        "inter": INTER + "a\tx\t3\t10\n",
        "user": "user_id:token\tage:float\tcity:token\na\t7\tB\n",
    }
    write(tmp_path, files)
    assert list(load(tmp_path).types) == ["user_id", "item_id", "rating", "timestamp"]
    some = load(tmp_path, load={"inter": ["item_id", "user_id"]})
    assert list(some.inter) == ["user_id", "item_id"]
    assert some.time_field is None
    assert list(load(tmp_path, unload={"inter": ["rating"]}).inter)[2:] == ["timestamp"]
    assert list(load(tmp_path, load={"user": ["user_id", "age"]}).users) == ["age"]
    assert list(load(tmp_path, unload={"user": ["age"]}).users) == ["city"]
    assert load(tmp_path, load={"user": []}).users == {}
    assert list(load(tmp_path, extra_suffixes=["user"]).users) == ["age", "city"]


def test_presplit_parts(tmp_path):
    files = {
        "one.inter": INTER + "a\tx\t3\t10\na\ty\t3\t11\n",
        "two.inter": INTER + "a\tz\t3\t12\n",
        "three.inter": "item_id:token\tuser_id:token\trating:float\ttimestamp:float\nw\tb\t3\t13\n",
    }
    write(tmp_path, files)
    data = load(tmp_path, presplit=["one", "two", "three"])
    assert data.splits["train"].tolist() == [0, 1]
    assert data.splits["valid"].tolist() == [2]
    assert data.splits["test"].tolist() == [3]
    assert data.vocab["item_id"].tolist() == ["[PAD]", "x", "y", "z", "w"]
    assert data.inter["user_id"].tolist() == [1, 1, 1, 2]
    parts = load(tmp_path, presplit=["one", "three"]).splits
    assert {name: len(rows) for name, rows in parts.items()} == {"train": 2, "valid": 0, "test": 1}
    with pytest.raises(ValueError, match=r"toy\.four\.inter does not exist.*toy\.one\.inter"):
        load(tmp_path, presplit=["one", "two", "four"])


def test_knowledge_and_network_files_share_vocabularies(tmp_path):
    write(
        tmp_path,
        {
            "inter": INTER + "a\tx\t3\t10\nb\ty\t4\t11\n",
            "kg": "head_id:token\trelation_id:token\ttail_id:token\ne1\tr\te2\ne2\tr\te3\n",
            "link": "item_id:token\tentity_id:token\ny\te2\nnot_seen\te3\nx\te9\n",
            "net": "source:token\ttarget:token\nb\ta\na\tstranger\n",
            "note": "item_id:token\tnote:token\nx\tgood\nnot_seen\tbad\n",
        },
    )
    everything = {s: ["*"] for s in ("kg", "link", "net")}
    data = load(tmp_path, load=everything, extra_suffixes=["note"])
    kg, link, net = data.extra["kg"], data.extra["link"], data.extra["net"]
    assert data.vocab["head_id"].tolist() == ["[PAD]", "e1", "e2", "e3", "e9"]
    assert data.vocab["tail_id"] is data.vocab["head_id"] is data.vocab["entity_id"]
    assert kg["head_id"].tolist() == [1, 2]
    assert kg["tail_id"].tolist() == [2, 3]
    assert kg["relation_id"].tolist() == [1, 1]
    assert link["item_id"].tolist() == [2, 1]
    assert link["entity_id"].tolist() == [2, 4]
    assert (net["source"].tolist(), net["target"].tolist()) == ([2], [1])
    assert data.num_items == 3 and data.num_users == 3
    assert data.extra["note"]["note"].tolist() == [1]


BAD = {
    "empty file": ("", "toy.inter is empty; its first line must name the columns"),
    "no rows": (INTER, "toy.inter holds no rows"),
    "no type": ("user_id\titem_id:token\na\tx\n", "line 1: column 'user_id' has no type"),
    "unknown type": (
        "user_id:tokn\titem_id:token\na\tx\n",
        "line 1: column 'user_id' has the type 'tokn': 'user_id:tokn'; .*; did you mean token",
    ),
    "repeated name": (
        "user_id:token\titem_id:token\titem_id:token\na\tx\ty\n",
        "line 1: column 'item_id' appears twice",
    ),
    "short row": (INTER + "a\tx\t3\t1\na\tx\t3\n", "line 3: 3 cells where the header names 4"),
    "long row": (INTER + "a\tx\t3\t1\t9\na\tx\t3\t1\n", "line 2: 5 cells where the header names 4"),
    "short and long row": (
        INTER + "a\tx\t3\na\tx\t3\t1\t9\n",
        "line 2: 3 cells where the header names 4",
    ),
    "bad number": (
        INTER + "a\tx\t3\t1\na\tx\tfour\t1\n",
        "line 3: 'four' in 'rating' is not a number",
    ),
    "nan": (INTER + "a\tx\tnan\t1\n", "line 2: 'rating' is empty"),
    "infinity": (
        INTER + "a\tx\t3\t-inf\n",
        "line 2: '-inf' in 'timestamp' is no time that can be read",
    ),
    "no number": (INTER + "a\tx\t\t1\n", "line 2: 'rating' is empty"),
    "empty user": (INTER + "a\tx\t3\t1\n\ty\t3\t1\n", "line 3: 'user_id' is empty"),
    "empty item": (INTER + "a\t\t3\t1\n", "line 2: 'item_id' is empty"),
    "no user column": (
        "uid:token\titem_id:token\na\tx\n",
        "no column 'user_id'.*data.fields",
    ),
    "ids are numbers": ("user_id:float\titem_id:token\n1\tx\n", "'user_id' has type float; write"),
    "wrong separator": (INTER.replace("\t", ","), "line 1: column .*data.separator"),
    "padding token": (INTER + "[PAD]\tx\t3\t1\n", r"the token '\[PAD\]'"),
    "no utf-8": (INTER.encode() + b"a\tx\t3\t1\n\xff\tx\t3\t1\n", "line 3: byte 0xff is not utf-8"),
    "latin-1 header": (b"us\xe9r:token\n", "line 1: byte 0xe9 is not utf-8"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files(tmp_path, case):
    content, message = BAD[case]
    write(tmp_path, {"inter": content})
    with pytest.raises(ValueError, match=message):
        load(tmp_path)


def test_bad_sequence_number_names_its_line(tmp_path):
    inter = "user_id:token\titem_id:token\tv:float_seq\na\tx\t1 2\nb\ty\t\nc\tz\t3 oops\n"
    write(tmp_path, {"inter": inter})
    with pytest.raises(ValueError, match=r"toy\.inter, line 4: 'oops' in 'v' is not a number"):
        load(tmp_path)


def test_bad_choice_of_columns(tmp_path):
    write(tmp_path, {"inter": INTER + "a\tx\t3\t10\n", "user": "user_id:token\tage:float\na\t7\n"})
    with pytest.raises(ValueError, match=r"no column 'ratings'; .*; did you mean rating\?$"):
        load(tmp_path, load={"inter": ["user_id", "item_id", "ratings"]})
    with pytest.raises(ValueError, match=r"data.load leaves out 'item_id'"):
        load(tmp_path, load={"inter": ["user_id"]})
    with pytest.raises(ValueError, match=r"data.load leaves out 'user_id'.*toy\.user"):
        load(tmp_path, unload={"user": ["user_id"]})
    with pytest.raises(ValueError, match=r"data\.load and data\.unload both name 'inter'"):
        load(tmp_path, load={"inter": ["*"]}, unload={"inter": ["rating"]})
    with pytest.raises(ValueError, match=r"toy\.itm does not exist.*toy\.inter"):
        load(tmp_path, load={"itm": ["*"]})
    with pytest.raises(ValueError, match=r"the time field 'item_id' has type token"):
        load(tmp_path, fields={"time": "item_id"})


def test_unreadable_file_is_a_clear_error(tmp_path):
    (tmp_path / "toy" / "toy.inter").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"cannot read .*toy\.inter: is a folder"):
        load(tmp_path, format="atomic")

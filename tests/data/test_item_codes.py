"""Codes of items in a file: what is taken, what is refused, and what can be said of them."""

import json
import logging
from pathlib import Path

import pytest
import torch

from shoal.data.ids import Ids
from shoal.data.item_codes import (
    ItemCodes,
    Making,
    appended,
    distinguished,
    fitted,
    neighbours_kept,
    quality,
    read_codes,
    write_codes,
)

ITEMS = Ids(["[PAD]", "a", 'b "<i>"', "7"], str)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    codes = torch.tensor([[5, 1], [5, 7], [0, 1]])
    write_codes(tmp_path / "codes.json", ItemCodes(dict(zip(ITEMS.words[1:], codes.tolist()))))
    text = (tmp_path / "codes.json").read_text()
    assert text.count("\n") == 3 and json.loads(text)['b "<i>"'] == [5, 7]
    given = read_codes(tmp_path / "codes.json")
    assert given.making is None and given.size is None
    assert fitted("codes.json", given.codes, ITEMS).tolist() == [[0, 0], *codes.tolist()]


def test_items_with_the_same_codes_get_another_one_which_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = {"7": [2, 2], "a": [2, 2], 'b "<i>"': [1, 0], "gone": [2, 2]}
    with caplog.at_level(logging.INFO, "shoal"):
        found = fitted("mine.json", given, ITEMS)
    assert found.tolist() == [[0, 0, 0], [2, 2, 0], [1, 0, 0], [2, 2, 1]]
    assert "mine.json: 2 of 3 items have the codes of another one" in caplog.text
    assert "1 items are not in the data" in caplog.text


TENSORS = {"books": torch.arange(24.0).view(2, 4, 3), "deviation": torch.ones(())}
MADE = ItemCodes(
    {"a": [0, 1, 0], "b": [0, 1, 1], "c": [1, 1, 0]},
    Making("kmeans", "vectors", 4, 0.5, TENSORS),
)


def test_what_made_codes_is_kept_and_a_version_says_what_they_are(tmp_path: Path) -> None:
    file = tmp_path / "codes.json"
    write_codes(file, MADE)
    read = read_codes(file)
    assert read.codes == MADE.codes and read.making is not None and read.size == 4
    for name, tensor in TENSORS.items():
        assert torch.equal(read.making.tensors[name], tensor)
    assert json.loads(file.read_text())["version"] == read.version() == MADE.version()
    more = ItemCodes({**MADE.codes, "d": [1, 1, 1]}, MADE.making)
    assert more.version() != MADE.version() == more.version(count=3)
    other = ItemCodes({**MADE.codes, "c": [1, 2, 0]}, MADE.making)
    assert other.version(2) == MADE.version(2) and other.version() != MADE.version()


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("[0, 1, 1]", "[0, 2, 1]", "its codes were changed after they were made"),
        ('"of": "vectors"', '"of": "model"', "its codes were changed after they were made"),
        ("[0, 1, 1]", "[0, 1, 7]", r"codes are below 4 \(size\), and one is 7"),
        ('"size": 4', '"size": "4"', "of how its codes were made cannot be read"),
        ('"shape": [2, 4, 3]', '"shape": [2, 4, 4]', "of how its codes were made cannot be read"),
        ('"shape": [2, 4, 3]', '"shape": [2, -4, 3]', "of how its codes were made cannot be read"),
        ('"float32": "', '"float32": "*', "of how its codes were made cannot be read"),
        ('"codebooks"', '"books"', "of how its codes were made cannot be read"),
    ],
)
def test_made_codes_that_were_changed_are_refused(
    old: str, new: str, why: str, tmp_path: Path
) -> None:
    file = tmp_path / "codes.json"
    write_codes(file, MADE)
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=why):
        read_codes(file)


def test_appended_codes_leave_others_as_they_are_and_take_the_first_free_place() -> None:
    choices = [torch.tensor([[0, 1]]), torch.tensor([[0, 1], [0, 2]]), torch.tensor([[3, 3]])]
    after = appended(MADE.codes, ["d", "e", "f"], choices, size=3)
    assert {item: after[item] for item in MADE.codes} == MADE.codes
    assert [after[item] for item in "def"] == [[0, 1, 2], [0, 2, 0], [3, 3, 0]]
    with pytest.raises(ValueError, match=r"all 2 last codes of items that are as 'd' is are taken"):
        appended(MADE.codes, ["d"], choices, size=2)


def test_neighbours_kept_are_those_that_share_the_first_codes() -> None:
    vectors = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    codes = torch.tensor([[0, 0], [0, 0], [1, 0], [1, 1]])
    assert neighbours_kept(vectors, codes, count=1).tolist() == [1.0, 0.5]
    assert neighbours_kept(vectors[:1], codes[:1]).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no JSON such as"),
        ('{"codes": {}}', "of how its codes were made cannot be read"),
        ("[" * 100_000, "no JSON such as"),
        ("[[1, 2]]", "holds no items"),
        ("{}", "holds no items"),
        ('{"a": [1], "a": [2]}', "'a' 2 times"),
        ('{"a": [1], "b": [1, 2]}', "'b' has 2 codes and 'a' has 1"),
        ('{"a": 3}', "'a' has 3; codes are a list"),
        ('{"a": []}', "codes are a list"),
        ('{"a": {"x": 1}}', "codes are a list"),
        ('{"a": [1.5]}', "the code 1.5"),
        ('{"a": [true]}', "the code True"),
        ('{"a": [-1]}', "the code -1"),
        ('{"a": [70000]}', "from 0 to 65535"),
    ],
)
def test_invalid_codes_are_refused(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "codes.json").write_text(text)
    with pytest.raises(ValueError, match=why.replace("[", r"\[")):
        read_codes(tmp_path / "codes.json")


def test_missing_files_and_items_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no file .*shoal codes make"):
        read_codes(tmp_path / "codes.json")
    with pytest.raises(
        ValueError, match=r"no codes for 2 of 3 items of the data: 'b .*', '7'; add"
    ):
        fitted("codes.json", {"a": [1, 2]}, ITEMS)


def test_quality_counts_shared_and_used_codes() -> None:
    codes = torch.tensor([[0, 3], [0, 3], [0, 3], [2, 1]])
    found = quality(codes)
    assert (found["unique"], found["shared"], found["largest_group"]) == (0.25, 3, 3)
    assert [one["used"] for one in found["levels"]] == [2, 2]
    assert quality(distinguished(codes))["unique"] == 1.0
    even = quality(torch.tensor([[0], [1], [2], [3]]))
    assert even["levels"] == [{"used": 4, "effective": 4.0}]

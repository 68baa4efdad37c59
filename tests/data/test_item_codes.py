"""Codes of items in a file: what is taken, what is refused, and what can be said of them."""

import json
import logging
from pathlib import Path

import pytest
import torch

from shoal.data.ids import Ids
from shoal.data.item_codes import distinguished, fitted, quality, read_codes, write_codes

ITEMS = Ids(["[PAD]", "a", 'b "<i>"', "7"], str)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    codes = torch.tensor([[5, 1], [5, 7], [0, 1]])
    write_codes(tmp_path / "codes.json", ITEMS.words[1:], codes)
    text = (tmp_path / "codes.json").read_text()
    assert text.count("\n") == 3 and json.loads(text)['b "<i>"'] == [5, 7]
    given = read_codes(tmp_path / "codes.json")
    assert fitted("codes.json", given, ITEMS).tolist() == [[0, 0], *codes.tolist()]


def test_items_with_the_same_codes_get_another_one_which_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = {"7": [2, 2], "a": [2, 2], 'b "<i>"': [1, 0], "gone": [2, 2]}
    with caplog.at_level(logging.INFO, "shoal"):
        found = fitted("mine.json", given, ITEMS)
    assert found.tolist() == [[0, 0, 0], [2, 2, 0], [1, 0, 0], [2, 2, 1]]
    assert "mine.json: 2 of 3 items have the codes of another one" in caplog.text
    assert "1 items are not in the data" in caplog.text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no JSON such as"),
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
def test_what_cannot_be_codes_is_refused(text: str, why: str, tmp_path: Path) -> None:
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

"""`shoal quickstart FILE --run` on tables as careless people make them: from a file to lists."""

from __future__ import annotations

import json
import re
from pathlib import Path

import careless_files
import pytest
from commands import finish

from shoal.data.dataset import Dataset
from shoal.data.features import features_of
from shoal.data.loading.load import load_dataset
from shoal.runs.run import resolve


class Started:
    """What `shoal quickstart` made of a file: what it printed, its config, its data."""

    def __init__(self, name: str, folder: Path, *words: str):
        file = careless_files.FILES[name](folder / f"{name}.csv")
        self.text = finish("quickstart", file.name, "--run", *words, cwd=folder)
        assert "Traceback" not in self.text
        (path,) = folder.glob(f"{name}-*.yaml")
        values = {"data.path": str(folder), "data.files": {"inter": file.name}}
        self.config = resolve([path], values=values).config
        run = re.search(r"shoal export (\S+) --to", self.text)
        assert run is not None, self.text
        self.run = folder / run[1]
        self.result = json.loads((self.run / "result.json").read_text())

    @property
    def dataset(self) -> Dataset:
        return load_dataset(self.config.data, self.config.run.seed)

    @property
    def kinds(self) -> dict[str, str]:
        """Feature -> its kind."""
        return {one.name: one.kind for one in features_of(self.dataset, self.config.data)}

    def check_lists(self) -> None:
        """Three users got a list of five items each."""
        lists = re.findall(r"^ *for user .*?(?=^ *for user |\Z)", self.text, re.M | re.S)
        assert len(lists) == 3, self.text
        for shown in lists:
            assert len(re.findall(r"^│ \d ", shown, re.M)) == 5, shown


@pytest.mark.slow
def test_dates_of_three_forms_are_all_read(tmp_path: Path) -> None:
    started = Started("dates", tmp_path)
    started.check_lists()
    assert "date: text, read as dates" in started.text
    assert "data.bad_rows" not in started.text and "cannot be read" not in started.text
    assert "from 2024-01-01 00:00:00 to 2024-10-26 00:00:00" in started.text
    assert started.config.data.split.order == "time"


@pytest.mark.slow
def test_lists_with_three_separators_are_lists(tmp_path: Path) -> None:
    started = Started("lists", tmp_path)
    started.check_lists()
    for name in ("genres", "tags", "moods"):
        assert started.kinds[name] == "ids"
        assert set(started.dataset.vocab[name].tolist()) == {"[PAD]", *careless_files.GENRES}


@pytest.mark.slow
def test_outcomes_beside_the_label_are_no_features(tmp_path: Path) -> None:
    started = Started("outcomes", tmp_path)
    started.check_lists()
    assert set(started.kinds) == {"user", "item", "price"}
    for name in ("bought", "revenue", "dwell", "answer", "ticket"):
        assert f"--feature={name}" in started.text
    assert started.result["test"]["auc"] == pytest.approx(0.5, abs=0.02)
    assert "it is not shown to know anything about clicks" in started.text


@pytest.mark.slow
def test_prices_with_currency_are_numbers(tmp_path: Path) -> None:
    started = Started("prices", tmp_path)
    started.check_lists()
    assert started.kinds["price"] == "number"
    prices = started.dataset.flat("price")
    assert prices.min() >= 900 and prices.max() < 900 + 37 * 41


def test_one_user_is_refused_with_the_remedy(tmp_path: Path) -> None:
    careless_files.one_user(tmp_path / "one_user.csv")
    told = finish("quickstart", "one_user.csv", "--run", cwd=tmp_path, status=2)
    (line,) = [line for line in told.splitlines() if line.startswith("error: ")]
    assert "has only one user (column 'user')" in line and "--user=NAME" in line
    assert not list(tmp_path.glob("*.yaml")) and not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_without_a_time_the_split_is_random_and_said(tmp_path: Path) -> None:
    started = Started("no_time", tmp_path)
    started.check_lists()
    assert started.config.data.split.order == "random"
    assert "there is no time" in next(tmp_path.glob("*.yaml")).read_text()
    test = started.result["test"]
    assert test["ndcg@10"] > started.result["base"]["ndcg@10"]


@pytest.mark.slow
def test_leading_zeros_of_ids_are_kept(tmp_path: Path) -> None:
    started = Started("zeros", tmp_path)
    started.check_lists()
    users, items = (started.dataset.vocab[name] for name in ("customer_id", "product_code"))
    assert {"07", "007", "0007"} <= set(users.tolist()) and len(users) == 61
    assert set(items[1:].tolist()) == {f"{number:08d}" for number in range(40)}
    assert re.search(r"^│ 1 +│ 000000\d\d ", started.text, re.M)
    assert "train.epochs" not in started.text  # EASE has none


@pytest.mark.slow
def test_latin_1_is_read_and_said(tmp_path: Path) -> None:
    started = Started("latin_1", tmp_path)
    started.check_lists()
    assert started.config.data.encoding in ("cp1252", "latin-1")
    assert f"not UTF-8, and is read as {started.config.data.encoding}" in started.text
    assert "every row counts as taken, whatever its Rating" in started.text
    assert any(title in started.text for title in careless_files.TITLES)
    assert "�" not in started.text


@pytest.mark.slow
def test_duplicated_rows_count_once(tmp_path: Path) -> None:
    started = Started("duplicates", tmp_path)
    started.check_lists()
    assert "1,324 rows are left out by data.filter.duplicates" in started.text
    assert started.dataset.counted().repeated == 0


@pytest.mark.slow
def test_three_hundred_thousand_items_end_in_lists(tmp_path: Path) -> None:
    started = Started("many_items", tmp_path)
    started.check_lists()
    assert started.dataset.num_items == 300_001
    assert started.config.model.name != "EASE"  # its matrix would have 720 GB

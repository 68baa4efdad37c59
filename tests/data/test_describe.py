"""`shoal data describe`: figures, features as yaml, and a page with plots."""

from __future__ import annotations

import re
import xml.etree.ElementTree as xml
from pathlib import Path

import numpy as np
import pytest
from browser import Browser, needs_browser
from feature_data import config, values, write
from typer.testing import CliRunner

from shoal.cli.main import app, refuse_part_of_a_name
from shoal.config.schema import DataSection
from shoal.data.dataset import Dataset
from shoal.data.knowledge import knowledge_of
from shoal.data.loading.load import load_dataset
from shoal.data.statistics import leakage
from shoal.distributed.world import World
from shoal.planning.data_summary import describe_run
from shoal.runs.build import build
from shoal.runs.run import resolve


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("described"))


def test_the_command_prints_and_writes(folder: Path, tmp_path: Path) -> None:
    keys = ["--dataset=shop", f"--data.path={folder}", "--data.cache=false", "--model=DNN"]
    keys += ["--data.fields.label=click"]
    features, page = tmp_path / "features.yaml", tmp_path / "page.html"
    more = ["--write", str(features), "--html", str(page)]
    ran = CliRunner().invoke(app, ["data", "describe", *keys, *more])
    assert ran.exit_code == 0, ran.output
    assert "The number of users: 40" in ran.output
    assert re.search(r"age +number +user +- +- +6\n", ran.output)
    # What was written trains as what was guessed.
    keep = {k: v for k, v in values(folder).items() if k != "data.load"}
    told = build(resolve([features], values=keep).config, World())
    plain = build(resolve(values=keep).config, World())
    batches = [next(parts.reader.batches(0)) for parts in (told, plain)]
    losses = [float(p.strategy.train_step(b)) for p, b in zip((told, plain), batches)]
    assert losses[0] == losses[1]
    text = page.read_text()
    assert not re.search(r"\bnan\b|src=|<script", text, re.IGNORECASE)
    plots = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(plots) == 3  # this data has no time
    for plot in plots:
        assert len(list(xml.fromstring(plot).iter())) > 20
    for words in ("Popularity", "Activity", "The interactions have no time", "missing", "test on"):
        assert words in text
    # People are counted, not the padding, and in plain words.
    assert "1,200 interactions of 40 users with 30 items." in text
    assert "inters" not in re.sub(r"<[^>]*>", "", text)


@needs_browser
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    """Of half a year: what stands at the axes does not overlap."""
    lines = "".join(f"u{k % 90}\ti{k * k % 41}\t{875000000 + 5000 * k}\n" for k in range(3000))
    head = "user_id:token\titem_id:token\ttimestamp:float\n"
    data = {"data.name": "shop", "data.path": str(tmp_path), "data.cache": False}
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/shop.inter").write_text(head + lines)
    told = describe_run(resolve(values={"model": "BPR", **data}).config)
    assert told.page is not None
    file = tmp_path / "page.html"
    file.write_text(told.page())
    overlaps = """(() => {
        const texts = [...document.querySelectorAll('svg')].map(
            plot => [...plot.querySelectorAll('text')].map(one => one.getBoundingClientRect()));
        const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom
            && b.top < a.bottom;
        return texts.flatMap(all => all.flatMap((a, k) => all.slice(k + 1).filter(
            b => meet(a, b)).map(b => [a.left, a.right, b.left, b.right])));
    })()"""
    with Browser() as browser:
        browser.open(file.as_uri())
        assert "3,000 interactions of 90 users with" in browser.text("p")
        assert "from 1997-09-23 07:33:20 to 1998-03-15 20:50:00" in browser.text("p")
        over_time = (
            "document.querySelector('svg[aria-label=\"interactions over time\"]').textContent"
        )
        assert "1998" in browser.evaluate(over_time)
        assert browser.evaluate(overlaps) == []
        light = browser.screenshot(tmp_path / "light.png")
        browser.dark()
        assert browser.screenshot(tmp_path / "dark.png") != light
        browser.resize(390, 800)
        assert browser.evaluate("document.documentElement.scrollWidth") <= 390
        assert browser.evaluate(overlaps) == []
        assert browser.requests == [file.as_uri()] and browser.errors == []


def test_a_click_log_is_described() -> None:
    told = describe_run(resolve(values={"model": "DNN", "data.name": "synthetic"}).config)
    assert "The number of slots: 8" in told.text and told.page is None
    assert "'1': {kind: ids" in told.yaml or '"1": {kind: ids' in told.yaml


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (["13/02/2025", "15/02/2025"], "Times: from 2025-02-13 00:00:00 to 2025-02-15 00:00:00"),
        (["20", "7"], "Times: from 7 to 20"),
    ],
)
def test_the_first_and_last_time(times: list[str], said: str, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    rows = "".join(f"{k % 3},{k},{times[k % 2]}\n" for k in range(9))
    file.write_text("user_id,item_id,timestamp\n" + rows)
    ran = CliRunner().invoke(app, ["data", "describe", str(file), "--data.cache=false"])
    assert said in ran.output.splitlines(), ran.output


def test_leakage_counts() -> None:
    """User 1 takes items 1 2 3 1 at times 0 to 3; user 2 item 4."""
    inter = {
        "user_id": np.array([1, 1, 1, 1, 2]),
        "item_id": np.array([1, 2, 3, 1, 4]),
        "timestamp": np.array([0.0, 1, 2, 3, 9]),
    }
    splits = {"train": np.array([0, 2]), "valid": np.array([], int), "test": np.array([1, 3, 4])}
    words = np.array(["[PAD]", *"abcd"], dtype=object)
    types = {"user_id": "token", "item_id": "token", "timestamp": "float"}
    vocab = {"user_id": words[:3], "item_id": words}
    fields = ("user_id", "item_id", "timestamp", None)
    found = leakage(Dataset("x", *fields, inter, types, vocab, splits))  # type: ignore[arg-type]
    assert (found.rows, found.repeated, found.earlier) == (3, 1, 1)
    assert (found.new_users, found.new_items) == (1, 2)


def test_triples_reach_a_model(tmp_path: Path) -> None:
    place = tmp_path / "kg"
    place.mkdir()
    (place / "kg.inter").write_text(
        "user_id:token\titem_id:token\n" + "".join(f"{k % 4}\t{k}\n" for k in range(12))
    )
    (place / "kg.kg").write_text(
        "head_id:token\trelation_id:token\ttail_id:token\nm1\tby\tp1\nm2\tby\tp1\nm2\tlike\tm1\n"
    )
    (place / "kg.link").write_text("item_id:token\tentity_id:token\n3\tm1\n5\tm2\n99\tm9\n")
    data = {"data.name": "kg", "data.path": str(tmp_path), "data.cache": False}
    data |= {"data.load": {"inter": ["*"], "kg": ["*"], "link": ["*"]}}
    facts = build(resolve(values={"model": "BPR", **data}).config, World()).model.facts
    known = facts.knowledge
    assert known is not None and known.heads.tolist() == [1, 2, 2]
    assert known.tails.tolist() == [3, 3, 1] and known.relations.tolist() == [1, 1, 2]
    assert known.num_relations == 3 and known.num_entities == 5
    assert known.item_entity.nonzero().flatten().tolist() == [4, 6]
    assert known.item_entity[4] == 1 and known.item_entity[6] == 2
    plain = DataSection(name="kg", path=str(tmp_path), cache=False)
    assert knowledge_of(load_dataset(plain, 1)) is None


def test_the_guess_needs_no_model_of_features(folder: Path) -> None:
    told = describe_run(config(folder, "LightFM"))
    assert "genre" in told.yaml and "age" in told.text


ROWS = "user,item,time\n" + "".join(f"u{k % 9},i{k * 7 % 11},{k}\n" for k in range(120))


def test_the_command_ends_with_what_to_type_next(tmp_path: Path) -> None:
    file = tmp_path / "my ratings.csv"
    file.write_text(ROWS)
    ran = CliRunner().invoke(app, ["data", "describe", str(file), "--model=BPR"])
    assert ran.exit_code == 0, ran.output
    assert "\nnext:\n" in ran.output
    assert f"  shoal train '{file}' --model=BPR " in ran.output
    assert f"  shoal data describe '{file}' --model=BPR --html page.html" in ran.output


def test_a_command_without_its_group_is_named_whole() -> None:
    with pytest.raises(ValueError, match=r"no command shoal describe; did you mean shoal data d"):
        refuse_part_of_a_name(["describe", "ratings.csv"])
    for words in ([], ["train"], ["data", "describe"], ["nonsense"]):
        refuse_part_of_a_name(words)


def test_a_column_that_is_not_there_is_one_error_without_a_guess(tmp_path: Path) -> None:
    """A guess of columns is said where it was made: not of what the user named."""
    file = tmp_path / "ratings.csv"
    file.write_text(ROWS)
    words = [str(file), "--user=usr", "--data.cache=false"]
    wrong = CliRunner().invoke(app, ["data", "describe", *words])
    assert "by the names of its columns" not in wrong.output
    text = r"has no column 'usr' \(command line .*; it has user, item, time; .*did you mean user\?"
    assert re.search(text, str(wrong.exception)), wrong.exception
    named = CliRunner().invoke(app, ["data", "describe", str(file), "--user=time"])
    assert "by the names of its columns, item = item; change with --item=NAME\n" in named.output

"""Warnings about data whose metrics mean little: in the log, by describe, on its page."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli import exit
from shoal.cli.main import app
from shoal.clicks.memory_mapped import prepare_log
from shoal.config.launch_section import RunSection
from shoal.config.schema import DataSection
from shoal.data.dataset import Pairs, count_pairs
from shoal.data.loading.load import load_dataset
from shoal.data.prepared import preparation as preparing
from shoal.data.prepared.folder import PrepareJob
from shoal.data.statistics import find_data_warnings
from shoal.planning.data_summary import describe_run
from shoal.runs.fit import Fitted
from shoal.runs.run import resolve

HEAD = "user_id,item_id,rating\n"
ROWS = [f"u{n % 40},i{n * 7 % 31},{n % 5}" for n in range(600) if n < 31 * 40]
QUIET = {"run.progress": False, "run.trackers": [], "run.log_level": "warning"}
SHORT = {**QUIET, "train.epochs": 1, "model.embedding_size": 4, "data.cache": False}


def brute(users: np.ndarray, items: np.ndarray, phases: np.ndarray) -> Pairs:
    by = [{(u, i) for u, i, p in zip(users, items, phases) if p == n} for n in range(3)]
    every = Counter(zip(users.tolist(), items.tolist()))
    return Pairs(
        len(users),
        sum(count - 1 for count in every.values()),
        [len({u for u, _ in some}) for some in by],
        [len(some) for some in by],
        [0, len(by[1] & by[0]), len(by[2] & (by[0] | by[1]))],
    )


@pytest.mark.parametrize("size", [0, 1, 5, 300])
def test_counts_are_exact_and_add_up(size: int) -> None:
    random = np.random.default_rng(size)
    users, items = random.integers(1, 20, size), random.integers(1, 12, size)
    phases = random.integers(0, 3, size)
    found = count_pairs(users, items, phases, 12)
    assert found == brute(users, items, phases)
    low = users < 8
    parts = [count_pairs(users[m], items[m], phases[m], 12) for m in (low, ~low)]
    assert parts[0] + parts[1] == found


@pytest.mark.parametrize("order", ["random", "file"])
@pytest.mark.parametrize("width", ["one range", "many"])
def test_prepared_data_is_counted_like_raw_data(order: str, width: str, tmp_path: Path) -> None:
    rows = [f"u{n * n % 23},i{n % 9},{n % 5}\n" for n in range(400)]
    (tmp_path / "a.csv").write_text(HEAD + "".join(rows) + "u1,i1,\n")
    more: dict[str, Any] = {"split": {"order": order}, "bad_rows": "skip", "cache": False}
    more["filter"] = {"values": {"rating": "[1,inf)"}, "item_inter_num": "[36,inf)"}
    raw = DataSection.model_validate({"path": str(tmp_path), "files": {"inter": "a.csv"}, **more})
    one = raw.model_copy(update={"files": None})
    memory = 64 << 20 if width == "one range" else 100 * 160  # rows of a range
    preparing.prepare(PrepareJob([str(tmp_path / "a.csv")], tmp_path / "made", one, 1, memory))
    made = one.model_copy(update={"path": str(tmp_path / "made")})
    expected, found = load_dataset(raw, 1), load_dataset(made, 1)
    assert found.counted() == expected.counted() and expected.counted().repeated > 100
    assert found.left_out == expected.left_out
    assert found.left_out.keys() == {
        *("data.bad_rows", "data.filter.values.rating", "data.filter.item_inter_num")
    }
    assert sum(found.left_out.values()) + found.num_inter == 401
    warnings = find_data_warnings(found)
    assert warnings == find_data_warnings(expected) and len(warnings) == 4
    assert len(find_data_warnings(found, repeatable=True)) == 2


def test_numbers_with_a_unit_are_named(tmp_path: Path) -> None:
    rows = [f"u{n % 7},i{n % 5},{n % 4},{n % 3}a\n" for n in range(60)]
    (tmp_path / "a.csv").write_text("user_id,item_id,rating,house\n" + "".join(rows))
    items = [f'i{n},"{n},5 kg"\n' for n in range(5)]
    (tmp_path / "items.csv").write_text("item_id,weight\n" + "".join(items))
    files = {"inter": "a.csv", "item": "items.csv"}
    config = {"path": str(tmp_path), "files": files, "cache": False}
    dataset = load_dataset(DataSection.model_validate(config), 1)
    (warning,) = [one for one in find_data_warnings(dataset, False) if "unit" in one]
    assert warning.startswith("weight holds numbers with a unit ('0,5 kg'), which are read as ids")


def trained(tmp_path: Path, files: dict[str, str], **more: Any) -> tuple[dict[str, Any], str]:
    """The result of a short run, and its log."""
    for name, text in files.items():
        (tmp_path / f"{name}.csv").write_text(text)
    given = {key.replace("__", "."): value for key, value in more.items()}
    values = {**SHORT, "data.path": str(tmp_path), "run.output": str(tmp_path / "run"), **given}
    values["data.files"] = {name: f"{name}.csv" for name in files}
    result = shoal.run("BPR", config_dict=values)
    return result, (tmp_path / "run" / "train.log").read_text()


def described(tmp_path: Path, log: str) -> None:
    """`shoal data describe RUN's config` and its page say what the log says."""
    config = tmp_path / "run" / "config.yaml"
    page = tmp_path / "page.html"
    ran = CliRunner().invoke(app, ["data", "describe", str(config), "--html", str(page)])
    said = re.findall(r"WARNING +(.*)", log)
    assert said and ran.exit_code == 0
    for sentence in said:
        assert f"warning: {sentence}" in ran.output and sentence in page.read_text()


PARTS = {"train": ROWS[:400], "valid": ROWS[400:500], "test": ROWS[500:]}
CASES: dict[str, tuple[dict[str, list[str]], str]] = {
    "every row twice": (
        {"inter": ROWS * 2},
        r"of \d+ \(user, item\) pairs to test on are among those to train or validate on.*"
        r"data\.filter\.duplicates=first",
    ),
    "test is valid": (
        {**PARTS, "test": PARTS["valid"]},
        r"100 of 100 \(user, item\) pairs to test on are among .*count as misses",
    ),
    "valid is train": (
        {**PARTS, "valid": PARTS["train"]},
        r"400 of 400 \(user, item\) pairs to validate on are among those to train on",
    ),
    "one user": (
        {"inter": [f"one,{row.split(',', 1)[1]}" for row in ROWS[:31]]},
        r"metrics of the valid part are over 1 user, fewer than 30.*\n.*test part are over 1 user",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_and_describe_print_the_warnings(case: str, tmp_path: Path) -> None:
    parts, said = CASES[case]
    files = {name: HEAD + "\n".join(rows) + "\n" for name, rows in parts.items()}
    result, log = trained(tmp_path, files)
    assert re.search(said, log), log
    described(tmp_path, log)
    shoal.evaluate(tmp_path / "run")  # and where it is evaluated again
    if case == "test is valid":
        assert result["test"]["recall@10"] == 0.0  # which is why


def test_sound_data_gives_no_warning(tmp_path: Path) -> None:
    _, log = trained(tmp_path, {"inter": HEAD + "\n".join(ROWS) + "\n"})
    assert "WARNING" not in log


def test_rows_that_a_filter_drops_are_counted(tmp_path: Path) -> None:
    items = "item_id,year\n" + "".join(f"i{n},19{n:02}\n" for n in range(25))
    files = {"inter": HEAD + "\n".join(ROWS) + "\n", "item": items}
    more = {"data.filter.values": {"rating": "[1,inf)"}, "run.log_level": "info"}
    _, log = trained(tmp_path, files, **more)
    left = sum(row.endswith(",0") for row in ROWS)
    new = sum(int(row.split(",")[1][1:]) > 24 and not row.endswith(",0") for row in ROWS)
    lines = [
        f"Left out by data.filter.values.rating: {left} of 600 interactions",
        f"Left out by data.filter.by_user_or_item: {new} of 600 interactions",
    ]
    assert all(line in log for line in lines)
    # What was not asked for is a warning.
    assert f"WARNING  {new} of 600 interactions are left out, because their user or item" in log
    described(tmp_path, log)
    told = describe_run(resolve([tmp_path / "run" / "config.yaml"]).config)
    assert all(line in told.text for line in lines) and told.page is not None
    assert f"{left} of 600 are left out by data.filter.values.rating" in told.page()


def test_other_interactions_that_were_trained_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(tmp_path, {"inter": HEAD + "\n".join(ROWS) + "\n"})
    fitted = Fitted(tmp_path / "run")
    fitted.evaluate({"user_id": ["u1", "u2"], "item_id": ["i7", "i2"]})
    said = capsys.readouterr().out
    assert "1 of 2 (user, item) pairs to test on are among those" in said and "2 users" in said


@pytest.mark.parametrize("epochs", [0, 1, 3])
def test_a_run_evaluates_at_its_end(
    epochs: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the number of epochs is none of train.eval_every."""
    more = {"train__epochs": epochs, "train__eval_every": 2}
    result, _ = trained(tmp_path, {"inter": HEAD + "\n".join(ROWS) + "\n"}, **more)
    assert result["best_valid"]["recall@10"] >= 0.0 and result["epochs"] == epochs
    exit.print_result(result, RunSection())
    assert "nan" not in capsys.readouterr().out


@pytest.mark.parametrize("prepared", [False, True])
def test_click_logs(prepared: bool, tmp_path: Path) -> None:
    line = "click:{} dense_feature:0.5 1:{} 2:3\n"
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("".join(line.format(n % 2, n) for n in range(20)))
    keys: dict[str, Any] = {"model": "LR", "data.path": str(tmp_path), "data.clicks.slots": 2}
    keys |= {"data.clicks.dense": 1, "data.clicks.train": "a.txt", "data.clicks.valid": "b.txt"}
    keys |= {"data.clicks.test": "a.txt"}
    if prepared:
        section = resolve(values={**keys, "data.format": "slots"}).config.data
        for name in ("a", "b"):
            prepare_log(PrepareJob([str(tmp_path / f"{name}.txt")], tmp_path / name, section))
        keys |= {f"data.clicks.{key}": keys[f"data.clicks.{key}"][:1] for key in PARTS}
    told = describe_run(resolve(values=keys).config).text
    found = re.findall("warning: (.*)", told)
    assert found[0].startswith("1 of the files to test on are trained on too (a.txt)")
    few = [re.sub(" part are over 20 samples, fewer than 30.*", "", one) for one in found[1:]]
    assert few == ["metrics of the valid", "metrics of the test"]


def files(path: Path) -> dict[str, Any]:
    return {"data.files": {"inter": str(path)}, "data.cache": False}


def test_a_header_names_each_column_once(tmp_path: Path) -> None:
    (tmp_path / "twice.csv").write_text("user_id,item_id,time,time\n1,2,3,4\n")
    with pytest.raises(ValueError, match=r"line 1: the column 'time' stands there twice; give"):
        shoal.run(model="Pop", config_dict={**QUIET, **files(tmp_path / "twice.csv")})


def test_data_without_a_row_to_train_on_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gowalla").mkdir()
    (tmp_path / "gowalla" / "train.txt").write_text("")
    (tmp_path / "gowalla" / "test.txt").write_text("".join(f"{n} {n % 5} 7\n" for n in range(9)))
    values = {"data.name": "gowalla", "data.path": str(tmp_path), "train.eval_every": 0}
    with pytest.raises(ValueError, match="has no training interaction, so there is nothing to"):
        shoal.run(model="BPR", config_dict={**QUIET, **values})


def test_a_pause_without_sessions_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(HEAD + "\n".join(ROWS))
    values = {**QUIET, **files(tmp_path / "x.csv"), "data.split.pause": 30}
    with pytest.raises(ValueError, match=r"data\.split\.pause is for data\.split\.by=sessions"):
        shoal.run(model="BPR", config_dict=values)


def test_utf_16_that_is_read_as_something_else_is_named(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_bytes("user_id,item_id\n1,2\n".encode("utf-16"))
    values = {**QUIET, **files(tmp_path / "ratings.csv"), "data.encoding": "latin-1"}
    with pytest.raises(ValueError, match=r"begins as UTF-16 does, .*; set data\.encoding=utf-16"):
        shoal.run(model="BPR", config_dict=values)

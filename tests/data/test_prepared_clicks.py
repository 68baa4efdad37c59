"""Click logs in prepared folders: the samples of the files, parsed once, mapped, each used once."""

from __future__ import annotations

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_exactly_once import count
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.clicks import open_clicks
from shoal.clicks.memory_mapped import open_log, prepare_log
from shoal.config.schema import Config
from shoal.data import column_store as files
from shoal.data.batch import Jagged
from shoal.data.prepared.folder import PrepareJob, check
from shoal.distributed.world import World
from shoal.planning.data_summary import describe_run
from shoal.runs.run import resolve, train_here

SLOTS = {"data.format": "slots", "data.clicks.slots": 3, "data.clicks.dense": 2}


def lines_of(count: int, lists: bool, first: int = 0) -> list[str]:
    draw = np.random.default_rng(first)
    made = []
    for n in range(first, first + count):
        more = f" 2:{n % 7 + 500}" if lists and n % 3 == 0 else ""
        a, b = draw.random(2)
        dense = f"dense_feature:{a:.3f} dense_feature:{b:.3f}"
        made.append(f"click:{n % 2} {dense} 1:{n + 1} 2:{n % 11}{more} 3:{n % 5}")
    return made


def config_of(path: Path, **values: Any) -> Config:
    keys = {key.replace("__", "."): value for key, value in values.items()}
    given = {"model": "LR", "train.batch_size": 64, "data.path": str(path), "run.progress": False}
    return resolve(values={**given, "run.trackers": [], **SLOTS, **keys}).config


def write(folder: Path, lists: bool = False) -> Path:
    for day in (1, 2):
        text = "\n".join(lines_of(400, lists and day == 2, 400 * day)) + "\n"
        (folder / f"day-{day}.txt").write_text(text)
    (folder / "test.txt").write_text("\n".join(lines_of(200, lists)) + "\n")
    return folder


def job(folder: Path, to: str, *names: str, **how: Any) -> PrepareJob:
    config = how.pop("config", config_of(folder))
    return PrepareJob([str(folder / name) for name in names], folder / to, config.data, **how)


@pytest.mark.parametrize("lists", [False, True], ids=["one id", "lists"])
@pytest.mark.parametrize("reader", ["memory", "stream"])
def test_batches_are_those_of_the_files(tmp_path, reader, lists) -> None:
    write(tmp_path, lists)
    prepare_log(job(tmp_path, "train", "day-1.txt", "day-2.txt"))
    prepare_log(job(tmp_path, "test", "test.txt"))
    how = {"data__clicks__reader": reader, "train__eval_every": 1}
    raw = config_of(tmp_path, data__clicks__train="day-*.txt", data__clicks__test="test.txt", **how)
    mapped = config_of(tmp_path, data__clicks__train="train", data__clicks__test="test", **how)
    ours, theirs = open_clicks(mapped, World(), 50), open_clicks(raw, World(), 50)
    assert ours.form == "prepared" and ours.fingerprint == theirs.fingerprint
    assert ours.layout == theirs.layout
    pairs = [(ours.reader, theirs.reader), (ours.readers["test"], theirs.readers["test"])]
    for left, right in pairs:
        assert left.num_batches == right.num_batches
        for one, other in zip(left.batches(1), right.batches(1), strict=True):
            assert one.first == other.first and torch.equal(one.labels, other.labels)
            assert torch.equal(one.dense["dense"], other.dense["dense"])
            if isinstance(one.ids["slots"], Jagged) and not isinstance(other.ids["slots"], Jagged):
                assert torch.equal(one.ids["slots"].values, other.ids["slots"].view(-1))
                continue  # a stream makes lists where a block has some
            assert torch.equal(one.flat_ids("slots"), other.flat_ids("slots"))


def test_every_sample_counts_once_over_kills_and_changes_of_processes(tmp_path) -> None:
    write(tmp_path)
    prepare_log(job(tmp_path, "train", "day-1.txt", "day-2.txt"))
    config = config_of(tmp_path, data__clicks__train="train", train__eval_every=0)
    reader = open_clicks(config, World(), 50).reader
    reader.batch_size, reader.chunk_samples = 23, 120
    found = count(reader, lambda batch: (batch.tensor("slots")[:, 0] - 1).tolist())
    assert reader.prefetch and found == Counter(range(400, 1200))


def test_append_and_again(tmp_path) -> None:
    """A day more gives what all files at once give, lists that come with it included."""
    write(tmp_path, lists=True)
    prepare_log(job(tmp_path, "whole", "day-1.txt", "day-2.txt"))
    first = prepare_log(job(tmp_path, "grown", "day-1.txt"))
    assert (
        "offsets" not in first["arrays"]
        and prepare_log(job(tmp_path, "grown", "day-1.txt")) == first
    )
    with open(tmp_path / "grown" / "ids.bin", "ab") as file:
        file.write(b"what an append that was killed left")
    made = prepare_log(job(tmp_path, "grown", "day-2.txt", append=True))
    assert prepare_log(job(tmp_path, "grown", "day-2.txt", append=True)) == made
    assert made["rows"] == 800 and check(tmp_path / "grown") == 4
    for name in ("labels", "dense", "ids", "offsets"):
        left, right = (tmp_path / to / f"{name}.bin" for to in ("whole", "grown"))
        assert left.read_bytes() == right.read_bytes()
    with pytest.raises(ValueError, match=r"other inputs.*--append"):
        prepare_log(job(tmp_path, "grown", "test.txt"))
    other = config_of(tmp_path, data__clicks__rows=100)
    with pytest.raises(ValueError, match=r"data\.clicks is .* was prepared with"):
        prepare_log(job(tmp_path, "grown", "test.txt", append=True, config=other))


def test_bad_rows(tmp_path, caplog, monkeypatch) -> None:
    monkeypatch.setattr(logging.getLogger("shoal"), "propagate", True)  # a run ends that
    lines = lines_of(300, False)
    for place, line in ((3, "click:2 1:3"), (100, "nothing"), (299, "click:1 dense_feature:x 1:3")):
        lines.insert(place, line)
    (tmp_path / "bad.txt").write_text("\n".join(lines) + "\n")
    with pytest.raises(ValueError, match=r"bad\.txt, line 4: "):
        prepare_log(job(tmp_path, "to", "bad.txt"))
    assert not (tmp_path / "to").exists() and not list(tmp_path.glob(".to.part"))
    skip = config_of(tmp_path, data__bad_rows="skip")
    made = prepare_log(job(tmp_path, "to", "bad.txt", config=skip))
    assert (made["rows"], made["bad_rows"]) == (300, 3)
    assert "bad.txt: 3 bad rows are left out" in caplog.text
    samples, _, _ = open_log(tmp_path / "to")
    assert samples.ids[:, 0].tolist() == list(range(1, 301))


def test_bad_rows_of_parquet(tmp_path) -> None:
    polars = pytest.importorskip("polars")
    clicks, numbers = [1, 0, None, 1, 7, 0], [0.5, float("nan"), 1.0, None, 2.0, 3.0]
    columns = {"click": clicks, "price": numbers, "item": [11, 12, 13, 14, 15, 16]}
    polars.DataFrame(columns).write_parquet(tmp_path / "log.parquet")
    given = {"data__format": "auto", "data__clicks__slots": ["item"]}
    given |= {"data__clicks__dense": ["price"], "data__clicks__label": "click"}
    with pytest.raises(ValueError, match=r"row 3: click is ''.*data\.bad_rows=skip"):
        prepare_log(job(tmp_path, "to", "log.parquet", config=config_of(tmp_path, **given)))
    skip = config_of(tmp_path, **given, data__bad_rows="skip")
    made = prepare_log(job(tmp_path, "to", "log.parquet", config=skip))
    assert (made["rows"], made["bad_rows"]) == (3, 3)
    samples, _, _ = open_log(tmp_path / "to")
    assert samples.ids[:, 0].tolist() == [11, 14, 16]
    assert samples.labels.tolist() == [1.0, 1.0, 0.0]


@pytest.mark.slow
def test_losses_and_figures_equal_those_of_the_files(tmp_path) -> None:
    write(tmp_path)
    prepare_log(job(tmp_path, "train", "day-1.txt", "day-2.txt"))
    prepare_log(job(tmp_path, "test", "test.txt"))
    features = {"1": {"kind": "id", "dim": 4}, "2": {"kind": "id", "dim": 2}}
    found = []
    for number, (train, test) in enumerate((("day-*.txt", "test.txt"), ("train", "test"))):
        values = {
            **{"model": "DNN", "model.layers": [8], "data.path": str(tmp_path), **SLOTS},
            **{"data.clicks.train": train, "data.clicks.test": test, "data.features": features},
            **{"train.epochs": 2, "train.batch_size": 64, "eval.metrics": ["AUC"]},
            **{"run.progress": False, "run.trackers": []},
            "run.output": str(tmp_path / f"run-{number}"),
        }
        result = train_here(resolve(values=values))
        lines = (Path(result["folder"]) / "train.log").read_text().splitlines()
        losses = [line.split("train loss")[-1] for line in lines if "train loss" in line]
        told = describe_run(resolve(values=values).config)
        found.append((losses, result["test"], told.yaml))
        assert "The train log: " in told.text and "800 samples" in told.text
    assert len(found[0][0]) == 2 and found[0] == found[1]


def test_what_does_not_fit_is_told(tmp_path) -> None:
    write(tmp_path)
    prepare_log(job(tmp_path, "train", "day-1.txt"))
    prepare_log(job(tmp_path, "few", "test.txt", config=config_of(tmp_path, data__clicks__rows=9)))
    for values, said in [
        ({"data__clicks__test": "test.txt"}, r"test is no prepared folder.*prepare it too"),
        ({"data__clicks__test": "few"}, "has other columns"),
        ({"data__clicks__rows": 7}, r"data\.clicks\.rows is 7, and .* was prepared with None"),
        ({"data__clicks__slots": ["1"]}, r"data\.clicks\.slots is .*leave it out"),
        ({"data__clicks__split_files": True}, r"split_files is for raw files"),
    ]:
        given = {"data__clicks__train": "train", "train__eval_every": 0, **values}
        with pytest.raises(ValueError, match=said):
            open_clicks(config_of(tmp_path, **given), World(), 50)


SPOILED: dict[str, Any] = {
    "fewer labels": lambda body: body["arrays"]["labels"].update(segments=[[3, ""]]),
    "another type": lambda body: body["arrays"]["ids"].update(dtype="<f8"),
    "more rows": lambda body: body.update(rows=10**9),
    "no layout of names": lambda body: body["layout"].update(slots=5),
    "another file": lambda body: body["arrays"]["ids"].update(file="../ids.bin"),
}


@pytest.mark.parametrize("what", SPOILED)
def test_a_folder_that_was_changed_is_refused(tmp_path, what) -> None:
    write(tmp_path)
    prepare_log(job(tmp_path, "train", "day-1.txt"))
    path = tmp_path / "train" / "manifest.json"
    body = json.loads(path.read_text())["body"]
    SPOILED[what](body)
    files.write_document(path, body)
    with pytest.raises(ValueError, match=r"train is damaged: .*; prepare it again"):
        open_log(tmp_path / "train")


def test_interactions_and_logs_are_not_mixed_up(tmp_path) -> None:
    pytest.importorskip("polars")
    from shoal.data.loading.load import load_dataset
    from shoal.data.prepared.preparation import prepare

    write(tmp_path)
    (tmp_path / "a.csv").write_text("user_id,item_id\n1,2\n1,3\n2,3\n")
    prepare_log(job(tmp_path, "log", "day-1.txt"))
    plain = resolve(values={"data.split.order": "file"}).config.data
    prepare(PrepareJob([str(tmp_path / "a.csv")], tmp_path / "inter", plain))
    with pytest.raises(ValueError, match=r"holds interactions, not a click log.*data\.name=inter"):
        open_log(tmp_path / "inter")
    with pytest.raises(ValueError, match=r"holds a click log.*data\.clicks\.train="):
        load_dataset(plain.model_copy(update={"path": str(tmp_path / "log")}), 1)
    with pytest.raises(ValueError, match=r"holds a click log.*data\.clicks\.train="):
        describe_run(resolve(values={"data.path": str(tmp_path / "log")}).config)
    with pytest.raises(ValueError, match="holds a click log where these are interactions"):
        prepare(PrepareJob([str(tmp_path / "a.csv")], tmp_path / "log", plain))


def test_the_commands(tmp_path) -> None:
    """shoal prepare and shoal data describe, of a log and of interactions with side files."""
    pytest.importorskip("polars")
    (tmp_path / "a.txt").write_text("\n".join([*lines_of(40, False), "bad"]) + "\n")
    log = ["--data.format=slots", "--data.clicks.slots=3", "--data.clicks.dense=2"]
    skip = "--data.bad_rows=skip"
    said = call("prepare", tmp_path / "a.txt", "--to", tmp_path / "log", *log, skip)
    assert "40 samples of 3 slots; 1 bad rows were left out" in said
    assert f"--data.clicks.train={tmp_path / 'log'}" in said
    where = ["--model=LR", f"--data.clicks.train={tmp_path / 'log'}", "--train.eval_every=0"]
    assert "The train log: 40 samples" in call("data", "describe", *where)
    (tmp_path / "b.csv").write_text("user_id,item_id,label\n1,2,1\n1,3,0\n2,3,1\n,3,1\n")
    (tmp_path / "users.csv").write_text("user_id,age\n1,30\n2,50\n")
    words = [f"--data.files={{user: {tmp_path / 'users.csv'}}}", "--data.split.order=file", skip]
    said = call("prepare", tmp_path / "b.csv", "--to", tmp_path / "inter", *words)
    assert "3 interactions of 2 users with 2 items; 1 bad rows were left out" in said
    told = call("data", "describe", f"--data.path={tmp_path / 'inter'}", "--data.split.order=file")
    assert "The number of inters: 3" in told and "age" in told
    assert "files are as they were written" in call(
        "prepare", "--check", "--to", tmp_path / "inter"
    )


def call(*words: str | Path) -> str:
    """Output of a command that succeeds."""
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output.replace("\n", " ") if words[0] == "prepare" else result.output

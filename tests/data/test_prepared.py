"""Prepared folders: the same data as the raw files give, in bounded memory, whole or not there."""

from __future__ import annotations

import gzip
import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small import DATA, NO_DROPOUT, small_config

from shoal.data import column_store
from shoal.data import random as random_room
from shoal.data.history import Histories
from shoal.data.loading.load import load_dataset
from shoal.data.prepared.folder import PrepareJob, check, locked
from shoal.data.prepared.preparation import prepare
from shoal.data.sampler import SeenPairs
from shoal.data.sources import text
from shoal.runs.fingerprint import fingerprint
from shoal.runs.run import resolve, train_here

pytest.importorskip("polars")

ROWS, USERS, ITEMS = 3000, 90, 70


def rows(seed: int = 0, count: int = ROWS) -> np.ndarray:
    """user, item, rating, time; a few pairs are repeated, users come in any order."""
    draw = np.random.default_rng(seed)
    users = draw.zipf(1.3, count) % USERS
    items = (users * 7 + draw.integers(0, 25, count)) % ITEMS
    return np.stack([users, items, draw.integers(1, 6, count), draw.permutation(count)], 1)


def write_inter(path: Path, table: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]
    lines += [f"u{u}\ti{i}\t{r}\t{t}" for u, i, r, t in table.tolist()]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_csv(path: Path, table: np.ndarray) -> Path:
    lines = ["user_id,book_id,is_read,rating,is_reviewed"]
    lines += [f"u{u},i{i},1,{r},0" for u, i, r, _ in table.tolist()]
    path.write_text("\n".join(lines) + "\n")
    return path


def config_of(path: Path, model: str = "SASRec", **values):
    keys = {key.replace("__", "."): value for key, value in values.items()}
    given = {"data.name": "some", "data.path": str(path), "data.cache": False}
    given["train.batch_size"] = 2048  # decided by a run, else
    return small_config(model, **given, **keys)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    write_inter(tmp_path / "raw" / "some" / "some.inter", rows())
    return tmp_path / "raw"


SETTINGS = [
    {"data.split.by": "leave_one_out", "data.split.order": "time"},
    {"data.split.by": "leave_one_out", "data.split.order": "file"},
    {"data.split.by": "ratio", "data.split.order": "time"},
    {"data.split.by": "ratio", "data.split.order": "random"},
    {"data.split.by": "ratio", "data.split.order": "time", "data.split.group_by": "none"},
    {
        "data.filter.user_inter_num": "[5,400]",
        "data.filter.item_inter_num": "[4,inf)",
        "data.filter.values": {"rating": "[2,inf)"},
        "data.filter.duplicates": "last",
        "data.split.by": "leave_one_out",
        "data.split.order": "time",
    },
    {"data.threshold": {"rating": 4}},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda s: " ".join(map(str, s.values())))
@pytest.mark.parametrize("small", [False, True], ids=["", "in parts"])
def test_a_prepared_folder_holds_what_the_files_give(raw, settings, small, monkeypatch) -> None:
    """Ids, words, columns, splits and histories, however little memory there is."""
    if small:
        monkeypatch.setattr(column_store, "CHUNK", 101)
        monkeypatch.setattr(text, "TEXT_BYTES", 1 << 10)
    config = config_of(raw, **{k.replace(".", "__"): v for k, v in settings.items()})
    there = load_dataset(config.data, seed=5)
    to = raw.parent / "prepared"
    memory = 40_000 if small else 1 << 30
    prepare(PrepareJob([str(raw / "some" / "some.inter")], to, config.data, 5, memory))
    data = config.data.model_copy(update={"path": str(to)})
    here = load_dataset(data, seed=5)
    assert here.kept and not list(to.glob("**/scratch"))
    for field in (there.user_field, there.item_field):
        assert list(here.vocab[field]) == there.vocab[field].tolist()
        assert np.asarray(here.vocab[field]).tolist() == there.vocab[field].tolist()
        assert here.vocab[field][1:4].tolist() == there.vocab[field][1:4].tolist()
    assert set(here.inter) == set(there.inter)
    for name, column in there.inter.items():
        np.testing.assert_array_equal(here.inter[name], column)
    for phase in ("train", "valid", "test"):
        np.testing.assert_array_equal(here.splits[phase], there.splits[phase])
        np.testing.assert_array_equal(here.user_ids(phase), there.user_ids(phase))
        np.testing.assert_array_equal(here.item_ids(phase), there.item_ids(phase))
    for phases in (("train",), ("train", "valid"), ("train", "valid", "test")):
        ours, theirs = Histories(here, phases, 9), Histories(there, phases, 9)
        np.testing.assert_array_equal(ours.items, theirs.items)
        np.testing.assert_array_equal(ours.offsets, theirs.offsets)
    assert fingerprint(config, here) == fingerprint(config, there)
    sizes = there.num_users, there.num_items
    theirs = SeenPairs(there.user_ids("train"), there.item_ids("train"), *sizes)
    ours = SeenPairs.sorted(*here.seen(), *sizes)
    for left, right in zip(
        ours.items_of(np.arange(sizes[0])), theirs.items_of(np.arange(sizes[0]))
    ):
        np.testing.assert_array_equal(left, right)


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("SASRec", "LightGCN")]


@pytest.mark.parametrize("model", ["BPR", "BERT4Rec", *SLOW])
def test_losses_equal_those_of_the_raw_files(raw, model, tmp_path) -> None:
    config = config_of(raw, model)
    to = tmp_path / "prepared"
    prepare(PrepareJob([str(raw / "some" / "some.inter")], to, config.data, config.run.seed))
    losses = []
    for name, path in (("some", raw), ("synthetic", to)):
        given = {"data.name": name, "data.path": str(path), "data.cache": False}
        values = {**DATA, **NO_DROPOUT.get(model, {}), **given, "model": model}
        values |= {"train.epochs": 2, "train.eval_every": 2, "train.batch_size": 256}
        values["run.output"] = str(tmp_path / f"run-{name}")
        result = train_here(resolve((), (), values))
        lines = (Path(result["folder"]) / "train.log").read_text().splitlines()
        found = [line.split("train loss")[-1] for line in lines if "train loss" in line]
        assert len(found) == 2
        losses.append((found, result["test"]))
    assert losses[0] == losses[1]


def test_append_gives_what_all_files_at_once_give(tmp_path) -> None:
    table = rows()
    first = write_csv(tmp_path / "day-1.csv", table[:2000])
    second = write_csv(tmp_path / "day-2.csv", table[2000:])
    config = config_of(tmp_path, data__split__order="file").data
    whole = prepare(PrepareJob([str(first), str(second)], tmp_path / "whole", config))
    prepare(PrepareJob([str(first)], tmp_path / "grown", config))
    before = load_dataset(config.model_copy(update={"path": str(tmp_path / "grown")}), 1)
    kept = before.vocab["user_id"][:].tolist(), np.array(before.inter["user_id"])
    # What an append that was killed left: bytes that no manifest names, and its own folder.
    for name in ("column-0.bin", "words-1.bin"):
        with open(tmp_path / "grown" / name, "ab") as file:
            file.write(b"half of it")
    (tmp_path / ".grown.part" / "scratch").mkdir(parents=True)
    path = str(tmp_path / "grown")
    assert load_dataset(config.model_copy(update={"path": path}), 1).num_inter == 2000
    grown = prepare(PrepareJob([str(second)], tmp_path / "grown", config, append=True))
    assert not (tmp_path / ".grown.part").exists()
    assert grown["interactions"] == whole["interactions"]
    for name in ("column-0.bin", "column-1.bin", "words-0.bin", "ends-1.bin"):
        left, right = (tmp_path / folder / name for folder in ("whole", "grown"))
        assert left.read_bytes() == right.read_bytes()
    # What was open before still reads as it was.
    assert before.vocab["user_id"][:].tolist() == kept[0]
    np.testing.assert_array_equal(before.inter["user_id"], kept[1])
    after = load_dataset(config.model_copy(update={"path": str(tmp_path / "grown")}), 1)
    assert after.num_inter == ROWS and check(tmp_path / "grown") > 0
    # The same day again is not added twice.
    again = prepare(PrepareJob([str(second)], tmp_path / "grown", config, append=True))
    assert again == grown


def test_the_same_inputs_again_do_nothing_and_others_are_refused(tmp_path) -> None:
    file = write_csv(tmp_path / "a.csv", rows())
    other = write_csv(tmp_path / "b.csv", rows(1))
    config, to = config_of(tmp_path, data__split__order="file").data, tmp_path / "to"
    prepare(PrepareJob([str(file)], to, config))
    before = {path: path.stat().st_mtime_ns for path in to.rglob("*")}
    prepare(PrepareJob([str(file)], to, config))
    assert {path: path.stat().st_mtime_ns for path in to.rglob("*")} == before
    with pytest.raises(ValueError, match=r"other inputs: .*b\.csv is not among them.*--append"):
        prepare(PrepareJob([str(other)], to, config))
    few = config_of(tmp_path, data__split__order="file", data__filter__user_inter_num="[5,inf)")
    with pytest.raises(ValueError, match=r"data\.filter is .* was prepared with .*--to"):
        prepare(PrepareJob([str(file)], to, few.data))
    with pytest.raises(ValueError, match=r"user_inter_num is \S+ and .* was prepared with"):
        load_dataset(few.data.model_copy(update={"path": str(to)}), 1)
    prepare(PrepareJob([str(file)], tmp_path / "few", few.data))
    with pytest.raises(ValueError, match="looks at all rows"):
        prepare(PrepareJob([str(other)], tmp_path / "few", few.data, append=True))
    assert {path: path.stat().st_mtime_ns for path in to.rglob("*")} == before


def test_formats_give_the_same(tmp_path) -> None:
    import polars as pl

    table = rows()
    config = config_of(tmp_path, data__split__order="file").data
    csv = write_csv(tmp_path / "a.csv", table)
    packed = tmp_path / "b.csv.gz"
    packed.write_bytes(gzip.compress(csv.read_bytes()))
    pl.read_csv(csv).write_parquet(tmp_path / "c.parquet")
    semicolons = tmp_path / "d.csv"
    semicolons.write_bytes(csv.read_bytes().replace(b",", b";").replace(b"\n", b"\r\n"))
    made = [
        prepare(PrepareJob([str(path)], tmp_path / f"to-{number}", config))
        for number, path in enumerate((csv, packed, tmp_path / "c.parquet", semicolons))
    ]
    assert len({one["interactions"] for one in made}) == 1


def test_bad_input_is_one_error_and_leaves_nothing(tmp_path) -> None:
    config, to = config_of(tmp_path, data__split__order="file").data, tmp_path / "to"
    csv = write_csv(tmp_path / "a.csv", rows())
    cut = tmp_path / "cut.csv.gz"
    cut.write_bytes(gzip.compress(csv.read_bytes())[:-3000])
    no_item = tmp_path / "columns.csv"
    no_item.write_text("user_id,boook_id\n1,2\n")
    bad_row = tmp_path / "row.csv"
    bad_row.write_text("user_id,item_id,rating\n1,2,3\n1,2,good\n")
    short = tmp_path / "short.csv"
    short.write_text("user_id,item_id,rating\n1,2,3\n1,2\n")
    blank = tmp_path / "blank.csv"
    blank.write_text("user_id,item_id\n1,2\n\n1,3\n")
    for path, said in [
        (cut, r"cut\.csv\.gz cannot be unpacked"),
        (no_item, r"no column 'item_id'.*--data\.fields\.item"),
        (bad_row, r"row\.csv, line 3: 'good' in 'rating' is not a number"),
        (short, r"short\.csv, line 3: 2 cells where the header names 3"),
        (tmp_path / "none.csv", "is neither a file"),
    ]:
        with pytest.raises(ValueError, match=said):
            prepare(PrepareJob([str(path)], to, config))
        assert not to.exists() and not list(tmp_path.glob(".to.part"))
    assert prepare(PrepareJob([str(blank)], tmp_path / "blank", config))["rows"] == 2
    with pytest.raises(ValueError, match="named twice"):
        prepare(PrepareJob([str(csv), str(csv)], to, config))
    with locked(to), pytest.raises(ValueError, match="another `shoal prepare` is writing"):
        prepare(PrepareJob([str(csv)], to, config))
    prepare(PrepareJob([str(csv)], to, config))
    good = {path: path.read_bytes() for path in to.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="cannot be unpacked"):
        prepare(PrepareJob([str(cut)], to, config, append=True))
    assert load_dataset(config.model_copy(update={"path": str(to)}), 1).num_inter == ROWS
    assert (to / "manifest.json").read_bytes() == good[to / "manifest.json"]


@pytest.mark.parametrize("size", [1 << 26, 1 << 10], ids=["", "in parts"])
def test_bad_rows_are_left_out_and_counted(tmp_path, size, monkeypatch, caplog) -> None:
    import polars as pl

    monkeypatch.setattr(text, "TEXT_BYTES", size)
    monkeypatch.setattr(logging.getLogger("shoal"), "propagate", True)  # a run ends that
    config = config_of(tmp_path, data__split__order="file").data
    good = write_csv(tmp_path / "good.csv", rows())
    lines = good.read_text().splitlines()
    bad = ["u1,i1,1,good,0", "u1,i1", "", "u9,,1,3,0", '"u1"x,i2,1,3,0', "u1,i1,1,inf,0,7"]
    for place, line in zip((1, 2, 700, 1500, 2999, 3001), bad):
        lines.insert(place, line)
    (tmp_path / "bad.csv").write_text("\n".join(lines) + "\n")
    skip = config.model_copy(update={"bad_rows": "skip"})
    wanted = prepare(PrepareJob([str(good)], tmp_path / "good", config))
    found = prepare(PrepareJob([str(tmp_path / "bad.csv")], tmp_path / "bad", skip))
    assert found["interactions"] == wanted["interactions"]
    assert (found["bad_rows"], wanted["bad_rows"]) == (5, 0)  # an empty line is no row
    assert "bad.csv: 5 bad rows are left out (data.bad_rows: skip)" in caplog.text
    (tmp_path / "bad.csv").write_text("\n".join([*lines[:1000], bad[0]]) + "\n")
    with pytest.raises(ValueError, match=r"bad\.csv, line \d+: .* cells where the header names 5"):
        prepare(PrepareJob([str(tmp_path / "bad.csv")], tmp_path / "no", config))
    (tmp_path / "none.csv").write_text(f"{lines[0]}\n{bad[0]}\n")
    with pytest.raises(ValueError, match="holds no rows"):
        prepare(PrepareJob([str(tmp_path / "none.csv")], tmp_path / "no", skip))
    frame = pl.DataFrame({"user_id": ["a", None, "b"], "item_id": [1, 2, 3]})
    frame.write_parquet(tmp_path / "some.parquet")
    with pytest.raises(ValueError, match=r"row 2: 'user_id' is empty.*data\.bad_rows=skip"):
        prepare(PrepareJob([str(tmp_path / "some.parquet")], tmp_path / "no", config))
    made = prepare(PrepareJob([str(tmp_path / "some.parquet")], tmp_path / "some", skip))
    assert (made["rows"], made["bad_rows"]) == (2, 1) and not (tmp_path / "no").exists()


def test_a_vocabulary_of_other_data_is_refused(tmp_path) -> None:
    config = config_of(tmp_path, data__split__order="file").data
    other = rows(1)
    other[:, 0] += 100
    for name, table in (("a", rows()), ("b", other)):
        prepare(
            PrepareJob([str(write_csv(tmp_path / f"{name}.csv", table))], tmp_path / name, config)
        )
    for name in ("words-0.bin", "ends-0.bin"):
        shutil.copy(tmp_path / "b" / name, tmp_path / "a" / name)
    with pytest.raises(ValueError, match=r"a is damaged: .*; prepare it again"):
        load_dataset(config.model_copy(update={"path": str(tmp_path / "a")}), 1)
    with pytest.raises(ValueError, match=r"does not match its checksum|bytes, not"):
        check(tmp_path / "a")
    manifest = json.loads((tmp_path / "b" / "manifest.json").read_text())
    manifest["body"]["rows"] = 5
    (tmp_path / "b" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="does not match its checksum"):
        load_dataset(config.model_copy(update={"path": str(tmp_path / "b")}), 1)


def test_a_damaged_view_is_made_again(tmp_path) -> None:
    config = config_of(tmp_path, data__split__order="file").data
    to = tmp_path / "to"
    prepare(PrepareJob([str(write_csv(tmp_path / "a.csv", rows()))], to, config, seed=1))
    data = config.model_copy(update={"path": str(to)})
    good = np.array(load_dataset(data, 1).item_ids("train"))
    victim = next((to / "views").glob("*/item-train"))
    victim.write_bytes(b"\xff" * victim.stat().st_size)
    np.testing.assert_array_equal(load_dataset(data, 1).item_ids("train"), good)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system takes root")
def test_a_full_disk_is_reported_and_nothing_is_lost(tmp_path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    csv = write_csv(tmp_path / "a.csv", rows(count=100_000))
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        config = config_of(tmp_path, data__split__order="file").data
        with pytest.raises(ValueError, match=r"cannot write .*No space left on device; make room"):
            prepare(PrepareJob([str(csv)], small / "to", config))
        assert not list(small.iterdir())
        few = write_csv(tmp_path / "few.csv", rows(count=2000))
        prepare(PrepareJob([str(few)], small / "to", config))
        with pytest.raises(ValueError, match="No space left on device"):
            prepare(PrepareJob([str(csv)], small / "to", config, append=True))
        data = config.model_copy(update={"path": str(small / "to")})
        assert load_dataset(data, 2020).num_inter == 2000
        del data
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_a_computed_order_is_a_permutation(monkeypatch) -> None:
    """Every number once, the same by any slices, another in every epoch."""
    monkeypatch.setattr(random_room, "IN_MEMORY", 0)
    for n in (1, 2, 3, 10, 97, 5000):
        order = random_room.Shuffle(n, 3, 4)
        whole = order[0:n]
        assert sorted(whole.tolist()) == list(range(n))
        for start in range(0, n, 7):
            np.testing.assert_array_equal(order[start : start + 7], whole[start : start + 7])
    first, second = (random_room.Shuffle(5000, 3, epoch)[0:5000] for epoch in (0, 1))
    assert (first == second).mean() < 0.01
    assert abs(np.corrcoef(first, np.arange(5000))[0, 1]) < 0.05
    places = [random_room.Shuffle(20, 3, epoch)[0:1][0] for epoch in range(600)]
    counts = np.bincount(places, minlength=20)  # 30 each, by chance between 8 and 60
    assert counts.min() > 8 and counts.max() < 60


@pytest.mark.slow
def test_training_from_a_prepared_folder_does_not_import_polars(tmp_path) -> None:
    to = tmp_path / "to"
    config = config_of(tmp_path, data__split__order="file").data
    prepare(PrepareJob([str(write_csv(tmp_path / "a.csv", rows()))], to, config))
    script = (
        "import sys; sys.modules['polars'] = None\n"
        "from shoal.config.schema import DataSection, SplitSection\n"
        "from shoal.data.loading.load import load_dataset\n"
        f"data = DataSection(path={str(to)!r}, split=SplitSection(by='ratio'))\n"
        "assert load_dataset(data, 1).num_inter == 3000\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)

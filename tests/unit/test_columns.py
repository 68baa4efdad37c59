"""The cache of prepared columns: exact, checked, committed whole, and never in the way."""

import json
import logging
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from shoal.config.schema import DataSection
from shoal.data.columns import DamagedColumns, open_columns, save_columns
from shoal.data.dataset import Dataset, Ragged
from shoal.data.prepare import load_dataset

INTER = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n" + "".join(
    f"u{n % 7}\titem {n % 11} é\t{n % 5}\t{n}\n" for n in range(100)
)
ITEM = "item_id:token\ttags:token_seq\tyear:float\n" + "".join(
    f"item {n} é\tt{n % 2} t{n % 3}\t{1990 + n}\n" for n in range(11)
)
KG = "head_id:token\trelation_id:token\ttail_id:token\na\tr\tb\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "toy").mkdir()
    for suffix, text in {"inter": INTER, "item": ITEM, "kg": KG}.items():
        (tmp_path / "toy" / f"toy.{suffix}").write_text(text)
    return tmp_path


def section(folder, **options):
    options.setdefault("load", {"inter": ["*"], "item": ["*"], "kg": ["*"]})
    return DataSection(name="toy", path=str(folder), **options)


def entries(folder):
    return sorted((folder / "toy" / ".shoal").iterdir())


def assert_same(one: Dataset, other: Dataset):
    def plain(columns):
        return {
            name: (c.values.tolist(), c.offsets.tolist()) if isinstance(c, Ragged) else c.tolist()
            for name, c in columns.items()
        }

    for name in ("name", "user_field", "item_field", "time_field", "label_field"):
        assert getattr(one, name) == getattr(other, name)
    assert list(one.types.items()) == list(other.types.items())
    for name in ("inter", "users", "items", "vocab", "splits"):
        assert plain(getattr(one, name)) == plain(getattr(other, name))
    assert {s: plain(c) for s, c in one.extra.items()} == {
        s: plain(c) for s, c in other.extra.items()
    }
    for name, column in one.inter.items():
        assert column.dtype == other.inter[name].dtype


def test_cached_equals_prepared_and_is_memory_mapped(folder):
    prepared = load_dataset(section(folder, cache=False), 1)
    assert not (folder / "toy" / ".shoal").exists()
    stored = load_dataset(section(folder), 1)
    cached = load_dataset(section(folder), 1)
    assert_same(prepared, stored)
    assert_same(prepared, cached)
    assert isinstance(cached.inter["user_id"], np.memmap)
    assert not cached.inter["user_id"].flags.writeable
    assert cached.vocab["head_id"] is cached.vocab["tail_id"]
    assert len(entries(folder)) == 1


def test_the_cache_is_what_is_read(folder, monkeypatch):
    load_dataset(section(folder), 1)
    monkeypatch.setattr("shoal.data.sources.atomic.read", None)  # would fail if called
    assert load_dataset(section(folder), 1).num_inter == 100


def test_training_from_the_cache_does_not_import_polars(folder):
    load_dataset(section(folder), 1)
    code = (
        "import sys; from shoal.config.schema import DataSection;"
        "from shoal.data.prepare import load_dataset;"
        f"config = DataSection.model_validate_json({section(folder).model_dump_json()!r});"
        "assert load_dataset(config, 1).num_inter == 100;"
        "assert load_dataset(DataSection(), 1).num_inter == 100000;"
        "assert 'polars' not in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


@pytest.mark.parametrize(
    ("change", "seed", "fresh"),
    [
        ({"max_len": 3}, 1, False),
        ({}, 2, True),
        ({"split": {"order": "time"}}, 1, True),
        ({"filter": {"values": {"rating": "[1,4]"}}}, 1, True),
        ({"load": None}, 1, True),
    ],
)
def test_key_follows_what_matters(folder, change, seed, fresh):
    load_dataset(section(folder), 1)
    load_dataset(section(folder, **change), seed)
    assert len(entries(folder)) == (2 if fresh else 1)


def test_time_split_does_not_depend_on_the_seed(folder):
    load_dataset(section(folder, split={"order": "time"}), 1)
    load_dataset(section(folder, split={"order": "time"}), 2)
    assert len(entries(folder)) == 1


def test_changed_file_is_read_again(folder):
    assert load_dataset(section(folder), 1).num_inter == 100
    path = folder / "toy" / "toy.inter"
    path.write_text(INTER.replace("u1\t", "uX\t", 1))  # the same size
    os.utime(path, ns=(1, 1))
    assert "uX" in load_dataset(section(folder), 1).vocab["user_id"].tolist()


def damage_cut(entry):
    path = entry / "0.npy"
    path.write_bytes(path.read_bytes()[:-8])


def damage_flip(entry):
    path = entry / "1.npy"
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(bytes(data))


def damage_missing(entry):
    (entry / "2.npy").unlink()


def damage_manifest(entry):
    text = (entry / "manifest.json").read_text()
    (entry / "manifest.json").write_text(text.replace('"toy"', '"toi"'))


def damage_half_manifest(entry):
    text = (entry / "manifest.json").read_text()
    (entry / "manifest.json").write_text(text[: len(text) // 2])


def damage_empty(entry):
    for path in entry.iterdir():
        path.unlink()


def damage_pickle(entry):
    np.save(entry / "0.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)


@pytest.mark.parametrize(
    "damage",
    [
        damage_cut,
        damage_flip,
        damage_missing,
        damage_manifest,
        damage_half_manifest,
        damage_empty,
        damage_pickle,
    ],
)
def test_damage_is_reported_and_repaired(folder, caplog, damage):
    good = load_dataset(section(folder, cache=False), 1)
    load_dataset(section(folder), 1)
    (entry,) = entries(folder)
    damage(entry)
    with pytest.raises(DamagedColumns):
        open_columns(entry)
    with caplog.at_level(logging.WARNING):
        assert_same(good, load_dataset(section(folder), 1))
    assert f"cache {entry} is damaged" in caplog.text
    caplog.clear()
    assert_same(good, load_dataset(section(folder), 1))
    assert not caplog.text
    assert entries(folder) == [entry]


def test_no_room_for_a_cache_is_no_failure(folder, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("shoal"), "propagate", True)  # a run ends that
    (folder / "toy" / ".shoal").write_text("in the way, as a read-only folder would be")
    with caplog.at_level(logging.INFO):
        data = load_dataset(section(folder), 1)
    assert data.num_inter == 100
    assert len({record.message for record in caplog.records if "no cache" in record.message}) == 1


def test_failure_while_writing_leaves_nothing(folder, monkeypatch):
    def full(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(np, "save", full)
    assert load_dataset(section(folder), 1).num_inter == 100
    assert entries(folder) == []


def test_left_overs_of_killed_writers_go_after_a_day(folder):
    hidden = folder / "toy" / ".shoal"
    for name, age in (("old.tmp", 90_000), ("young.tmp", 60)):
        (hidden / name).mkdir(parents=True)
        os.utime(hidden / name, (time.time() - age,) * 2)
    load_dataset(section(folder), 1)
    assert [e.name for e in entries(folder) if e.name.endswith(".tmp")] == ["young.tmp"]


def test_the_second_writer_uses_the_winner(tmp_path, folder):
    data = load_dataset(section(folder, cache=False), 1)
    save_columns(tmp_path / "place", data)
    before = (tmp_path / "place" / "manifest.json").stat().st_ino
    save_columns(tmp_path / "place", data)
    assert (tmp_path / "place" / "manifest.json").stat().st_ino == before
    assert_same(data, open_columns(tmp_path / "place"))
    assert not list(tmp_path.glob("*.tmp"))


def prepare_with_others(path, barrier, results):
    barrier.wait()
    data = load_dataset(section(Path(path)), 1)
    results.put(int(data.inter["item_id"].sum()))


@pytest.mark.slow
def test_many_processes_at_once(folder):
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(3), context.SimpleQueue()
    workers = [
        context.Process(target=prepare_with_others, args=(str(folder), barrier, results))
        for _ in range(3)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert len({results.get() for _ in workers}) == 1
    assert len(entries(folder)) == 1
    assert not [e for e in entries(folder) if e.name.endswith(".tmp")]


def test_odd_words_survive(tmp_path):
    words = np.array(["[PAD]", "", "a b", "日本", "\x00", "é" * 300, "-"], dtype=object)
    data = Dataset(
        name="odd/name",
        user_field="u",
        item_field="i/../x",
        time_field=None,
        label_field=None,
        inter={"u": np.arange(3), "i/../x": np.arange(3)},
        types={"u": "token", "i/../x": "token"},
        vocab={"u": words, "i/../x": np.array(["[PAD]", "x", "y"], dtype=object)},
        splits={"train": np.arange(3), "valid": np.arange(0), "test": np.arange(0)},
    )
    save_columns(tmp_path / "odd", data)
    assert_same(data, open_columns(tmp_path / "odd"))
    manifest = json.loads((tmp_path / "odd" / "manifest.json").read_text())
    assert manifest["body"]["names"]["name"] == "odd/name"
    assert (
        sorted(p.parent.name for p in (tmp_path / "odd").rglob("*")) == ["odd"] * 10
    )  # 9 arrays and the manifest


def test_cached_ml_100k_is_read_once(tmp_path, monkeypatch):
    data = os.environ.get("SHOAL_TEST_DATA")
    if not data or not (Path(data) / "ml-100k").exists():
        pytest.skip("SHOAL_TEST_DATA names no folder with ml-100k")
    (tmp_path / "ml-100k").mkdir()
    shutil.copy(Path(data) / "ml-100k" / "ml-100k.inter", tmp_path / "ml-100k")
    config = DataSection(name="ml-100k", path=str(tmp_path))
    first = load_dataset(config, 2020)
    monkeypatch.setattr("shoal.data.prepare.atomic.read", None)
    assert_same(first, load_dataset(config, 2020))

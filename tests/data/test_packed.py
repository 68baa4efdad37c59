"""Text that gzip compressed is read as if it were not."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from shoal.clicks.log import ClickLog, make_layout, pick_format
from shoal.clicks.stream import Stream, load
from shoal.config.schema import ClicksSection, DataSection
from shoal.data.loading.load import load_dataset
from shoal.data.prepared.folder import PrepareJob
from shoal.data.prepared.preparation import prepare

SLOTS = "".join(f"click:{k % 2} 1:{k + 1}\n" for k in range(5000))
CSV = "label,C1\n" + "".join(f"{k % 2},{k + 1}\n" for k in range(5000))
CRITEO = "".join(
    "\t".join([str(k % 2), *["3"] * 13, *["ab"] * 26]) + "\n" for k in range(5000)
)  # fmt: skip
ATOMIC = "user_id:token\titem_id:token\nu1\ti1\nu1\ti2\nu2\ti1\n"


def clicks(form: str) -> ClicksSection:
    return ClicksSection(**({} if form == "criteo" else {"slots": 1, "dense": 0}))


@pytest.mark.parametrize("form, text", [("slots", SLOTS), ("csv", CSV), ("criteo", CRITEO)])
def test_a_packed_click_log(form: str, text: str, tmp_path: Path) -> None:
    plain, packed = tmp_path / f"log.{form}", tmp_path / f"log.{form}.gz"
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    section = clicks(form)
    data = DataSection(path=str(tmp_path), clicks=ClicksSection(train=packed.name))
    assert pick_format(data) == form
    layout = make_layout(section, form)
    one, two = (ClickLog([file], form, layout) for file in (plain, packed))
    assert two.count(packed) == one.count(plain) == 5000
    expected, found = load(one), load(two)
    assert len(found) == 5000 and (found.labels == np.arange(5000) % 2).all()
    assert (found.ids == expected.ids).all() and (found.dense == expected.dense).all()
    stream = Stream(two, 1000, [5000])
    assert [batch.size for batch in stream.batches(0, start=2)] == [1000] * 3
    assert one.fingerprint() != two.fingerprint()


def test_a_program_is_given_the_packed_bytes(tmp_path: Path) -> None:
    (tmp_path / "log.gz").write_bytes(gzip.compress(SLOTS.encode()))
    layout = make_layout(clicks("slots"), "slots")
    found = load(ClickLog([tmp_path / "log.gz"], "slots", layout, "gzip -dc"))
    assert found.ids[:, 0].tolist() == list(range(1, 5001))


@pytest.mark.parametrize("cut", [12, 5000])
def test_a_damaged_file_is_named(cut: int, tmp_path: Path) -> None:
    text = np.random.default_rng(0).integers(0, 10**9, 5000)
    packed = gzip.compress("".join(f"click:0 1:{k}\n" for k in text.tolist()).encode())
    (tmp_path / "log.gz").write_bytes(packed[:cut])
    log = ClickLog([tmp_path / "log.gz"], "slots", make_layout(clicks("slots"), "slots"))
    for read in (load, lambda log: log.count(log.files[0])):
        with pytest.raises(ValueError, match=r"log.gz cannot be unpacked: .*not whole"):
            read(log)
    (tmp_path / "log.gz").write_bytes(packed[:cut] + b"xxxxxxxx" + packed[cut + 8 :])
    with pytest.raises(ValueError, match=r"log.gz"):
        load(log)


@pytest.mark.parametrize("name", ["few.inter", "few.inter.gz"])
def test_packed_interactions(name: str, tmp_path: Path) -> None:
    (tmp_path / "few").mkdir()
    (tmp_path / "few" / name).write_bytes(gzip.compress(ATOMIC.encode()))
    dataset = load_dataset(DataSection(path=str(tmp_path), name="few", cache=False), 0)
    assert dataset.inter["user_id"].tolist() == [1, 1, 2]  # type: ignore[union-attr]
    assert dataset.vocab["item_id"].tolist() == ["[PAD]", "i1", "i2"]


def test_packed_ratings(tmp_path: Path) -> None:
    (tmp_path / "ml").mkdir()
    rows = b"userId,movieId,rating,timestamp\n7,9,4.5,1\n7,3,1,2\n"
    (tmp_path / "ml" / "ratings.csv.gz").write_bytes(gzip.compress(rows))
    dataset = load_dataset(DataSection(path=str(tmp_path), name="ml", cache=False), 0)
    assert dataset.vocab["item_id"].tolist() == ["[PAD]", "9", "3"]
    assert dataset.inter["rating"].tolist() == [4.5, 1.0]  # type: ignore[union-attr]


# ---- bombs --------------------------------------------------------------------------------------


def bomb(byte: bytes) -> bytes:
    """32 kB of zstd that stand for 1 GiB of one byte, in one frame: blocks that repeat it."""
    blocks = 8192
    head = b"\x28\xb5\x2f\xfd\x00\x58"  # the magic number, and a window of 2 MiB
    block = [(1 << 17 << 3 | 1 << 1 | last).to_bytes(3, "little") + byte for last in (0, 1)]
    return head + block[0] * (blocks - 1) + block[1]


def table(path: Path) -> None:
    load_dataset(DataSection(path=str(path.parent), files={"inter": path.name}, cache=False), 0)


def atomic(path: Path) -> None:
    (path.parent / "x").mkdir()
    path.rename(path.parent / "x" / "x.inter")
    load_dataset(DataSection(path=str(path.parent), name="x", cache=False), 0)


def log(path: Path, read: Callable[[ClickLog], object] = load) -> None:
    read(ClickLog([path], "slots", make_layout(clicks("slots"), "slots")))


def count(path: Path) -> None:
    log(path, lambda found: found.count(path))


def prepared(path: Path) -> None:
    prepare(PrepareJob([str(path)], path.parent / "made", DataSection()))


@pytest.mark.parametrize("head", [b"", b"user_id,item_id\n"])
@pytest.mark.parametrize("byte", [b"a", b"\n"])
@pytest.mark.parametrize("read", [table, atomic, log, count, prepared])
def test_a_small_file_that_unpacks_to_a_large_one_is_refused(
    read: Callable[[Path], None], byte: bytes, head: bytes, tmp_path: Path
) -> None:
    zstandard = pytest.importorskip("zstandard")
    path = tmp_path / "log.csv"
    path.write_bytes((zstandard.compress(head) if head else b"") + bomb(byte))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"log\.csv|x\.inter"):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 400 << 20
    finally:
        tracemalloc.stop()

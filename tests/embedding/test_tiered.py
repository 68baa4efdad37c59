"""Rows in host memory over rows on a disk: the numbers of a leaf that has all in memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest
import torch
from click_batches import global_batch, make_model
from ranks import run_ranks

from shoal.config.row_rules import RowsSection
from shoal.config.schema import OptimizerSection, StrategySection
from shoal.config.sizes import read_size
from shoal.distributed.world import World
from shoal.embedding.engines import tiered
from shoal.embedding.engines.budgets import BudgetShare, share_out
from shoal.embedding.engines.local import make_local
from shoal.embedding.engines.row_records import RowRecords
from shoal.embedding.engines.tiered import Tiered
from shoal.embedding.rows.store import EVERY, Rows
from shoal.embedding.rows.table import Init, Table
from shoal.kernels.core import has_core
from shoal.optimizers.row_optimizer import DEFINITIONS, RowOptimizer
from shoal.runs.run import resolve
from shoal.runs.run import train as train_run
from shoal.training.strategies import make_strategy
from shoal.training.strategies.base import Single

pytestmark = pytest.mark.skipif(not has_core(), reason="the native core is not built")
ROWS, SLOTS, SPREAD = 400, 60, 0x5DEECE66D12345


def make(folder, rows=ROWS, optimizer="adagrad", padding=None, **how):
    table = Table("t", 5, rows, Init("uniform", 0.1), padding)
    chosen = RowOptimizer(optimizer)
    ours = Tiered(table, chosen, 3, how.pop("slots", SLOTS), folder, segment_rows=16, **how)
    return ours, make_local(table, chosen, 3, backend="native")


def draw(step, rows, count=40):
    generator = torch.Generator().manual_seed(step)
    ids = (torch.rand(count, generator=generator) ** 3 * ROWS).long()
    return ids * SPREAD - 9 if rows is None else ids


def train(ours, theirs, steps, rows, ahead=True, first=0):
    for step in range(first, first + steps):
        ids = draw(step, rows)
        if ahead:
            ours.prefetch([draw(step + 1, rows)])
        got, want = ours.pull(ids), theirs.pull(ids)
        assert torch.equal(got, want)
        grads = want * 0.1 + torch.sin(torch.arange(want.numel()).view_as(want) + step)
        for leaf in (ours, theirs):
            leaf.push(ids, grads, 0.05)


def assert_same_rows(ours, theirs, chunk_rows=64):
    got, want = list(ours.export(chunk_rows)), list(theirs.export(chunk_rows))
    assert len(ours) == len(theirs) and ours.step == theirs.step
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one.ids, other.ids) and torch.equal(one.values, other.values)
        assert one.state.keys() == other.state.keys()
        for key, part in one.state.items():
            assert torch.equal(part, other.state[key])


FAST = [(ROWS, name) for name in DEFINITIONS] + [(None, "adam")]
SLOW = [(None, name) for name in DEFINITIONS if name != "adam"]


@pytest.mark.parametrize(
    ("rows", "optimizer"),
    [*FAST, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_every_optimizer_has_the_numbers_of_rows_in_memory(optimizer, rows, tmp_path):
    ours, theirs = make(tmp_path, rows, optimizer, padding=0)
    train(ours, theirs, 12, rows)
    assert ours.traffic.evicted > SLOTS and len(ours.cold) > SLOTS
    assert_same_rows(ours, theirs)


def test_places_on_the_disk_are_used_again(tmp_path):
    ours, theirs = make(tmp_path, padding=None)
    train(ours, theirs, 80, ROWS, ahead=False)
    there = len(ours.cold.segments) * 16
    assert ours.traffic.evicted > 3 * there and there <= ROWS + 16
    assert len(list(ours.cold.folder.glob("*.rows"))) == len(ours.cold.segments)
    assert_same_rows(ours, theirs)


def test_what_is_announced_is_read_before_it_is_asked_for(tmp_path):
    ours, theirs = make(tmp_path)
    train(ours, theirs, 20, ROWS, ahead=False)
    assert ours.traffic.ahead == 0 < ours.traffic.cold
    train(ours, theirs, 20, ROWS, first=20)
    ours._pool.shutdown()
    assert ours.traffic.ahead and ours.traffic.hot


@pytest.mark.parametrize("rows", [ROWS, None])
def test_a_checkpoint_goes_through_it_both_ways(rows, tmp_path):
    ours, theirs = make(tmp_path, rows, "adam")
    train(ours, theirs, 20, rows)
    again, _ = make(tmp_path, rows, "adam")
    for chunk in theirs.export(100):
        again.restore(chunk)
    again.step = theirs.step
    assert_same_rows(again, theirs)
    train(again, theirs, 20, rows, first=20)
    if rows is None:
        again.forget()
        assert len(again) == 0 and not list(again.export())
        fresh = make(tmp_path, rows, "adam")[1]
        again.step = 0
        train(again, fresh, 10, rows)


def test_all_rows_at_once_and_values_that_are_set(tmp_path):
    ours, theirs = make(tmp_path)
    train(ours, theirs, 20, ROWS)
    evicted = ours.traffic.evicted
    assert torch.equal(ours.pull(EVERY), theirs.pull(EVERY))
    assert ours.traffic.evicted == evicted  # none had to go for it
    ids = torch.randperm(ROWS)[:100]
    for leaf in (ours, theirs):
        leaf.assign(ids, torch.ones(100, 5))
    train(ours, theirs, 10, ROWS, first=20)
    assert_same_rows(ours, theirs)


def test_what_cannot_be_is_refused(tmp_path):
    ours, _ = make(tmp_path, slots=10)
    ids = torch.arange(11)
    with pytest.raises(ValueError, match=r"rows\.tiers\.host .*train\.batch_size"):
        ours.push(ids, torch.zeros(11, 5), 0.1)
    with pytest.raises(ValueError, match="no row 400"):
        ours.pull(torch.tensor([400]))
    bad = Rows(torch.tensor([1]), torch.zeros(1, 5), {})
    with pytest.raises(ValueError, match="no state"):
        ours.restore(bad)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"rows\.tiers\.ssd"):
        make(tmp_path / "file")


def test_a_damaged_record_is_told(tmp_path):
    ours, theirs = make(tmp_path)
    train(ours, theirs, 20, ROWS, ahead=False)
    for segment in ours.cold.segments:
        segment[:, 2] ^= 1 << 40
    with pytest.raises(ValueError, match=r"damaged .*checkpoint"):
        list(ours.export())


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    ours, theirs = make(tmp_path)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ValueError, match=r"No space left .*rows\.tiers\.ssd"):
        train(ours, theirs, 20, ROWS)


def test_folders_of_killed_processes_are_removed_and_those_of_others_stay(tmp_path):
    mine, _ = make(tmp_path)
    code = (
        "import sys, torch, pathlib; from shoal.embedding.engines.row_records import RowRecords\n"
        "log = RowRecords(pathlib.Path(sys.argv[1]), 't', 3, 16)\n"
        "log.put(torch.ones(40, 3, dtype=torch.int64)); print('spilled', flush=True)\n"
        "sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout.readline() == b"spilled\n"
    make(tmp_path)
    assert len(list(tmp_path.glob("shoal-rows-*/0.rows"))) == 1  # it lives
    child.send_signal(signal.SIGKILL)
    child.wait()
    theirs = next(tmp_path.glob("shoal-rows-*/0.rows")).parent
    make(tmp_path)
    assert not theirs.exists() and mine.cold.folder.exists()
    mine.cold.close()
    assert not mine.cold.folder.exists()


def test_folders_that_begin_at_once_leave_each_other_alone(tmp_path):
    made: list[RowRecords] = []

    def make_some() -> None:
        made.extend(RowRecords(tmp_path, "t", 3, 8) for _ in range(40))

    threads = [threading.Thread(target=make_some) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 320 and all((log.folder / "lock").exists() for log in made)


def test_more_than_memory_has_room_for_passes_through(tmp_path, monkeypatch):
    monkeypatch.setattr(tiered, "AT_ONCE", 7)
    ours, theirs = make(tmp_path, None)
    train(ours, theirs, 25, None)
    assert_same_rows(ours, theirs, chunk_rows=1 << 20)


def curve(world, strategy, model, rows, tiers=None):
    made = make_strategy(StrategySection(**strategy), world)
    section = OptimizerSection(name="adagrad", lr=0.05)
    given = RowsSection(tiers=tiers or {})
    made.setup(make_model(model, rows), section, seed=1, rows=given)
    found = []
    for step in range(1, 7):  # batches of 20, of which a rank has its part
        batch = global_batch(step, "one", rows).rows(0, 20)
        cuts = [20 * rank // world.size for rank in (world.rank, world.rank + 1)]
        made.prefetch(batch.rows(*cuts))
        found.append(float(made.train_step(batch.rows(*cuts))))
    engines = [getattr(store, "engine", store) for store in made.stores.values()]
    kinds = {type(engine).__name__ for engine in engines}
    evicted = [engine.traffic.evicted for engine in engines if isinstance(engine, Tiered)]
    return found, sorted(kinds), evicted


@pytest.mark.parametrize(("rows", "host"), [("fixed", "12KB"), ("grows", "16KB")])
def test_a_model_trains_on_tiers_as_it_does_in_memory(rows, host, tmp_path):
    tiers = {"host": host, "ssd": str(tmp_path)}
    got, kinds, evicted = curve(World(), {"name": "single"}, "DeepFM", rows, tiers)
    want, _, _ = curve(World(), {"name": "single"}, "DeepFM", rows)
    assert got == want
    assert "Tiered" in kinds and max(evicted) > 0


def sharded_curves(world, folder):
    how = {"name": "sharded", "place": "row"}
    return [
        curve(world, how, "DeepFM", rows, {"host": host, "ssd": str(folder)})
        for rows, host in (("fixed", "6600B"), ("grows", "12KB"))
    ]


@pytest.mark.slow
def test_sharded_tables_have_tiers_too(tmp_path):
    for ranks in run_ranks(sharded_curves, 2, tmp_path / "ranks", str(tmp_path)):
        for rows, (got, kinds, evicted) in zip(("fixed", "grows"), ranks):
            want, _, _ = curve(World(), {"name": "single"}, "DeepFM", rows)
            assert got == pytest.approx(want, rel=1e-5)
            assert "Tiered" in kinds and max(evicted) > 0


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"host": "60 parsecs", "ssd": "x"}, "60 parsecs.* is no size"),
        ({"host": "1GB"}, r"rows\.tiers\.ssd"),
        ({"ssd": "x"}, r"rows\.tiers\.host"),
        ({"hosts": "1GB"}, "host"),
    ],
)
def test_sections_that_cannot_be(values, error):
    with pytest.raises(ValueError, match=error):
        RowsSection(tiers=values)


def test_budgets_are_shared_out():
    tables = {name: Table(name, 8, rows) for name, rows in (("s", 100), ("l", 10**6), ("g", None))}
    optimizers = dict.fromkeys(tables, RowOptimizer("adagrad"))
    shares = share_out(tables, optimizers, 40_000_000)
    assert shares["s"] == BudgetShare(100 * 64, None)
    half = (40_000_000 - 6400) // 2
    assert shares["l"] == BudgetShare(half, (half - 8_000_000) // (64 + 16))
    assert shares["g"].slots == (40_000_000 - 6400 - half) // (64 + 16 + 24)
    with pytest.raises(ValueError, match=r"table 'l' .*at least 16\.\d MB"):
        share_out(tables, optimizers, 8_000_000)
    assert read_size("1.5GiB") == 3 << 29 and read_size("20GB") == 20 * 10**9


def test_tiers_that_nobody_would_have_are_refused(tmp_path):
    tiers = {"host": "16KB", "ssd": str(tmp_path)}
    with pytest.raises(ValueError, match="leave out one of the two"):
        made = Single(World())
        section = RowsSection(tiers=tiers, admission={"threshold": 2.0})
        made.setup(make_model("DeepFM", "grows"), OptimizerSection(), 1, rows=section)
    values = {"strategy.name": "ps", **{f"rows.tiers.{k}": v for k, v in tiers.items()}}
    assert resolve(values=values).config.rows.tiers.host == 16_000
    for more, why in (
        ({"strategy.ps.mode": "geo"}, r"rows\.tiers\.host: .*strategy\.name=single"),
        ({"rows.tiers.gpu": "1MB"}, r"rows\.tiers\.gpu: .*strategy\.name=single"),
        ({"strategy.ps.addresses": ["h:1"]}, "--tiers-host"),
    ):
        with pytest.raises(ValueError, match=why):
            resolve(values=values | more)


KILLED = """
import os, sys
from pathlib import Path
from shoal.embedding.engines.row_records import RowRecords
from shoal.runs import run
from test_tiered import killed_config
put, out, left = RowRecords.put, Path(sys.argv[1]), 5
def half(self, records):
    global left
    left -= any(out.rglob("*.safetensors"))  # something is committed
    if left == 0:
        put(self, records[: len(records) // 2])
        os.kill(os.getpid(), 9)
    return put(self, records)
RowRecords.put = half
run.train(killed_config(out), False)
"""


def killed_config(folder):
    values = {
        "model": "BPR",
        "data.format": "synthetic",
        "train.epochs": 3,
        "train.batch_size": 200,
        "train.optimizer.lr": 0.01,
        "rows.tiers.host": "1MB",
        "rows.tiers.ssd": str(folder / "ssd"),
        "run.output": str(folder / "run"),
        "run.progress": False,
        "run.trackers": [],
    }
    return resolve(values=values)


@pytest.mark.slow
def test_a_kill_in_the_middle_of_a_spill_loses_nothing_committed(tmp_path):
    child = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path / "killed")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert child.returncode == -signal.SIGKILL
    assert list((tmp_path / "killed" / "ssd").glob("shoal-rows-*/0.rows"))  # left behind
    resumed = train_run(killed_config(tmp_path / "killed"), True)
    whole = train_run(killed_config(tmp_path / "whole"), False)
    assert resumed["test"] == whole["test"]
    assert not list((tmp_path / "killed" / "ssd").glob("shoal-rows-*/0.rows"))

"""Histories cut by their lengths: batches of so many items, slices of like cost."""

from __future__ import annotations

from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pytest
from small import small_config
from test_exactly_once import numbered

from shoal.config.errors import ConfigError
from shoal.data.cuts import cost, even_cuts, num_batches_of
from shoal.data.history import Histories
from shoal.data.loading.load import load_dataset
from shoal.data.masking import MaskedWindows, Masking
from shoal.data.samples import Prefixes
from shoal.data.windows import LengthReader, Windows
from shoal.distributed.world import World
from shoal.runs.build import build
from shoal.training.cursor import Cursor
from shoal.training.run_folder import RunFolder
from shoal.training.trainer import Trainer

MOST = 160  # items of a batch
PLANS = ["windows", "bucketed windows", "prefixes", "masked windows", "masks from the start"]


def make(kind: str, shuffle: bool = True) -> LengthReader:
    """A reader of synthetic data, whose histories have 1 to 30 items and more."""
    dataset = load_dataset(small_config("Pop").data, 1)
    histories = Histories(dataset, ("train",), 30)
    how = (None, 23, 3, shuffle)
    if kind == "prefixes":
        return Prefixes(dataset, histories, *how)
    if "mask" in kind:
        from_start = "start" in kind
        masking = Masking(last_ratio=0.4, from_start=from_start, stride=15)
        return MaskedWindows(dataset, histories, masking, *how)
    return Windows(dataset, histories, *how, "bucket" in kind)


def numbers(reader: LengthReader, epoch: int, *place: int) -> list[list[int]]:
    """The samples of each batch."""
    return [one.dense["number"].int().tolist() for one in reader.batches(epoch, *place)]


def test_weights_are_cut_in_order() -> None:
    weights = np.array([5, 1, 1, 1, 1, 1])
    assert even_cuts(weights, 1).tolist() == [0, 6]
    assert even_cuts(weights, 2).tolist() == [0, 1, 6]
    assert even_cuts(np.array([1, 1, 1, 1]), 4).tolist() == [0, 1, 2, 3, 4]
    assert even_cuts(np.array([7]), 3).tolist() == [0, 0, 1, 1]
    assert even_cuts(np.array([], dtype=np.int64), 2).tolist() == [0, 0, 0]
    assert cost(np.array([1, 100]), 100).tolist() == [101, 20000]  # its pairs cost as its items


@pytest.mark.parametrize("seed", range(20))
def test_parts_stay_within_their_bounds(seed: int) -> None:
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, 50, draw.integers(1, 400))
    longest, total = int(lengths.max()), int(lengths.sum())
    most = int(draw.integers(3 * longest, 10 * longest))
    cuts = even_cuts(lengths, num_batches_of(total, longest, most))
    sums = np.add.reduceat(lengths, cuts[:-1])
    assert (np.diff(cuts) > 0).all()  # else a step would have nothing to learn from
    assert sums.sum() == total and sums.max() <= most
    if total > most:
        assert sums.mean() > (most - longest) / 2


@pytest.mark.parametrize("kind", PLANS)
def test_a_batch_has_at_most_so_many_items(kind: str) -> None:
    reader = make(kind)
    reader.cut_by_tokens(MOST)
    orders = []
    for epoch in (0, 1):
        batches = list(reader.batches(epoch))
        items = [int((batch.tensor("history") > 0).sum()) for batch in batches]
        assert len(batches) == reader.num_batches and max(items) <= MOST
        assert all(batch.size for batch in batches)
        assert np.mean(items) > 0.5 * MOST  # 130, less where the last item alone is hidden
        orders.append(np.concatenate([reader.lengths(reader.order(epoch)[0:50])]).tolist())
    assert orders[0] != orders[1]


@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("balance", [False, True])
def test_slices_are_the_batch_in_order(kind: str, balance: bool) -> None:
    """Whatever the number of ranks, and whoever begins in the middle of an epoch."""
    reader = numbered(make(kind))
    assert isinstance(reader, LengthReader)
    reader.cut_by_tokens(MOST)
    alone = numbers(reader, 1)
    assert sorted(chain(*alone)) == list(range(reader.num_samples))
    reader.balance = balance
    for size in (2, 3, 5):
        slices = [numbers(reader, 1, rank, size, 2) for rank in range(size)]
        assert [[*chain(*parts)] for parts in zip(*slices, strict=True)] == alone[2:]
        first = [batch.first for batch in reader.batches(1, 1, size, 2)]
        assert first == [len(one) for one in slices[0]]


def test_like_lengths_share_a_batch_of_items() -> None:
    """Sorted and cut by items: short histories in large batches, trimmed to the longest."""
    reader = make("bucketed windows")
    reader.cut_by_tokens(MOST)
    batches = list(reader.batches(0))
    share = np.mean([float((batch.tensor("history") > 0).float().mean()) for batch in batches])
    lengths = [batch.tensor("history").shape[1] for batch in batches]
    assert share > 0.9 and len(set(lengths)) > 3 and lengths != sorted(lengths)


@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("size", [2, 3])
def test_slices_cost_the_same(kind: str, size: int) -> None:
    """Within 3 per cent of the mean."""
    reader, costs = make(kind), []
    reader.batch_size, reader.balance = 97, True
    for rank in range(size):
        batches = list(reader.batches(0, rank, size))[:-1]  # the last one may be small
        items = [(batch.tensor("history") > 0).sum(1).numpy() for batch in batches]
        costs.append([int(cost(one, 30).sum()) for one in items])
    # Where the last item alone is hidden, a window may be shorter than the reader counts.
    assert (np.max(costs, 0) / np.mean(costs, 0)).mean() < (1.15 if "mask" in kind else 1.03)


def test_one_long_history_beside_many_short_ones() -> None:
    """One of 30 items costs 1800, those of 2 items 64 each, a third of all 1880."""
    reader = make("windows")
    lengths = np.array([30, *[2] * 60])
    reader.lengths = lambda samples: lengths[samples]  # type: ignore[method-assign]
    slices = [reader.cut_by_cost(np.arange(61), rank, 3) for rank in range(3)]
    assert slices == [(0, 2), (2, 32), (32, 61)]  # 1864, 1920, 1856


@pytest.mark.parametrize("size", [2, 3, 8])
def test_lengths_with_a_long_tail(size: int) -> None:
    """The rank with most to do has 2 % above the mean; with as many samples each 5 to 20 %."""
    reader, draw = make("windows"), np.random.default_rng(5)
    tail = np.minimum(draw.lognormal(1.5, 1.0, (50, 128 * size)).astype(np.int64) + 1, 30)
    worst = {"balanced": 0.0, "as many": 0.0}
    for lengths in tail:
        reader.lengths = lambda samples, lengths=lengths: lengths[samples]  # type: ignore[misc]
        for how in worst:
            costs = []
            for rank in range(size):
                given = (np.arange(128 * size), rank, size)
                balanced = how == "balanced"
                cut = reader.cut_by_cost(*given) if balanced else reader.cut(128 * size, *given[1:])
                costs.append(int(cost(lengths[slice(*cut)], 30).sum()))
            worst[how] += max(costs) / np.mean(costs) / len(tail)
    assert worst["balanced"] < 1.02 < 1.05 < worst["as many"]


def test_too_few_items_are_refused() -> None:
    reader = make("windows")
    with pytest.raises(ValueError, match="give it at least 90, three of these"):
        reader.cut_by_tokens(89)


def curve(folder: Path, stop: int | None = None, resume: bool = False, **values: object) -> list:
    """(step, loss, learning rate step) of a run, or of its first steps."""
    config = small_config("SASRec", train__epochs=2, train__eval_every=0, **values)
    parts = build(config, World())
    run = RunFolder(folder)
    if not resume:
        run.create(resume=False)
    found: list = []

    def on_step(step: int, loss: object) -> None:
        found.append((step, float(loss), trainer.cursor.lr_step(parts.reader)))  # type: ignore[arg-type]
        if step == stop:
            raise KeyboardInterrupt

    trainer = Trainer(
        *(parts.config, parts.strategy, parts.reader, parts.evaluator, run, parts.fingerprint),
        on_step,
    )
    if resume:
        trainer.restore()
    try:
        trainer.fit(0.0)
    except KeyboardInterrupt:
        trainer.checkpoints.wait()
    return found


def test_a_run_by_items_resumes_within_an_epoch(tmp_path: Path) -> None:
    how = {
        "train__batch_tokens": 400,
        "train__balance": True,
        "train__bucket": True,
        "train__accumulate": 2,
        "train__optimizer__schedule": "linear",
        "checkpoint__every_steps": 5,
    }
    whole = curve(tmp_path / "whole", **how)
    reader = build(small_config("SASRec", train__batch_tokens=400), World()).reader
    assert len(whole) == 2 * reader.num_batches  # type: ignore[operator]
    # the step that the learning rate goes by counts each of them once: 1, 2, ...
    assert [at for _, _, at in whole] == list(range(1, len(whole) + 1))
    curve(tmp_path / "cut", stop=7, **how)
    rest = curve(tmp_path / "cut", resume=True, **how)
    assert rest[0][0] == 6  # after the checkpoint of step 5
    assert rest == whole[5:]


def test_a_cursor_counts_batches_of_any_size() -> None:
    reader = numbered(make("windows"))
    assert isinstance(reader, LengthReader)
    reader.cut_by_tokens(MOST)
    cursor, counted = Cursor(), []
    for size, steps in ((2, 3), (1, 1), (3, 10**6)):
        ranks = [reader.batches(0, rank, size, *cursor.position(reader)) for rank in range(size)]
        for batches in islice(zip(*ranks), steps):
            counted += [int(n) for batch in batches for n in batch.dense["number"]]
            cursor.count_step(reader)
        cursor = Cursor(**asdict(cursor))
    assert counted == [int(n) for batch in reader.batches(0) for n in batch.dense["number"]]


def test_models_without_histories_are_refused(tmp_path: Path) -> None:
    for values in ({"train__balance": True}, {"train__batch_tokens": 500}):
        config = small_config("BPR", **values)
        parts = build(config, World())
        given = (parts.strategy, parts.reader, parts.evaluator, RunFolder(tmp_path))
        with pytest.raises(ValueError, match=r"counts the items of histories, and BPR learns"):
            Trainer(parts.config, *given, parts.fingerprint)


@pytest.mark.parametrize("mode", ["async", "geo"])
@pytest.mark.parametrize("key, value", [("train.balance", True), ("train.batch_tokens", 500)])
def test_workers_with_separate_updates_are_refused(mode: str, key: str, value: object) -> None:
    servers = {"strategy__name": "ps", "strategy__ps__mode": mode}
    with pytest.raises(ConfigError, match=f"{key}: does not go with strategy.ps.mode={mode}"):
        small_config("SASRec", **{key.replace(".", "__"): value}, **servers)


def test_lent_batches_have_so_many_samples() -> None:
    servers = {"strategy__name": "ps", "strategy__ps__elastic": True}
    with pytest.raises(ConfigError, match=r"train.batch_tokens: does not go with .*elastic"):
        small_config("SASRec", train__batch_tokens=500, **servers)

"""Masked windows: laid and masked as the rule says, pure in (seed, epoch, sample)."""

from __future__ import annotations

import numpy as np
import pytest
from small import small_config

from shoal.data.history import Histories
from shoal.data.loading.load import load_dataset
from shoal.data.masking import Laid, MaskedWindows, Masking

DATASET = load_dataset(small_config("Pop").data, seed=1)
HISTORIES = Histories(DATASET, ("train",), max_len=12)
MASK = DATASET.num_items


def reader(batch_size: int = 10**6, seed: int = 3, **masking) -> MaskedWindows:
    return MaskedWindows(DATASET, HISTORIES, Masking(**masking), None, batch_size, seed)


def by_hand(length: int, max_len: int, stride: int) -> list[tuple[int, int]]:
    """Windows of one sequence: from the end in steps, then one at the beginning."""
    found, start = [], length - max_len
    while start > 0:
        found.append((start, start + max_len))
        start -= stride
    return [*found, (0, min(max_len, length))]


@pytest.mark.parametrize("max_len", [1, 5, 12])
@pytest.mark.parametrize("stride", [1, 2, 5, 7])
def test_windows_are_laid_from_the_end(max_len: int, stride: int) -> None:
    lengths = np.array([0, 1, 4, 5, 6, 11, 12, 13, 30])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    laid = Laid(offsets, max_len, stride)
    users, starts, stops = laid.find(np.arange(len(laid)))
    for user, length in enumerate(lengths):
        mine = users == user
        got = list(zip(starts[mine] - offsets[user], stops[mine] - offsets[user]))
        assert got == (by_hand(int(length), max_len, stride) if length else [])


@pytest.mark.parametrize("stride", [1, 2, 5])
def test_windows_are_laid_from_the_start(stride: int) -> None:
    lengths = np.array([0, 1, 4, 5, 6, 13])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    laid = Laid(offsets, 5, stride, from_start=True)
    users, starts, stops = laid.find(np.arange(len(laid)))
    for user, length in enumerate(lengths):
        mine = users == user
        got = list(zip(starts[mine] - offsets[user], stops[mine] - offsets[user]))
        assert got == [(i, min(i + 5, length)) for i in range(0, length, stride)]


def test_the_last_item_of_every_window_is_hidden() -> None:
    ours = reader(mask_ratio=0.1, random_ratio=0.0, hide_last=True, stride=6)
    samples = np.arange(ours.num_samples)
    _, starts, stops = ours.places(samples, 0)
    items = HISTORIES.padded(starts, stops - starts)
    history, target = ours.mask(items, samples, epoch=0)
    last = (items > 0).sum(1) - 1
    rows = np.arange(len(items))
    assert (history[rows, last] == MASK).all()
    assert (target[rows, last] == items[rows, last]).all()
    others = np.delete(np.arange(items.size), rows * items.shape[1] + last)
    hidden = (target.reshape(-1)[others] > 0).sum() / (items.reshape(-1)[others] > 0).sum()
    assert 0.08 < hidden < 0.12


def test_what_is_hidden_stands_in_the_target_and_nowhere_else() -> None:
    ours = reader(copies=2, stride=6)
    samples = np.arange(ours.num_samples)
    window = samples // 2
    _, starts, stops = ours.windows.find(window)
    items = HISTORIES.padded(starts, stops - starts)
    history, target = ours.mask(items, samples, epoch=4)
    hidden = target > 0
    assert (target[hidden] == items[hidden]).all()
    assert (history[~hidden] == items[~hidden]).all()
    assert (history[items == 0] == 0).all() and (target[items == 0] == 0).all()
    # No leak: a hidden place shows the mask, or an item that tells nothing of what was there.
    shown = history[hidden]
    random_items = shown[shown != MASK]
    assert random_items.min() >= 1 and random_items.max() < DATASET.num_items
    same = (shown == items[hidden])[shown != MASK].mean()
    assert same < 5.0 / DATASET.num_items + 0.02


def test_rates_are_those_asked_for() -> None:
    ours = reader(mask_ratio=0.3, random_ratio=0.2, copies=4, stride=2)
    (batch,) = ours.batches(0)
    history, target = batch.tensor("history").numpy(), batch.tensor("target").numpy()
    real, hidden = history > 0, target > 0
    n = real.sum()
    assert abs(hidden.sum() / n - 0.3) < 4 * (0.3 * 0.7 / n) ** 0.5
    masks = (history[hidden] == MASK).mean()
    assert abs(masks - 0.8) < 4 * (0.8 * 0.2 / hidden.sum()) ** 0.5
    # Every position of a window is as likely as any other.
    full = real.all(1)
    per_position = hidden[full].mean(0)
    assert np.abs(per_position - 0.3).max() < 5 * (0.21 / full.sum()) ** 0.5


def test_masks_are_a_pure_function_of_seed_epoch_and_sample() -> None:
    def history(rank: int, size: int, batch_size: int, epoch: int, seed: int = 3) -> np.ndarray:
        ours = reader(batch_size, seed, copies=2)
        ours.shuffle = False
        parts = [b.tensor("history").numpy() for b in ours.batches(epoch, rank, size)]
        return np.concatenate(parts)

    whole = history(0, 1, 10**6, 5)
    assert np.array_equal(history(0, 1, 7, 5), whole)
    for first in range(0, 40, 8):  # batch by batch, two ranks take their halves
        ranks = [history(rank, 2, 8, 5)[first // 2 : first // 2 + 4] for rank in range(2)]
        assert np.array_equal(np.concatenate(ranks), whole[first : first + 8])
    assert (history(0, 1, 10**6, 6) != whole).any()
    assert (history(0, 1, 10**6, 5, seed=4) != whole).any()
    copies = whole.reshape(-1, 2, 12)
    assert (copies[:, 0] != copies[:, 1]).any(1).mean() > 0.5


def test_some_samples_hide_their_last_item_alone() -> None:
    ours = reader(mask_ratio=0.4, last_ratio=0.25, random_ratio=0.0, copies=3, stride=4)
    (batch,) = ours.batches(0)
    target, history = batch.tensor("target").numpy(), batch.tensor("history").numpy()
    lengths = (history > 0).sum(1)
    last = target[np.arange(len(target)), lengths - 1] > 0
    alone = last & ((target > 0).sum(1) == 1)
    by_chance = 0.75 * 0.4 * 0.6 ** (lengths - 1)
    assert abs(alone.mean() - 0.25 - by_chance.mean()) < 5 * (0.25 / len(alone)) ** 0.5
    only = reader(mask_ratio=0.0, last_ratio=1.0)
    (batch,) = only.batches(0)
    assert ((batch.tensor("target") > 0).sum(1) == 1).all()
    assert (batch.tensor("history")[batch.tensor("target") > 0] == MASK).all()


@pytest.mark.parametrize("stride", [4, 12])
def test_any_item_but_the_first_may_be_the_last_one(stride: int) -> None:
    """Every end once: the windows' own stretches together are the sequence without its first."""
    ours = reader(last_ratio=1.0, copies=400, stride=stride)
    ours.shuffle = False
    samples = np.arange(ours.num_samples)
    users, starts, stops = ours.places(samples, epoch=2)
    begin, end = HISTORIES.offsets[users], HISTORIES.offsets[users + 1]
    assert (stops <= end).all()
    assert (starts == np.maximum(stops - 12, begin)).all()  # as much history as there is room for
    seen = set(zip(users.tolist(), (stops - begin).tolist()))
    lengths = np.diff(HISTORIES.offsets)
    wanted = {
        (user, stop)
        for user, length in enumerate(lengths.tolist())
        if length
        for stop in range(min(2, length), length + 1)
    }
    assert seen == wanted
    (batch,) = ours.batches(2)
    history, target = batch.tensor("history").numpy(), batch.tensor("target").numpy()
    assert (target.max(1) == HISTORIES.items[stops - 1]).all()
    assert ((history > 0).sum(1) == stops - starts).all()


def test_masked_places_are_listed_in_each_batch() -> None:
    for batch in reader(batch_size=16).batches(0, rank=1, size=3):
        asked = batch.tensor("target").reshape(-1) > 0
        masked = batch.ids["masked"]
        assert masked.values.tolist() == asked.nonzero().view(-1).tolist()
        assert masked.lengths.tolist() == (batch.tensor("target") > 0).sum(1).tolist()


def test_random_items_are_uniform() -> None:
    ours = reader(mask_ratio=1.0, random_ratio=1.0, copies=6, stride=2)
    (batch,) = ours.batches(0)
    shown = batch.tensor("history").numpy()
    counts = np.bincount(shown[shown > 0], minlength=DATASET.num_items)[1:]
    assert len(counts) == DATASET.num_items - 1
    expected = counts.sum() / len(counts)
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < len(counts) + 5 * (2 * len(counts)) ** 0.5

"""Masks of dropout as the core makes them: the bits of their definition, and their statistics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from drops import MANY, by_core, drops, needs_core, score


def mix(word: int) -> int:
    """The finaliser of splitmix64."""
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return word ^ word >> 31


def kept(key: int, p: float, n: int) -> np.ndarray:
    """Which of n values a key keeps: bool [n]."""
    mixed = mix((key + 0x9E3779B97F4A7C15) % 2**64)
    words = (np.arange(n) * 0x9E3779B9 + (mixed & 0xFFFFFFFF)).astype(np.uint32)
    words = (words ^ words >> 16) * np.uint32(0x7FEB352D) ^ np.uint32(mixed >> 32)
    words = (words ^ words >> 15) * np.uint32(0x846CA68B)
    return words >= int(p * 2**32)


@needs_core
@pytest.mark.parametrize("p", [0.1, 0.5, 1 / 3, 1e-12, 1 - 1e-12])
@pytest.mark.parametrize("n", [0, 1, 3, 4, 15, 64, 67, 1000])
def test_the_core_has_the_bits_of_the_definition(n: int, p: float) -> None:
    for key in (0, 1, 2**64 - 1, 0x0123456789ABCDEF):
        want = np.where(kept(key, p, n), np.float32(1 / (1 - p)), np.float32(0))
        assert torch.equal(by_core(n, key, p), torch.from_numpy(want))


@needs_core
def test_threads_change_nothing() -> None:
    one = by_core(MANY + 5, 77, 0.3)
    for threads in (2, 3, 8):
        assert torch.equal(by_core(MANY + 5, 77, 0.3, threads), one)


# --- statistics: standard scores that would be those of independent draws


@needs_core
@pytest.mark.parametrize("p", [0.01, 0.1, 0.3, 0.5, 0.9])
def test_the_share_of_kept_values_is_1_minus_p(p: float) -> None:
    for key in range(8):
        assert score(drops(key, p)) < 5


@needs_core
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_positions_are_independent(p: float) -> None:
    for key in range(4):
        here = drops(key, p)
        for lag in [*range(1, 9), 16, 64, 100, 128, 512, 1597, 4096, 2584, 6765, 46368, 65536]:
            assert score(here[lag:] * here[:-lag]) < 5, (key, lag)
        for lag in (1, 16, 128):  # three at a time
            assert score(here[2 * lag :] * here[lag:-lag] * here[: -2 * lag]) < 5, (key, lag)


@needs_core
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_rows_and_columns_have_counts_of_independent_draws(p: float) -> None:
    """Sums of rows and of columns have variance one and no more, nor less: chi-square."""
    for key in range(4):
        for width in (16, 64, 128, 1000, 1024):
            square = drops(key, p)[: MANY // width * width].view(-1, width)
            for dim in (0, 1):
                sums = square.sum(dim) / square.shape[dim] ** 0.5
                # E of a sum's fourth power is 3 + (E of a drop's - 3) / its terms
                fourth = (1 - 3 * p * (1 - p)) / (p * (1 - p))
                spread = (2 + (fourth - 3) / square.shape[dim]) ** 0.5
                assert score((sums**2 - 1) / spread) < 5, (key, width, dim)


@needs_core
def test_ten_neighbours_take_all_patterns() -> None:
    """Chi-square of 1024 patterns: mean 1023, deviation sqrt(2 * 1023)."""
    for key in range(8):
        bits = (drops(key, 0.5) > 0).long()[: MANY // 10 * 10].view(-1, 10)
        counts = torch.bincount((bits << torch.arange(10)).sum(1), minlength=1024)
        expected = len(bits) / 1024
        chi_square = float(((counts - expected) ** 2).sum()) / expected
        assert abs(chi_square - 1023) < 5 * (2 * 1023) ** 0.5


@needs_core
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_keys_are_independent(p: float) -> None:
    n = 1 << 16
    for key in (0, 12345, 0xFEDCBA9876543210):
        here = drops(key, p, n)
        others = [key ^ 1 << bit for bit in range(64)] + [key + 1, key + 2, key + 0x9E3779B9]
        for other in others:
            there = drops(other, p, n)
            for lag in (0, 1, 16):
                assert score(here[lag:] * there[: n - lag]) < 5, (key, other, lag)
                assert score(there[lag:] * here[: n - lag]) < 5, (key, other, lag)


@needs_core
def test_a_position_is_dropped_under_one_key_in_ten() -> None:
    each = torch.stack([drops(key, 0.1, 4096) for key in range(1000)])
    assert float(each.sum(0).abs().max()) / 1000**0.5 < 5.5  # the largest of 4096

"""HSTU's attention by kernels: as written out in torch."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from triton_there import DEVICE, ask_for_interpreter, import_kernels

from shoal.kernels.hstu import (
    BUCKETS,
    Sequences,
    bucket_of,
    bucket_steps,
    cell_of,
    hstu_attention,
    plain_hstu_attention,
    time_buckets,
)

kernels = import_kernels("shoal.kernels.gpu.hstu")


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    ask_for_interpreter(monkeypatch)
    yield


def small_tiles(monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    """Tiles so small that a short sequence has several."""

    def tiles(kernel: str, query: Tensor, how: dict[str, Any]) -> dict[str, Any]:
        sizes = {"QUERIES": 32, "KEYS": 16} if kernel != "products" else {"ROWS": 32, "INNER": 16}
        return {**sizes, "num_warps": 4, "num_stages": 1, "TMA": False}

    monkeypatch.setattr(kernels, "_tiles", tiles)
    monkeypatch.setattr(kernels, "ALIGN", 32)
    monkeypatch.setattr(kernels, "WHOLE", 32)
    monkeypatch.setattr(kernels, "GROUPS", 2)
    monkeypatch.setattr(kernels._Biases, "BLOCK", 16)
    for name, value in more.items():
        monkeypatch.setattr(kernels, name, value)


def times_of(length: int, kind: str) -> Tensor:
    """[length + 1]; ties, one after another over years, or in no order."""
    if kind == "ties":
        return torch.arange(length + 1) // 7 * 1000 + 1_700_000_000
    if kind == "years":
        return torch.exp(torch.rand(length + 1) * 16).long().cumsum(0)
    return torch.randint(0, 2**40, (length + 1,))


def compared(lengths: list[int], heads: int, dim: int, value_dim: int, times: str | None) -> None:
    """Output and gradients of both forms."""
    gap = 3  # pads between sequences
    starts = torch.tensor([sum(lengths[:i]) + gap * i for i in range(len(lengths))])
    tokens = sum(lengths) + gap * len(lengths)
    given = [torch.randn(tokens, heads, d) for d in (dim, dim, value_dim)]
    n = max(lengths) + 2
    tables = [torch.randn(n) * 0.5]
    asked = taken = None
    if times is not None:
        tables.append(torch.randn(BUCKETS + 1) * 0.5)
        asked, taken = torch.zeros(2, tokens, dtype=torch.int64)
        series = [times_of(length, times) for length in lengths]
        for start, length, series_ in zip(starts.tolist(), lengths, series, strict=True):
            asked[start : start + length] = series_[1:]
            taken[start : start + length] = series_[:-1]
    leaves = [x.to(DEVICE).requires_grad_() for x in (*given, *tables)]
    query, key, value, position_bias, *rest = leaves
    time_bias = rest[0] if rest else None

    where = Sequences(
        starts.int().to(DEVICE),
        torch.tensor(lengths).int().to(DEVICE),
        max(lengths),
        None if asked is None else asked.to(DEVICE),
        None if taken is None else taken.to(DEVICE),
    )
    fused = hstu_attention(query, key, value, where, position_bias, time_bias, n)

    plain = torch.zeros_like(fused)
    for number, (start, length) in enumerate(zip(starts.tolist(), lengths, strict=True)):
        part = slice(start, start + length)
        q, k, v = (x[part].transpose(0, 1)[None] for x in (query, key, value))
        buckets = None
        if times is not None:
            buckets = time_buckets(series[number][None].to(DEVICE))
        made = plain_hstu_attention(q, k, v, position_bias, time_bias, buckets, n)
        plain = plain.index_add(
            0, torch.arange(tokens, device=DEVICE)[part], made[0].transpose(0, 1)
        )
    torch.testing.assert_close(fused, plain, rtol=2e-5, atol=2e-5)
    weights = torch.randn_like(plain)
    ours = torch.autograd.grad((fused * weights).sum(), leaves)
    again = torch.autograd.grad(
        (hstu_attention(query, key, value, where, position_bias, time_bias, n) * weights).sum(),
        leaves,
    )
    theirs = torch.autograd.grad((plain * weights).sum(), leaves)
    for one, two, other in zip(ours, again, theirs, strict=True):
        assert torch.equal(one, two)
        torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("times", [None, "ties", "years", "mixed"])
def test_as_written_out(monkeypatch: pytest.MonkeyPatch, times: str | None) -> None:
    torch.manual_seed(1)
    small_tiles(monkeypatch)
    compared([0, 37, 1, 70, 0, 5], 2, 12, 20, times)


def test_in_parts_of_samples_and_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scratch buffer too small for all samples, and for all keys of one."""
    torch.manual_seed(2)
    small_tiles(monkeypatch, SCRATCH=2 * 4 * 2 * 96 * 64)
    compared([70, 40, 90], 2, 16, 16, "years")


def test_cells_find_the_bucket() -> None:
    """Around every step, where a bucket or a cell begins, and anywhere."""
    steps, buckets = (x.cpu() for x in bucket_steps(DEVICE, torch.int64))
    near = torch.cat([steps, 2 ** torch.arange(61), torch.arange(1, 5000)])
    near = torch.cat([near[:, None] + torch.arange(-3, 4), near[:, None] // 4 * 5], 1)
    gaps = near.flatten().clamp(1, 2**61)
    cells = cell_of(gaps)
    found = buckets[cells + (gaps >= steps[cells])]
    assert torch.equal(found.long(), bucket_of(gaps.to(DEVICE)).cpu())
    small, _ = bucket_steps(DEVICE, torch.int32)
    assert small.dtype == torch.int32 and torch.equal(
        small.long().cpu(), steps.clamp(max=2**31 - 1)
    )

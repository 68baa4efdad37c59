"""HSTU's attention by kernels: as written out in torch."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from triton_there import DEVICE, ask_for_interpreter, import_kernels
from zoo_clicks import batch_of, make_model
from zoo_models import zoo_config

from shoal.config.schema import OptimizerSection
from shoal.distributed.world import World
from shoal.kernels.common.sequences import (
    BUCKETS,
    Sequences,
    bucket_of,
    bucket_steps,
    cell_of,
    request_and_event_times,
    time_buckets,
)
from shoal.kernels.hstu import hstu_attention, plain_hstu_attention, sequences_of
from shoal.models.base import Batch
from shoal.models.nn.dropout import begin_slice, begin_step, end_steps
from shoal.runs.build import build
from shoal.training.strategies.base import Single

kernels = import_kernels("shoal.kernels.gpu.hstu")


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    ask_for_interpreter(monkeypatch)
    # Kernels read a mask's key from memory, as on a GPU; the bits are the same.
    monkeypatch.setattr("shoal.models.nn.dropout.takes_int_key", lambda device: False)
    yield
    end_steps()


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
    request_times = event_times = None
    if times is not None:
        tables.append(torch.randn(BUCKETS + 1) * 0.5)
        request_times, event_times = torch.zeros(2, tokens, dtype=torch.int64)
        series = [times_of(length, times) for length in lengths]
        for start, length, series_ in zip(starts.tolist(), lengths, series, strict=True):
            request_times[start : start + length] = series_[1:]
            event_times[start : start + length] = series_[:-1]
    leaves = [x.to(DEVICE).requires_grad_() for x in (*given, *tables)]
    query, key, value, position_bias, *rest = leaves
    time_bias = rest[0] if rest else None

    where = Sequences(
        starts.int().to(DEVICE),
        torch.tensor(lengths).int().to(DEVICE),
        max(lengths),
        None if request_times is None else request_times.to(DEVICE),
        None if event_times is None else event_times.to(DEVICE),
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


def test_sequences_by_columns_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scratch buffer too small for all sequences, and for all keys of one."""
    torch.manual_seed(1)
    small_tiles(monkeypatch, SCRATCH=2 * 4 * 32 * 32 * 2)
    assert [(x.low, x.blocks) for x in kernels._parts((0, 40, 1, 20), 2, 32)] == [
        *((0, 2), (1, 2)),  # the columns of the one of two blocks
        (0, 2),
    ]
    compared([0, 40, 1, 20], 1, 8, 12, "ties")


@pytest.mark.slow
@pytest.mark.parametrize("times", [None, "ties", "years", "mixed"])
def test_hstu_kernels_equal_torch(monkeypatch: pytest.MonkeyPatch, times: str | None) -> None:
    torch.manual_seed(1)
    small_tiles(monkeypatch)
    compared([0, 37, 1, 70, 0, 5], 2, 12, 20, times)


@pytest.mark.slow
def test_in_parts_of_samples_and_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(2)
    small_tiles(monkeypatch, SCRATCH=2 * 4 * 2 * 32 * 32 * 4)
    compared([70, 40, 90, 20], 2, 16, 16, "years")


def test_parts_hold_every_tile_once() -> None:
    lengths = (300, 5, 0, 1000, 128, 129, 700, 64)
    table = kernels._table_of(lengths, 128, torch.device("cpu")).tolist()
    counts = [-(-length // 128) for length in lengths]
    assert sorted((sample, block) for sample, block, _, _ in table) == [
        (sample, block) for sample, count in enumerate(counts) for block in range(count)
    ]
    for room in (1, 9, 20, 36, 1000):
        held = []
        for part in kernels._parts(lengths, room, 128):
            tiles = []
            for _, row, base, count in table[part.first : part.first + part.blocks]:
                columns = range(part.low, min(part.high, row + 1))
                tiles += [base + c * count - c * (c - 1) // 2 + row - c for c in columns]
            assert sorted(tiles) == list(range(part.skip, part.skip + part.tiles))
            assert part.tiles <= max(room, 8)  # one column at least
            held += tiles
        assert held and sorted(held) == list(range(len(held)))
        assert len(held) == sum(count * (count + 1) // 2 for count in counts)


@pytest.mark.parametrize("large", [0, 2**40])
def test_hstu_by_kernels_equals_torch(monkeypatch: pytest.MonkeyPatch, large: int) -> None:
    """States of real places and gradients as by torch, with lengths that the host read or not: so
    with pads or packed."""
    small_tiles(monkeypatch)
    monkeypatch.setattr("shoal.kernels.hstu.LARGE", large)
    model = build(zoo_config("HSTU", model__n_layers=1), World(DEVICE)).model.train().to(DEVICE)
    history = torch.tensor([[1, 2, 3, 4, 5], [6, 0, 0, 0, 0], [0, 0, 0, 0, 0]], device=DEVICE)
    asked = (history > 0) | (torch.arange(5, device=DEVICE) == 0)  # an empty history as well
    times = torch.tensor([[9, 9, 70, 5000, 10**6, 10**7], [4, 8, 0, 0, 0, 0], [0] * 6]) + 10**9
    batch = Batch(3, {"history": history, "history_time": times.to(DEVICE)})
    weights = list(model.layers.parameters())
    found = []
    for kernel in (False, True):
        monkeypatch.setattr("shoal.models.nn.hstu.takes_hstu", lambda *_, k=kernel: k)
        begin_step(7, 3, DEVICE)
        begin_slice(20)
        states = model.states(batch)[asked]
        found.append([states, *torch.autograd.grad(states.square().sum(), weights)])
    for plain, fused in zip(*found, strict=True):
        assert plain.abs().max() > 0
        torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-6)


def test_times_of_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """int32 where it holds them, and then the buckets of int64."""
    monkeypatch.setattr("shoal.kernels.hstu.LARGE", 0)
    torch.manual_seed(4)
    lengths = torch.tensor([30, 1, 7, 0])
    history = (torch.arange(30) < lengths.unsqueeze(1)).long()
    times = torch.exp(torch.rand(4, 31) * 17).long() + 1_700_000_000  # in no order
    times[2, 8:] = 0  # pads
    found = sequences_of(history.to(DEVICE), *request_and_event_times(times.to(DEVICE)))
    assert found.sizes == (30, 1, 7, 1) and found.lengths.tolist() == [30, 1, 7, 1]
    assert found.request_times is not None and found.event_times is not None
    assert (
        found.request_times.dtype == torch.int32
        and min(found.request_times.min(), found.event_times.min()) >= 0
    )
    assert found.starts.tolist() == [0, 30, 31, 38]
    assert found.tokens is not None and found.tokens.tolist() == [*range(31), *range(60, 67), 90]
    steps, buckets = bucket_steps(DEVICE, torch.int32)
    theirs = time_buckets(times.to(DEVICE))
    for sample, (start, length) in enumerate(zip(found.starts.tolist(), found.sizes)):
        request_times, event_times = (
            x[start : start + length] for x in (found.request_times, found.event_times)
        )
        gaps = (request_times.unsqueeze(1) - event_times).abs().clamp(min=1)
        cells = cell_of(gaps.long())
        ours = buckets[cells + (gaps >= steps[cells])].long()
        assert torch.equal(ours, theirs[sample, :length, :length])
    times[0, 3] = 2**40
    assert (
        sequences_of(
            history.to(DEVICE), *request_and_event_times(times.to(DEVICE))
        ).request_times.dtype
        == torch.int64
    )


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


@pytest.mark.parametrize("large", [0, 2**40])
@pytest.mark.parametrize("name", ["HSTURanker", "HSTURanker interleaved"])
def test_hsturanker_by_kernels_equals_torch(
    monkeypatch: pytest.MonkeyPatch, name: str, large: int
) -> None:
    """Logits and gradients as by torch: sequences by kernels, packed or not, candidates behind."""
    small_tiles(monkeypatch)
    monkeypatch.setattr("shoal.kernels.hstu.LARGE", large)
    model = make_model(name)
    Single(World(DEVICE)).setup(model, OptimizerSection(name="sgd", lr=0.1), seed=1)
    model.train().to(DEVICE)
    batch = batch_of(name, 1).rows(0, 9).to(DEVICE)
    weights = [one for one in model.parameters() if one.requires_grad]
    found = []
    for kernel in (False, True):
        monkeypatch.setattr("shoal.models.nn.hstu.takes_hstu", lambda *_, k=kernel: k)
        begin_step(7, 3, DEVICE)
        begin_slice(20)
        logits = model.logits(batch)
        grads = torch.autograd.grad(logits.square().sum(), weights, allow_unused=True)
        found.append([logits, *(one for one in grads if one is not None)])
    for plain, fused in zip(*found, strict=True):
        assert plain.abs().max() > 0
        torch.testing.assert_close(fused, plain, rtol=1e-3, atol=1e-6)

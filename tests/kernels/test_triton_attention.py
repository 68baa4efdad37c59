"""Attention, and residual connections with their norms, by kernels: as written out in torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from triton_there import DEVICE, ask_for_interpreter, import_kernels

from shoal.models.nn.dropout import begin_slice, begin_step, end_steps
from shoal.models.nn.packing import ends_of
from shoal.models.nn.transformer import Attention, Transformer

kernels = import_kernels("shoal.kernels.gpu.attention")
import_kernels("shoal.kernels.gpu.norm")


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    ask_for_interpreter(monkeypatch)
    # Kernels read a mask's key from memory, as on a GPU; the bits are the same.
    monkeypatch.setattr("shoal.models.nn.dropout.takes_int_key", lambda device: False)
    yield
    end_steps()


def pads_of(size: int, length: int, where: str) -> Tensor | None:
    """Some pads for every sample but the first; the last has nothing else."""
    if where == "none":
        return None
    number = torch.arange(size, device=DEVICE) * length // max(1, size - 1)
    place = torch.arange(length, device=DEVICE)
    place = place.flip(0) if where == "right" else place
    return place[None, :] < number[:, None]


def run(
    monkeypatch: pytest.MonkeyPatch, layer: torch.nn.Module, x: Tensor, by_kernels: bool, *given
) -> list[Tensor]:
    """Output, and gradients of the input and of all parameters, in a slice of a step."""
    monkeypatch.setattr("shoal.kernels.transformer.makes_masks", lambda _: by_kernels)
    begin_step(7, 3, DEVICE)
    begin_slice(20)
    x = x.clone().requires_grad_()
    out = layer(x, *given)
    weights = torch.linspace(-1.0, 2.0, out.numel(), device=DEVICE).view(out.shape)
    grads = torch.autograd.grad((out * weights).sum(), [x, *layer.parameters()])
    return [out.detach(), *grads]


@pytest.mark.parametrize(
    "causal, where, length, heads, dim",
    [
        *((causal, where, 7, 2, 4) for causal in (True, False) for where in ("none", "left")),
        *((True, "none", 70, 1, 16), (True, "left", 70, 1, 16), (False, "right", 20, 1, 20)),
        (True, "none", 40, 1, 128),
    ],
)
def test_attention_kernels_equal_torch(
    monkeypatch: pytest.MonkeyPatch, causal: bool, where: str, length: int, heads: int, dim: int
) -> None:
    torch.manual_seed(1)
    layer = Attention(heads, heads * dim, 0.3, causal=causal).to(DEVICE)
    x = torch.randn(3, length, heads * dim, device=DEVICE)
    pads = pads_of(3, length, where)
    plain = run(monkeypatch, layer, x, False, pads)
    fused = run(monkeypatch, layer, x, True, pads)
    for ours, theirs in zip(fused, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5)
    # Another mask is another output: what agrees above is not dropout that drops nothing.
    begin_step(7, 4, DEVICE)
    assert not torch.allclose(layer(x, pads), fused[0], atol=1e-3)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [7, 70])  # one tile, and two
def test_nothing_is_read_behind_the_end(length: int, causal: bool) -> None:
    torch.manual_seed(4)
    pads = pads_of(4, length, "right")
    assert pads is not None and pads[-1].all()
    real = ~pads[:, :, None]
    packed, weights = torch.randn(2, 4, length, 3, 2, 4, device=DEVICE)
    weights = weights.flatten(2)[:, :, :8] * real
    key = torch.ones(1, dtype=torch.int64, device=DEVICE)

    def attended(behind: float, ends: Tensor | None) -> list[Tensor]:
        x = packed.where(real[..., None, None], behind).requires_grad_()
        out = kernels.Attended.apply(
            x.flatten(0, 1), 4, length, pads, None, ends, 0.3, key, 5, causal, -1e9
        ).view(4, length, 8)
        (grad,) = torch.autograd.grad((out.where(real, 0.0) * weights).sum(), x)
        return [out, grad]

    whole, cut = attended(0.0, None), attended(float("nan"), ends_of(pads))
    torch.testing.assert_close(cut[0], whole[0] * real, rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(cut[1], whole[1], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [9, 70])
def test_rows_of_items_alone(monkeypatch: pytest.MonkeyPatch, length: int, causal: bool) -> None:
    """As among all places: what is wanted of a transformer, and all gradients."""
    torch.manual_seed(5)
    layers = Transformer(2, 2, 16, 32, 0.2, 0.4, causal=causal).to(DEVICE)
    x = torch.randn(4, length, 16, device=DEVICE)
    pads = pads_of(4, length, "right")
    assert pads is not None
    real = (~pads).view(-1).nonzero().view(-1)
    tokens = torch.cat([real, torch.full((3,), pads.numel() - 1, device=DEVICE)])
    wanted = real[::2]
    plain = run(monkeypatch, layers, x, False, pads, wanted)
    packed = run(monkeypatch, layers, x, True, pads, wanted, tokens)
    for ours, theirs in zip(packed, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=5e-5, atol=5e-5)


def test_a_transformer_with_wanted_places(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(2)
    layers = Transformer(2, 2, 16, 32, 0.2, 0.4, causal=False).to(DEVICE)
    x = torch.randn(4, 9, 16, device=DEVICE)
    wanted = torch.tensor([1, 17, 25], device=DEVICE)  # no pads, whose states mean nothing
    given = (pads_of(4, 9, "left"), wanted)
    plain = run(monkeypatch, layers, x, False, *given)
    for ours, theirs in zip(run(monkeypatch, layers, x, True, *given), plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=5e-5, atol=5e-5)


def test_a_slice_has_the_masks_of_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    layer = Attention(2, 8, 0.5, causal=True).to(DEVICE)
    monkeypatch.setattr("shoal.kernels.transformer.makes_masks", lambda _: True)
    x = torch.randn(6, 5, 8, device=DEVICE)
    parts = []
    for first, last in ((0, 6), (0, 2), (2, 6)):
        begin_step(7, 3, DEVICE)
        begin_slice(first)
        parts.append(layer(x[first:last]).detach())
    torch.testing.assert_close(torch.cat(parts[1:]), parts[0], rtol=1e-5, atol=1e-5)


def test_attention_of_an_empty_batch() -> None:
    packed = torch.zeros(0, 3, 2, 4, device=DEVICE, requires_grad=True)
    key = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    out = kernels.Attended.apply(packed, 0, 5, None, None, None, 0.5, key, 0, True, -1e9)
    out.sum().backward()
    assert out.shape == (0, 8) and packed.grad.shape == packed.shape

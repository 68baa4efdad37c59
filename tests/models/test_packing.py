"""Layers that compute nothing for pads: states, gradients and losses of those that do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from small import first_batches, small_config
from torch import Tensor

from shoal.distributed.world import World
from shoal.models.nn import transformer
from shoal.models.nn.dropout import begin_slice, begin_step, end_steps
from shoal.models.nn.packing import Packed, pack, rows_of, spread
from shoal.models.nn.transformer import Transformer
from shoal.runs.build import build

LENGTHS = [5, 1, 0, 9, 3, 9, 2, 4] * 5  # of 40 sequences: groups of several lengths, one empty


@pytest.fixture(autouse=True)
def steps_end() -> Iterator[None]:
    yield
    end_steps()


def pads_of(lengths: list[int], length: int) -> Tensor:
    return torch.arange(length) >= torch.tensor(lengths).unsqueeze(1)


def computed(
    layers: Transformer, x: Tensor, pads: Tensor, wanted: Tensor | None, first: int = 3
) -> list[Tensor]:
    """States at real places, and the gradients of all."""
    x = x.clone().requires_grad_()
    begin_step(7, 3, x.device)
    begin_slice(first)
    states = layers(x, pads, wanted)
    if wanted is None:
        states = states[~pads]
    weights = torch.linspace(-1.0, 2.0, states.numel(), dtype=x.dtype).view(states.shape)
    loss = (states * weights).sum()
    return [states.detach(), *torch.autograd.grad(loss, [x, *layers.parameters()])]


@pytest.mark.parametrize("asks", [False, True], ids=["all", "wanted"])
@pytest.mark.parametrize("rate", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("causal", [True, False])
def test_packed_states_equal_padded_ones(
    causal: bool, rate: float, asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float64 to 1e-12, dropout included; nothing reaches a pad."""
    torch.manual_seed(1)
    layers = Transformer(2, 2, 8, 16, rate / 2, rate, init_std=0.4, causal=causal).double()
    pads = pads_of(LENGTHS, 11)
    x = torch.randn(40, 11, 8, dtype=torch.float64)
    wanted = torch.tensor([1, 3, 11, 35, 41, 430]) if asks else None
    found = computed(layers, x, pads, wanted)
    assert found[1][pads].abs().max() == 0.0
    monkeypatch.setattr(transformer, "packs", lambda *_: None)
    for ours, theirs in zip(found, computed(layers, x, pads, wanted), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_float32_is_within_its_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    layers = Transformer(2, 2, 8, 16, 0.2, 0.2, init_std=0.4, causal=True)
    pads, x = pads_of(LENGTHS, 11), torch.randn(40, 11, 8)
    found = computed(layers, x, pads, None)
    monkeypatch.setattr(transformer, "packs", lambda *_: None)
    for ours, theirs in zip(found, computed(layers, x, pads, None), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_layers_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """train.recompute: the masks of the second time are those of the first."""
    torch.manual_seed(1)
    layers = Transformer(2, 2, 8, 16, 0.3, 0.3, init_std=0.4, causal=False).double()
    pads, x = pads_of(LENGTHS, 11), torch.randn(40, 11, 8, dtype=torch.float64)
    found = computed(layers, x, pads, None)
    layers.recompute = True
    for ours, theirs in zip(found, computed(layers, x, pads, None), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_slice_has_the_masks_of_the_whole_batch() -> None:
    """Whatever groups a slice falls into."""
    torch.manual_seed(1)
    layers = Transformer(2, 2, 8, 16, 0.3, 0.3, init_std=0.4, causal=True).double()
    pads, x = pads_of(LENGTHS, 11), torch.randn(40, 11, 8, dtype=torch.float64)
    whole = computed(layers, x, pads, None, 0)[0]
    parts = [
        computed(layers, x[first:last], pads[first:last], None, first)[0]
        for first, last in ((0, 17), (17, 40))
    ]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-12, atol=1e-12)


def test_packing_is_used_only_where_it_is_faster() -> None:
    x = torch.zeros(40, 11, 8)
    packed = transformer.packs(x, pads_of(LENGTHS, 11))
    assert packed is not None and len(packed.tokens) == sum(LENGTHS)
    # a group is as long as its longest: fewer places than the batch has, and all real ones
    assert sum(LENGTHS) <= len(packed.places) < 40 * 9
    places = pack(torch.arange(40 * 11).view(40, 11), packed.tokens)
    assert torch.equal(places[packed.places][packed.back], packed.tokens)
    assert transformer.packs(x, pads_of([11] * 40, 11)) is None  # few pads
    assert transformer.packs(x, pads_of([0] * 40, 11)) is None
    assert transformer.packs(x, pads_of(LENGTHS, 11).flip(1)) is None  # pads before items
    assert transformer.packs(x[:0], pads_of(LENGTHS, 11)[:0]) is None


@pytest.mark.parametrize("model", ["SASRec", "BERT4Rec"])
def test_models_learn_the_same(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses of training steps, with dropout, of histories that are padded to twice their mean."""
    rates = {"model__hidden_dropout_prob": 0.3, "model__attn_dropout_prob": 0.3}
    sgd = {"train__optimizer__name": "sgd", "train__optimizer__lr": 1.0}
    config = small_config(model, data__max_len=60, train__batch_size=40, **rates, **sgd)

    def curve() -> list[float]:
        parts, losses = build(config, World()), []
        parts.model.train()
        for step, batch in enumerate(first_batches(parts.reader, World(), 8)):
            begin_step(1, step, torch.device("cpu"))
            losses.append(float(parts.strategy.train_step(batch)))
        return losses

    made: list[Packed | None] = []
    packs = transformer.packs
    monkeypatch.setattr(transformer, "packs", lambda *given: made.append(packs(*given)) or made[-1])
    packed = curve()
    assert len(made) == 8 and all(made)
    monkeypatch.setattr(transformer, "packs", lambda *_: None)
    assert packed == pytest.approx(curve(), rel=1e-5)


def test_packing_and_back() -> None:
    x = torch.arange(12.0).view(2, 3, 2)
    tokens = torch.tensor([0, 1, 3])
    packed = pack(x, tokens)
    assert packed.tolist() == [[0.0, 1.0], [2.0, 3.0], [6.0, 7.0]]
    assert spread(packed, tokens, 2, 3).tolist() == [
        [[0.0, 1.0], [2.0, 3.0], [0.0, 0.0]],
        [[6.0, 7.0], [0.0, 0.0], [0.0, 0.0]],
    ]


def test_a_sequence_of_pads_alone() -> None:
    packed = Packed.of(pads_of([0, 2, 0], 4))
    assert packed is not None and packed.tokens.tolist() == [4, 5]
    assert rows_of(packed.tokens, torch.tensor([5, 4])).tolist() == [1, 0]

"""CollectiveStrategy on one process: backends, scopes, what is refused."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from torch import Tensor, nn

import shoal
from shoal.distributed.world import World
from shoal.embedding.rows.table import Init


def alone(**options: Any) -> shoal.CollectiveStrategy:
    return shoal.CollectiveStrategy(world=World(), **options)


@pytest.mark.parametrize("value", ["hb", "sok"])
def test_values_of_another_tool_are_mapped(
    value: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("COLLECTIVE_STRATEGY", value)
    monkeypatch.setattr(logging.getLogger("shoal"), "propagate", True)
    assert alone().backend == "native"
    assert f"COLLECTIVE_STRATEGY={value}" in caplog.text


def test_other_values_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLLECTIVE_STRATEGY", "nativ")
    with pytest.raises(ValueError, match="COLLECTIVE_STRATEGY is 'nativ'"):
        alone()
    assert alone(backend="native").backend == "native"
    with pytest.raises(ValueError, match=r"backend is torchrec.*leave the key out"):
        alone(backend="torchrec")


def test_an_embedding_needs_a_scope() -> None:
    with pytest.raises(RuntimeError, match="embedding_scope"):
        shoal.Embedding("item", dim=4)
    strategy = alone()
    with strategy.scope(), pytest.raises(RuntimeError, match="embedding_scope"):
        shoal.Embedding("item", dim=4)


def test_rows_come_with_the_optimizer() -> None:
    strategy = alone()
    with strategy.embedding_scope():
        items = shoal.Embedding("item", dim=4)
    with pytest.raises(RuntimeError, match="has no rows yet"):
        items(torch.tensor([1]))


def test_what_is_built_outside_stays_as_it_is() -> None:
    strategy = alone()
    with strategy.scope():
        outside = nn.Embedding(5, 2)
        with strategy.embedding_scope():
            inside = nn.Embedding(5, 2)
            frozen = nn.Embedding.from_pretrained(torch.ones(5, 2))
    assert outside.weight.shape == frozen.weight.shape == (5, 2)
    assert isinstance(inside, nn.Embedding)
    with pytest.raises(RuntimeError, match="never whole"):
        inside.weight  # noqa: B018
    assert type(nn.Embedding(5, 2)) is nn.Embedding  # nothing is left behind


def test_a_class_of_ones_own_keeps_its_forward() -> None:
    class Scaled(nn.Embedding):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) * 10.0

    strategy = alone()
    with strategy.embedding_scope():
        scaled = Scaled(5, 2, _weight=torch.arange(10.0).view(5, 2))
    strategy.optimizer(rows="sgd", lr=0.1)
    assert scaled(torch.tensor([3])).tolist() == [[60.0, 70.0]]


@pytest.mark.parametrize("option", ["max_norm", "scale_grad_by_freq"])
def test_what_cannot_be_spread_is_refused(option: str) -> None:
    strategy = alone()
    with pytest.raises(ValueError, match=option), strategy.embedding_scope():
        nn.Embedding(5, 2, **{option: 1.0 if option == "max_norm" else True})


@pytest.mark.parametrize(
    ("dense", "told"),
    [
        (lambda p: torch.optim.Adam(p, amsgrad=True), "amsgrad"),
        (lambda p: torch.optim.Adadelta(p), "Adadelta"),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), "nesterov"),
    ],
)
def test_an_optimizer_that_rows_do_not_have_is_told(dense: Any, told: str) -> None:
    strategy = alone()
    with strategy.embedding_scope():
        shoal.Embedding("item", dim=4)
    layer = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=told):
        strategy.optimizer(dense(layer.parameters()))
    strategy.optimizer(dense(layer.parameters()), rows="adagrad")


def test_bags_pool_as_torch_does() -> None:
    ids, offsets = torch.tensor([1, 2, 2, 0, 4]), torch.tensor([0, 2, 2])
    weights = torch.tensor([0.5, 1.0, 2.0, 3.0, 1.0])
    for mode, padding, given in (("sum", None, weights), ("mean", 2, None), ("max", 2, None)):
        torch.manual_seed(1)
        plain = nn.EmbeddingBag(5, 3, mode=mode, padding_idx=padding)
        torch.manual_seed(1)
        strategy = alone()
        with strategy.embedding_scope():
            bag = nn.EmbeddingBag(5, 3, mode=mode, padding_idx=padding)
        strategy.optimizer(rows="sgd", lr=0.1)
        wanted = plain(ids, offsets, given)
        assert torch.equal(bag(ids, offsets, given), wanted), mode
        assert torch.equal(bag(ids.view(1, 5)), plain(ids.view(1, 5))), mode


class Pairs(nn.Module):
    """Embeddings and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.items = nn.Embedding(10, 4), nn.EmbeddingBag(10, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return (self.user(ids[:, 0]) * self.items(ids[:, 1:])).sum(-1)


def page_loop(world: World, sign: str) -> list[float]:
    """Losses of the loop on the page of loops, before (-) or after (+) its change."""
    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "collective.md"
    (diff,) = re.findall(r"```diff\n(.*?)```", page.read_text(), re.DOTALL)
    lines = [line[1:] for line in diff.splitlines() if line[0] in (" ", sign)]
    code = "\n".join(lines).replace("CollectiveStrategy()", "CollectiveStrategy(world=world)")
    torch.manual_seed(3)
    losses: list[float] = []
    batches = [(torch.randint(0, 10, (8, 3)), torch.rand(8)) for _ in range(5)]
    names = {"shoal": shoal, "torch": torch, "world": world, "losses": losses}
    names |= {"MyModel": Pairs, "batches": batches, "loss_function": nn.functional.mse_loss}
    mean = "strategy.mean(loss)" if sign == "+" else "loss.item()"
    exec(code + f"\n    losses.append({mean})", names)
    return losses


@pytest.mark.slow
def test_the_loop_of_the_page_trains_embeddings_alone(tmp_path: Path) -> None:
    plain = page_loop(World(), "-")
    for spread in (page_loop(World(), "+"), *run_ranks(page_loop, 2, tmp_path, "+")):
        assert spread == pytest.approx(plain, rel=1e-5)


def test_rows_are_no_part_of_the_dense_state() -> None:
    strategy = alone()
    with strategy.embedding_scope():
        model = nn.Sequential(nn.Embedding(5, 2), nn.Linear(2, 1))
    assert list(model.state_dict()) == ["1.weight", "1.bias"]
    assert not model.load_state_dict(model.state_dict()).missing_keys
    assert sum(p.numel() for p in model.parameters()) == 3


def test_the_page_with_a_session_as_a_loop() -> None:
    """A variable of ones, its rows doubled and summed, FTRL: the rows move by 0 within l1 = 2."""
    for l1, expected in ((2.0, 0.0), (0.5, None)):
        strategy = alone()
        with strategy.scope(), strategy.embedding_scope():
            var = shoal.Embedding("var_1", dim=3, rows=1000, init=Init("constant", 1.0))
        optimizer = strategy.optimizer(
            rows="ftrl", lr=0.1, l1=l1, l2=0.00001, initial_accumulator_value=0.1
        )
        ids = torch.tensor([0, 1, 2, 5, 6, 7])
        loss = (var(ids) * 2.0).sum()
        assert float(loss.detach()) == 36.0
        loss.backward()
        optimizer.step()
        var.eval()
        after = var(torch.tensor([0, 7, 9]))
        assert after[2].tolist() == [1.0, 1.0, 1.0]  # rests
        assert torch.equal(after[0], after[1]) and float(after[0, 0]) != 1.0
        if expected is not None:
            # linear = g - (sqrt(n + g²) - sqrt(n)) / lr · w, far beyond l1
            n, g, w = 0.1, 2.0, 1.0
            linear = g - ((n + g * g) ** 0.5 - n**0.5) / 0.1 * w
            weight = (n + g * g) ** 0.5 / 0.1 + 0.00001
            assert float(after[0, 0]) == pytest.approx(-(linear + l1) / weight, rel=1e-5)

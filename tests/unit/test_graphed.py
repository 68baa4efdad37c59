"""Recorded steps: what they are fed with, and on a GPU that they do what unrecorded ones do."""

from __future__ import annotations

import pytest
import torch

from shoal.config.schema import OptimizerSection, StrategySection
from shoal.data.batch import Batch, Jagged
from shoal.embedding.store import EVERY
from shoal.models.base import Facts
from shoal.models.sequential.bert4rec import BERT4Rec
from shoal.training.strategy import make_strategy
from shoal.training.strategy.graphed import Graphed, pad, padded_length, tensors, with_tensors
from shoal.training.strategy.single import Single
from shoal.world.world import World

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
LENGTH, ITEMS = 5, 40


def masked_batch(size: int, seed: int, share: float = 0.4) -> Batch:
    torch.manual_seed(seed)
    ids = torch.randint(1, ITEMS, (size, LENGTH))
    hidden = torch.rand(size, LENGTH) < share
    places = hidden.view(-1).nonzero().view(-1)
    offsets = torch.nn.functional.pad(hidden.sum(1).cumsum(0), (1, 0))
    target = torch.where(hidden, ids, 0)
    history = torch.where(hidden, ITEMS, ids)
    return Batch(size, {"history": history, "target": target, "masked": Jagged(places, offsets)})


def make_model(dropout: float = 0.0) -> BERT4Rec:
    torch.manual_seed(3)
    options = BERT4Rec.Options(
        hidden_size=16, hidden_dropout_prob=dropout, attn_dropout_prob=dropout
    )
    return BERT4Rec(options, Facts(num_items=ITEMS, max_len=LENGTH))


def test_lengths_that_lists_are_padded_to():
    assert [padded_length(n) for n in (0, 1, 32, 33, 256, 257, 1700)] == [
        32, 32, 32, 64, 256, 384, 1792,
    ]  # fmt: skip


def test_pads_name_a_place_without_a_target():
    batch = masked_batch(20, seed=1)
    padded = pad(batch)
    before, after = batch.ids["masked"], padded.ids["masked"]
    count = len(before.values)
    assert len(after.values) == padded_length(count) > count
    assert torch.equal(after.values[:count], before.values)
    assert torch.equal(after.offsets, before.offsets)
    assert (padded.tensor("target").view(-1)[after.values[count:]] == 0).all()


def test_nothing_is_padded_where_every_place_is_asked_for():
    batch = masked_batch(3, seed=1, share=2.0)
    assert len(pad(batch).ids["masked"].values) == 3 * LENGTH


def test_padded_batches_have_the_same_loss_and_gradients():
    results = []
    for batch in (masked_batch(20, seed=1), pad(masked_batch(20, seed=1))):
        model, strategy = make_model(), Single()
        strategy.setup(model, OptimizerSection(name="adam", lr=0.01), seed=1)
        losses = [strategy.train_step(batch) for _ in range(3)]
        results.append([torch.stack(losses), *model.parameters(), strategy.stores["output"].values])
    for padded, plain in zip(*reversed(results)):
        torch.testing.assert_close(padded, plain, rtol=1e-5, atol=1e-6)


def test_a_batch_is_taken_apart_and_put_together():
    jagged = Jagged(torch.tensor([1, 2]), torch.tensor([0, 2]), torch.tensor([0.5, 2.0]))
    batch = Batch(1, {"a": torch.tensor([3]), "b": jagged}, {"x": torch.ones(1, 2)}, torch.ones(1))
    parts = tensors(batch)
    assert set(parts) == {
        "labels", "dense.x", "ids.a", "ids.b.values", "ids.b.offsets", "ids.b.weights",
    }  # fmt: skip
    again = with_tensors(batch, {key: x.clone() for key, x in parts.items()})
    for key, x in tensors(again).items():
        assert torch.equal(x, parts[key]) and x is not parts[key]


def test_on_a_cpu_steps_are_not_recorded():
    strategy = make_strategy(StrategySection(name="single", graph=True), World())
    assert type(strategy) is Single


@pytest.mark.parametrize(
    ("optimizer", "clip"), [(OptimizerSection(name="sgd"), None), (OptimizerSection(), 1.0)]
)
def test_what_cannot_be_recorded_is_refused(optimizer, clip):
    with pytest.raises(ValueError, match=r"strategy\.graph=false"):
        Graphed(World()).setup(make_model(), optimizer, 1, clip)


def learned(model):
    """Parameters that have a gradient. A bias of all keys shifts all scores of a query alike, so
    its gradient is rounding alone, of which Adam makes steps."""
    for name, parameter in model.named_parameters():
        if name.endswith("query_key_value.bias"):
            query, _, value = parameter.chunk(3)
            yield from (query, value)
        else:
            yield parameter


@needs_gpu
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_recorded_steps_equal_unrecorded_ones(dropout):
    device = torch.device("cuda")
    results = []
    for make in (lambda: Graphed(World(device)), lambda: Single(World(device), fused=False)):
        strategy, losses = make(), []
        strategy.setup(make_model(dropout), OptimizerSection(name="adam", lr=0.01), seed=1)
        for step in range(12):
            batch = strategy.receive(masked_batch(20 if step % 3 else 7, seed=step % 4))
            torch.cuda.manual_seed(step)
            losses.append(strategy.train_step(batch, lr=0.01 / (1 + step // 6)))
        rows = [store.pull(EVERY) for store in strategy.stores.values()]
        results.append([torch.stack(losses), *learned(strategy.model), *rows])
        assert all(store.step == 12 for store in strategy.stores.values())
    for recorded, plain in zip(*results):
        torch.testing.assert_close(recorded, plain, rtol=2e-4, atol=2e-5)

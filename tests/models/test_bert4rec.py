"""BERT4Rec against dense computations of the same, and on data whose answer is known."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small import DATA, NO_DROPOUT, small_config
from torch import Tensor, nn

from shoal.data.history import Histories
from shoal.distributed.world import World
from shoal.embedding.softmax.full import full_softmax_loss
from shoal.models.nn.losses import against_negatives
from shoal.models.nn.masking import append_mask
from shoal.models.nn.transformer import Attention, Transformer
from shoal.runs.build import build
from shoal.runs.parts import Parts
from shoal.runs.run import run
from shoal.runs.trained_run import Trained, open_config
from shoal.training.checkpoint.writing import CheckpointError


def parts_of(**values: Any) -> Parts:
    return build(small_config("BERT4Rec", train__batch_size=32, **values), World())


def tables(parts: Parts) -> dict[str, Tensor]:
    return {
        name: store.pull(torch.arange(store.table.rows))
        for name, store in parts.strategy.stores.items()
    }


# --- attention in both directions


def test_attention_sees_everything_but_pads() -> None:
    torch.manual_seed(0)
    attention = Attention(heads=2, width=8, dropout=0.0, causal=False).double().eval()
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    pads = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [0, 1, 1, 1, 1]], dtype=torch.bool)
    reference = nn.MultiheadAttention(8, 2, batch_first=True).double()
    with torch.no_grad():
        reference.in_proj_weight.copy_(attention.query_key_value.weight)
        reference.in_proj_bias.copy_(attention.query_key_value.bias)
        reference.out_proj.weight.copy_(attention.out.weight)
        reference.out_proj.bias.copy_(attention.out.bias)
    want, _ = reference(x, x, x, key_padding_mask=pads)
    torch.testing.assert_close(attention(x, pads)[~pads], want[~pads])
    # The way with dropout on CPUs is written out; with next to none it is the same.
    attention.train()
    attention.dropout = 1e-12
    torch.testing.assert_close(attention(x, pads)[~pads], want[~pads])


def test_a_row_of_pads_alone_is_finite() -> None:
    transformer = Transformer(1, 2, 8, 16, causal=False)
    states = transformer(torch.randn(2, 3, 8), torch.tensor([[True] * 3, [False] * 3]))
    assert states.isfinite().all()


# --- losses


@pytest.mark.parametrize("block", [None, 1, 3, 7])
def test_softmax_over_the_catalogue_equals_torch(block: int | None) -> None:
    torch.manual_seed(0)
    hidden, items, bias = torch.randn(7, 6), torch.randn(11, 6), torch.randn(11)
    targets = torch.tensor([1, 8, 3, 3, 2, 8, 5])
    ours = [x.double().requires_grad_() for x in (hidden, items, bias)]
    dense = [x.double().requires_grad_() for x in (hidden, items, bias)]
    loss = full_softmax_loss(ours[0], ours[1], targets, block, bias=ours[2], stop=9)
    logits = (dense[0] @ dense[1].T + dense[2])[:, 1:9]
    want = F.cross_entropy(logits, targets - 1, reduction="sum")
    torch.testing.assert_close(loss, want)
    (loss * 0.3).backward()
    (want * 0.3).backward()
    for mine, theirs in zip(ours, dense):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_softmax_over_the_catalogue_with_large_logits_or_no_positions() -> None:
    hidden = torch.tensor([[300.0], [-300.0]], requires_grad=True)
    items = torch.tensor([[0.0], [1.0], [2.0], [-1.0]])
    loss = full_softmax_loss(hidden, items, torch.tensor([1, 3]))
    torch.testing.assert_close(loss, torch.tensor(300.0))  # 600 - 300, and 0
    none = full_softmax_loss(hidden[:0], items.requires_grad_(), torch.empty(0, dtype=torch.int64))
    none.backward()
    assert none.item() == 0.0 and float(items.grad.abs().sum()) == 0.0


# --- the model


@pytest.mark.parametrize("tied", [False, True])
def test_the_loss_is_that_of_masked_positions_over_all_items(tied: bool) -> None:
    parts = parts_of(model__tied=tied)
    batch = next(parts.reader.batches(0))
    model, rows = parts.model.train(), tables(parts)
    output = model(batch)
    history, target = batch.tensor("history"), batch.tensor("target")
    # All positions, all items, as a plain network would: then only those that were hidden.
    length = (history > 0).sum(1, keepdim=True)
    places = (12 - length + torch.arange(12)).clamp(max=11)
    x = model.norm(rows["item"][history] + model.positions[places])
    states = model.transformer(x, history == 0)
    out = rows["item" if tied else "output"]
    logits = states @ out.T + rows["output_bias"].squeeze(1)
    logits[..., 0] = -torch.inf
    logits[..., parts.dataset.num_items :] = -torch.inf
    want = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=0, reduction="sum")
    torch.testing.assert_close(output.loss, want, rtol=1e-5, atol=1e-4)
    assert output.count == int((target > 0).sum())


def test_the_model_finds_masked_places_itself() -> None:
    parts = parts_of()
    batch = next(parts.reader.batches(0))
    loss = parts.model(batch).loss
    del batch.ids["masked"]
    torch.testing.assert_close(parts.model(batch).loss, loss)


def test_append_mask_puts_a_mask_behind_the_history() -> None:
    history = torch.tensor([[1, 2, 3], [4, 0, 0], [0, 0, 0]])
    asked, places = append_mask(history, 9, max_len=3)
    assert asked.tolist() == [[2, 3, 9], [4, 9, 0], [9, 0, 0]]
    assert asked.flatten()[places].tolist() == [9, 9, 9]
    asked, places = append_mask(history, 9, max_len=8)
    assert asked.tolist() == [[1, 2, 3, 9], [4, 9, 0, 0], [9, 0, 0, 0]]
    assert places.tolist() == [3, 5, 8]


def test_a_score_is_the_logit_at_the_mask() -> None:
    parts = parts_of()
    model, evaluator = parts.model, parts.evaluator
    model.train()
    for batch in parts.reader.batches(0):
        parts.strategy.train_step(batch, 0.01)
    model.eval()
    rows = tables(parts)
    users = torch.arange(1, 9).numpy()
    query = evaluator.query(users, evaluator._prepared("test")[1])
    with torch.no_grad():
        scores = model.score(query, torch.arange(1, 20))
        asked, places = append_mask(query.tensor("history"), model.mask_token, 12)
        state = model.encode(asked, places)
        want = state @ rows["output"][1:20].T + rows["output_bias"][1:20, 0]
        pairs = torch.stack([torch.arange(1, 20)] * len(users))
        torch.testing.assert_close(model.score(query, pairs), scores)
    torch.testing.assert_close(scores, want)
    assert float(rows["output_bias"].abs().max()) > 0


def test_pads_and_padding_change_nothing() -> None:
    model = parts_of().model.eval()
    short = torch.tensor([[3, 4, 5]])
    padded = F.pad(short, (0, 6))
    with torch.no_grad():
        torch.testing.assert_close(
            model.encode(short, torch.tensor([2])), model.encode(padded, torch.tensor([2]))
        )


LOSSES = {
    "CE": {},
    "CE, tied": {"model__tied": True},
    "sampled": {"model__loss_type": "sampled", "train__negatives": {"num": 20}},
}


@pytest.mark.parametrize("loss", LOSSES)
def test_bert4rec_learns_taste_beyond_popularity(loss: str) -> None:
    values = {
        "train__batch_size": 64,
        "eval__repeatable": False,
        "data__split__by": "leave_one_out",
        "data__split__order": "time",
        "data__synthetic__items": 60,
        "data__synthetic__interactions": 2500,
        "data__synthetic__strength": 6.0,
        "data__synthetic__drift": 0.0,
        "data__synthetic__popularity": 0.3,
    }
    popular = build(small_config("Pop", **values), World())
    floor = popular.evaluator.evaluate(popular.model, "test")["ndcg@10"]
    parts = build(small_config("BERT4Rec", **values, **LOSSES[loss]), World())
    parts.model.train()
    for epoch in range(30):
        for batch in parts.reader.batches(epoch):
            parts.strategy.train_step(batch, 0.01)
    assert parts.evaluator.evaluate(parts.model, "test")["ndcg@10"] > 1.5 * floor


def test_debias_takes_popularity_off_the_scores() -> None:
    plain, less = parts_of(), parts_of(model__debias=0.5)
    items = less.dataset.item_ids("train")
    query = less.evaluator.query(np.array([1, 2]), Histories(less.dataset, ("train",), 12))
    candidates = torch.arange(1, less.dataset.num_items)
    taken = plain.model.score(query, candidates) - less.model.score(query, candidates)
    want = [0.5 * math.log(max(1, int((items == item).sum()))) for item in candidates.tolist()]
    torch.testing.assert_close(taken, torch.tensor(want).expand(2, -1), atol=1e-5, rtol=1e-5)


def test_a_trained_model_ranks_with_another_debias(tmp_path: Path) -> None:
    values = {**DATA, **NO_DROPOUT["BERT4Rec"], "train.epochs": 1}
    result = run(model="BERT4Rec", config_dict={**values, "run.output": str(tmp_path / "run")})

    def trained(word: str) -> Trained:
        return Trained(tmp_path / "run", open_config(tmp_path / "run", [word]))

    again = trained("--model.debias=0").evaluate()
    assert again["test"] == result["test"]
    assert trained("--model.debias=2").evaluate()["test"] != result["test"]
    with pytest.raises(CheckpointError, match=r"model.hidden_act was .relu., is now .gelu.[.] Use"):
        trained("--model.hidden_act=gelu")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("mask_ratio", 1.5),
        ("mask_ratio", 0.0),
        ("ft_ratio", -0.1),
        ("dupe_factor", 0),
        ("debias", -1.0),
    ],
)
def test_senseless_options_are_refused(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=option):
        small_config("BERT4Rec", **{f"model__{option}": value})


def test_a_history_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match=r"longer than the 12 positions"):
        parts_of().model.encode(torch.ones(1, 13, dtype=torch.int64), torch.tensor([0]))


def test_sampled_softmax_equals_torch_and_tends_to_the_full_one() -> None:
    torch.manual_seed(0)
    rows, hidden = torch.randn(9, 4), torch.randn(3, 4)
    targets, owner = torch.tensor([2, 5, 5]), torch.tensor([0, 0, 1])
    drawn = torch.tensor([[1, 2, 7], [3, 8, 8]])
    offset = torch.randn(9)
    logq = -offset[targets], -offset[drawn]
    loss, _ = against_negatives(
        "sampled", hidden, targets, drawn, rows.__getitem__, logq, 8, 0.0, owner
    )
    want = 0.0
    for state, target, sample in zip(hidden, targets, owner):
        others = [i for i in drawn[sample].tolist() if i != target]
        logits = torch.stack([state @ rows[i] + offset[i] for i in [int(target), *others]])
        want = want + logits.logsumexp(0) - logits[0]
    torch.testing.assert_close(loss, want)
    # Every other item once, all equally likely: the sampled loss is the full one.
    every = torch.stack([torch.tensor([i for i in range(1, 9) if i != t]) for t in targets])
    flat = torch.zeros(9)
    logq = flat[targets], flat[every]
    loss, _ = against_negatives("sampled", hidden, targets, every, rows.__getitem__, logq, 8, 0.0)
    torch.testing.assert_close(loss, full_softmax_loss(hidden, rows, targets))

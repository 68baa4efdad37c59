"""The click models, against plain numpy, on lists of ids, and on clicks whose cause is known."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from services import Weights, attach, taken

from shoal.data.batch import Batch, Jagged
from shoal.embedding.module import Embeddings
from shoal.embedding.rows.table import Table
from shoal.models import find
from shoal.models.base import ClickModel, Facts

SLOTS, DENSE, ROWS = 4, 3, 40
FACTS = Facts(num_slots=SLOTS, num_dense=DENSE, rows=ROWS)
CASES: dict[str, dict] = {
    "LR": {},
    "FM": {"dim": 3},
    "DNN": {"dim": 3, "layers": [7, 5]},
    "WideDeep": {"dim": 3, "layers": [7, 5]},
    "WideDeep slots": {"dim": 3, "layers": [7, 5], "wide_slots": True},
    "DeepFM": {"dim": 3, "layers": [7, 5]},
    "DCNV2": {"dim": 3, "layers": [7, 5], "cross_layers": 3},
    "DCNV2 stacked": {"dim": 3, "layers": [7, 5], "structure": "stacked"},
    "DCNV2 low rank": {"dim": 3, "layers": [7, 5], "low_rank": 2},
    "DCNV2 stacked low rank, as MLPerf has it": {
        **{"dim": 3, "bottom_layers": [6, 3], "layers": [7, 5], "cross_layers": 3},
        **{"low_rank": 2, "structure": "stacked"},
    },
    "DLRM": {"dim": 3, "bottom_layers": [6], "top_layers": [7, 5]},
}
EVERY = pytest.mark.parametrize("case", CASES)


def plain(case: str, facts: Facts = FACTS, **options) -> ClickModel:
    """A model as it begins, without stores."""
    torch.manual_seed(3)
    kind = find(case.split()[0])
    return kind(kind.Options(**{**CASES[case], **options}), facts)  # type: ignore[return-value]


def embeddings(model: ClickModel) -> list[Embeddings]:
    return [module for module in model.modules() if isinstance(module, Embeddings)]


def build(case: str, facts: Facts = FACTS) -> ClickModel:
    """A model with rows and dense parameters that are all far from 0."""
    model = plain(case, facts)
    for module in embeddings(model):
        attach(module, Weights)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.5)
    return model


def batch_of(size: int = 11, facts: Facts = FACTS) -> Batch:
    random = torch.Generator().manual_seed(5)
    ids = torch.randint(0, ROWS, (size, facts.num_slots), generator=random)
    dense = torch.randn(size, facts.num_dense, generator=random)
    labels = torch.randint(0, 2, (size,), generator=random).float()
    return Batch(size, {"slots": ids}, {"dense": dense} if facts.num_dense else {}, labels)


# --- every model, sample by sample in numpy


def relu_layers(named: dict[str, np.ndarray], prefix: str, x: np.ndarray) -> np.ndarray:
    """Layers prefix.1, prefix.4, prefix.7, ... where they are."""
    number = 1
    while f"{prefix}.{number}.weight" in named:
        weight, bias = named[f"{prefix}.{number}.weight"], named[f"{prefix}.{number}.bias"]
        x = np.maximum(weight @ x + bias, 0)
        number += 3
    return x


def by_hand(case: str, model: ClickModel, ids: list[list[int]], dense: np.ndarray) -> float:
    """The logit of one sample: the ids of each slot, and the dense values [num_dense]."""
    named = {k: v.detach().double().numpy() for k, v in model.named_parameters()}
    stores = {k: s for m in embeddings(model) for k, s in m.service.stores.items()}
    tables = {k: s.weight.double().numpy() for k, s in stores.items()}  # type: ignore[attr-defined]
    linear = (
        sum(tables["slots_linear"][i, 0] for some in ids for i in some)
        if ("slots_linear" in tables)
        else 0.0
    )
    name = case.split()[0]
    if name == "LR":
        return linear + named["dense_weights"] @ dense + named["bias"]
    dim = tables["slots"].shape[1]
    rows = [sum((tables["slots"][i] for i in some), np.zeros(dim)) for some in ids]
    x = np.concatenate([*rows, dense])

    def tower(prefix: str, x: np.ndarray) -> float:
        x = relu_layers(named, f"{prefix}.hidden", x)
        return (named[f"{prefix}.out.weight"] @ x + named[f"{prefix}.out.bias"])[0]

    if name in ("FM", "DeepFM"):
        vectors = [*rows, *(value * v for value, v in zip(dense, named["dense_vectors"]))]
        logit = linear + named["dense_weights"] @ dense + named["bias"]
        for i in range(len(vectors)):
            for j in range(i):
                logit += vectors[i] @ vectors[j]
        return logit + (tower("deep", np.concatenate(vectors)) if name == "DeepFM" else 0.0)
    if name == "DNN":
        return tower("deep", x)
    if name == "WideDeep":
        return linear + named["dense_weights"] @ dense + tower("deep", x)
    if name == "DCNV2":
        if "MLPerf" in case and len(dense):
            x = np.concatenate([*rows, relu_layers(named, "bottom", dense)])
        crossed = x
        for k in range(model.options.cross_layers):
            if "low rank" in case:
                down = named[f"cross.layers.{k}.0.weight"] @ crossed
                inner = named[f"cross.layers.{k}.1.weight"] @ down
                inner = inner + named[f"cross.layers.{k}.1.bias"]
            else:
                inner = (
                    named[f"cross.layers.{k}.weight"] @ crossed + named[f"cross.layers.{k}.bias"]
                )
            crossed = x * inner + crossed
        if "stacked" in case:
            last = relu_layers(named, "deep", crossed)
        else:
            last = np.concatenate([crossed, relu_layers(named, "deep", x)])
        return (named["out.weight"] @ last + named["out.bias"])[0]
    assert name == "DLRM"
    vectors, start = rows, np.zeros(0)
    if len(dense):
        start = relu_layers(named, "bottom", dense)
        vectors = [start, *rows]
    dots = [vectors[i] @ vectors[j] for i in range(len(vectors)) for j in range(i)]
    return tower("top", np.concatenate([start, dots]))


@EVERY
@pytest.mark.parametrize("num_dense", [DENSE, 0])
def test_logits_are_those_of_the_paper(case: str, num_dense: int) -> None:
    facts = replace(FACTS, num_dense=num_dense)
    model, batch = build(case, facts), batch_of(facts=facts)
    dense = batch.dense.get("dense", torch.zeros(batch.size, 0)).double().numpy()
    ids = batch.tensor("slots").tolist()
    expected = [by_hand(case, model, [[i] for i in ids[n]], dense[n]) for n in range(batch.size)]
    assert np.std(expected) > 0.01  # samples differ
    found = model.logits(batch)
    assert found.shape == (batch.size,)
    np.testing.assert_allclose(found.detach(), expected, rtol=1e-4, atol=1e-5)

    output = model(batch)
    clicked = batch.labels.tolist()  # type: ignore[union-attr]
    loss = sum(math.log1p(math.exp(-x if y else x)) for x, y in zip(expected, clicked))
    assert float(output.loss.detach()) == pytest.approx(loss, rel=1e-5)
    assert output.count == batch.size


@EVERY
def test_lists_of_several_ids_and_of_none(case: str) -> None:
    model = build(case)
    lists = [[3, 5, 3], [], [7], [8, 9], [1], [2, 4], [], [], [], [], [], [], [6], [6], [6], [6]]
    dense = torch.randn(4, DENSE, generator=torch.manual_seed(2))
    batch = Batch(4, {"slots": Jagged.from_lists(lists)}, {"dense": dense}, torch.ones(4))
    expected = [
        by_hand(case, model, lists[4 * n : 4 * n + 4], dense[n].double().numpy()) for n in range(4)
    ]
    np.testing.assert_allclose(model.logits(batch).detach(), expected, rtol=1e-4, atol=1e-5)


# --- learning


# --- lists of ids


def test_pooling_that_does_not_exist_is_refused() -> None:
    embed = Embeddings(tags=Table("tags", 2, ROWS))
    attach(embed, Weights)
    batch = Batch(1, {"tags": Jagged.from_lists([[1]])})
    with pytest.raises(ValueError, match="'max'; known are sum and mean"):
        embed.pooled("tags", batch, "max")  # type: ignore[arg-type]


# --- options


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="no pairs"):
        plain("DLRM", Facts(num_slots=1, num_dense=0, rows=ROWS))


@EVERY
def test_gradients_reach_every_parameter_and_row(case: str) -> None:
    model, batch = build(case), batch_of(200)
    model(batch).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), name
    for module in embeddings(model):
        for table, (ids, grads) in taken(module.service).items():
            assert torch.equal(ids, batch.tensor("slots").reshape(-1)), table
            assert grads.any(1).float().mean() > 0.5, table  # relu may silence a sample


@EVERY
def test_a_slice_without_samples_has_a_loss_of_0(case: str) -> None:
    model, batch = build(case), batch_of(5).rows(2, 2)
    output = model(batch)
    output.loss.backward()
    assert float(output.loss.detach()) == 0.0 and output.count == 0

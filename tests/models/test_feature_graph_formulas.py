"""Formulas of EulerNet, FiGNN, KD_DAGFM, and of models with a knowledge graph, written out."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from services import Weights, attach
from torch import Tensor
from zoo_clicks import ROWS, batch_of, make_model
from zoo_models import zoo_config

from shoal.config.schema import OptimizerSection, StrategySection
from shoal.data.batch import Batch
from shoal.data.knowledge import Knowledge
from shoal.distributed.world import World
from shoal.embedding.module import Embeddings
from shoal.models.nn.knowledge_vectors import learn_translations
from shoal.models.nn.nearest import joined, nearest
from shoal.runs.build import build
from shoal.training.strategies import make_strategy


def clicks(name: str, **options: Any) -> tuple[Any, Batch]:
    """A click model in evaluation with rows far from 0, and a batch for it."""
    model = make_model(name, **options)
    for module in model.modules():
        if isinstance(module, Embeddings):
            attach(module, Weights)
    return model.eval(), batch_of(name, 2)


@torch.inference_mode()
def test_eulernet_multiplies_complex_numbers() -> None:
    model, batch = clicks("EulerNet", order_list=[2])
    vectors = model.vectors(batch)
    complex_features = model.scale * torch.exp(1j * vectors)
    layer = model.layers[0]
    expected = torch.zeros(batch.size)
    for neuron, orders in enumerate(layer.orders):
        powers = torch.pow(complex_features.abs(), orders[:, None]).prod(1)
        length = powers * layer.log_bias[neuron].exp()
        angle = (complex_features.angle() * orders[:, None]).sum(1) + layer.angle_bias[neuron]
        product = torch.polar(length, angle)
        for part in ("real", "imag"):
            implicit = layer.implicit(getattr(complex_features, part).flatten(1)).relu()
            output = implicit.unflatten(1, (2, -1))[:, neuron] + getattr(product, part)
            expected += output @ model.out.weight[0].unflatten(0, (2, -1))[neuron]
    expected += 2 * model.out.bias
    torch.testing.assert_close(model.logits(batch), expected, rtol=1e-4, atol=1e-5)


@torch.inference_mode()
def test_fignn_hears_all_other_features() -> None:
    model, batch = clicks("FiGNN", n_layers=2)
    first = model._nodes(model.vectors(batch))
    edges = model._edges(first)
    torch.testing.assert_close(edges.sum(2), torch.ones(edges.shape[:2]))
    assert float(edges.diagonal(dim1=1, dim2=2).abs().max()) == 0.0
    step, number = model.steps[0], first.shape[1]
    logit = 0.0
    nodes = []
    for i in range(number):
        heard = sum(edges[0, i, j] * (first[0, j] @ step.outgoing[j]) for j in range(number))
        heard = heard @ step.incoming[i] + step.bias
        nodes.append(model.cell(heard[None], first[:1, i])[0] + first[0, i])
    weights = model.weigh(torch.cat(nodes))
    logit = sum(weights[i] * model.node_score(nodes[i])[0] for i in range(number))
    torch.testing.assert_close(model.logits(batch)[0], logit, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["KD_DAGFM", "KD_DAGFM inner"])
@torch.inference_mode()
def test_the_student_multiplies_along_edges(name: str) -> None:
    model, batch = clicks(name)
    student, vectors = model.student, model.vectors(batch)[0]
    first = nodes = student.mix @ vectors
    sums = [first.sum(1)]
    for number in range(2):
        heard = torch.zeros_like(nodes)
        for j in range(len(nodes)):
            for i in range(j + 1):
                read = student.read[number, i, j]
                if student.written is None:
                    heard[j] += read * nodes[i]
                else:
                    heard[j] += student.written[number, i, j] * (read @ nodes[i])
        nodes = first * heard
        sums.append(nodes.sum(1))
    expected = student.out(torch.cat(sums))[0]
    torch.testing.assert_close(model.logits(batch)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("phase", ["teacher_training", "distillation", "finetuning"])
def test_a_phase_trains_what_it_names(phase: str) -> None:
    strategy = make_strategy(StrategySection(name="single"), World())
    model: Any = make_model("KD_DAGFM", phase=phase)
    strategy.setup(model, OptimizerSection(name="sgd", lr=0.1), seed=1)
    model.train()
    batch = batch_of("KD_DAGFM", 0)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    rows = model.embed.rows("slots", torch.arange(ROWS)).clone()
    strategy.train_step(batch)
    strategy.synchronize()
    changed = {key for key, value in model.state_dict().items() if not value.equal(before[key])}
    part = "teacher." if phase == "teacher_training" else "student."
    assert changed and all(key.startswith((part, "dense_vectors")) for key in changed)
    moved = not model.embed.rows("slots", torch.arange(ROWS)).equal(rows)
    assert moved == (phase != "distillation") == ("dense_vectors" in changed)


# --- knowledge


def ranking(name: str, **values: Any) -> Any:
    parts = build(zoo_config(name, **values), World())
    return parts.model.eval()


@torch.inference_mode()
def test_kgnnls_passes_labels_of_the_user() -> None:
    model = ranking("KGNNLS", model__n_iter=1)
    users = torch.tensor([3, 7])
    rows = model.embed.rows("user_id", users)
    items = torch.arange(1, 40).expand(2, -1)
    nodes = model.around(items)
    found = model.passed_labels(users, rows, nodes)
    taken = {(int(u), int(i)) for u, i in zip(model.facts.train_users, model.facts.train_items)}
    node_items = {int(node): item for item, node in enumerate(model.item_node.tolist()) if item}
    weights = model.weights(rows, nodes)[0]
    for b, user in enumerate(users.tolist()):
        for n, item in enumerate(items[b].tolist()):
            label = 0.0
            for place, node in enumerate(nodes[1][0 if len(nodes[1]) == 1 else b, n].tolist()):
                other = node_items.get(node)
                own = 0.5 if other in (None, item) else float((user, other) in taken)
                label += own * float(weights[b, n, 0, place])
            assert float(found[b, n]) == pytest.approx(label, abs=1e-5)


@torch.inference_mode()
def test_ktup_takes_one_reason() -> None:
    model = ranking("KTUP")
    batch = Batch(2, {"user_id": torch.tensor([3, 7])})
    items = torch.tensor([4, 9])
    users = model.embed.rows("user_id", batch.tensor("user_id"))
    own, entity = model._item_rows(items)
    reasons = (model.reasons + model.relation_rows) / 2
    planes = (model.reason_planes + model.relation_planes) / 2
    for b in range(2):
        for n in range(2):
            item = own[n] + entity[n]
            reason = int(((users[b] + item) @ reasons.T).argmax())
            normal = F.normalize(planes[reason], dim=0)
            moved = users[b] - (users[b] @ normal) * normal + reasons[reason]
            score = -(moved - item + (item @ normal) * normal).square().sum()
            torch.testing.assert_close(model.score(batch, items)[b, n], score)


def test_translations_find_partners() -> None:
    """Ten pairs of entities, each of the same relation."""
    heads, tails = torch.arange(1, 11).repeat(8), torch.arange(11, 21).repeat(8)
    graph = Knowledge(heads, torch.ones_like(heads), tails, 21, 2, torch.arange(21))
    entities, relations = learn_translations(graph, 16, 150)
    again, _ = learn_translations(graph, 16, 150)
    assert torch.equal(entities, again)
    apart = torch.cdist(entities[1:11] + relations[1], entities[11:])
    assert apart.argmin(1).equal(torch.arange(10))


@torch.inference_mode()
def test_ksr_writes_item_after_item() -> None:
    model = ranking("KSR frozen")
    history = torch.tensor([[3, 1, 4, 0, 0, 0, 0, 0]])
    memory = torch.zeros_like(model.relations)
    for item in (3, 1, 4):
        new = model.knowledge.items[item] + model.relations
        gate = torch.sigmoid((memory * new).sum(1, keepdim=True))
        memory = (1 - gate) * memory + gate * new
    torch.testing.assert_close(model._written(history)[0], memory)
    scores = model.score(Batch(1, {"history": history}), torch.arange(1, 10))
    model.options = replace(model.options, gamma=0.0)  # all relations are read alike
    assert not model.score(Batch(1, {"history": history}), torch.arange(1, 10)).equal(scores)


def test_nearest_rows_are_joined_by_normalised_weights() -> None:
    x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    places, weights = nearest(x, 2)
    assert places.tolist() == [[0, 1], [1, 0], [2, 1]]
    degrees = Tensor([1.8, 1.8, 1.6])
    expected = Tensor([[1.0, 0.8], [1.0, 0.8], [1.0, 0.6]])
    expected = expected / degrees.sqrt()[:, None] / degrees.sqrt()[places]
    torch.testing.assert_close(weights, expected)
    mixed = (weights.unsqueeze(2) * x[places]).sum(1)
    torch.testing.assert_close(joined(x, (places, weights)), mixed)

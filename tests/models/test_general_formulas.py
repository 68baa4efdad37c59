"""Formulas of models of users and items, against versions of themselves that are written out."""

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from zoo_models import zoo_config

from shoal.data.batch import Batch
from shoal.distributed.world import World
from shoal.models.general.convncf import ConvNCF
from shoal.models.general.dgcf import distance_correlation
from shoal.models.general.ract import ndcg
from shoal.models.general.ultragcn import near_items
from shoal.models.nn.diffusion import Diffusion, betas_of
from shoal.models.nn.dropout import begin_slice, begin_step, end_steps, normal_like, uniform_like
from shoal.models.nn.user_items import UserItems, taken_by_users
from shoal.runs.build import build


def model_of(name: str, **values: object) -> Any:
    """A model of the zoo in training, which has not learned."""
    return build(zoo_config(name, **values), World()).model


def pairs_of(model: Any, negatives: int = 2) -> Batch:
    """Three users, each with an item that they took, and with negatives."""
    users = torch.tensor([3, 9, 21])
    items = torch.stack([model.taken.lists(users[k : k + 1]).values[0] for k in range(3)])
    drawn = torch.tensor([[5, 11], [2, 8], [30, 7]])[:, :negatives]
    return Batch(3, {"user_id": users, "item_id": items, "neg_item": drawn})


def test_random_numbers_are_below_one() -> None:
    """At this place of this step the word of 32 bits is so large that float32 rounds it to 1."""
    begin_step(3, 7, torch.device("cpu"))
    begin_slice(38_532_852)
    number = uniform_like(torch.empty(1, 1))
    begin_slice(38_532_852)
    assert 0.999 < float(number) < 1.0 and 4.0 < float(normal_like(torch.empty(1, 1))) < 6.0
    end_steps()


def test_pairs_are_held_as_they_were_taken() -> None:
    users, items = torch.tensor([1, 1, 2, 4, 4]), torch.tensor([3, 1, 2, 2, 5])
    taken = UserItems(users, items, 6, 7)
    every = taken.matrix(torch.arange(6)).bool()
    grid = torch.meshgrid(torch.arange(6), torch.arange(7), indexing="ij")
    assert torch.equal(taken.holds(*grid), every) and taken.longest == 2


def test_an_item_is_no_evidence_for_itself() -> None:
    """FISM and NAIS, written out pair by pair."""
    for name in ("FISM", "NAIS", "NAIS concat"):
        model = model_of(name, model__reg_weights=[0.0, 0.0, 0.0][: 2 if name == "FISM" else 3])
        batch, options = pairs_of(model), model.options
        loss = float(model(batch).loss.detach())
        rows, vectors = model.embed.whole("taken"), model.embed.whole("item")
        biases, expected = model.embed.whole("item_bias"), 0.0
        for number, user in enumerate(batch.tensor("user_id").tolist()):
            taken = model.taken.lists(torch.tensor([user])).values.tolist()
            items = batch.tensor("item_id")[number].view(1)
            items = torch.cat([items, batch.tensor("neg_item")[number]]).tolist()
            for place, item in enumerate(items):
                others = [other for other in taken if other != item]
                products = torch.stack([rows[other] @ vectors[item] for other in others])
                weights = torch.ones(len(others))
                if name != "FISM":
                    weights = attention(model, rows[others], vectors[item])
                score = (weights * products).sum() / len(others) ** options.alpha
                score = score + biases[item, 0]
                expected -= float(F.logsigmoid(score if place == 0 else -score).detach())
        assert loss == pytest.approx(expected, rel=1e-5), name


def attention(model: Any, rows: Tensor, vector: Tensor) -> Tensor:
    """exp(f) / (sum of exp(f))^beta of NAIS, of some items taken and one asked for."""
    pairs = rows * vector
    if model.options.algorithm == "concat":
        pairs = torch.cat([rows, vector.expand_as(rows)], 1)
    powers = (model.attention(pairs) @ model.weigh).exp()
    return powers / powers.sum() ** model.options.beta


def test_line_draws_users_who_did_not_take_the_item() -> None:
    model = model_of("LINE")
    items = torch.arange(1, 47).unsqueeze(1)
    users = model._strangers(items, 40)
    wrong = model.taken.holds(users, items.expand_as(users))
    density = len(model.taken.items) / (60 * 46)
    assert users.min() >= 1 and users.max() < model.facts.num_users
    assert len(users.unique()) > 50 and float(wrong.float().mean()) < 4 * density**4 + 0.02


def test_spectral_filters_read_what_neighbours_leave() -> None:
    model = model_of("SpectralCF").eval()
    first, nodes = model.first_layer(), model.graph.nodes
    adjacency = torch.zeros(nodes, nodes)
    adjacency[model.graph.ends, model.graph.neighbours] = 1.0
    share = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1.0)
    layers = [first]
    for weights in model.filters:
        layers.append(torch.sigmoid((2.0 * torch.eye(nodes) - share) @ layers[-1] @ weights))
    torch.testing.assert_close(model.last_layer(first), torch.cat(layers, 1))


def test_one_intent_is_lightgcn() -> None:
    model = model_of("DGCF", model__n_factors=1, model__n_layers=2).eval()
    first = model.first_layer()
    torch.testing.assert_close(model.last_layer(first), model.graph.mean(first, 2))


def test_intents_share_edges_by_how_near_they_are() -> None:
    model = model_of("DGCF", model__n_factors=2).eval()
    first, graph = model.first_layer(), model.graph
    parts, scores = first.view(-1, 2, 4), torch.ones(len(graph.ends), 2)
    for _ in range(2):
        shares, spread = scores.softmax(1), torch.zeros_like(parts)
        for intent in range(2):
            matrix = torch.zeros(graph.nodes, graph.nodes)
            matrix[graph.ends, graph.neighbours] = shares[:, intent]
            roots = matrix.sum(1).clamp(min=1e-8).sqrt()
            spread[:, intent] = matrix / (roots * roots[:, None]) @ parts[:, intent]
        near = F.normalize(spread, dim=2)[graph.ends]
        scores = scores + (near * F.normalize(parts, dim=2).tanh()[graph.neighbours]).sum(2)
    expected = (first + spread.flatten(1)) / 2
    torch.testing.assert_close(model.last_layer(first), expected)


def test_distance_correlation_knows_what_depends() -> None:
    torch.manual_seed(1)
    sample = torch.randn(400, 3)
    turned, _ = torch.linalg.qr(torch.randn(3, 3))
    found = float(distance_correlation(sample, 2.0 * sample @ turned))
    assert found == pytest.approx(1.0, abs=1e-3)
    assert float(distance_correlation(sample, torch.randn(400, 3))) < 0.2


def test_a_bilinear_decoder_is_a_product_of_vectors() -> None:
    model = model_of("GCMC").eval()
    batch = Batch(2, {"user_id": torch.arange(1, 3)})
    vectors = model.propagated()[1]
    users, items = vectors[batch.tensor("user_id")], vectors[model.facts.num_users :]
    expected = sum(w * users @ base @ items.T for w, base in zip(model.weigh, model.bases))
    torch.testing.assert_close(model.score(batch, torch.arange(model.facts.num_items)), expected)


def test_clusters_are_found_where_an_epoch_begins() -> None:
    model = model_of("NCL", model__warm_up_step=1, model__m_step=2)
    samples, found = len(model.facts.train_items), []
    first = model.first_layer().detach()
    for _ in range(8):  # four epochs of two steps
        model._cluster(first, math.ceil(samples / 2))
        found.append(int(model.clustered_at))
    assert found == [-1, -1, 1, 1, 1, 1, 3, 3]
    lengths = model.user_centres.norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones_like(lengths))


@pytest.mark.parametrize("schedule", ["linear", "linear-var", "cosine", "binomial"])
def test_a_right_guess_undoes_all_noise(schedule: Any) -> None:
    betas = betas_of(schedule, 4, 0.5, 0.1, 0.4, fixed=True)
    assert betas[0] == 1e-5 and bool((betas > 0).all() and (betas <= 1).all())
    diffusion, start = Diffusion(betas, 2, reweight=True), torch.randn(3, 6)
    noisy = diffusion.noisy(start, torch.tensor([3, 3, 3]))
    undone = diffusion.undone(noisy, lambda x, steps: start)
    assert float((undone - start).abs().max()) < 0.05 < float((noisy - start).abs().max())
    ratio = diffusion.kept / (1.0 - diffusion.kept)
    torch.testing.assert_close(diffusion.weights[1:], ratio[:-1] - ratio[1:], rtol=5e-3, atol=0)
    assert diffusion.weights[0] == 1.0


def test_steps_with_large_losses_are_drawn_more_often() -> None:
    diffusion = Diffusion(betas_of("linear", 3, 1.0, 0.1, 0.2, fixed=False), 2, reweight=False)
    steps, share = diffusion.draw(3000)
    assert share.tolist() == pytest.approx([1.0] * 3000)  # nothing is known yet
    diffusion.remember(torch.tensor([0, 1, 2, 0, 1]), torch.tensor([9.0, 1.0, 3.0, 1.0, 1.0]))
    assert diffusion.losses.isnan().any()
    diffusion.remember(torch.tensor([0, 2]), torch.tensor([1.0, 3.0]))
    assert diffusion.losses.tolist() == [[1.0, 1.0], [1.0, 1.0], [3.0, 3.0]]
    steps, share = diffusion.draw(3000)
    counts = np.bincount(steps, minlength=3) / 3000
    assert counts == pytest.approx([0.2, 0.2, 0.6], abs=0.04)
    assert float(share[steps == 2].mean()) == pytest.approx(1.8, rel=1e-2)


@pytest.mark.parametrize("itself", [True, False])
def test_near_items_are_those_of_the_largest_omega(itself: bool) -> None:
    taken = (np.random.default_rng(3).random((12, 9)) < 0.4).astype(np.float64)
    users, items = (torch.from_numpy(one) for one in np.nonzero(taken))
    near, omega = near_items(UserItems(users, items, 12, 9), 4, itself)
    together = taken.T @ taken - (0.0 if itself else 1.0) * np.diag(taken.sum(0))
    sums = together.sum(1)
    expected = together * np.outer(np.sqrt(sums + 1) / sums, 1 / np.sqrt(sums + 1))
    np.testing.assert_allclose(omega, -np.sort(-expected, 1)[:, :4], rtol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(expected, near.numpy(), 1), omega, rtol=1e-5)


@pytest.mark.parametrize("share", [False, True])
def test_constraints_of_ultragcn(share: bool) -> None:
    """The loss of three samples, written out pair by pair."""
    model = model_of("UltraGCN", model__w1=0.3, model__share_negatives=share, model__k=3)
    options, facts = model.options, model.facts
    model.taken = taken_by_users(facts)
    batch = pairs_of(model)
    users, items = model.embed.whole("user_id"), model.embed.whole("item_id")
    matrix = model.taken.matrix(torch.arange(facts.num_users))
    of_user, of_item = matrix.sum(1), matrix.sum(0)
    near, omega = near_items(model.taken, 3, itself=True)
    expected = 0.0
    for number, (user, item) in enumerate(zip(batch.tensor("user_id"), batch.tensor("item_id"))):
        beta = (of_user[user] + 1).sqrt() / of_user[user] / (of_item + 1).sqrt()
        scores = items @ users[user]
        drawn = batch.tensor("neg_item")
        drawn = drawn.reshape(-1) if share else drawn[number]
        loss = -(0.3 + beta[item]) * F.logsigmoid(scores[item])
        negative = (1e-6 + beta[drawn]) * F.logsigmoid(-scores[drawn])
        loss = loss - options.negative_weight * negative.mean()
        loss = loss - 5e-4 * (omega[item] * F.logsigmoid(scores[near[item]])).sum()
        squares = users[user].square().sum() + items[item].square().sum()
        expected += float((loss + 0.5 * options.reg_weight * squares).detach())
    assert float(model(batch).loss.detach()) == pytest.approx(expected, rel=1e-5)


def test_directions_spread_by_powers_of_degrees() -> None:
    """LightGCN++, by a dense matrix."""
    options = {"model__alpha": 0.7, "model__beta": 0.2, "model__gamma": 0.3}
    model = model_of("LightGCNpp", **options, model__n_layers=3)
    first, final = model.propagate()
    graph, nodes = model.graph, len(first)
    matrix = torch.zeros(nodes, nodes)
    matrix[graph.ends, graph.neighbours] = 1.0
    degrees = matrix.sum(1).clamp(min=1.0)
    matrix = degrees.pow(-0.7).unsqueeze(1) * matrix * degrees.pow(-0.2)
    layers = [first]
    for _ in range(3):
        layers.append(matrix @ F.normalize(layers[-1], dim=1))
    expected = 0.3 * first + 0.7 * torch.stack(layers[1:]).mean(0)
    torch.testing.assert_close(final, expected, rtol=1e-4, atol=1e-5)


def test_convolutions_that_leave_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shrink an image of 32 x 32 to nothing"):
        ConvNCF.Options(embedding_size=32)
    with pytest.raises(ValueError, match=r"has 4 layers, so model\.cnn_strides has 4"):
        ConvNCF.Options(cnn_strides=[4, 4])


def test_a_critic_guesses_the_ndcg_of_hidden_items() -> None:
    scores = torch.tensor([[0.0, 4.0, 3.0, 2.0, 1.0], [0.0, 1.0, 2.0, 3.0, 4.0]])
    wanted = torch.tensor([[0.0, 0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0, 1.0]])
    best = 1.0 + 1.0 / math.log2(3)
    expected = [(1.0 / math.log2(3)) / best, 1.0]
    assert ndcg(scores, wanted, 3).tolist() == pytest.approx(expected)


def test_stages_follow_each_other_and_change_their_own_part() -> None:
    model = model_of("RaCT finetune", model__pretrain_epochs=1)
    lists = model.taken.lists(torch.arange(1, 9))
    batch = Batch(8, {"user_id": torch.arange(1, 9), "taken": lists})
    for epoch, stage in enumerate(("actor", "critic", "finetune")):
        model.samples_seen.fill_(epoch * model.users_of_epoch)
        assert model.stage() == stage
        model.zero_grad()
        model(batch).loss.backward()
        learns = {name.split(".")[0] for name, p in model.named_parameters() if p.grad is not None}
        assert ("critic" in learns) == (stage == "critic")
        assert ({"encoder", "decoder"} <= learns) == (stage != "critic")

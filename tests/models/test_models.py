"""The models, against independent plain-torch versions of themselves and known right answers."""

import sys
from dataclasses import replace

import pytest
import torch
from memory_models import (
    FACTS,
    ITEMS,
    USERS,
    build,
    row_gradients,
    stores,
    training_batch,
)
from torch import Tensor, nn

from shoal.data.batch import Batch
from shoal.models import MODELS, find, lookup
from shoal.models.base import Facts, Model
from shoal.models.sequential.sasrec import SASRec

TRAINABLE = ["BPR", "NeuMF", "LightGCN", "SASRec", "SASRec-BPR"]


# --- the registry


def test_models_are_found_in_any_case_and_options_are_plain():
    assert find("bpr").__name__ == "BPR"
    assert find("LIGHTGCN").__name__ == "LightGCN"
    assert lookup("sasrec")[0] == "SASRec"
    for name in MODELS:
        canonical, options = lookup(name)
        assert canonical == name
        options()  # every option has a default


def test_a_misspelt_model_gets_the_nearest_names():
    with pytest.raises(ValueError, match=r"'SASRek'; `shoal models` .*did you mean SASRec\?"):
        find("SASRek")


def test_a_model_is_imported_only_when_asked_for(monkeypatch):
    find("BPR")
    monkeypatch.delitem(sys.modules, "shoal.models.general.bpr")
    find("Pop")
    assert "shoal.models.general.bpr" not in sys.modules


def test_default_options_of_well_known_models():
    wanted = {
        "Pop": "Options()",
        "BPR": "Options(embedding_size=64)",
        "LightGCN": "Options(embedding_size=64, n_layers=2, reg_weight=1e-05, require_pow=False)",
    }
    for name, text in wanted.items():
        assert repr(lookup(name)[1]()).endswith(text)
    sasrec = SASRec.Options()
    assert (sasrec.n_layers, sasrec.hidden_size, sasrec.inner_size) == (2, 64, 256)
    assert (sasrec.hidden_dropout_prob, sasrec.hidden_act, sasrec.loss_type) == (0.5, "gelu", "CE")
    assert SASRec.Options.DEFAULTS == {"train.negatives": None}  # the data decides the split


# --- every model


@pytest.mark.parametrize("name", ["BPR", "NeuMF", "LightGCN", "SASRec-BPR"])
def test_missing_negatives_are_named_with_the_remedy(name):
    model = build(name)
    batch = training_batch(model)
    ids = {key: value for key, value in batch.ids.items() if key != "neg_item"}
    with pytest.raises(ValueError, match=r"train\.negatives\.num"):
        model(Batch(batch.size, ids))


# --- Pop


def test_pop_counts_the_training_interactions():
    model = build("Pop", replace(FACTS, train_items=torch.tensor([2, 2, 5, 2, 5, 1])))
    scores = model.score(Batch(2, {"user_id": torch.tensor([1, 4])}), torch.tensor([5, 2, 1, 8]))
    assert scores.tolist() == [[2, 3, 1, 0], [2, 3, 1, 0]]
    assert not model.trainable


# --- BPR and NeuMF against nn.Embedding


@pytest.mark.parametrize("k", [1, 3])
def test_bpr_equals_a_plain_implementation(k):
    model = build("BPR")
    batch = training_batch(model, k)
    user = nn.Embedding.from_pretrained(stores(model)["user"].weight.clone(), freeze=False)
    item = nn.Embedding.from_pretrained(stores(model)["item"].weight.clone(), freeze=False)
    expected = torch.zeros(())
    for column in range(k):
        negative = item(batch.ids["neg_item"][:, column])
        margin = (user(USERS) * item(ITEMS)).sum(1) - (user(USERS) * negative).sum(1)
        expected = expected - torch.sigmoid(margin).log().sum()
    expected.backward()

    output = model(batch)
    output.loss.backward()
    assert output.count == 18 * k
    torch.testing.assert_close(output.loss, expected)
    gradients = row_gradients(model)
    torch.testing.assert_close(gradients["user"], user.weight.grad)
    torch.testing.assert_close(gradients["item"], item.weight.grad)

    scores = model.eval().score(batch, torch.arange(9))
    torch.testing.assert_close(scores, (user(USERS) @ item.weight.T).detach())


def plain_neumf(model: Model) -> tuple[dict[str, nn.Embedding], object]:
    """NeuMF written out, pair by pair, over copies of the model's rows and layers."""
    tables = {
        name: nn.Embedding.from_pretrained(store.weight.clone(), freeze=False)
        for name, store in stores(model).items()
    }
    dense = {name: p.detach().clone() for name, p in model.named_parameters()}

    def logit(user: Tensor, item: Tensor) -> Tensor:
        joined = []
        if "mf_user" in tables:
            joined.append(tables["mf_user"](user) * tables["mf_item"](item))
        if "mlp_user" in tables:
            x = torch.cat([tables["mlp_user"](user), tables["mlp_item"](item)])
            x = torch.relu(dense["mlp.1.weight"] @ x + dense["mlp.1.bias"])
            joined.append(torch.relu(dense["mlp.4.weight"] @ x + dense["mlp.4.bias"]))
        return (dense["predict.weight"] @ torch.cat(joined) + dense["predict.bias"])[0]

    return tables, logit


@pytest.mark.parametrize("halves", [{}, {"mf_train": False}, {"mlp_train": False}])
def test_neumf_equals_a_plain_implementation(halves):
    model = build("NeuMF", **halves)
    batch = training_batch(model, 2)
    tables, logit = plain_neumf(model)
    expected = torch.zeros(())
    for row in range(18):
        expected = expected - torch.sigmoid(logit(USERS[row], ITEMS[row])).log()
        for negative in batch.ids["neg_item"][row]:
            expected = expected - (1 - torch.sigmoid(logit(USERS[row], negative))).log()
    expected.backward()

    output = model(batch)
    output.loss.backward()
    assert output.count == 18 * 3
    torch.testing.assert_close(output.loss, expected)
    gradients = row_gradients(model)
    assert gradients.keys() == tables.keys()
    for name, table in tables.items():
        torch.testing.assert_close(gradients[name], table.weight.grad)


def test_neumf_learns_from_labels_where_there_are_no_negatives():
    model = build("NeuMF")
    labels = (torch.arange(18) % 3 == 0).float()
    _, logit = plain_neumf(model)
    logits = torch.stack([logit(u, i) for u, i in zip(USERS, ITEMS)])
    expected = -(labels * logits.sigmoid().log() + (1 - labels) * (-logits).sigmoid().log()).sum()
    output = model(Batch(18, {"user_id": USERS, "item_id": ITEMS}, labels=labels))
    assert output.count == 18
    torch.testing.assert_close(output.loss, expected)


def test_neumf_without_halves_is_refused():
    with pytest.raises(ValueError, match="mf_train"):
        build("NeuMF", mf_train=False, mlp_train=False)


# --- LightGCN against dense matrices


@pytest.mark.parametrize("require_pow", [True, False])
@pytest.mark.parametrize("layers", [0, 1, 3])
def test_lightgcn_equals_dense_matrices_on_a_graph_of_five_users(layers, require_pow):
    # user 5 took nothing, item 4 was taken by nobody, (2, 1) happened twice
    users, items = torch.tensor([1, 1, 2, 2, 3, 4, 2]), torch.tensor([1, 2, 1, 3, 3, 2, 1])
    facts = Facts(6, 5, "user_id", "item_id", 6, users, items)
    model = build("LightGCN", facts, n_layers=layers, require_pow=require_pow)
    user = stores(model)["user"].weight.clone().requires_grad_()
    item = stores(model)["item"].weight.clone().requires_grad_()

    taken = torch.zeros(6, 5)
    for u, i in [(1, 1), (1, 2), (2, 1), (2, 3), (3, 3), (4, 2)]:
        taken[u, i] = 1
    adjacency = torch.zeros(11, 11)
    adjacency[:6, 6:], adjacency[6:, :6] = taken, taken.T
    scale = adjacency.sum(1).clamp(min=1).rsqrt()
    adjacency = scale[:, None] * adjacency * scale
    ego = torch.cat([user, item])
    powers = [torch.linalg.matrix_power(adjacency, n) @ ego for n in range(layers + 1)]
    final = sum(powers) / (layers + 1)

    # user, item and two negatives: each sample makes two pairs
    samples = torch.tensor([[1, 1, 3, 4], [2, 3, 4, 2], [4, 2, 1, 3], [2, 1, 2, 2]])
    pairs = [(u, p, n) for u, p, *negatives in samples.tolist() for n in negatives]
    expected = torch.zeros(())
    for u, p, n in pairs:
        margin = final[u] @ final[6 + p] - final[u] @ final[6 + n]
        expected = expected - torch.sigmoid(margin).log()
        for row in (user[u], item[p], item[n]):
            size = row.square().sum()
            expected = expected + 0.05 * (size / 2 if require_pow else size.sqrt())
    expected.backward()

    ids = {"user_id": samples[:, 0], "item_id": samples[:, 1], "neg_item": samples[:, 2:]}
    output = model(Batch(4, ids))
    output.loss.backward()
    assert output.count == 8
    torch.testing.assert_close(output.loss, expected)
    gradients = row_gradients(model)
    torch.testing.assert_close(gradients["user"], user.grad)
    torch.testing.assert_close(gradients["item"], item.grad)

    scores = model.eval().score(Batch(5, {"user_id": torch.arange(1, 6)}), torch.arange(5))
    torch.testing.assert_close(scores, (final[1:6] @ final[6:].T).detach())


@pytest.mark.parametrize("name", TRAINABLE)
def test_dense_parameters_are_a_function_of_the_seed(name):
    first, second = build(name).state_dict(), build(name).state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_lightgcn_propagates_once_per_evaluation_and_anew_in_training():
    model = build("LightGCN").eval()
    users, items = Batch(6, {"user_id": torch.arange(1, 7)}), torch.arange(1, 9)
    before = model.score(users, items)
    assert model.propagated()[1] is model.propagated()[1]
    model.train()
    stores(model)["item"].weight.neg_()
    stores(model)["user"].weight.neg_()
    stores(model)["user"].weight[1] = 0
    model.eval()
    after = model.score(users, items)
    assert not torch.allclose(after, before)
    assert "starts" not in model.state_dict()

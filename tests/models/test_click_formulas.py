"""Formulas of click models and of models that read graphs, against versions written out."""

from itertools import combinations
from typing import Any

import pytest
import torch
from services import Weights, attach
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from zoo_clicks import HISTORIES, LENGTH, batch_of, make_model
from zoo_models import zoo_config

from shoal.data.batch import Batch, Jagged
from shoal.distributed.world import World
from shoal.embedding.module import Embeddings
from shoal.embedding.rows.table import Table
from shoal.models.base import ClickModel
from shoal.models.clicks.finalnet import FinalNet
from shoal.models.clicks.history.base import Bilinear
from shoal.models.clicks.labels.esmm import both
from shoal.models.clicks.rankmixer import RankMixer, RankMixerBlock
from shoal.models.knowledge.base import TransR
from shoal.models.knowledge.mkr import CrossCompress
from shoal.models.nn.edges import Edges
from shoal.runs.build import build
from shoal.runs.parts import Parts


def ready(name: str, **options: object) -> tuple[ClickModel, Batch]:
    """A model with rows and parameters far from 0, and a batch for it."""
    model = make_model(name, **options)
    for module in model.modules():
        if isinstance(module, Embeddings):
            attach(module, Weights)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.5)
    return model.eval(), batch_of(name, 2)


def parts_of(name: str, **values: Any) -> Parts:
    return build(zoo_config(name, **values), World())


def first_order(model: ClickModel, batch: Batch) -> Tensor:
    weights = model.slots(model.linear, batch).sum((1, 2))  # type: ignore[arg-type]
    return weights + batch.dense["dense"] @ model.dense_weights + model.bias  # type: ignore[operator]


def check(name: str, of_pairs, **options: object) -> None:  # type: ignore[no-untyped-def]
    """The logits are the first order and what `of_pairs` makes of the vectors of a sample."""
    model, batch = ready(name, **options)
    with torch.no_grad():
        vectors = model.vectors(batch)  # type: ignore[operator]
        more = torch.stack([torch.as_tensor(of_pairs(model, one)) for one in vectors])
        expected = first_order(model, batch) + more
        torch.testing.assert_close(model.logits(batch), expected, rtol=1e-4, atol=1e-4)
    assert more.std() > 0.01


def test_pairs_of_fields_with_vectors_for_each_other() -> None:
    def pairs(model: ClickModel, vectors: Tensor) -> Tensor:
        n, dim = len(vectors), model.options.dim
        each = vectors.view(n, n, dim)
        return sum(each[i, j] @ each[j, i] for i, j in combinations(range(n), 2))  # type: ignore

    check("FFM", pairs)


def test_pairs_that_are_weighed() -> None:
    def fwfm(model: ClickModel, v: Tensor) -> Tensor:
        order = [(i, j) for i in range(len(v)) for j in range(i)]
        return sum(w * (v[i] @ v[j]) for w, (i, j) in zip(model.pair_weights, order))  # type: ignore

    def afm(model: ClickModel, v: Tensor) -> Tensor:
        pairs = torch.stack([v[i] * v[j] for i, j in combinations(range(len(v)), 2)])
        shares = model.attention(pairs).softmax(0)  # type: ignore[operator]
        return (shares * pairs).sum(0) @ model.out  # type: ignore[operator]

    def nfm(model: ClickModel, v: Tensor) -> Tensor:
        pooled = sum(v[i] * v[j] for i, j in combinations(range(len(v)), 2))
        return model.deep(pooled.unsqueeze(0))[0]  # type: ignore

    check("FwFM", fwfm)
    check("AFM", afm)
    check("NFM", nfm)


def test_crosses_of_vectors() -> None:
    def cin(model: ClickModel, v: Tensor) -> Tensor:
        layer, sums = v, []
        for cross in model.cross:  # type: ignore[union-attr]
            weights = cross.weight.view(-1, len(layer), len(v))
            layer = torch.einsum("kij,id,jd->kd", weights, layer, v)
            sums.append(layer.sum(1))
        made = torch.cat(sums) @ model.out.weight[0]  # type: ignore
        return made + model.deep(v.flatten().unsqueeze(0))[0]  # type: ignore[operator]

    def bilinear(model: ClickModel, v: Tensor) -> Tensor:
        weighed = v * model.squeeze(v.mean(1)).unsqueeze(1)  # type: ignore[operator]
        read = [
            (some[i] @ model.forms[i]) * some[j]  # type: ignore[index]
            for some in (v, weighed)
            for i, j in combinations(range(len(v)), 2)
        ]
        return model.deep(torch.cat(read).unsqueeze(0))[0]  # type: ignore[operator]

    check("xDeepFM", cin)
    check("FiBiNET each", bilinear)


def test_crosses_of_all_features() -> None:
    model, batch = ready("DCN")
    x = first = model.features(batch)  # type: ignore[operator]
    for layer, bias in zip(model.cross, model.biases):  # type: ignore
        x = torch.stack([f * (one @ layer.weight[0]) + bias + one for f, one in zip(first, x)])
    expected = model.out(torch.cat([x, model.deep(first)], 1)).squeeze(1)  # type: ignore
    torch.testing.assert_close(model.logits(batch), expected)

    model, batch = ready("GDCN")
    x = first = model.features(batch)  # type: ignore[operator]
    for layer, gate in zip(model.cross.layers, model.cross.gates):  # type: ignore
        x = first * layer(x) * gate(x).sigmoid() + x
    expected = model.out(torch.cat([x, model.deep(first)], 1)).squeeze(1)  # type: ignore
    torch.testing.assert_close(model.logits(batch), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["FinalNet", "FinalNet sum"])
def test_factorized_layers_and_their_teacher(name: str) -> None:
    model, batch = ready(name)
    x, outs = model.features(batch), []  # type: ignore[operator]
    for block in model.blocks:  # type: ignore[union-attr]
        y = x
        for layer in list(block)[:-1]:
            h, g = (y @ layer.linear.weight.T + layer.linear.bias).chunk(2, 1)
            y = torch.relu(h + g * h if name.endswith("sum") else torch.cat([h, g * h], 1))
        outs.append((y @ block[-1].weight.T + block[-1].bias)[:, 0])
    mean = (outs[0] + outs[1]) / 2
    torch.testing.assert_close(model.logits(batch), mean, rtol=1e-4, atol=1e-4)
    loss, known = binary_cross_entropy_with_logits, mean.detach().sigmoid()
    expected = loss(mean, batch.labels, reduction="sum")
    for one in outs:
        expected = expected + model.options.distill * loss(one, known, reduction="sum")
    torch.testing.assert_close(model(batch).loss, expected, rtol=1e-4, atol=1e-3)


def test_tokens_are_mixed_by_their_parts() -> None:
    model, batch = ready("RankMixer", n_layers=1)
    x = model.features(batch)  # type: ignore[operator]
    block, (tokens, dim) = model.stack[0], (3, 6)  # type: ignore[index]
    x = torch.cat([x, x.new_zeros(len(x), tokens * model.part - x.shape[1])], 1)  # type: ignore
    parts = x.split(model.part, 1)  # type: ignore[arg-type]
    read = model.tokenize  # type: ignore[union-attr]
    x = torch.stack([p @ read.weight[t] + read.bias[t] for t, p in enumerate(parts)], 1)
    heads = dim // tokens
    mixed = [x[:, :, h * heads : (h + 1) * heads].flatten(1) for h in range(tokens)]
    x = block.mixing_norm(torch.stack(mixed, 1) + x)
    inner, out = block.inner, block.out
    done = []
    for t in range(tokens):
        hidden = torch.nn.functional.gelu(x[:, t] @ inner.weight[t] + inner.bias[t])
        done.append(block.norm(hidden @ out.weight[t] + out.bias[t] + x[:, t]))
    expected = model.deep(torch.stack(done).mean(0))  # type: ignore[operator]
    torch.testing.assert_close(model.logits(batch), expected, rtol=1e-4, atol=1e-4)


def test_a_rankmixer_of_a_hundred_million_weights() -> None:
    with torch.device("meta"):
        stack = [RankMixerBlock(16, 768, 3 * 768) for _ in range(2)]
    count = sum(p.numel() for block in stack for p in block.parameters() if p.dim() == 3)
    assert count >= 2 * 3 * 2 * 16 * 768**2 > 100e6


def test_sizes_that_cannot_be_cut_are_refused() -> None:
    with pytest.raises(ValueError, match=r"a multiple of model\.tokens"):
        RankMixer.Options(tokens=6, hidden_size=64)
    for layers in ([5], []):
        with pytest.raises(ValueError, match="needs even widths"):
            FinalNet.Options(layers=layers)


def test_a_step_is_as_likely_as_both() -> None:
    a, b = torch.tensor([-3.0, 0.5, 20.0, -40.0]), torch.tensor([1.0, -0.5, 18.0, 30.0])
    chance = a.double().sigmoid() * b.double().sigmoid()
    expected = (chance / (1 - chance)).log()
    torch.testing.assert_close(both(a, b).double(), expected, rtol=1e-4, atol=1e-5)


def test_the_order_of_steps_costs() -> None:
    model, batch = ready("AITM")
    logits = torch.tensor([[0.0, 1.0], [0.0, -1.0]])
    two = batch.rows(0, 2)
    plain = super(type(model), model).losses(logits, two)  # type: ignore[misc]
    over = torch.tensor([1.0]).sigmoid() - 0.5
    expected = plain + torch.tensor([0.6 * float(over), 0.0])
    torch.testing.assert_close(model.losses(logits, two), expected)


# --- histories


def test_rows_of_lists_one_by_one() -> None:
    embed = Embeddings(seen=Table("items", 2, 20, padding=0))
    attach(embed, Weights)
    rows = embed.service.stores["items"].weight  # type: ignore[attr-defined]
    batch = Batch(3, {"seen": Jagged.from_lists([[3, 5, 7], [], [9]])})
    found = embed.listed("seen", batch, 2)
    expected = torch.zeros(3, 2, 2)
    expected[0], expected[2, 0] = rows[[5, 7]], rows[9]
    assert torch.equal(found, expected)
    single = embed.listed("seen", Batch(2, {"seen": torch.tensor([4, 6])}), 3)
    assert torch.equal(single[:, 0], rows[[4, 6]]) and not single[:, 1:].any()


def test_interest_in_a_candidate() -> None:
    model, batch = ready("DIN")
    rows = model.rows(model.embed, batch, model.others)  # type: ignore
    lists, read = batch.ids["seen"], []
    table = model.embed.service.stores["item_id"].weight  # type: ignore
    unit = model.readers[0].unit  # type: ignore
    for n in range(batch.size):
        c, total = rows["item_id"][n], torch.zeros(4)
        for i in lists.values[lists.offsets[n] : lists.offsets[n + 1]][-LENGTH:]:  # type: ignore
            h = table[i]
            pair = torch.cat([h, c, h - c, h * c]).unsqueeze(0)
            total = total + unit.out(unit.hidden(pair))[0, 0] * h
        read.append(torch.cat([c, rows["genre"][n], total, batch.dense["age"][n : n + 1]]))
    torch.testing.assert_close(model.logits(batch), model.deep(torch.stack(read)))  # type: ignore


@pytest.mark.parametrize("name", HISTORIES)
def test_only_the_last_items_of_a_history_count(name: str) -> None:
    model, batch = ready(name)
    lists = batch.ids["seen"]
    assert isinstance(lists, Jagged) and int(lists.lengths.max()) > LENGTH
    kept = [one[one > 0].tolist() for one in lists.padded(LENGTH)]
    cut = Batch(batch.size, {**batch.ids, "seen": Jagged.from_lists(kept)}, batch.dense)
    torch.testing.assert_close(model.logits(batch), model.logits(cut))
    other = Jagged(lists.values % 7 + 1, lists.offsets)
    changed = Batch(batch.size, {**batch.ids, "seen": other}, batch.dense)
    moved = (model.logits(changed) - model.logits(batch)).abs() > 1e-6
    assert moved[lists.lengths > 0].float().mean() > 0.5 and not moved[lists.lengths == 0].any()


def test_shares_of_an_empty_history_are_0() -> None:
    attention = Bilinear(3, 2)
    there = torch.tensor([[True, True, False], [False, False, False]])
    shares = attention(torch.randn(2, 3), torch.randn(2, 3, 2), there)
    torch.testing.assert_close(shares.sum(1), torch.tensor([1.0, 0.0]))
    assert float(shares[0, 2].detach()) == 0.0


# --- graphs


def test_edges_by_head() -> None:
    heads, tails = torch.tensor([2, 0, 2, 2]), torch.tensor([1, 3, 0, 3])
    edges = Edges(heads, torch.tensor([1, 2, 3, 4]), tails, 4)
    assert edges.relations.tolist() == [2, 1, 3, 4] and edges.starts.tolist() == [0, 1, 1, 4, 4]
    shares = edges.shares(torch.tensor([5.0, 0.0, 1.0, 2.0]))
    expected = torch.cat([torch.ones(1), torch.tensor([0.0, 1.0, 2.0]).softmax(0)])
    torch.testing.assert_close(shares, expected)
    drawn = edges.random(torch.tensor([0, 1, 2] * 50))
    assert drawn[0::3].tolist() == [0] * 50 and drawn[1::3].tolist() == [-1] * 50
    assert set(drawn[2::3].tolist()) == {1, 2, 3}


def test_a_relation_moves_heads_to_tails() -> None:
    torch.manual_seed(1)
    layer, by = TransR(3, 4, 2), torch.tensor([2, 0])
    h, t, o = torch.randn(3, 2, 4).unbind()
    expected = 0.0
    for n, r in enumerate(by.tolist()):
        matrix, move = layer.matrices[r], layer.relations[r]  # type: ignore[index]
        near = (h[n] @ matrix + move - t[n] @ matrix).square().sum()
        far = (h[n] @ matrix + move - o[n] @ matrix).square().sum()
        expected = expected - torch.log(torch.sigmoid(far - near))
    torch.testing.assert_close(layer(by, h, t, o), expected)


def test_cross_and_compress_is_of_the_outer_product() -> None:
    torch.manual_seed(2)
    unit, v, e = CrossCompress(3), torch.randn(3), torch.randn(3)
    vv, ev, ve, ee = unit.weights
    outer = torch.outer(v, e)
    item, entity = unit(v.unsqueeze(0), e.unsqueeze(0))
    torch.testing.assert_close(item[0], outer @ vv + outer.T @ ev)
    torch.testing.assert_close(entity[0], outer @ ve + outer.T @ ee)


@pytest.mark.parametrize("how", ["sum", "concat", "neighbor"])
def test_items_as_a_user_sees_them(how: str) -> None:
    parts = parts_of("KGCN concat", model__aggregator=how)
    model = parts.model.eval()
    users = torch.tensor([3, 5])
    batch, items = Batch(2, {"user_id": users}), torch.tensor([[4, 9], [1, 2]])
    with torch.no_grad():
        found = model.score(batch, items)
        table, relations = model.embed.whole("node"), model.by_relation  # type: ignore
        of_users = model.embed.rows("user_id", users)  # type: ignore
        for b in range(2):
            for n in range(2):
                node = int(model.item_node[items[b, n]])  # type: ignore
                shares = (relations[model.by[node]] @ of_users[b]).softmax(0)  # type: ignore
                near = (shares.unsqueeze(1) * table[model.near[node]]).sum(0)  # type: ignore
                joined = {"sum": table[node] + near, "neighbor": near}.get(how)
                joined = torch.cat([table[node], near]) if joined is None else joined
                made = model.rounds[0](joined).tanh()  # type: ignore
                torch.testing.assert_close(found[b, n], made @ of_users[b])
        every = model.score(batch, items.flatten())  # one list for both users
        torch.testing.assert_close(every.view(2, 2, 2)[[0, 1], [0, 1]], found)


def test_walks_go_along_triples() -> None:
    model = parts_of("RippleNet").model
    known = set(zip(model.heads.tolist(), model.relations.tolist(), model.tails.tolist()))  # type: ignore
    taken = list(zip(model.facts.train_users.tolist(), model.facts.train_items.tolist()))
    for user in (1, 2, 3):
        nodes = {int(model.item_node[item]) for one, item in taken if one == user}  # type: ignore
        for first, second in model.memory[user].transpose(0, 1).tolist():  # type: ignore
            assert first[0] in nodes and first[2] == second[0]
            for h, r, t in (first, second):
                assert (h, r, t) in known or (t, r, h) in known


def test_a_relation_is_a_matrix() -> None:
    model = parts_of("RippleNet").model
    vectors, by = torch.randn(4, 3, 8), torch.randint(0, 3, (4, 3))
    expected = torch.einsum("abij,abj->abi", model.forms[by], vectors)  # type: ignore
    torch.testing.assert_close(model._moved(vectors, by), expected)  # type: ignore
    assert model._moved(vectors[:0], by[:0]).shape == (0, 3, 8)  # type: ignore


def test_a_model_of_knowledge_needs_some() -> None:
    with pytest.raises(ValueError, match=r"CKE reads a knowledge graph.*data\.load"):
        build(zoo_config("CKE", data__synthetic__item_features=0), World())
    with pytest.raises(ValueError, match="FDSA reads features of items and the data has none"):
        build(zoo_config("FDSA", data__synthetic__item_features=0), World())

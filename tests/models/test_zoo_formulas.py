"""Formulas of the zoo, against versions of themselves that are written out or known answers."""

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from zoo_models import zoo_config

from shoal.data.batch import Batch
from shoal.distributed.world import World
from shoal.kernels.common.sequences import time_buckets
from shoal.models.general.directau import uniformity
from shoal.models.general.ngcf import NGCF
from shoal.models.nn.dropout import (
    begin_slice,
    begin_step,
    dropout,
    end_steps,
    normal_like,
    shared_dropout,
    uniform_like,
)
from shoal.models.nn.graph import InteractionGraph
from shoal.models.nn.hstu import HSTULayer
from shoal.models.nn.losses import against_negatives, in_batch_softmax
from shoal.models.sequential.cl4srec import alike
from shoal.models.sequential.hstu import HSTU
from shoal.models.sequential.session import session_graph
from shoal.models.sequential.tisasrec import Block, TiSASRec, intervals
from shoal.runs.build import build
from shoal.runs.parts import Parts

USERS = torch.tensor([1, 1, 1, 2, 2, 3, 3, 4, 4, 4])
ITEMS = torch.tensor([1, 2, 3, 2, 3, 3, 4, 4, 1, 4])  # user 4 took item 4 twice


def parts_of(name: str, **values: object) -> Parts:
    return build(zoo_config(name, **values), World())


# --- queries


@pytest.mark.parametrize(
    "name", ["SASRec", "SASRecF", "FDSA", "S3Rec", "CL4SRec", "HSTU", "GRU4Rec"]
)
def test_a_query_is_the_state_at_the_last_item(name: str) -> None:
    """Also where the model computes the last place alone."""
    model: Any = parts_of(name).model
    history = torch.tensor([[3, 1, 4, 0, 0, 0, 0, 0], [5, 0, 0, 0, 0, 0, 0, 0], [*range(1, 9)]])
    times = torch.zeros(3, 9, dtype=torch.int64)
    users = torch.zeros(3, dtype=torch.int64)
    batch = Batch(3, {"user_id": users, "history": history, "history_time": times})
    with torch.inference_mode():
        states = model.eval().states(batch)
        expected = model.project_states(torch.stack([states[0, 2], states[1, 0], states[2, 7]]))
        torch.testing.assert_close(model.encode_query(batch), expected)


# --- losses


def test_losses_against_negatives_are_their_formulas() -> None:
    torch.manual_seed(0)
    rows, states = torch.randn(9, 4), torch.randn(3, 4)
    targets, drawn = torch.tensor([2, 5, 1]), torch.tensor([[1, 7], [3, 8], [4, 4]])
    logq = torch.randn(9)
    expected = {"sampled": 0.0, "gBCE": 0.0, "BPR": 0.0}
    share = 2 / 7  # two negatives of the seven others
    beta = share * (0.6 * (1 - 1 / share) + 1 / share)
    for state, target, others in zip(states.tolist(), targets.tolist(), drawn.tolist()):
        score = [sum(a * b for a, b in zip(state, row)) for row in rows.tolist()]
        wrong = [math.exp(score[i] - float(logq[i])) for i in others]
        right = math.exp(score[target] - float(logq[target]))
        expected["sampled"] -= math.log(right / (right + sum(wrong)))
        expected["gBCE"] += beta * math.log1p(math.exp(-score[target]))
        expected["gBCE"] += sum(math.log1p(math.exp(score[i])) for i in others)
        expected["BPR"] += sum(math.log1p(math.exp(score[i] - score[target])) for i in others)
    counts = {"sampled": 3, "gBCE": 9, "BPR": 6}
    for kind, value in expected.items():
        both = logq[targets], logq[drawn]
        loss, count = against_negatives(
            kind, states, targets, drawn, rows.__getitem__, both, 8, 0.6
        )
        assert float(loss) == pytest.approx(value, rel=1e-5) and count == counts[kind]


def test_losses_over_the_batch_are_their_formulas() -> None:
    torch.manual_seed(4)
    queries, items, logq = torch.randn(4, 3), torch.randn(4, 3), torch.randn(9)
    ids = torch.tensor([5, 2, 5, 8])
    items[2] = items[0]
    expected = 0.0
    for i in range(4):
        others = [j for j in range(4) if ids[j] != ids[i]]
        logits = [float(queries[i] @ items[j] - logq[ids[j]]) for j in [i, *others]]
        expected += math.log(sum(map(math.exp, logits))) - logits[0]
    found = in_batch_softmax(queries, items, ids, lambda x: x, logq)
    assert float(found) == pytest.approx(expected, rel=1e-5)

    one, other = F.normalize(queries, dim=1), F.normalize(items, dim=1)
    views, expected = torch.cat([one, other]), 0.0
    for i in range(8):
        logits = {j: float(views[i] @ views[j]) / 0.5 for j in range(8) if j != i}
        total = sum(math.exp(value) for value in logits.values())
        expected += math.log(total) - logits[(i + 4) % 8]
    assert float(alike(one, other, 0, lambda x: x, 0.5)) == pytest.approx(expected, rel=1e-5)

    pairs = [float((a - b).square().sum()) for a, b in combinations(one, 2)]
    expected = math.log(sum(math.exp(-2 * apart) for apart in pairs) / len(pairs))
    assert float(uniformity(one, lambda x: x)) == pytest.approx(expected, rel=1e-5)


def test_label_smoothing_is_torchs_and_none_of_it_is_the_softmax_over_the_table() -> None:
    smooth, plain = parts_of("SASRec smooth"), parts_of("SASRec")
    states, targets = torch.randn(5, 8), torch.tensor([1, 4, 9, 9, 3])
    rows = plain.model.embed.whole("target")
    expected = F.cross_entropy(states @ rows[1:].T, targets - 1, reduction="sum")
    torch.testing.assert_close(plain.model.loss(states, targets, None).loss, expected)
    logits = states @ rows[1:].T
    expected = F.cross_entropy(logits, targets - 1, reduction="sum", label_smoothing=0.1)
    torch.testing.assert_close(smooth.model.loss(states, targets, None).loss, expected)


# --- random numbers of a step


def test_noise_belongs_to_samples_and_shared_noise_to_all() -> None:
    whole, part = torch.empty(6, 5), torch.empty(2, 5)

    def drawn(x: Tensor, first: int) -> list[Tensor]:
        begin_step(3, 7, torch.device("cpu"))
        begin_slice(first)
        return [
            uniform_like(x),
            normal_like(x),
            uniform_like(whole, shared=True),
            shared_dropout(torch.ones(6, 5), 0.5),
            dropout(torch.ones(x.shape), 0.5),
        ]

    everything, slice_ = drawn(whole, 0), drawn(part, 3)
    end_steps()
    for number in (0, 1, 4):
        assert torch.equal(everything[number][3:5], slice_[number])
    assert torch.equal(everything[2], slice_[2]) and torch.equal(everything[3], slice_[3])
    many = torch.empty(2000, 20)
    begin_step(3, 8, torch.device("cpu"))
    numbers = normal_like(many)
    end_steps()
    assert abs(float(numbers.mean())) < 0.02 and abs(float(numbers.std()) - 1) < 0.02


# --- sequential models


def test_hstu_layer_is_its_formula_and_never_looks_ahead() -> None:
    torch.manual_seed(1)
    sizes = {"hidden_size": 8, "n_heads": 2, "attention_size": 3, "linear_size": 4}
    layer = HSTULayer(HSTU.Options(**sizes, linear_dropout_prob=0.0), max_len=6)
    x, times = torch.randn(2, 5, 8), torch.randint(0, 10**6, (2, 6)).cumsum(1)
    found = layer(x, time_buckets(times))
    for b in range(2):
        projected = F.silu(F.layer_norm(x[b], [8], eps=1e-6) @ layer.project)
        u, v, q, k = projected.split([8, 8, 6, 6], 1)
        for i in range(5):
            heads = []
            for h in range(2):
                mixed = torch.zeros(4)
                for j in range(i + 1):
                    apart = max(1, int(times[b, i + 1] - times[b, j]))
                    bucket = int(math.log(apart) / 0.301)
                    weight = q[i, 3 * h : 3 * h + 3] @ k[j, 3 * h : 3 * h + 3]
                    weight = weight + layer.position_bias[i - j] + layer.time_bias[bucket]
                    mixed = mixed + F.silu(weight) / 6 * v[j, 4 * h : 4 * h + 4]
                heads.append(mixed)
            gated = F.layer_norm(torch.cat(heads), [8], eps=1e-6) * u[i]
            torch.testing.assert_close(found[b, i], x[b, i] + layer.out(gated))


def test_tisasrec_block_is_its_formula() -> None:
    torch.manual_seed(2)
    options = TiSASRec.Options(n_heads=1, hidden_size=4, inner_size=6, time_span=5)
    block, x = Block(options).eval(), torch.randn(1, 4, 4)
    positions, spans = torch.randn(2, 4, 4), torch.randn(2, 6, 4)
    apart = torch.randint(0, 6, (1, 4, 4))
    q, k, v = block.query_key_value(block.norms[0](x))[0].chunk(3, -1)
    expected = []
    for i in range(4):
        scores = [
            q[i] @ (k[j] + positions[0, j] + spans[0, apart[0, i, j]]) / 2 for j in range(i + 1)
        ]
        weights = torch.stack(scores).softmax(0)
        mixed = [v[j] + positions[1, j] + spans[1, apart[0, i, j]] for j in range(i + 1)]
        expected.append(x[0, i] + weights @ torch.stack(mixed))
    made = torch.stack(expected)
    made = made + block.feed(block.norms[1](made))
    torch.testing.assert_close(block(x, positions, spans, apart)[0], made)
    times, history = torch.tensor([[10, 16, 16, 40, 0]]), torch.tensor([[1, 2, 3, 4, 0]])
    assert intervals(times, history)[0, 0, :4].tolist() == [0, 1, 1, 5]


def test_a_session_is_a_graph_of_its_items() -> None:
    node, incoming, outgoing = session_graph(torch.tensor([[7, 3, 7, 5, 0]]))
    assert node[0, :4].tolist() == [0, 1, 0, 3]
    assert outgoing[0].tolist()[:2] == [[0, 0.5, 0, 0.5, 0], [1, 0, 0, 0, 0]]  # 7 -> 3, 5; 3 -> 7
    assert incoming[0, 3].tolist() == [1, 0, 0, 0, 0] and incoming[0, 2].sum() == 0


@pytest.mark.parametrize("name", ["NextItNet", "GRU4Rec", "TiSASRec", "HSTU"])
def test_models_of_every_position_never_look_ahead(name: str) -> None:
    model = parts_of(name).model.eval()
    times = torch.arange(7).expand(1, 7)

    def states(history: list[int]) -> Tensor:
        return model.states(Batch(1, {"history": torch.tensor([history]), "history_time": times}))

    one, two = states([1, 2, 3, 4, 5, 6]), states([1, 2, 3, 9, 5, 6])
    torch.testing.assert_close(one[:, :3], two[:, :3])
    assert (one[:, 3:] - two[:, 3:]).abs().amax(-1).min() > 1e-7


# --- general models


def test_a_graph_without_some_edges_is_normalised_anew() -> None:
    graph = InteractionGraph(USERS, ITEMS, 5, 5)
    assert graph.num_edges == 9
    kept = torch.ones(18)
    kept[graph.edges == 0] = 0.0  # user 1 and item 1
    weights = graph.normalised(kept)
    x = torch.eye(10)
    made = graph(x, weights)
    assert made[1].tolist()[6] == 0.0 and made[6].tolist()[1] == 0.0
    degrees = {1: 2, 7: 2}  # user 1 has items 2, 3 left; item 2 has users 1, 2
    assert float(made[1, 7]) == pytest.approx(1 / math.sqrt(degrees[1] * degrees[7]))
    torch.testing.assert_close(made, made.T)


# --- readers


def test_prefix_samples_have_every_item_as_target_once_after_those_before() -> None:
    parts = parts_of("STAMP", train__batch_size=100)
    reader = parts.reader
    seen = []
    for batch in reader.batches(0):
        history, target = batch.tensor("history"), batch.tensor("target")
        assert bool((history[:, 0] > 0).all())
        seen += list(zip(batch.tensor("user_id").tolist(), target.tolist(), history.tolist()))
    items, offsets = reader.histories.items, reader.histories.offsets
    expected = []
    for user in range(len(offsets) - 1):
        own = items[offsets[user] : offsets[user + 1]].tolist()
        for place in range(1, len(own)):
            before = own[max(0, place - 8) : place]
            expected.append((user, own[place], before + [0] * (8 - len(before))))
    assert sorted(seen) == sorted(expected)


def test_user_samples_have_all_items_of_a_user_once() -> None:
    parts = parts_of("ENMF", train__batch_size=7)
    pairs = set(
        zip(parts.dataset.user_ids("train").tolist(), parts.dataset.item_ids("train").tolist())
    )
    found = []
    for batch in parts.reader.batches(0):
        lists = batch.ids["taken"]
        for user, start, stop in zip(batch.tensor("user_id"), lists.offsets, lists.offsets[1:]):
            found += [(int(user), int(item)) for item in lists.values[start:stop]]
    assert sorted(found) == sorted(pairs)


def test_histories_have_times_of_items_and_of_the_request() -> None:
    parts = parts_of("HSTU", train__batch_size=100)
    dataset = parts.dataset
    when = {}
    rows = zip(
        dataset.inter["user_id"].tolist(),
        dataset.inter["item_id"].tolist(),
        np.asarray(dataset.inter[dataset.time_field]).astype(np.int64).tolist(),
    )
    for user, item, time in rows:
        when[user, item] = time
    batch = next(parts.reader.batches(0))
    times = batch.tensor("history_time")
    assert times.shape[1] == 9
    for row in range(20):
        user = int(batch.tensor("user_id")[row])
        history, target = batch.tensor("history")[row], batch.tensor("target")[row]
        length = int((history > 0).sum())
        expected = [when[user, int(item)] for item in history[:length]]
        expected.append(when[user, int(target[length - 1])])
        assert times[row, : length + 1].tolist() == expected
    _, histories = parts.evaluator._prepared("test")
    asked = parts.evaluator.query(np.array([1, 2]), histories)
    tested = dict(zip(dataset.user_ids("test").tolist(), dataset.item_ids("test").tolist()))
    for row, user in enumerate([1, 2]):
        length = int((asked.tensor("history")[row] > 0).sum())
        assert int(asked.tensor("history_time")[row, length]) == when[user, tested[user]]


def test_ngcf_has_as_many_layers_as_sizes():
    options = NGCF.Options
    assert options().n_layers == options(n_layers=3).n_layers == 3
    assert options(hidden_size_list=[8]).n_layers == 1
    with pytest.raises(ValueError, match=r"n_layers is 2, and .*has 3 sizes"):
        options(n_layers=2)

"""Formulas of sequential models, against versions of themselves that are written out."""

from typing import Any

import pytest
import torch
from torch import Tensor
from zoo_models import zoo_config

from shoal.data.batch import Batch
from shoal.distributed.world import World
from shoal.models.nn.frequency_attention import FrequencyBlock
from shoal.models.sequential.base import newest, pooled
from shoal.models.sequential.fearec import next_alike
from shoal.runs.build import build

HISTORY = torch.tensor([[3, 1, 4, 3, 0, 0, 0, 0], [5, 0, 0, 0, 0, 0, 0, 0], [*range(1, 9)]])
USERS = torch.tensor([7, 2, 9])
BATCH = Batch(3, {"user_id": USERS, "history": HISTORY})
ITEMS = torch.arange(1, 48)


def evaluated(name: str, **values: Any) -> Any:
    """A model in evaluation, whose dense parameters and rows are not zeros."""
    parts = build(zoo_config(name, **values), World())
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in parts.model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return parts.model.eval()


def rows(model: Any, field: str, ids: Any) -> Tensor:
    return model.embed.rows(field, torch.as_tensor(ids))


def test_the_newest_items_stand_last_and_pads_are_left_out() -> None:
    vectors = HISTORY.unsqueeze(2).float().repeat(1, 1, 2)
    last, pads = newest(vectors, HISTORY, 3)
    assert last[..., 0].tolist() == [[1, 4, 3], [0, 0, 5], [6, 7, 8]]
    assert pads.tolist() == [[False] * 3, [True, True, False], [False] * 3]
    assert pooled(last, pads, "average")[:, 0].tolist() == pytest.approx([8 / 3, 5, 7])
    assert pooled(-last, pads, "max")[:, 0].tolist() == [-1, -5, -6]
    assert pooled(last, torch.ones_like(pads), "max").tolist() == [[0, 0]] * 3


@torch.inference_mode()
def test_transrec_is_a_distance() -> None:
    model = evaluated("TransRec")
    found = model.score(BATCH, ITEMS)
    items, own = rows(model, "target", ITEMS), rows(model, "history", [3, 5, 8])
    moved = own[:, :-1] + model.translation + rows(model, "user_id", USERS)
    distance = (moved.unsqueeze(1) - items[:, :-1]).square().sum(2)
    expected = items[:, -1] - distance + moved.square().sum(1, keepdim=True)
    torch.testing.assert_close(found, expected)


@torch.inference_mode()
def test_fossil_is_a_similarity_and_a_chain() -> None:
    model = evaluated("FOSSIL")
    items, user = rows(model, "target", ITEMS), rows(model, "user_id", USERS)
    for number, taken in enumerate(([3, 1, 4, 3], [5], [*range(1, 9)])):
        read = rows(model, "history", taken)[:, :-1]
        state = read.sum(0) / len(taken) ** 0.6
        weights = model.weights + user[number]
        for back, row in enumerate(read.flip(0)[:3]):
            state = state + weights[2 - back] * row
        torch.testing.assert_close(
            model.score(BATCH, ITEMS)[number], items[:, :-1] @ state + items[:, -1]
        )


@torch.inference_mode()
def test_hgn_opens_gates() -> None:
    model = evaluated("HGN")
    user, items = rows(model, "user_id", [7])[0], rows(model, "history", [3, 1, 4, 3])
    opened = torch.sigmoid(model.item_features(items) + model.user_features(user))
    features = items * opened
    by_user = model.user_gate(user)[:4].flip(0)  # counted back from the newest
    gates = torch.sigmoid(model.item_gate(features)[:, 0] + by_user)
    state = user + gates @ features / gates.sum() + items.sum(0)
    torch.testing.assert_close(model.encode_query(BATCH)[0], state)


@torch.inference_mode()
def test_shan_asks_twice() -> None:
    model = evaluated("SHAN")
    user, items = rows(model, "user_id", [7])[0], rows(model, "history", [3, 1, 4, 3])

    def asked(read: Tensor, layer: Any) -> Tensor:
        return (torch.relu(layer(read)) @ user).softmax(0) @ read

    both = torch.cat([asked(items, model.long).unsqueeze(0), items[2:]])
    torch.testing.assert_close(model.encode_query(BATCH)[0], asked(both, model.short))


@torch.inference_mode()
def test_npe_and_hrm_by_hand() -> None:
    model = evaluated("NPE")
    user, context = rows(model, "user_id", USERS), rows(model, "history", [3, 1, 4, 3])
    state = torch.relu(user[0]) + torch.relu(context.sum(0))
    expected = torch.relu(rows(model, "target", ITEMS)) @ state
    torch.testing.assert_close(model.score(BATCH, ITEMS)[0], expected)
    model = evaluated("HRM")
    user, last = rows(model, "user_id", USERS), rows(model, "history", [4, 3])
    torch.testing.assert_close(model.states(BATCH)[0], torch.maximum(user[0], last.amax(0)))
    model = evaluated("HRM average")
    torch.testing.assert_close(model.states(BATCH)[0], (user[0] + last.mean(0)) / 2)


@torch.inference_mode()
def test_repeatnet_gives_what_is_old_and_what_is_new_their_shares() -> None:
    model = evaluated("RepeatNet")
    scores = model.score(BATCH, ITEMS).exp()
    torch.testing.assert_close(scores.sum(1), torch.ones(3))
    modes, *_ = model.log_parts(BATCH)
    old = scores[:, torch.tensor([3, 1, 4]) - 1].sum(1)
    torch.testing.assert_close(old[0], modes[0, 0].exp())
    states = model.gru(rows(model, "history", HISTORY))
    weights = model.repeat(
        states, torch.stack([states[0, 3], states[1, 0], states[2, 7]]), HISTORY == 0
    )
    twice = modes[0, 0].exp() * (weights[0, 0] + weights[0, 3])  # item 3 stands there twice
    torch.testing.assert_close(scores[0, 2], twice)


@torch.inference_mode()
def test_gcsan_without_attention_is_the_graph() -> None:
    model = evaluated("GCSAN", model__weight=0.0)
    hidden = model.along_edges(BATCH)
    last = torch.stack([hidden[0, 3], hidden[1, 0], hidden[2, 7]])
    torch.testing.assert_close(model.encode_query(BATCH), last)
    torch.testing.assert_close(hidden[0, 0], hidden[0, 3])  # the same item, so the same node


@torch.inference_mode()
def test_sine_is_among_its_interests() -> None:
    model = evaluated("SINE", model__interest_size=1)
    torch.testing.assert_close(model.states(BATCH).norm(dim=1), torch.ones(3))
    sharp = evaluated("SINE", model__tau_ratio=1e-6)  # one interest alone, which has length 1
    torch.testing.assert_close(sharp.states(BATCH).norm(dim=1), torch.ones(3))


def test_histories_with_the_same_next_item_form_rings() -> None:
    partner = next_alike(torch.tensor([4, 2, 4, 9, 4, 2]))
    assert partner.tolist() == [2, 5, 4, 3, 0, 1]


@torch.inference_mode()
def test_delays_are_found_by_all_shifts() -> None:
    options = evaluated("FEARec", model__global_ratio=0.6).options
    block = FrequencyBlock(options, 8, 0).eval()
    assert (block.low, block.high) == (2, 5)  # of 5 frequencies the highest 3
    query, key, value = torch.randn(3, 2, 8, 8).unbind(0)
    waves = torch.fft.fft(query, dim=1), torch.fft.fft(key, dim=1)
    kept = torch.tensor([0, 0, 1, 1, 1, 1, 1, 0]).view(1, 8, 1)  # and their mirror
    banded = [torch.fft.ifft(wave * kept, dim=1).real for wave in waves]
    likeness = torch.stack(
        [(banded[0].roll(-delay, 1) * banded[1]).sum(1).mean(1) for delay in range(8)], 1
    )
    weights, delays = likeness.topk(2, 1)
    for number in range(2):
        expected = sum(
            share * value[number].roll(-int(delay), 0)
            for share, delay in zip(weights[number].softmax(0), delays[number])
        )
        found = block._by_delays(query, key, value)[number]
        torch.testing.assert_close(found, expected)


@torch.inference_mode()
def test_items_of_the_history_and_reranked_ones_have_states_of_their_own() -> None:
    model = evaluated("GRU4RecCPR")
    softmax, items = model.softmax, rows(model, "target", range(48))
    states = model.dense(model.gru(rows(model, "history", HISTORY)))
    read = torch.stack([torch.zeros_like(states[0])] * 2)
    read = torch.cat([read.flatten(0, 1)[:2], states[0]])  # two places before the first
    before = torch.cat([read[2:], read[1:-1], read[:-2]], 1)
    known = torch.cat([states[0], torch.nn.functional.gelu(softmax.mix(before))], 1)
    last, ahead = known[3], softmax.places[0](known[3])
    logits = items @ softmax.every[0](last)
    logits[0] = -torch.inf
    best = logits.topk(10).indices
    logits[best] = items[best] @ softmax.rerank[0](last)
    compared = softmax.places[1](known) @ ahead
    own = items @ softmax.context[0](last)
    logits[3] = own[3] + (compared[0] + compared[3]) / 2
    logits[1], logits[4] = own[1] + compared[1], own[4] + compared[2]
    expected = logits[1:].log_softmax(0)
    torch.testing.assert_close(model.score(BATCH, ITEMS)[0], expected)


@torch.inference_mode()
def test_several_softmaxes_are_probabilities_together() -> None:
    for name in ("GRU4RecCPR mixed", "SASRecCPR"):
        total = evaluated(name).score(BATCH, ITEMS).exp().sum(1)
        torch.testing.assert_close(total, torch.ones(3))
    scores = evaluated("SASRecCPR mixed").score(BATCH, ITEMS)  # post_remove_context
    assert bool((scores[0, torch.tensor([0, 2, 3])] < scores[0, 4:].min()).all())

"""TIGER: what it writes with kept keys and values is what the whole text gives, computed anew."""

import itertools
from functools import cache

import pytest
import torch
from torch import Tensor
from zoo_models import zoo_config

from shoal.data.batch import Batch
from shoal.distributed.world import World
from shoal.models.nn.code_tree import END, CodeTree
from shoal.models.nn.recorded import Recorded, padded_rows
from shoal.models.sequential.tiger import TIGER
from shoal.runs.build import build


@cache
def made() -> TIGER:
    """A model whose chances differ: with its first weights nearly all codes are as likely."""
    model = build(zoo_config("TIGER", model__code_levels=3), World()).model
    assert isinstance(model, TIGER)
    torch.manual_seed(5)
    with torch.no_grad():
        for one in (*model.parameters(), model.embed.whole("code")):
            one.add_(torch.randn_like(one) * 0.3)
    return model.eval()


def histories(*sizes: int) -> Tensor:
    """One of each size, 0 behind it."""
    torch.manual_seed(sum(sizes))
    kept = torch.arange(8) < torch.tensor(sizes).unsqueeze(1)
    return torch.randint(1, 47, (len(sizes), 8)) * kept


def recomputed(model: TIGER, history: Tensor, beam: int) -> Tensor:
    """Scores [b, items] by a search of lists, the whole text computed for each code."""
    rows, memory = model.rows(), model.read(history, model.rows())
    words = [tuple(codes) for codes in model.codes.tolist()]
    found = torch.empty(len(history), len(words))
    for user in range(len(history)):
        known: dict[tuple[int, ...], float] = {}  # ln p of the last code of a text
        going: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        for level in range(model.levels):
            grown = []
            for score, text in going:
                tokens = [1 + k * model.size + code for k, code in enumerate(text)]
                x = torch.stack([model.begin, *rows[tokens]]) + model.places[: level + 1]
                x = x.expand(len(history), 1, -1, -1)
                state = model.decoder(x, memory)[user, 0, -1]
                first = 1 + level * model.size
                chances = (rows[first : first + model.size] @ state).log_softmax(0).tolist()
                for code in sorted({one[level] for one in words[1:] if one[:level] == text}):
                    known[(*text, code)] = chances[code]
                    grown.append((score + chances[code], (*text, code)))
            going = sorted(grown, reverse=True)[:beam]
        for item, codes in enumerate(words):
            beginnings = [codes[: level + 1] for level in range(model.levels)]
            found[user, item] = sum(known.get(one, -1e3) for one in beginnings)
    return found


@pytest.mark.parametrize("beam", [1, 5, 40])
@pytest.mark.parametrize("sizes", [(8,), (3, 8, 1, 5, 0)])
def test_lists_equal_those_computed_without_a_cache(beam: int, sizes: tuple[int, ...]) -> None:
    model, history = made(), histories(*sizes)
    model.options.beam_size = beam
    items = torch.arange(1, len(model.codes))
    with torch.inference_mode():
        score = model.scorer(Batch(len(sizes), {"history": history}))
        ours = score(items)
        wanted = recomputed(model, history, beam)[:, 1:]
        blocks = torch.cat([score(block) for block in items.split(7)], 1)
    assert int((ours > -500).sum()) > 0 and (beam == 40 or int((ours < -500).sum()) > 0)
    torch.testing.assert_close(ours, wanted, rtol=1e-6, atol=1e-5)
    kept = min(10, int((wanted > -500).sum(1).min()))
    assert torch.equal(ours.topk(kept).indices, wanted.topk(kept).indices)
    assert torch.equal(blocks, ours)  # candidates one by one are scored as among all


def test_scores_of_a_user_do_not_depend_on_batch_or_padding() -> None:
    model, history = made(), histories(3, 8, 1)
    model.options.beam_size = 5
    items = torch.randint(1, 47, (3, 9))  # other items for each
    with torch.inference_mode():
        together = model.score(Batch(3, {"history": history}), items)
        alone = [
            model.score(Batch(1, {"history": one[None, : max(1, int((one > 0).sum()))]}), own)
            for one, own in zip(history, items)
        ]
        nobody = model.score(Batch(0, {"history": history[:0]}), items[0])
    torch.testing.assert_close(torch.cat(alone), together, rtol=1e-6, atol=1e-5)
    assert nobody.shape == (0, 9)


def test_the_tree_has_the_beginnings_that_items_have() -> None:
    codes = torch.tensor([[0, 0], [5, 1], [5, 7], [6, 1]])
    tree = CodeTree(codes, size=8)
    assert [one.tolist() for one in tree.prefixes] == [[5, 6, END], [1, 7, 9, END]]
    assert [one[1:].tolist() for one in tree.nodes] == [[0, 0, 0], [0, 0, 1]]


def test_recorded_calls_the_function_itself_without_a_gpu() -> None:
    twice = Recorded(lambda batch, factor: (batch * factor,))
    assert twice(torch.ones(3, 2), torch.tensor(2.0))[0].tolist() == [[2.0, 2.0]] * 3
    assert [padded_rows(n) for n in (1, 2, 3, 16, 17)] == [1, 2, 4, 16, 32]


# Only CUDA records graphs; on other machines the same lists are checked above, unrecorded.
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_recorded_answers_are_those_of_the_function() -> None:
    weight = torch.randn(4, 5, device="cuda")
    plain = lambda batch: (batch @ weight, batch.sum(1))  # noqa: E731
    recorded = Recorded(plain)
    with torch.inference_mode():
        for size in itertools.chain([3] * 4, [4, 5, 1, 3]):
            batch = torch.randn(size, 4, device="cuda")
            for ours, wanted in zip(recorded(batch), plain(batch)):
                torch.testing.assert_close(ours, wanted)
    assert len(recorded._graphs) == 1

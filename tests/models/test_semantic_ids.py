"""Semantic ids and what TIGER writes with them."""

from dataclasses import replace

import pytest
import torch
from zoo_models import zoo_config

from shoal.data.batch import Batch
from shoal.distributed.world import World
from shoal.models.nn.semantic_ids import semantic_ids
from shoal.models.sequential.tiger import TIGER
from shoal.runs.build import build


def test_every_item_has_its_own_codes_and_similar_items_share_the_first() -> None:
    torch.manual_seed(3)
    centres = torch.randn(4, 8) * 10
    vectors = centres.repeat_interleave(10, 0) + torch.randn(40, 8) * 0.1
    vectors[5] = vectors[6]
    codes = semantic_ids(vectors, levels=2, size=16, steps=50)
    assert codes.shape == (40, 3) and int(codes.max()) < 16 and int(codes.min()) == 0
    assert len(torch.unique(codes, dim=0)) == 40
    assert torch.equal(codes[5, :2], codes[6, :2]) and codes[5, 2] != codes[6, 2]
    groups = [set(codes[10 * k : 10 * k + 10, 0].tolist()) for k in range(4)]
    assert not any(groups[a] & groups[b] for a in range(4) for b in range(a))
    with pytest.raises(ValueError, match=r"40 items have the same.*raise model\.code_size"):
        semantic_ids(torch.ones(40, 8), levels=1, size=16, steps=1)


def test_scores_are_the_probabilities_of_written_codes() -> None:
    parts = build(zoo_config("TIGER", model__beam_size=1000), World())
    model = parts.model
    assert isinstance(model, TIGER)
    model.eval()
    history = torch.tensor([[3, 9, 4, 0, 0, 0, 0, 0], [7, 1, 2, 30, 31, 5, 6, 40]])
    asked = Batch(2, {"history": history})
    items = torch.arange(1, parts.dataset.num_items)
    with torch.inference_mode():
        exact = model.score(asked, items)
        assert float(exact.exp().sum(1).max()) < 1.0  # codes that no item has take a share
        for item in (1, 17, 46):
            one = replace(asked, ids={"history": history, "target": torch.full((2,), item)})
            assert float(model(one).loss) == pytest.approx(-float(exact[:, item - 1].sum()), 1e-4)
        model.options.beam_size = 3
        narrow = model.score(asked, items)
    kept = narrow > -500
    assert 0 < int(kept.sum()) < kept.numel()
    torch.testing.assert_close(narrow[kept], exact[kept])

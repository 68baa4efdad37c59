"""Codebooks: groups of equal sizes, codes by frozen codebooks, and few collisions of new items."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.data.ids import Ids
from shoal.data.item_codes import read_codes
from shoal.models.nn.codebooks import Codebooks, Method, learn_codebooks
from shoal.models.nn.k_means import balanced_k_means, k_means, nearest
from shoal.runs.semantic_ids import append_codes, make_codes

METHODS = get_args(Method)


def planted(items: int, width: int = 16, seed: int = 1) -> Tensor:
    """Vectors around 60 centres."""
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(60, width, generator=draw)
    owner = torch.randint(0, 60, (items,), generator=draw)
    return centres[owner] + 0.3 * torch.randn(items, width, generator=draw)


@pytest.mark.parametrize(("items", "count"), [(600, 20), (601, 20), (7, 7), (5, 3), (1, 1)])
def test_no_group_of_balanced_k_means_is_larger_than_its_share(items: int, count: int) -> None:
    vectors = planted(items)
    centres, group = balanced_k_means(vectors, count, generator=torch.Generator().manual_seed(0))
    assert centres.shape == (count, 16) and group.shape == (items,)
    assert int(torch.bincount(group, minlength=count).max()) <= -(-items // count)


def test_balanced_groups_are_even_where_plain_ones_are_not() -> None:
    vectors = torch.cat([torch.randn(900, 4) * 0.1, torch.randn(100, 4) * 0.1 + 50])
    torch.manual_seed(1)
    plain = torch.bincount(nearest(vectors, k_means(vectors, 10)), minlength=10)
    torch.manual_seed(1)
    even = torch.bincount(balanced_k_means(vectors, 10)[1], minlength=10)
    assert even.tolist() == [100] * 10 and int(plain.max() - plain.min()) > 20
    # Separated clusters of one size each are found as they are.
    far = torch.arange(8.0).repeat_interleave(5).unsqueeze(1) * 100 + torch.rand(40, 1)
    torch.manual_seed(6)
    group = balanced_k_means(far, 8, rounds=50)[1].view(8, 5)
    assert int((group == group[:, :1]).sum()) >= 30


@pytest.mark.parametrize("method", METHODS)
def test_codes_are_those_of_a_seed_and_frozen_codebooks_give_them_again(method: Method) -> None:
    vectors = planted(300)
    made = []
    for _ in range(2):
        torch.manual_seed(7)
        made.append(learn_codebooks(vectors, levels=2, size=16, steps=100, method=method))
    (books, codes), (_, again) = made
    assert torch.equal(codes, again) and codes.shape == (300, 2) and int(codes.max()) < 16
    frozen = Codebooks.of(books.tensors)
    if method == "balanced":  # groups have a size; a later item takes what is nearest
        assert float((frozen.codes(vectors) == codes).float().mean()) > 0.4
    else:
        assert torch.equal(frozen.codes(vectors), codes)
    alone = torch.cat([frozen.codes(one) for one in vectors.split(1)])
    assert torch.equal(alone, frozen.codes(vectors))
    assert 0.2 < frozen.kept(vectors, codes) < 1.0


def test_codebooks_of_other_shapes_are_refused() -> None:
    torch.manual_seed(7)
    good = learn_codebooks(planted(50), levels=2, size=8, steps=1, method="rqvae")[0].tensors
    assert Codebooks.of(good).width == 16
    bad: list[dict[str, Tensor]] = [
        {},
        {**good, "books": good["books"][0]},
        {**good, "mean": good["mean"][:3]},
        {**good, "deviation": torch.zeros(())},
        {**good, "other": torch.ones(1)},
        {**good, "encoder.2.bias": torch.ones(1)},
        {**good, "mean": good["mean"] * torch.nan},
        {name: one for name, one in good.items() if name != "decoder.0.bias"},
        {"books": torch.ones(2, 8, 4), "mean": torch.ones(3), "deviation": torch.ones(())},
    ]
    for tensors in bad:
        with pytest.raises(ValueError, match="are not of the shapes"):
            Codebooks.of(tensors)


@pytest.mark.parametrize("method", METHODS)
def test_a_hundredth_more_items_collide_as_those_before_and_change_no_code(
    method: Method, tmp_path: Path
) -> None:
    """1 % new items: at most 2 percentage points more collisions."""
    vectors, first = planted(3030), 3000
    names = [f"i{k}" for k in range(len(vectors))]
    old = Ids(["[PAD]", *names[:first]])
    file = tmp_path / "codes.json"
    padded = torch.cat([torch.zeros(1, 16), vectors[:first]])
    make_codes(old, padded, file, levels=3, size=32, steps=30, method=method)
    np.savez(tmp_path / "all.npz", ids=np.array(names), vectors=vectors.numpy())
    done = append_codes(file, tmp_path / "all.npz", tmp_path / "more.json", "item_id")
    before, after = read_codes(file), read_codes(tmp_path / "more.json")
    assert (done["added"], done["known"], done["items"]) == (30, 3000, 3030)
    assert {item: after.codes[item] for item in before.codes} == before.codes
    assert len({tuple(codes) for codes in after.codes.values()}) == 3030
    assert done["before"]["unique"] - done["unique"] <= 0.02
    assert after.version(first) == before.version() == done["before"]["version"]
    assert after.size == before.size and done["kept"] > done["kept_before"] - 0.1

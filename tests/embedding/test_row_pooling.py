"""Rows of lists, pooled: against their definition and torch's own EmbeddingBag."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from shoal.embedding.rows.bags import pool_rows

ROWS = 30


def by_torch(rows, ids, offsets, how, weights, padding):
    """Rows times weights, pooled list by list."""
    if weights is not None:
        rows = rows * weights[:, None]
    out = []
    for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist()):
        total = rows[begin:end].sum(dim=0)
        count = end - begin - int((ids[begin:end] == padding).sum() if padding is not None else 0)
        out.append(total / max(count, 1) if how == "mean" else total)
    return torch.stack(out)


@settings(max_examples=40, deadline=None)
@given(
    how=st.sampled_from(["sum", "mean"]),
    lengths=st.lists(st.integers(0, 7), min_size=1, max_size=20),
    dim=st.sampled_from([1, 5, 32]),
    weighted=st.booleans(),
    padding=st.sampled_from([None, 0]),
    seed=st.integers(0, 2**32),
)
def test_equals_its_definition(how, lengths, dim, weighted, padding, seed):
    generator = torch.Generator().manual_seed(seed)
    n = sum(lengths)
    ids = torch.randint(0, ROWS, (n,), generator=generator)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    weights = torch.randn(n, generator=generator) if weighted else None
    values = torch.randn(n, dim, generator=generator)
    if padding is not None:
        values[ids == padding] = 0
    got = pool_rows(values, ids, offsets, how, weights, padding)
    want = by_torch(values, ids, offsets, how, weights, padding)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", ["sum", "mean"])
def test_equals_embedding_bag(how):
    lengths = torch.randint(0, 9, (500,))
    offsets = torch.cat([torch.tensor([0]), lengths.cumsum(0)])
    ids = torch.randint(0, 500, (int(offsets[-1]),))
    weight = torch.randn(500, 16)
    want = functional.embedding_bag(ids, weight, offsets[:-1], mode=how)
    torch.testing.assert_close(pool_rows(weight[ids], ids, offsets, how), want)

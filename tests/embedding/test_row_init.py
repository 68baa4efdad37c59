"""Initial values: exact bits against arithmetic in Python integers, and their distribution."""

from __future__ import annotations

import hashlib
import math
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.config.row_rules import RowsSection
from shoal.embedding.engines.init import initial_rows
from shoal.embedding.rows.table import Init, Table
from shoal.embedding.table_settings import as_configured

MASK = (1 << 64) - 1


def mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def float32(x: float) -> float:
    return struct.unpack("f", struct.pack("f", x))[0]


def by_hand(seed: int, name: str, kind: str, scale: float, id_: int, column: int) -> float:
    """One value in Python integers: written from the definition, not from the code under test."""
    golden = 0x9E3779B97F4A7C15
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    row = mix(((id_ & MASK) * golden & MASK) ^ int.from_bytes(digest, "little"))
    if kind == "uniform":
        integer = (mix((row + (column + 1) * golden) & MASK) >> 40) - 2**23
        return float32(integer * float32(scale / 2**23))  # exact in double, rounded once
    total = 0
    for word in (2 * column + 1, 2 * column + 2):
        bits = mix((row + word * golden) & MASK)
        total += sum((bits >> shift) & 0xFFFF for shift in (0, 16, 32, 48))
    factor = float32(scale / (2 * math.sqrt(8 * (65536**2 - 1) / 12)))
    return float32((2 * total - 8 * 65535) * factor)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(-(2**40), 2**70),
    name=st.text(max_size=8),
    kind=st.sampled_from(["uniform", "normal"]),
    scale=st.floats(1e-4, 10.0),
    ids=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4),
    dim=st.integers(1, 5),
)
def test_values_are_the_definition_bit_for_bit(seed, name, kind, scale, ids, dim):
    rows = initial_rows(Table(name, dim, None, Init(kind, scale)), seed, torch.tensor(ids))
    want = [[by_hand(seed, name, kind, scale, i, c) for c in range(dim)] for i in ids]
    assert rows.dtype == torch.float32
    assert rows.tolist() == want


def test_a_known_row():
    """Frozen: checkpoints and other devices count on these bits."""
    rows = initial_rows(Table("items", 3, 100, Init("normal", 1.0)), 2020, torch.tensor([0, 7]))
    want = [[by_hand(2020, "items", "normal", 1.0, i, c) for c in range(3)] for i in (0, 7)]
    assert rows.tolist() == want


@pytest.mark.parametrize(
    ("init", "rows", "deviation"),
    [
        (Init("uniform", 0.3), 5000, 0.3 / math.sqrt(3)),
        (Init("normal", 0.02), 5000, 0.02),
        (Init("xavier"), 5000, math.sqrt(2 / 5016)),
        (Init("xavier_normal"), 5000, math.sqrt(2 / 5016)),
        (Init("xavier_normal"), None, math.sqrt(2 / 16)),
    ],
)
def test_mean_and_deviation(init, rows, deviation):
    values = initial_rows(Table("t", 16, rows, init), 1, torch.arange(5000)).double()
    n = values.numel()
    assert abs(values.mean().item()) < 4 * deviation / math.sqrt(n)
    assert values.std().item() == pytest.approx(deviation, rel=0.02)
    # neither rows nor columns nor neighbours move together
    shifted = (values[1:] * values[:-1]).mean() / deviation**2
    assert abs(shifted.item()) < 4 / math.sqrt(n)
    columns = (values[:, 1:] * values[:, :-1]).mean() / deviation**2
    assert abs(columns.item()) < 4 / math.sqrt(n)


def test_constant_padding_and_names():
    ids = torch.tensor([0, 4, 9])
    constant = initial_rows(Table("t", 2, 10, Init("constant", 0.1), padding=4), 0, ids)
    assert constant.tolist() == [[float32(0.1)] * 2, [0.0, 0.0], [float32(0.1)] * 2]
    first = initial_rows(Table("a", 4, 10), 0, ids)
    assert not torch.equal(first, initial_rows(Table("b", 4, 10), 0, ids))
    assert not torch.equal(first, initial_rows(Table("a", 4, 10), 1, ids))
    assert torch.equal(first[1:2], initial_rows(Table("a", 4, 10), 0, ids[1:2]))


def test_a_config_chooses_initial_values_for_all_tables_or_one():
    tables = {name: Table(name, dim, 50) for name, dim in (("user", 8), ("item", 8), ("bias", 1))}
    normal, constant = {"kind": "normal", "scale": 0.1}, {"kind": "constant", "scale": 0.5}
    made = as_configured(tables, RowsSection(init=normal, tables={"item": {"init": constant}}))
    chosen = {name: table.init for name, table in made.items()}
    # biases are not drawn at random unless they are named
    expected = {"user": Init("normal", 0.1), "item": Init("constant", 0.5), "bias": Init()}
    assert chosen == expected
    with pytest.raises(ValueError, match="depends on the number of rows, and table 'ids' grows"):
        as_configured({"ids": Table("ids", 8, None)}, RowsSection(init={"kind": "xavier"}))

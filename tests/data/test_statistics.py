"""The statistics block, word for word."""

import os
from pathlib import Path

import numpy as np
import pytest

from shoal.config.schema import DataSection
from shoal.data.dataset import Dataset
from shoal.data.loading.load import load_dataset
from shoal.data.statistics import describe

ML_100K = """ml-100k
The number of users: 943
Average actions of users: 106.04453870625663
The number of items: 1682
Average actions of items: 59.45303210463734
The number of inters: 100000
The sparsity of the dataset: 93.69533063577546%
Remain Fields: """


def test_small_block_by_hand():
    data = Dataset(
        name="toy",
        user_field="u",
        item_field="i",
        time_field=None,
        label_field=None,
        inter={"u": np.array([1, 1, 2, 1]), "i": np.array([1, 2, 3, 3])},
        types={"u": "token", "i": "token"},
        vocab={"u": np.array(["[PAD]", "a", "b"]), "i": np.array(["[PAD]", "x", "y", "z", "cold"])},
        splits={},
    )
    assert describe(data).splitlines() == [
        "toy",
        "The number of users: 2",
        "Average actions of users: 2.0",
        "The number of items: 4",
        f"Average actions of items: {4 / 3}",
        "The number of inters: 4",
        f"The sparsity of the dataset: {(1 - 4 / 2 / 4) * 100}%",
        "Remain Fields: ['u', 'i']",
    ]


@pytest.mark.parametrize(
    ("load", "fields"),
    [
        (None, "['user_id', 'item_id', 'rating', 'timestamp']"),
        ({"inter": ["user_id", "item_id"]}, "['user_id', 'item_id']"),
    ],
)
def test_ml_100k(load, fields):
    folder = os.environ.get("SHOAL_TEST_DATA")
    if not folder or not (Path(folder) / "ml-100k").exists():
        pytest.skip("SHOAL_TEST_DATA names no folder with ml-100k")
    data = load_dataset(DataSection(name="ml-100k", path=folder, load=load, cache=False), 2020)
    assert describe(data) == ML_100K + fields

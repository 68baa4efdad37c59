"""Histories that rows bring with them, where training made them of interactions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import Tensor

from shoal.data.batch import Jagged
from shoal.data.dataset import Ragged
from shoal.data.encode import Encoding, take_of
from shoal.data.feature_table import FeatureColumn
from shoal.data.features import Feature
from shoal.data.raw_columns import RawColumn
from shoal.data.vocabulary import PAD


def row_history(
    feature: Feature, items: str, raw: RawColumn, lengths: np.ndarray, encoding: Encoding
) -> Tensor | Jagged:
    """A history's items, times or values of a label, a list for each row.

    items: the name of the lists of items, which have these lengths. Times have one more, when the
    row is: now where it is left out, which is as late as the last.
    """
    assert raw.offsets is not None
    values, offsets, most, expected = raw.values, raw.offsets, feature.length, lengths
    if raw.words is not None:
        values = encoding.ids(feature, [PAD, *raw.words.tolist()])[values + 1]
    elif feature.buckets is not None:
        values = encoding.numbers[feature.name].buckets(values)
    else:
        short = np.diff(offsets) == lengths
        ends = offsets[1:][short]
        last = np.append(values, 0.0)[np.where(lengths[short] > 0, ends - 1, len(values))]
        values = np.insert(values, ends, last)
        offsets = offsets + np.concatenate([[0], np.cumsum(short)])
        expected, most = lengths + 1, None if most is None else most + 1
    counts = np.diff(offsets)
    if (counts != expected).any():
        row = int((counts != expected).argmax())
        raise ValueError(
            f"row {row + 1} of the rows: {feature.name!r} has {counts[row]} values, and {items!r} "
            f"{lengths[row]}; give one for each"
        )
    take = take_of(replace(feature, length=most), Ragged(values.astype(np.int64), offsets))
    return FeatureColumn(feature, take).take(np.arange(len(lengths)))

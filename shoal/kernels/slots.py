"""Lines of slots by the native core; the plain form is clicks/slots.py's `parse_line`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.kernels.core import load_core

_core = load_core()


def slot_keys(slots: Sequence[str], dense: Sequence[str], label: str, others: bool) -> Any:
    """The keys of tokens as the core, which must be there, looks them up.

    dense: a name for each value; others: tokens with other keys are passed over.
    """
    counts = Counter(dense)
    return _core.SlotKeys(list(slots), list(counts), list(counts.values()), label, others)


def parse_slots(
    keys: Any,
    data: np.ndarray,
    starts: np.ndarray,
    stops: np.ndarray,
    labels: np.ndarray,
    dense: np.ndarray,
    ids: np.ndarray,
    lengths: np.ndarray | None,
) -> tuple[int, bool, int]:
    """Parse lines data[starts[i] : stops[i]] into labels [n], dense [n, values], ids and lengths.

    data uint8; starts, stops int64 [n]. lengths [n * slots]: how many ids each slot of each line
    has; None: one each, ids [n, slots]. Returns the first faulty line (-1: none), whether a slot
    came several times, and how many ids there are. Other threads run meanwhile.
    """
    text, *lines = (array.ctypes.data for array in (data, starts, stops))
    outputs = (array.ctypes.data for array in (labels, dense, ids))
    more = 0 if lengths is None else lengths.ctypes.data
    return _core.parse_slots(keys, text, data.nbytes, *lines, len(starts), *outputs, ids.size, more)

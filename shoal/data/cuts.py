"""Samples of different lengths cut into parts that cost about the same, in the order they have.

A part is so many samples in a row, as every slice of a batch is: the samples of a batch, their
order and what is drawn for them do not depend on how it is cut.
"""

import numpy as np


def cost(lengths: np.ndarray, longest: int) -> np.ndarray:
    """What a history costs: its items and, for attention, their pairs; int64 [n].

    items + items² / longest, times `longest`: of the longest history one half is pairs.
    """
    return lengths * (longest + lengths)


def even_cuts(weights: np.ndarray, parts: int) -> np.ndarray:
    """Where `parts` parts of about the same weight begin, and where the last ends: [parts + 1].

    A sample is in the part that its middle is in. So a part weighs at most as much as the mean and
    the heaviest sample together, and it is not empty where the mean is above the heaviest.

    >>> import numpy as np
    >>> even_cuts(np.array([5, 1, 1, 1, 1, 1]), 2)
    array([0, 1, 6])
    """
    ends = np.cumsum(weights, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    # In whole numbers: every process finds the same.
    limits = [2 * total * part // parts for part in range(1, parts)]
    inner = np.searchsorted(2 * ends - weights, limits)
    return np.concatenate([[0], inner, [len(weights)]])


def num_batches_of(total: int, longest: int, most: int) -> int:
    """How many batches of at most `most` items an epoch of so many is cut into by `even_cuts`."""
    if most < 3 * longest:
        raise ValueError(
            f"train.batch_tokens is {most}, and the longest history has {longest} items; give it "
            f"at least {3 * longest}, three of these, or lower data.max_len"
        )
    return 1 if total <= most else -(-total // (most - longest))

"""Slices of batches: tensors, arrays, and tuples, lists and dicts of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def leaves(batch: Any) -> Iterator[Any]:
    """Every tensor or array of a batch."""
    if isinstance(batch, Tensor | np.ndarray):
        yield batch
    elif isinstance(batch, Mapping):
        for part in batch.values():
            yield from leaves(part)
    elif isinstance(batch, tuple | list):
        for part in batch:
            yield from leaves(part)
    elif batch is not None:
        raise ValueError(
            f"a batch holds {type(batch).__name__}; it is made of tensors, arrays, and tuples, "
            "lists and dicts of them"
        )


def tensors(batch: Any, device: torch.device) -> Any:
    """A copy of a batch with tensors on a device in place of its arrays and tensors."""
    if isinstance(batch, Mapping):
        return {key: tensors(one, device) for key, one in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(tensors(one, device) for one in batch)
    return None if batch is None else torch.as_tensor(batch).to(device)


def size_of(batch: Any) -> int:
    """The number of samples of a batch."""
    sizes = {len(one) for one in leaves(batch)}
    if len(sizes) != 1:
        raise ValueError(
            f"the tensors of a batch have {sorted(sizes)} samples; each has as many, [samples, ...]"
        )
    return sizes.pop()


def cut(batch: Any, low: int, high: int, size: int) -> Any:
    """Samples low..high-1 of a batch."""
    if (low, high) == (0, size):
        return batch
    if isinstance(batch, Mapping):
        return {key: cut(one, low, high, size) for key, one in batch.items()}
    if isinstance(batch, tuple | list):
        parts = [cut(one, low, high, size) for one in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return None if batch is None else batch[low:high]

"""Masked items of histories: where they are, and one behind the last item (data/masking.py)."""

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.data.batch import Batch, Jagged


def masked_places(batch: Batch) -> Tensor:
    """Which places of the flattened history [b * l] are asked for: [n]."""
    masked = batch.ids.get("masked")
    if isinstance(masked, Jagged):
        return masked.values
    return (batch.tensor("target").view(-1) > 0).nonzero().view(-1)


def append_mask(history: Tensor, mask_token: int, max_len: int) -> tuple[Tensor, Tensor]:
    """A mask token behind each history [b, l], whose oldest item makes room where it must.

    Returns sequences [b, w], w = min(l + 1, max_len), and the places of their masks [b] in [b * w].
    """
    count = (history > 0).sum(1, keepdim=True)
    longer = F.pad(history, (0, 1)).scatter(1, count, mask_token)
    width = min(longer.shape[1], max_len)
    first = (count + 1 - width).clamp(min=0)
    column = torch.arange(width, device=history.device)
    rows = width * torch.arange(history.shape[0], device=history.device)
    return longer.gather(1, first + column), rows + (count - first).view(-1)

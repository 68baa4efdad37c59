"""Row files: a store's rows as the tensors of a checkpoint's files, and back.

ids, values, state.NAME   rows, their optimizer's state, their counters where they have any
pending.NAME              besides: ids without a row, and how often they have come
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from shoal.embedding.admission import Pending, Shrink
from shoal.embedding.leaf import COUNTERS
from shoal.embedding.store import Rows

PENDING = ("ids", *COUNTERS)


def chunks(store: Any, chunk_rows: int = 1 << 20, **since: int) -> Iterator[dict[str, Tensor]]:
    """What a store holds, or what changed since a mark; counters of ids without a row last.

    Those are always all of them: they are few, or in a Bloom filter, which is not exported.
    """
    for rows in store.export(chunk_rows, **since):
        yield _tensors(rows)
    if getattr(store, "admission", None) is None:
        return
    state = {key: torch.empty(shape, dtype=t) for key, (shape, t) in store.state_shapes(0).items()}
    nothing = Rows(torch.empty(0, dtype=torch.int64), torch.empty(0, store.table.dim), state)
    for pending in store.export_pending(chunk_rows):
        yield _tensors(nothing) | {f"pending.{key}": getattr(pending, key) for key in PENDING}


def _tensors(rows: Rows) -> dict[str, Tensor]:
    tensors = {"ids": rows.ids, "values": rows.values}
    tensors |= {f"state.{key}": value for key, value in rows.state.items()}
    return {key: value.contiguous() for key, value in tensors.items()}


def take_over(
    store: Any, tensors: dict[str, Tensor], choose: Callable[[Tensor], Tensor] | None = None
) -> int:
    """Restore what a file holds; `choose` gives the numbers of those ids [n] that belong here.

    A store that keeps no counters takes rows without them. Returns the last step that any row or
    id of the file came in, as far as it tells.
    """
    counted = getattr(store, "admission", None) is not None
    state = {key[len("state.") :]: v for key, v in tensors.items() if key.startswith("state.")}
    pending = {key: tensors[f"pending.{key}"] for key in PENDING if "pending.ids" in tensors}
    steps = [part["last_step"] for part in (state, pending) if "last_step" in part]
    if not counted:
        state = {key: value for key, value in state.items() if key not in COUNTERS}
    ids, values = tensors["ids"], tensors["values"]
    if choose is not None:
        mine = choose(ids)
        ids, values = ids[mine], values[mine]
        state = {key: value[mine] for key, value in state.items()}
    store.restore(Rows(ids, values, state))
    if counted and pending:
        if choose is not None:
            mine = choose(pending["ids"])
            pending = {key: value[mine] for key, value in pending.items()}
        store.restore_pending(Pending(**pending))
    return max((int(one.max()) for one in steps if len(one)), default=0)


def forget(store: Any) -> None:
    """Empty a growing table: every id reads as its initial value, and none was ever counted."""
    counted = getattr(store, "admission", None) is not None
    store.shrink(Shrink(min_score=math.inf) if counted else Shrink(min_norm=math.inf))

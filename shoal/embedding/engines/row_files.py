"""Row files: a store's rows as the tensors of a checkpoint's files, and back.

ids, values, state.NAME         rows, their optimizer's state, their counters where they have any
pending.NAME                    besides: ids without a row, and how often they have come
bloom.counters, bloom.facts     or a part of the Bloom filter that counts them, and of which it is
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.embedding.engines.counted_engine import filter_fits
from shoal.embedding.engines.saved_rows import COUNTERS
from shoal.embedding.rows.admission import Filter, Pending
from shoal.embedding.rows.store import CountedStore, Rows, Store, as_counted

log = logging.getLogger("shoal")
PENDING = ("ids", *COUNTERS)
BLOOM = ("bloom.counters", "bloom.facts")


def chunks(store: Store, chunk_rows: int = 1 << 20, **since: int) -> Iterator[dict[str, Tensor]]:
    """Tensors of all rows of a store, or of rows changed since a mark; then pending counters.

    Counters of ids without a row, or the whole Bloom filter, are always written in full: their
    changes are not tracked.
    """
    for rows in store.export(chunk_rows, **since):
        yield _tensors(rows)
    counted_store = as_counted(store)
    if counted_store is None:
        return
    state = {key: torch.empty(shape, dtype=t) for key, (shape, t) in store.state_shapes(0).items()}
    nothing = Rows(torch.empty(0, dtype=torch.int64), torch.empty(0, store.table.dim), state)
    for pending in counted_store.export_pending(chunk_rows):
        yield _tensors(nothing) | {f"pending.{key}": getattr(pending, key) for key in PENDING}
    for part in counted_store.export_filter():
        facts = torch.tensor([part.start, part.size, part.layout, *part.share])
        yield _tensors(nothing) | {"bloom.counters": part.counters, "bloom.facts": facts}


def _tensors(rows: Rows) -> dict[str, Tensor]:
    tensors = {"ids": rows.ids, "values": rows.values}
    tensors |= {f"state.{key}": value for key, value in rows.state.items()}
    return {key: value.contiguous() for key, value in tensors.items()}


@dataclass
class RowFilesRead:
    """Facts that the files of a table have brought so far, besides rows."""

    last_step: int = 0  # the last known step of any row or id
    counters: bool = False  # those of ids without a row, exact ones or a Bloom filter that fits
    misfit: str | None = None  # why a Bloom filter does not fit


def take_over(
    store: Store,
    tensors: dict[str, Tensor],
    files_read: RowFilesRead,
    choose: Callable[[Tensor], Tensor] | None = None,
) -> None:
    """Restore the rows of a file; `choose` returns the places of the ids [n] that belong here.

    A store that keeps no counters takes rows without them.
    """
    counted_store = as_counted(store)
    state = {key[len("state.") :]: v for key, v in tensors.items() if key.startswith("state.")}
    pending = {key: tensors[f"pending.{key}"] for key in PENDING if "pending.ids" in tensors}
    steps = [part["last_step"] for part in (state, pending) if "last_step" in part]
    row_filter: Filter | None = None
    if counted_store is not None and any(key in tensors for key in BLOOM):
        # Before anything is changed, as the part may be damaged.
        row_filter = _filter_of_here(counted_store, tensors, files_read)
    if counted_store is None:
        state = {key: value for key, value in state.items() if key not in COUNTERS}
    rows = Rows(tensors["ids"], tensors["values"], state)
    store.restore(rows if choose is None else rows.select(choose(rows.ids)))
    if counted_store is not None and pending:
        if choose is not None:
            chosen = choose(pending["ids"])
            pending = {key: value[chosen] for key, value in pending.items()}
        counted_store.restore_pending(Pending(**pending))
        files_read.counters = True
    if counted_store is not None and row_filter is not None:
        counted_store.restore_filter(row_filter)
        files_read.counters = True
    files_read.last_step = max(
        [files_read.last_step, *(int(one.max()) for one in steps if len(one))]
    )


def _filter_of_here(
    store: CountedStore, tensors: dict[str, Tensor], files_read: RowFilesRead
) -> Filter | None:
    """A file's part of a Bloom filter, if it is of the one that counts here."""
    name = store.table.name
    if not all(key in tensors for key in BLOOM):
        raise ValueError(f"table {name!r}: of a Bloom filter {' and '.join(BLOOM)} belong together")
    counters, facts = (tensors[key] for key in BLOOM)
    if facts.dtype != torch.int64 or facts.shape != (5,):
        raise ValueError(
            f"table {name!r}: a Bloom filter's facts are {facts.dtype} {list(facts.shape)}; they "
            "must be torch.int64 [5]"
        )
    start, size, layout, number, shares = facts.tolist()
    if not 0 <= number < shares:
        raise ValueError(f"table {name!r}: a Bloom filter's part {number} of {shares}")
    part = Filter(counters, start, size, layout, (number, shares))
    assert store.admission is not None
    own_number, own_shares = store.admission.share
    if filter_fits(store, part):
        return part if number == own_number else None
    own_size, own_layout = store.filter_facts
    now = f"it is {own_shares} × {own_size}" if own_size else "ids are counted exactly"
    other = " in another order" if own_size and layout != own_layout else ""
    files_read.misfit = (
        f"its Bloom filter is {shares} × {size} bytes{other} (parts × bytes), here {now}"
    )
    return None


def warn_lost(store: Store, files_read: RowFilesRead) -> None:
    """After all files of a table: say so where ids without a row are counted anew."""
    counted_store = as_counted(store)
    if counted_store is None or store.admission is None or store.admission.threshold <= 0:
        return
    why = files_read.misfit
    if why is None and counted_store.filter_facts[0] and not files_read.counters:
        why = "it has no Bloom filter"
    if why is not None:
        log.warning(
            "table %s: ids without a row are counted from nothing again; the checkpoint does not "
            "tell how often they came: %s",
            store.table.name,
            why,
        )

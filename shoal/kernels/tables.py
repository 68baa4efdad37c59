"""Tables of the native core (csrc/table.h), and what kernels of a GPU there are for rows.

Arrays go to the core as addresses: tensors are checked here, and held alive during the call. The
plain form is embedding/engines/reference.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from shoal.kernels.common.rules import Recipe, RowRule
from shoal.kernels.core import load_core

_core = load_core()  # None: shoal.embedding.engines.local falls back
INIT_KINDS = ("uniform", "normal", "constant")
BLOOM_LAYOUT = 0 if _core is None else _core.BLOOM_LAYOUT
Counters = Sequence[Tensor]  # show [n], click [n], last_step [n]; none: ids are not counted


class CoreTable:
    """Rows of one table in the native core. Safe for one writer and many readers at once."""

    def __init__(
        self,
        dim: int,
        rows: int | None,
        padding: int | None,
        half: bool,
        numbering: Sequence[int],
        recipe: Recipe,
        rule: RowRule,
        admission: tuple[float, float, float] | None,
        bloom_counters: int,
        threads: int,
    ):
        """rows: None, it grows; half: values are bfloat16; admission: threshold and coefficients of
        shows and clicks, None: ids are not counted."""
        if _core is None:
            raise ValueError(
                "the native core is not built: install a C++ compiler and run `make setup`, or use "
                'backend="reference"'
            )
        self.core: Any = _core.make_table(
            dim,
            -1 if rows is None else rows,
            padding is not None,
            padding or 0,
            half,
            list(numbering),
            INIT_KINDS.index(recipe.kind),
            recipe.key,
            recipe.factor,
            _hyper(rule),
            _state(rule),
            admission is not None,
            list(admission or (0.0, 0.0, 0.0)),
            bloom_counters,
            threads,
        )

    def __len__(self) -> int:
        """Rows held."""
        return len(self.core)

    @property
    def bytes(self) -> int:
        """Bytes that rows, their state and the index take."""
        return self.core.bytes

    def sorted_ids(self) -> Tensor:
        """Ids of the rows held, ascending: [n]."""
        return _ids(self.core.sorted_ids())

    def changed_ids(self, since: int) -> Tensor:
        """Ids of the rows that changed after a mark, ascending: [n]."""
        return _ids(self.core.changed_ids(since))

    def pending_ids(self) -> Tensor:
        """Ids that are counted and have no row, ascending: [n]."""
        return _ids(self.core.pending_ids())

    def read(
        self, ids: Tensor, values: Tensor, state: Sequence[Tensor], counters: Counters
    ) -> None:
        """Write rows of ids [n] into values [n, dim], state and counters."""
        self.core.read(
            ids.data_ptr(), len(ids), values.data_ptr(), addresses(state), addresses(counters)
        )

    def write(
        self, ids: Tensor, values: Tensor, state: Sequence[Tensor | None], counters: Counters
    ) -> None:
        """Take over rows of ids [n]; state None: it stays as it is."""
        self.core.write(
            ids.data_ptr(), len(ids), values.data_ptr(), addresses(state), addresses(counters)
        )

    def read_pending(self, ids: Tensor, counters: Counters) -> None:
        """Write the counters of ids [n] without a row."""
        self.core.read_pending(ids.data_ptr(), len(ids), addresses(counters))

    def write_pending(self, ids: Tensor, counters: Counters) -> None:
        """Take over the counters of ids [n] without a row."""
        self.core.write_pending(ids.data_ptr(), len(ids), addresses(counters))

    def read_bloom(self, start: int, counters: Tensor) -> None:
        """Write counters of the Bloom filter from `start` on: uint8 [n]."""
        self.core.read_bloom(start, len(counters), counters.data_ptr())

    def write_bloom(self, start: int, counters: Tensor) -> None:
        """Take over counters of the Bloom filter from `start` on: uint8 [n]."""
        self.core.write_bloom(start, len(counters), counters.data_ptr())

    def decay(self, factor: float) -> None:
        """Multiply all counters."""
        self.core.decay(factor)

    def shrink(
        self,
        min_score: float,
        min_norm: float,
        max_age: int | None,
        capacity: int | None,
        least_recent: bool,
        step: int,
    ) -> int:
        """Drop rows; returns how many went."""
        bounds = [-1 if one is None else one for one in (max_age, capacity)]
        return self.core.shrink(min_score, min_norm, *bounds, least_recent, step)

    def mark(self) -> int:
        """A point in time that `changed_ids` counts from."""
        return self.core.mark()

    @property
    def oldest_mark(self) -> int:
        """The oldest that `changed_ids` knows."""
        return self.core.oldest_mark


def pull(
    tables: Sequence[CoreTable], ids: Sequence[Tensor], out: Sequence[Tensor], threads: int
) -> int:
    """Read ids[k] [n_k] of tables[k] into out[k] [n_k, dim_k]; -1, or `table << 40 | position` of
    an id that is outside its table."""
    cores, counts = [table.core for table in tables], [part.numel() for part in ids]
    return _core.pull(cores, addresses(ids), counts, addresses(out), threads)


def pull_bags(
    tables: Sequence[CoreTable],
    ids: Sequence[Tensor],
    offsets: Sequence[Tensor],
    weights: Sequence[Tensor | None],
    out: Sequence[Tensor],
    threads: int,
) -> int:
    """Sums of the rows of ids[k] [n_k] over bags, offsets[k] [bags_k + 1], times weights[k] [n_k],
    into out[k] [bags_k, dim_k]; returns as `pull`."""
    return _core.pull_bags(
        [table.core for table in tables],
        addresses(ids),
        [part.numel() for part in ids],
        addresses(offsets),
        [len(part) for part in out],
        addresses(weights),
        addresses(out),
        threads,
    )


def push(
    tables: Sequence[CoreTable],
    ids: Sequence[Tensor],
    grads: Sequence[Tensor],
    steps: Sequence[tuple[Any, int]],
    threads: int,
    shows: Tensor | None = None,
    clicks: Tensor | None = None,
    offsets: Sequence[Tensor | None] = (),
    weights: Sequence[Tensor | None] = (),
) -> int:
    """One step of ids[k] [n_k] of tables[k] by grads[k] [n_k, dim_k]; returns as `pull`.

    offsets[k] [bags_k + 1]: grads[k] [bags_k, dim_k] are those of bags, times weights[k] [n_k].
    steps: the rule's numbers, and which step it is, of each table; shows, clicks [n]: of the only
    table's ids.
    """
    return _core.push(
        [table.core for table in tables],
        addresses(ids),
        [part.numel() for part in ids],
        addresses(grads),
        [len(part) for part in grads],
        addresses(offsets or [None] * len(tables)),
        addresses(weights or [None] * len(tables)),
        addresses([clicks] * len(tables)),
        addresses([shows] * len(tables)),
        *_numbers(steps),
        threads,
    )


def row_reader(tables: Sequence[CoreTable], limits: Sequence[int | None], threads: int) -> Any:
    """What answers requests for rows in one call; limits[k]: rows of tables[k], None: any id."""
    bounds = [-1 if limit is None else limit for limit in limits]
    return _core.RowReader([table.core for table in tables], bounds, threads)


def core_optimizers() -> list[str]:
    """Row optimizers that the native core has a form of."""
    return [] if _core is None else list(_core.OPTIMIZERS)


def addresses(tensors: Sequence[Tensor | None]) -> list[int]:
    """Where the memory of tensors begins; 0: no tensor."""
    return [0 if tensor is None else tensor.data_ptr() for tensor in tensors]


def _numbers(steps: Sequence[tuple[Any, int]]) -> tuple[list[Any], list[int]]:
    numbers = [
        _core.StepNumbers(size=now.size, eps=now.eps, lr=now.lr, keep=now.keep) for now, _ in steps
    ]
    return numbers, [step for _, step in steps]


def _ids(raw: bytes) -> Tensor:
    """Ids that the core lists: [n] int64."""
    return torch.frombuffer(bytearray(raw), dtype=torch.int64) if raw else torch.empty(0).long()


def _hyper(rule: RowRule) -> Any:
    """Hyper-parameters as the core has them: a struct, of which it reads what the optimizer has."""
    if rule.core_form not in _core.OPTIMIZERS:
        raise ValueError(f"the native core has no form of the row optimizer {rule.name}")
    hyper = _core.Hyper(_core.OPTIMIZERS[rule.core_form])
    hyper.weight_decay, hyper.clip = rule.weight_decay, rule.clip or 0.0
    if rule.betas is not None:
        hyper.rest1, hyper.rest2 = (1.0 - beta for beta in rule.betas)
    if rule.alpha is not None:
        hyper.rest_alpha = 1.0 - rule.alpha
    for key in ("momentum", "l1", "l2", "beta"):
        setattr(hyper, key, getattr(rule, key) or 0.0)
    return hyper


def _state(rule: RowRule) -> list[tuple[bool, float]]:
    """For each piece of state, whether it has a float for every value, and what it begins with."""
    begin = rule.initial_state()
    return [(kind == "dim", begin[key]) for key, kind in rule.state_names().items()]

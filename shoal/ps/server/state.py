"""State: what one server keeps, the rows and dense parameters that fall to it.

Knows nothing of sockets, only of what came over them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from torch import Tensor

from shoal.config.row_rules import TiersSection
from shoal.embedding.engines.local import make_engines
from shoal.embedding.engines.row_engine import RowEngine, push_all
from shoal.embedding.rows.admission import admission_of, apply_row_rules
from shoal.kernels.host_memory import half_of_memory
from shoal.optimizers.dense import DenseOptimizer, make_optimizer, restore_state, state_tensors
from shoal.ps.spec import Spec
from shoal.ps.wire import (
    COMPRESSED,
    MOST_IDS,
    WireError,
    receive_flat,
    receive_rows,
    send_rows,
)


@dataclass
class Push:
    """One worker's gradients of one step (in geo: what its parameters changed by)."""

    lr: float
    loss: float  # summed
    count: float  # terms of the sum
    rows: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # table -> ids, gradients
    counts: dict[int, Tensor] = field(default_factory=dict)  # table -> shows and clicks [n, 2]
    dense: Tensor | None = None  # flat, this server's parameters
    place: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)  # see parse_place


class State:
    """One server's share of a model."""

    def __init__(self, spec: Spec, index: int, tiers: TiersSection | None = None):
        self.spec, self.index, self.tiers = spec, index, tiers
        self.counted = spec.counted
        self.rewritten = False  # rows were dropped or counts faded since the last save
        self.stores = self.make_stores()
        self.dims = [one.dim for one in spec.tables]
        self.own = [k for k, owner in enumerate(spec.owners()) if owner == index]
        self._sizes = [math.prod(spec.dense[k]) for k in self.own]
        self.num_dense = sum(self._sizes)
        # Not filled, so that memory is only taken when the values really come.
        self._flat = torch.empty(self.num_dense)
        self.dense = self._pieces(self._flat)
        self.optimizer: DenseOptimizer | None = None
        self._state_names = _state_names(spec)
        self.marks: list[int] | None = None  # of the last save, for a delta
        self.has_dense = False  # whether a worker has said what they begin with

    def make_stores(self) -> list[RowEngine]:
        """An untrained store for each table."""
        spec, share = self.spec, (self.index, self.spec.servers)
        engines = make_engines(
            {one.name: one.table() for one in spec.tables},
            {one.name: spec.row_optimizer_of(one.name) for one in spec.tables},
            spec.seed,
            admissions={one.name: admission_of(one.rules, share) for one in spec.tables},
            tiers=self.tiers,
        )
        return list(engines.values())

    def check_ids(self, table: int, ids: Tensor) -> None:
        """Refuse ids that a table of the model does not have."""
        rows = self.spec.tables[table].rows
        if rows is None or ids.numel() == 0:
            return
        low, high = ids.aminmax()
        if int(low) < 0 or int(high) >= rows:
            raise WireError(
                f"table {self.spec.tables[table].name!r} has rows 0 to {rows - 1}; ids "
                f"{int(low)} to {int(high)} were asked for"
            )

    def read_counts(
        self, frame: memoryview, pairs: Sequence[tuple[int, int]], flags: int
    ) -> dict[int, Tensor]:
        """A push's last frame, where ids are counted: table -> shows and clicks [n, 2].

        `pairs` are all tables of the push, with their numbers of ids. Every id was shown, a whole
        number of times; counts that cannot be are refused.
        """
        counted_pairs = [(table, n) for table, n in pairs if self.counted[table]]
        sizes = [n for _, n in counted_pairs]
        counts_by_table = receive_rows(frame, sizes, [2] * len(counted_pairs), flags & COMPRESSED)
        for (table, _), counts in zip(counted_pairs, counts_by_table):
            shows, clicks = counts.unbind(1)
            sound = (shows >= 1) & (shows == shows.floor()) & (clicks >= 0) & clicks.isfinite()
            if not bool(sound.all()) or float(shows.double().sum()) > MOST_IDS:
                raise WireError(f"impossible counts of table {self.spec.tables[table].name!r}")
        return {table: counts for (table, _), counts in zip(counted_pairs, counts_by_table)}

    def mark_saved(self) -> None:
        """Mark the present rows as saved: a delta holds what changes from here on."""
        self.marks = [store.mark() for store in self.stores]
        self.rewritten = False

    def apply(self, pushes: Sequence[Push]) -> None:
        """One step with the gradients of some workers, in this order.

        Their losses are sums, so the gradients are divided here by the number of terms. The result
        is the mean over all terms, however they were spread. In geo nothing is divided.
        """
        if self.spec.mode == "geo":
            scale, lr = 1.0, -1.0  # sgd at a rate of -1: what comes is added
        else:
            total = sum(push.count for push in pushes)
            scale, lr = (1.0 / total if total else 0.0), pushes[0].lr
        parts = []
        for table, dim in enumerate(self.dims):
            pairs = [push.rows[table] for push in pushes if table in push.rows]
            if len(pairs) == 1:
                ids, grads = pairs[0]
            elif pairs:
                ids, grads = torch.cat([p[0] for p in pairs]), torch.cat([p[1] for p in pairs])
            else:
                ids, grads = torch.empty(0, dtype=torch.int64), torch.empty(0, dim)
            parts.append((ids, grads if scale == 1.0 else grads * scale))
        if self.stores:
            counts = [self._join_counts(k, pushes) for k in range(len(self.stores))]
            push_all(self.stores, parts, lr, counts)
            for table_spec, store in zip(self.spec.tables, self.stores):
                # Counts fade and rows go when it is time: in the same step on every server.
                if table_spec.rules is not None and apply_row_rules(
                    store, table_spec.rules, self.spec.servers
                ):
                    self.rewritten = True
        dense = [push.dense for push in pushes if push.dense is not None]
        if dense and self.dense:
            grad = dense[0] if len(dense) == 1 else torch.stack(dense).sum(0)
            if self.optimizer is None:
                self._flat.add_(grad)
                return
            for value, piece in zip(self.dense, self._pieces(grad * scale)):
                value.grad = piece
            self.optimizer.step(lr)

    def _join_counts(self, table: int, pushes: Sequence[Push]) -> Tensor | None:
        if not self.counted[table]:
            return None
        parts = [push.counts[table] for push in pushes if table in push.rows]
        return torch.cat([torch.empty(0, 2), *parts])

    def _pieces(self, flat: Tensor) -> list[Tensor]:
        """Values of this server's dense parameters, each in its shape; they share memory."""
        pieces = zip(self.own, flat.split(self._sizes))
        return [piece.view(self.spec.dense[number]) for number, piece in pieces]

    def dense_frame(self) -> Any:
        """This server's dense parameters of now, one after the other, to be sent."""
        return send_rows([self._flat.clone()], 0)

    def set_dense(self, values: memoryview, optimizer: memoryview) -> None:
        """Take over dense parameters and their optimizer's state ("NUMBER.NAME" -> tensor)."""
        flat = receive_flat(values, self.num_dense)
        try:
            state = parse_tensors(bytes(optimizer)) if len(optimizer) else {}
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise WireError(f"the optimizer's state cannot be read: {error}") from None
        by_number: dict[int, dict[str, Tensor]] = {}
        for key, value in state.items():
            digits, _, name = key.partition(".")
            if not digits.isdecimal() or len(digits) > 9 or int(digits) >= len(self.spec.dense):
                raise WireError(f"{key!r} names no state of a dense parameter")
            by_number.setdefault(int(digits), {})[name] = value
        local_state: dict[str, Tensor] = {}
        for place, (number, target) in enumerate(zip(self.own, self.dense)):
            saved = by_number.get(number, {})
            self._check_state(target, saved)
            local_state |= {f"{place}.{name}": value for name, value in saved.items()}
        self._flat.copy_(flat)
        if self.spec.mode != "geo":
            self.optimizer = make_optimizer(self.spec.optimizer, self.dense)
            restore_state(self.optimizer, self.dense, local_state)
        self.has_dense = True

    def _check_state(self, target: Tensor, saved: dict[str, Tensor]) -> None:
        """Refuse a state with which the optimizer would fail at its next step."""
        if saved and saved.keys() != self._state_names:
            raise WireError(
                f"the state {sorted(saved)} of a dense parameter; {self.spec.optimizer.name} "
                f"keeps {sorted(self._state_names)}"
            )
        for name, value in saved.items():
            shape = () if name == "step" else tuple(target.shape)
            if tuple(value.shape) != shape or value.dtype != torch.float32:
                raise WireError(
                    f"the state {name!r} is {value.dtype} {list(value.shape)}; it must be "
                    f"torch.float32 {list(shape)}"
                )

    def dense_state(self) -> dict[str, Tensor]:
        """The dense optimizer's state, by the model's numbers of the parameters."""
        return {
            f"{self.own[int(key.split('.', 1)[0])]}.{key.split('.', 1)[1]}": value
            for key, value in state_tensors(self.optimizer, self.dense).items()
        }


def make_state(spec: Spec, index: int, tiers: TiersSection | None) -> State:
    """The state of a server; WireError where the model does not fit."""
    needed, memory = spec.first_bytes(index), half_of_memory()
    if needed > memory:
        raise WireError(
            f"server {index} cannot hold this model: dense parameters and Bloom filters take up "
            f"to {needed / 2**30:.1f} GiB, and it may take {memory / 2**30:.1f}, half of its "
            "host's memory: use more servers"
        )
    try:
        return State(spec, index, tiers)
    except (ValueError, RuntimeError, MemoryError) as error:
        raise WireError(f"server {index} cannot hold this model: {error}") from None


def _state_names(spec: Spec) -> set[str]:
    """The names of the optimizer's state of a trained dense parameter."""
    probe = torch.zeros(1)
    probe.grad = torch.zeros(1)
    optimizer = None if spec.mode == "geo" else make_optimizer(spec.optimizer, [probe])
    if optimizer is None:
        return set()
    optimizer.step(0.0)  # the first step of a process takes long; here no worker waits
    return {key.split(".", 1)[1] for key in state_tensors(optimizer, [probe])}

"""State: what one server keeps, the rows and dense parameters that fall to it.

Knows nothing of sockets: a server hands it what came, already checked for size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from shoal.config.tiers import TiersSection
from shoal.embedding.leaves.admission import admission_of, tend
from shoal.embedding.leaves.leaf import Leaf
from shoal.embedding.leaves.local import make_leaves, make_local, push_all
from shoal.embedding.optim.dense import dense_step, make_optimizer, restore_state, state_tensors
from shoal.ps.spec import Spec
from shoal.ps.wire import COMPRESSED, MOST_IDS, WireError, receive_rows


@dataclass
class Push:
    """One worker's gradients of one step (in geo: what its parameters changed by)."""

    worker: int
    lr: float
    loss: float  # summed
    count: float  # terms of the sum
    rows: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # table -> ids, gradients
    counts: dict[int, Tensor] = field(default_factory=dict)  # table -> shows and clicks [n, 2]
    dense: Tensor | None = None  # flat, this server's parameters
    place: tuple[int, int, int, int, int] = (0, 0, 0, 0, 0)  # see parse_place


class State:
    """One server's share of a model."""

    def __init__(
        self,
        spec: Spec,
        index: int,
        threads: int | None = None,
        tiers: TiersSection | None = None,
    ):
        self.spec, self.index, self.threads, self.tiers = spec, index, threads, tiers
        self.counted = spec.counted
        self.rewritten = False  # rows were dropped or counts faded since the last save
        self.stores = self.make_stores()
        self.dims = [one.dim for one in spec.tables]
        owners, sizes = spec.owners(), spec.sizes
        self.own = [k for k, owner in enumerate(owners) if owner == index]
        self.sizes = [sizes[k] for k in self.own]
        # Not filled, so that memory is only taken when the values really come.
        self.dense = [torch.empty(spec.dense[k]) for k in self.own]
        self.optimizer: torch.optim.Optimizer | None = None
        self._state_names = _state_names(spec)
        self.marks: list[int] | None = None  # of the last save, for a delta
        self.has_dense = False  # whether a worker has said what they begin with

    def make_stores(self) -> list[Leaf]:
        """A store for each table, in which nothing was taught yet."""
        spec = self.spec
        if self.tiers is not None:
            made = make_leaves(
                {one.name: one.table() for one in spec.tables},
                {one.name: spec.row_optimizer_of(one.name) for one in spec.tables},
                spec.seed,
                admissions={one.name: admission_of(one.rules) for one in spec.tables},
                tiers=self.tiers,
            )
            return list(made.values())
        return [
            make_local(
                one.table(),
                spec.row_optimizer_of(one.name),
                spec.seed,
                threads=self.threads,
                admission=admission_of(one.rules, (self.index, spec.servers)),
            )
            for one in spec.tables
        ]

    @property
    def num_dense(self) -> int:
        return sum(self.sizes)

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
        which = [(table, n) for table, n in pairs if self.counted[table]]
        sizes = [n for _, n in which]
        found = receive_rows(frame, sizes, [2] * len(which), flags & COMPRESSED)
        for (table, _), counts in zip(which, found):
            shows, clicks = counts.unbind(1)
            sound = (shows >= 1) & (shows == shows.floor()) & (clicks >= 0) & clicks.isfinite()
            if not bool(sound.all()) or float(shows.double().sum()) > MOST_IDS:
                raise WireError(f"impossible counts of table {self.spec.tables[table].name!r}")
        return {table: counts for (table, _), counts in zip(which, found)}

    def mark_saved(self) -> None:
        """The rows of now are saved: a delta tells what changed from here on."""
        self.marks = [store.mark() for store in self.stores]
        self.rewritten = False

    def apply(self, pushes: Sequence[Push]) -> None:
        """One step with the gradients of some workers, in the order given.

        Their losses are sums, so the gradients are divided by the number of terms here: what comes
        out is the mean over all of them, however they were spread. In geo nothing is divided.
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
            self._tend()
        dense = [push.dense for push in pushes if push.dense is not None]
        if dense and self.dense:
            total_grad = dense[0] if len(dense) == 1 else torch.stack(dense).sum(0)
            self._step_dense(total_grad, scale, lr)

    def _join_counts(self, table: int, pushes: Sequence[Push]) -> Tensor | None:
        if not self.counted[table]:
            return None
        parts = [push.counts[table] for push in pushes if table in push.rows]
        return torch.cat([torch.empty(0, 2), *parts])

    def _tend(self) -> None:
        """Let counts fade and rows go, when it is time: in the same step on every server."""
        for one, store in zip(self.spec.tables, self.stores):
            if one.rules is not None and tend(store, one.rules, self.spec.servers):
                self.rewritten = True

    def _step_dense(self, flat: Tensor, scale: float, lr: float) -> None:
        pieces = [
            piece.view(value.shape) for piece, value in zip(flat.split(self.sizes), self.dense)
        ]
        if self.optimizer is None:
            for value, piece in zip(self.dense, pieces):
                value.add_(piece)
            return
        for value, piece in zip(self.dense, pieces):
            value.grad = piece * scale
        dense_step(self.optimizer, lr)

    def flat_dense(self) -> Tensor:
        """This server's dense parameters, one after the other."""
        return torch.cat([value.reshape(-1) for value in self.dense]) if self.dense else EMPTY

    def set_dense(self, flat: Tensor, state: dict[str, Tensor]) -> None:
        """Take over dense parameters and their optimizer's state ("NUMBER.NAME" -> tensor)."""
        here: dict[str, Tensor] = {}
        for key, value in state.items():
            number, _, name = key.partition(".")
            if not number.isdecimal() or len(number) > 9 or int(number) >= len(self.spec.dense):
                raise WireError(f"{key!r} names no state of a dense parameter")
            if int(number) in self.own:
                here[f"{self.own.index(int(number))}.{name}"] = value
        self._check_state(here)
        for target, piece in zip(self.dense, flat.split(self.sizes)):
            target.copy_(piece.view(target.shape))
        if self.spec.mode != "geo":
            self.optimizer = make_optimizer(self.spec.optimizer, self.dense)
            restore_state(self.optimizer, self.dense, here)
        self.has_dense = True

    def _check_state(self, here: dict[str, Tensor]) -> None:
        """Refuse what the optimizer would stumble over at its next step."""
        names = self._state_names
        for number, target in enumerate(self.dense):
            found = {key.split(".", 1)[1] for key in here if key.startswith(f"{number}.")}
            if found and found != names:
                raise WireError(
                    f"the state {sorted(found)} of a dense parameter; {self.spec.optimizer.name} "
                    f"keeps {sorted(names)}"
                )
            for name in found:
                value = here[f"{number}.{name}"]
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


def _state_names(spec: Spec) -> set[str]:
    """What the optimizer keeps for a dense parameter that has been taught."""
    probe = torch.zeros(1)
    probe.grad = torch.zeros(1)
    optimizer = None if spec.mode == "geo" else make_optimizer(spec.optimizer, [probe])
    if optimizer is None:
        return set()
    dense_step(optimizer, 0.0)  # the first step of a process takes long: now, nobody waits
    return {key.split(".", 1)[1] for key in state_tensors(optimizer, [probe])}


EMPTY = torch.empty(0)

"""Reference: the engine in plain torch. The oracle of the native core, and its fall-back."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from shoal.embedding.engines.counted_engine import CountedEngine
from shoal.embedding.engines.init import initial_rows, recipe, round_bfloat16, rounding_noise
from shoal.embedding.engines.saved_rows import COUNTERS
from shoal.embedding.rows.admission import Admission, Pending, Shrink
from shoal.embedding.rows.store import Ids, Rows
from shoal.embedding.rows.table import Table
from shoal.optimizers.row_optimizer import RowOptimizer, update_rows

Counters = tuple[float, float, int]  # show, click, last step


class Reference(CountedEngine):
    """Rows of one table in torch tensors. A growing table keeps a Python dict: id -> position."""

    def __init__(
        self,
        table: Table,
        optimizer: RowOptimizer,
        seed: int,
        admission: Admission | None = None,
        device: torch.device | str = "cpu",
    ):
        super().__init__(table, optimizer, seed, admission)
        self.device = torch.device(device)  # fixed tables only: those that grow are on the CPU
        size = table.rows or 0
        self.positions: dict[int, int] = {}  # growing tables only
        self.free: list[int] = []
        self.pending: dict[int, Counters] = {}
        self.marks = 0
        self.changed: dict[int, int] = {}  # id -> marks given before its last change
        self.values = self._initial(torch.arange(size, device=self.device))
        self.state = self.fresh_state(size, self.device)

    def __len__(self) -> int:
        return len(self.positions) if self.table.rows is None else self.table.rows

    def pull(self, ids: Ids) -> Tensor:
        ids = self.ids_inside(ids)
        if self.table.rows is not None:
            return self.values.index_select(0, ids)
        out = self._initial(ids)
        positions = torch.tensor(
            [self.positions.get(i, -1) for i in ids.tolist()], dtype=torch.int64
        )
        has_row = positions >= 0
        out[has_row] = self.values[positions[has_row]]
        return out

    def push(self, ids: Ids, grads: Tensor, lr: float, counts: Tensor | None = None) -> None:
        ids = self.ids_inside(ids)
        grads = self.flat_grads(grads, len(ids))
        counts = self.flat_counts(counts, len(ids))
        self._step += 1
        if self.table.padding is not None:
            keep = ids != self.table.padding
            ids, grads = ids[keep], grads[keep]
            counts = None if counts is None else counts[keep]
        if self.admission is not None:
            counts = torch.tensor([[1.0, 0.0]]).repeat(len(ids), 1) if counts is None else counts
            admitted = self._admit(self.admission, ids, counts)
            ids, grads = ids[admitted], grads[admitted]
        if len(ids) == 0:
            return
        distinct, summed = self._sum_duplicates(ids, grads)
        positions = distinct if self.table.rows is not None else self._insert(distinct)
        values = self.values.index_select(0, positions)
        state = {key: self.state[key][positions] for key in self.optimizer.state_names()}
        update_rows(self.optimizer, values, state, summed, lr, self._step)
        if self.table.half:
            table_key = recipe(self.table, self.seed).key
            numbering = self.table.numbering
            rounded = distinct if numbering is None else numbering.ids(distinct)
            noise = rounding_noise(table_key, self._step, rounded, self.table.dim)
            values = round_bfloat16(values, noise)
        self.values.index_copy_(0, positions, values)
        for key, part in state.items():
            self.state[key].index_copy_(0, positions, part)
        self._note_changes(distinct)

    def export(self, chunk_rows: int = 1 << 20, since: int | None = None) -> Iterator[Rows]:
        if since is not None:
            self.check_mark(since, 0, self.marks)
            ids = torch.tensor(sorted(i for i, m in self.changed.items() if m >= since)).long()
        elif self.table.rows is not None:
            ids = torch.arange(self.table.rows)
        else:
            ids = torch.tensor(sorted(self.positions), dtype=torch.int64)
        for start in range(0, len(ids), chunk_rows):
            part = ids[start : start + chunk_rows].clone()
            places = part if self.table.rows is not None else self._insert(part)
            state = {key: piece[places].cpu() for key, piece in self.state.items()}
            yield Rows(part, self.values[places].cpu(), state)

    def restore(self, rows: Rows) -> None:
        self.check_rows(rows)
        rows = self.real_rows(rows)
        positions = rows.ids if self.table.rows is not None else self._insert(rows.ids)
        values = round_bfloat16(rows.values) if self.table.half else rows.values
        self.values[positions] = values.to(self.device)
        for key, part in rows.state.items():
            self.state[key][positions] = part.to(self.device)
        for id_ in rows.ids.tolist() if self.pending else ():
            self.pending.pop(id_, None)
        self._note_changes(rows.ids)

    def _assign(self, ids: Tensor, values: Tensor) -> None:
        if self.table.padding is not None:
            keep = ids != self.table.padding
            ids, values = ids[keep], values[keep]
        positions = ids if self.table.rows is not None else self._insert(ids)
        half = self.table.half
        self.values[positions] = round_bfloat16(values) if half else values
        self._note_changes(ids)

    def mark(self) -> int:
        self.marks += 1
        return self.marks

    def decay(self, factor: float) -> None:
        self.check_counted("decay")
        self.state["show"] *= factor
        self.state["click"] *= factor
        self.pending = {i: (s * factor, c * factor, at) for i, (s, c, at) in self.pending.items()}

    def shrink(self, rule: Shrink) -> int:
        self.check_shrink(rule)
        remaining, victims = [], []
        for id_, position in self.positions.items():
            show, click, last = self._counters(position)
            norm = float(self.values[position].double().norm())
            if self._fades(rule, show, click, last) or norm < rule.min_norm:
                victims.append(id_)
            else:
                remaining.append((last if rule.order == "lru" else show, id_))
        if rule.capacity is not None:
            victims += [
                id_ for _, id_ in sorted(remaining)[: max(len(remaining) - rule.capacity, 0)]
            ]
        for id_ in victims:
            self.free.append(self.positions.pop(id_))
            self.changed.pop(id_, None)
        self.pending = {i: c for i, c in self.pending.items() if not self._fades(rule, *c)}
        return len(victims)

    def export_pending(self, chunk_rows: int = 1 << 20) -> Iterator[Pending]:
        ids = sorted(self.pending)
        for start in range(0, len(ids), chunk_rows):
            part = ids[start : start + chunk_rows]
            columns = zip(*(self.pending[i] for i in part))
            tensors = [torch.tensor(c, dtype=t) for c, t in zip(columns, COUNTERS.values())]
            yield Pending(torch.tensor(part), *tensors)

    def restore_pending(self, pending: Pending) -> None:
        self.check_pending(pending)
        columns = [getattr(pending, key).tolist() for key in COUNTERS]
        for id_, *counters in zip(pending.ids.tolist(), *columns):
            if id_ not in self.positions:
                self.pending[id_] = (counters[0], counters[1], counters[2])

    def _initial(self, ids: Tensor) -> Tensor:
        values = initial_rows(self.table, self.seed, ids)
        return round_bfloat16(values) if self.table.half else values

    def _sum_duplicates(self, ids: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
        """The distinct ids, ascending, and the sum of each one's gradients, in order of arrival."""
        rows = self.table.rows
        backward = torch.ops.aten.embedding_dense_backward
        if rows is not None and rows <= 4 * len(ids):  # over the whole table
            touched = torch.zeros(rows, dtype=torch.bool, device=ids.device)
            touched[ids] = True
            distinct = touched.nonzero().squeeze(1)
            summed = backward(grads, ids, rows, -1, False)
            return distinct, summed.index_select(0, distinct)
        distinct, inverse = torch.unique(ids, return_inverse=True)
        return distinct, backward(grads, inverse, len(distinct), -1, False)

    def _insert(self, ids: Tensor) -> Tensor:
        """Positions of distinct `ids` of a growing table; new ones begin at their initial value."""
        new_ids = [i for i in ids.tolist() if i not in self.positions]
        if new_ids:
            while len(self.free) < len(new_ids):
                self._enlarge()
            places = [self.free.pop() for _ in new_ids]
            self.positions.update(zip(new_ids, places))
            new_places = torch.tensor(places)
            self.values[new_places] = self._initial(torch.tensor(new_ids, dtype=torch.int64))
            for key, begin in self.optimizer.initial_state().items():
                self.state[key][new_places] = begin
        return torch.tensor([self.positions[i] for i in ids.tolist()], dtype=torch.int64)

    def _enlarge(self) -> None:
        size = len(self.values)
        num_new = max(1024, size)
        self.free += range(size + num_new - 1, size - 1, -1)
        self.values = torch.cat([self.values, torch.zeros(num_new, self.table.dim)])
        for key, part in self.state.items():
            self.state[key] = torch.cat([part, part.new_zeros(num_new, *part.shape[1:])])

    def _admit(self, rule: Admission, ids: Tensor, counts: Tensor) -> Tensor:
        """Count the ids [n], counts [n, 2]; which of them have a row now: [n]."""
        new: dict[int, tuple[float, float]] = {}
        for id_, (shows, click) in zip(ids.tolist(), counts.tolist()):
            seen, total = new.get(id_, (0.0, 0.0))
            new[id_] = (seen + shows, total + click)
        for id_, (seen, total) in new.items():
            place = self.positions.get(id_)
            counters = (
                self.pending.pop(id_, (0.0, 0.0, 0)) if place is None else self._counters(place)
            )
            show, click = counters[0] + seen, counters[1] + total
            if place is None and self._score(show, click) < rule.threshold:
                self.pending[id_] = (show, click, self._step)
                continue
            new_place = int(self._insert(torch.tensor([id_]))[0])
            for key, value in zip(COUNTERS, (show, click, self._step)):
                self.state[key][new_place] = value
        return torch.tensor([i in self.positions for i in ids.tolist()], dtype=torch.bool)

    def _counters(self, position: int) -> Counters:
        if self.admission is None:
            return 0.0, 0.0, 0
        show, click, last = (self.state[key][position].item() for key in COUNTERS)
        return show, click, int(last)

    def _score(self, show: float, click: float) -> float:
        rule = self.admission or Admission()
        return rule.show_coefficient * (show - click) + rule.click_coefficient * click

    def _fades(self, rule: Shrink, show: float, click: float, last: int) -> bool:
        too_old = rule.max_age is not None and self._step - last > rule.max_age
        return too_old or self._score(show, click) < rule.min_score

    def _note_changes(self, ids: Tensor) -> None:
        if self.marks:
            self.changed.update(dict.fromkeys(ids.tolist(), self.marks))

"""Steps: which rows a worker may see, and when its gradients are applied.

sync     a step's gradients wait until every worker's are here, and are applied as one
async    gradients are applied as they come; a worker far ahead of the slowest one waits, unless
         workers join and leave
geo      workers update their own copies; what comes is added

A push that is sent twice is applied once. Where workers join and leave, so are the batches of a
push that two workers computed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from shoal.embedding.engines.native import row_reader
from shoal.embedding.engines.row_engine import RowEngine
from shoal.ps.server.answers import Request
from shoal.ps.server.ledger import Applied
from shoal.ps.server.members import Members, Worker
from shoal.ps.server.state import Push, State
from shoal.ps.wire import (
    BFLOAT16,
    COMPRESSED,
    WITH_DENSE,
    Kind,
    MessageHeader,
    WireError,
    numbers,
    numbers_frame,
    parse_parts,
    parse_place,
    parse_pull,
    receive_flat,
    receive_ids,
    receive_rows,
    rows_message,
)

log = logging.getLogger("shoal")


class ServedSteps:
    """Pulls and pushes of a run's workers."""

    def __init__(
        self,
        state: State,
        members: Members,
        fail: Callable[[str], None],
        append_to_journal: Callable[[Request], None],
    ):
        """append_to_journal: called with a push that is accepted, before it is answered."""
        self.state, self.members, self.answers = state, members, members.answers
        self.fail, self._append_to_journal = fail, append_to_journal
        self._batches = Applied()  # where workers join and leave
        self.spec = state.spec
        self.applied = 0  # steps (sync)
        self.pushes: dict[int, tuple[Request, Push]] = {}  # sync: wait for those of others
        # Of one answer, so that those that a worker does not read stay small.
        self._most_values = max(1 << 19, *state.dims, 0)
        self._reader: Any = None  # of the rows of these stores:
        self._reader_of: list[RowEngine] | None = None
        self._waiting: dict[tuple[bytes, int], Request] = {}  # pulls whose time has not come

    # ---- rows that are read ---------------------------------------------------------------------

    def pull(self, request: Request) -> None:
        """Answer with rows, now or when their time has come."""
        header = request.header
        request.only(0)
        its_time = self._is_time(header)
        if its_time and self._answer_at_once(request):
            return
        request.ids = parse_pull(request.head, header.flags, len(self.state.dims))
        for table, ids in request.ids:
            self.state.check_ids(table, ids)
        values = sum(len(ids) * self.state.dims[table] for table, ids in request.ids)
        if values > self._most_values:
            raise WireError(
                f"{values} values of rows; at most {self._most_values} are sent at once"
            )
        if its_time:
            self._answer_pull(request)
            return
        # A worker may have so many pushes under way.
        if header.step > self.members[header.worker].step + 1000:
            raise WireError(f"rows of step {header.step}, far ahead of all others")
        # So many pulls of each worker may wait for their time.
        if len(self._waiting) >= 1000 * self.spec.workers:
            raise WireError(f"{len(self._waiting)} requests for rows wait already")
        self._waiting[request.address, header.sequence] = request

    def _answer_pull(self, request: Request) -> None:
        if self._answer_at_once(request):
            return
        flags = request.header.flags
        rows = [self.state.stores[table].pull(ids) for table, ids in request.ids]
        message = rows_message(request.header.answer(Kind.OK, flags), rows)
        self.answers.reply_message(request.address, message)

    def _answer_at_once(self, request: Request) -> bool:
        """Check and answer a pull in native code; False: it must be looked at here."""
        if request.header.flags & (BFLOAT16 | COMPRESSED):
            return False
        state = self.state
        if self._reader_of is not state.stores:  # a checkpoint may have brought others
            limits = [table.rows for table in self.spec.tables]
            self._reader_of, self._reader = state.stores, row_reader(state.stores, limits)
        if self._reader is None:
            return False
        return self.answers.reply_rows(self._reader, request, self._most_values)

    def _is_time(self, header: MessageHeader) -> bool:
        """Whether the rows that a pull of a step may see are ready."""
        if header.step < 0 or self.spec.mode == "geo" or self.spec.elastic:
            return True
        if self.spec.mode == "sync":
            return header.step <= self.applied
        return header.step - self.members.slowest(self.spec.workers) <= self.spec.staleness

    def release(self) -> None:
        """Answer the pulls whose time has come."""
        ready = [key for key, one in self._waiting.items() if self._is_time(one.header)]
        for key in ready:
            self._answer_pull(self._waiting.pop(key))

    # ---- gradients ------------------------------------------------------------------------------

    def push(self, request: Request) -> None:
        """Apply gradients, once: now or with those of all workers."""
        header, worker = request.header, self.members[request.header.worker]
        push = self._parse_push(request)
        if header.step < worker.step:
            self._again(request, worker)
            return
        if header.step > worker.step:  # one before it was lost on the way; both will come again
            return
        done = self.members.find_done() if self.spec.mode == "sync" else None
        if done is not None:
            raise WireError(f"gradients of step {header.step}, and worker {done} is done")
        new = not self.spec.elastic or self._batches.is_new(*push.place[:3])
        self._append_to_journal(request)
        worker.step, worker.answer = header.step + 1, None
        if self.spec.elastic:
            self.members.ledger.advance(header.worker, *push.place[3:])
            if not new:  # another worker's came before: this one is answered, and that is all
                self._answer_pushes([(request, push)])
                return
            self._batches.add(*push.place[:3])
        if self.spec.mode != "sync":
            self._apply([(request, push)])
            return
        self.pushes[header.worker] = request, push
        if len(self.pushes) == self.spec.workers:
            everyone = [self.pushes[number] for number in sorted(self.pushes)]
            self.pushes = {}
            self._apply(everyone)

    def _parse_push(self, request: Request) -> Push:
        state, flags = self.state, request.header.flags
        counted, elastic = any(state.counted), self.spec.elastic
        totals_frame, parts, ids, rows, dense, *other_frames = request.only(5 + counted + elastic)
        lr, loss, count = numbers(totals_frame, 3)
        if not (lr >= 0 and lr < float("inf") and count >= 0):
            raise WireError(f"a learning rate of {lr} and a count of {count}")
        if request.header.step < 0:
            raise WireError(f"gradients of step {request.header.step}")
        pairs = parse_parts(parts, len(state.dims))
        counts = [n for _, n in pairs]
        all_ids = receive_ids(ids, counts, flags)
        all_rows = receive_rows(rows, counts, [state.dims[t] for t, _ in pairs], flags)
        for (table, _), table_ids in zip(pairs, all_ids):
            state.check_ids(table, table_ids)
        push = Push(lr, loss, count)
        push.rows = {t: pair for (t, _), pair in zip(pairs, zip(all_ids, all_rows))}
        if counted:
            push.counts = state.read_counts(other_frames[0], pairs, flags)
        if elastic:
            push.place = parse_place(other_frames[-1])
        if flags & WITH_DENSE:
            if not state.has_dense:
                raise WireError("gradients of dense parameters that nobody has set")
            push.dense = receive_flat(dense, state.num_dense)
        elif len(dense):
            raise WireError("dense gradients that are not announced")
        return push

    def _apply(self, everyone: list[tuple[Request, Push]]) -> None:
        try:
            self.state.apply([push for _, push in everyone])
        except Exception as error:  # a part may be applied: the run must not continue with that
            why = f"server {self.state.index} could not apply gradients: {error!r}"
            log.exception("server %d could not apply gradients", self.state.index)
            self.fail(why)
            for request, _ in everyone:
                self.answers.refuse(request.address, request.header, why, lost=True)
            return
        self.applied += 1
        self._answer_pushes(everyone)
        self.release()

    def _answer_pushes(self, pushes: list[tuple[Request, Push]]) -> None:
        """Answer the workers of a finished step, with the new dense parameters."""
        loss = sum(push.loss for _, push in pushes)
        count = sum(push.count for _, push in pushes)
        totals_frame = numbers_frame(loss, count)
        dense = None
        for request, _ in pushes:
            frames: list[Any] = [totals_frame]
            if request.header.flags & WITH_DENSE:
                dense = self.state.dense_frame() if dense is None else dense
                frames.append(dense)
            self.members[request.header.worker].answer = frames
            self.answers.reply(request, frames, request.header.flags)

    def _again(self, request: Request, worker: Worker) -> None:
        """A push that came before: it is not applied again."""
        header = request.header
        if header.step < worker.step - 1:  # a later one was answered, or will be
            frames: list[Any] = [numbers_frame(0.0, 0.0)]
            if header.flags & WITH_DENSE:
                frames.append(self.state.dense_frame())
            self.answers.reply(request, frames, header.flags)
        elif worker.answer is not None:
            self.answers.reply(request, worker.answer, header.flags)
        elif header.worker in self.pushes:  # still waits for the others
            self.pushes[header.worker] = request, self.pushes[header.worker][1]

    # ---- workers that leave ---------------------------------------------------------------------

    def leave(self, number: int) -> None:
        """Handle a worker that is done: it waits for no step, and no step may wait for it."""
        if self.pushes and number not in self.pushes:
            self.fail(f"worker {number} is done, and others wait for its gradients")
        self.release()

    def abandon(self) -> list[Request]:
        """Forget all waiting requests, and return them."""
        waiting = [*self._waiting.values(), *(request for request, _ in self.pushes.values())]
        self._waiting, self.pushes = {}, {}
        return waiting

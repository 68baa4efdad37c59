"""Recovery: a server that is started again becomes what it was before it was killed.

It takes its rows from the last committed checkpoint and handles the requests of its journal once
more, giving no answers. Workers ask again for what they have no answer to, and a server knows what
it has taken: nothing is lost, nothing is done twice. What the journal says is believed no more than
what comes over the wire, and whatever does not fit ends the run: numbers are right or none.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import Field
from safetensors.torch import save as format_tensors

from shoal.config.section import Section
from shoal.ps.server.answers import Request
from shoal.ps.server.journal import REQUEST, STATE, Journal, Rows, committed
from shoal.ps.server.shards import Written, load_shards
from shoal.ps.server.state import State
from shoal.ps.server.steps import ServedSteps
from shoal.ps.spec import Load, Save
from shoal.ps.wire import (
    Kind,
    MessageHeader,
    WireError,
    parse_header,
    parse_json,
    validated,
)

log = logging.getLogger("shoal")


class Recovery:
    """The journal of a server; without a journal, every method does nothing."""

    def __init__(self, server: Any, with_journal: bool):
        if with_journal and server.folder is None:
            raise ValueError("a journal needs a folder: start the server with --folder=DIR")
        self.server = server
        self.journal = Journal(server.folder if with_journal else None, server.index)
        self.recovered = False  # whether this process took over the state of an earlier one
        self._hellos: dict[int, list[Any]] = {}  # worker -> header and frame of its hello

    @property
    def replaying(self) -> bool:
        return self.server.answers.silent

    # ---- while all is well ----------------------------------------------------------------------

    def append_to_journal(self, request: Request) -> None:
        """Append a request that changes the server; it is answered after that."""
        if not self.journal.on:
            return
        frames = [request.header.pack(), *request.frames]
        if request.header.kind == Kind.HELLO:
            self._hellos[request.header.worker] = [bytes(frame) for frame in frames]
        if not self.replaying:
            with self._failing():
                self.journal.append(REQUEST, frames, durable=request.header.kind != Kind.PUSH)

    def begin_segment(self, request: Request) -> None:
        """A save has begun: what comes next changes the rows that are being saved."""
        steps = self.server.steps
        if not self.journal.on or self.replaying or steps is None:
            return
        save = read_save(request)
        state = describe(steps, save)
        hellos = [(REQUEST, frames) for frames in self._hellos.values()]
        with self._failing():
            self.journal.begin([*hellos, (STATE, state)])
        self.journal.save(save.name, save.delta)

    def know_files(self, files: dict[str, Any] | None) -> None:
        """The files of the last save, once they are written."""
        if self.journal.on and files is not None:
            with self._failing():
                self.journal.files(files)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """A disk that is full ends the run: what cannot be kept must not be answered."""
        try:
            yield
        except OSError as error:
            why = f"server {self.server.index} cannot write its journal: {error.strerror or error}"
            self.server.fail(why)
            raise WireError(why) from None

    # ---- started again --------------------------------------------------------------------------

    def recognise(self, header: MessageHeader) -> None:
        """Recover from a journal of the run that sent a header; discard one of an earlier run."""
        if not self.journal.has_earlier:
            return
        if (header.worker, header.session) in self.journal.sessions:
            self._recover()
        elif header.kind == Kind.HELLO:
            self.journal.discard()

    def check_known(self, header: MessageHeader) -> None:
        """Raise an error with the cause where a worker is unknown to a restarted server."""
        if self.journal.on:
            raise WireError(
                f"server {self.server.index} was started again and does not know worker "
                f"{header.worker}: its journal ({self.journal.place}) was removed, cannot be read "
                "or is of another run; what was saved can be continued with --resume"
            )

    def saved_before(self, state: State, name: str) -> Written | None:
        """A save that is replayed, where its files are known; else it must be made again."""
        steps = self.server.steps
        if self.journal.on and steps is not None and steps.pushes:
            raise WireError("a save while gradients of a step wait for others, and with a journal")
        files = self.journal.written.get(name)
        if files is None or not self.replaying:
            return None
        state.mark_saved()
        return Written(files)

    def _recover(self) -> None:
        server, started, count = self.server, time.monotonic(), 0
        save: Request | None = None  # the last request, where it is one and no segment follows
        server.answers.silent = self.recovered = True
        try:
            for kind, frames in self.journal.replay():
                if kind == REQUEST:
                    request = self._repeat(frames)
                    if request.header.kind != Kind.HELLO:
                        save = request if request.header.kind == Kind.SAVE else None
                        count += 1
                elif kind == STATE:
                    self._meet_state(frames, first=count == 0)
                    save, count = None, count + 1
        except Exception as error:  # of files that may hold anything
            server.fail(f"server {server.index} cannot recover: {error}")
            return
        finally:
            server.answers.silent = False
        if save is not None:  # killed before the next segment was there
            self.begin_segment(save)
        seconds = time.monotonic() - started
        log.info("server %d is back: %d requests in %.1f s", server.index, count, seconds)

    def _repeat(self, frames: list[memoryview]) -> Request:
        """Handle a request again."""
        server, header = self.server, parse_header(frames[0])
        if header.kind == Kind.SAVE and server.writer is not None:
            server.writer.abandon()  # of a save before it, which was made again
            server.writer = None
        before = server.refused
        server.receive(b"", frames[0], frames[1:])
        server.finish_jobs()
        # The folder of a save may be gone, of one that failed elsewhere; all else was taken before.
        if server.refused > before and header.kind != Kind.SAVE:
            raise WireError(f"its journal has a {header.kind.name} that it does not take again")
        return Request(b"", header, frames[0], frames[1:])

    def _meet_state(self, frames: list[memoryview], first: bool) -> None:
        """Handle the state at the start of a segment; the first one is taken over."""
        server = self.server
        if server.steps is None:
            raise WireError("a journal in which nobody describes the model")
        if not first:
            server_state = check_same(server.steps, frames)
        else:
            rows = self.journal.rows or []
            server_state = take_over(server.steps, frames, rows, server.folder)
            server.writer = Written(rows[-1][1] if rows else {})
        self.journal.save(server_state.save, server_state.delta)


# ---- what a server is, less its rows ------------------------------------------------------------


class WorkerState(Section):
    """The saved state of a worker, besides its hello."""

    step: int = Field(ge=0)
    done: bool
    orders: list[int] = Field(description="numbers of those that were carried out")
    answer: str | None = Field(description="to its last push: loss and count, in hex")
    with_dense: bool = Field(description="whether dense parameters follow in that answer")


class ServerState(Section):
    """The state of a server when a save begins, besides rows, dense parameters and hellos."""

    save: str = Field(description="name of the folder that is saved into")
    delta: bool
    applied: int = Field(ge=0)
    has_dense: bool
    steps: dict[str, int] = Field(description="table -> steps that its rows have had")
    workers: dict[str, WorkerState]


def read_save(request: Request) -> Save:
    """Read the save that a request asks for."""
    return request.read(Save, "a save is {name: text, delta: true or false, held: true or false}")


def describe(steps: ServedSteps, save: Save) -> list[Any]:
    """The frames of a record: JSON, dense parameters, the state of their optimizer."""
    state, workers = steps.state, {}
    for number, worker in steps.members.items():
        answer = worker.answer or []
        workers[str(number)] = WorkerState(
            step=worker.step,
            done=worker.done,
            orders=[order for order, carried_out in worker.orders.items() if carried_out],
            answer=bytes(answer[0]).hex() if answer else None,
            with_dense=len(answer) > 1,
        )
    server_state = ServerState(
        save=save.name,
        delta=save.delta,
        applied=steps.applied,
        has_dense=state.has_dense,
        steps={one.name: store.step for one, store in zip(state.spec.tables, state.stores)},
        workers=workers,
    )
    dense = state.dense_frame() if state.has_dense else b""
    optimizer = state.dense_state() if state.has_dense else {}
    return [server_state.model_dump_json().encode(), dense, format_tensors(optimizer)]


def take_over(
    steps: ServedSteps, frames: list[memoryview], rows: Rows, folder: Path | None
) -> ServerState:
    """Take over the state of a record, with the rows of these files; workers have registered."""
    server_state, dense, optimizer = _parse(frames)
    state = steps.state
    for number, (name, files) in enumerate(rows):
        values = {"name": committed(name), "files": files, "steps": server_state.steps}
        load = validated(Load, {**values, "fresh": number == 0}, "a journal's rows are not right")
        for _ in load_shards(state, folder, load):
            pass
    state.mark_saved()
    if server_state.has_dense:
        state.set_dense(dense, optimizer)
    steps.applied = server_state.applied
    for name, worker_state in server_state.workers.items():
        worker = steps.members.get(int(name)) if name.isdecimal() else None
        if worker is None:
            raise WireError(f"a journal tells of worker {name[:20]}, who never said hello")
        worker.step, worker.done = worker_state.step, worker_state.done
        worker.orders = dict.fromkeys(worker_state.orders, True)
        if worker_state.answer is not None:
            answer = [bytes.fromhex(worker_state.answer)]
            worker.answer = [*answer, *([state.dense_frame()] * worker_state.with_dense)]
    return server_state


def check_same(steps: ServedSteps, frames: list[memoryview]) -> ServerState:
    """Refuse a journal whose replay does not give the saved state: numbers would be wrong."""
    server_state, dense, _ = _parse(frames)
    dense_here = bytes(steps.state.dense_frame()) if server_state.has_dense else b""
    if (
        server_state.applied != steps.applied
        or server_state.has_dense != steps.state.has_dense
        or dense_here != dense
    ):
        raise WireError("the journal does not lead to what the server was at its last save")
    return server_state


def _parse(frames: list[memoryview]) -> tuple[ServerState, memoryview, memoryview]:
    if len(frames) != 3:
        raise WireError(f"a journal's state in {len(frames)} frames; there must be 3")
    state, dense, optimizer = frames
    server_state = validated(ServerState, parse_json(state), "a journal's state is not right")
    return server_state, dense, optimizer

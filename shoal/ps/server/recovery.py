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
    """The journal of a server, or none: then nothing here does anything."""

    def __init__(self, server: Any, with_journal: bool):
        if with_journal and server.folder is None:
            raise ValueError("a journal needs a folder: start the server with --folder=DIR")
        self.server = server
        self.journal = Journal(server.folder if with_journal else None, server.index)
        self.recovered = False  # what this process knows is of one before it
        self._hellos: dict[int, list[Any]] = {}  # worker -> header and frame of its hello

    @property
    def replaying(self) -> bool:
        return self.server.answers.silent

    # ---- while all is well ----------------------------------------------------------------------

    def write_down(self, request: Request) -> None:
        """Keep a request that changes the server; it is answered after that."""
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
        """Whose is the journal that was found: of the run that speaks, or of one before it?"""
        if not self.journal.found:
            return
        if (header.worker, header.session) in self.journal.sessions:
            self._recover()
        elif header.kind == Kind.HELLO:
            self.journal.discard()

    def check_known(self, header: MessageHeader) -> None:
        """Name the cause where a worker speaks to a server that nobody has greeted in its life."""
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
        server, begun, count = self.server, time.monotonic(), 0
        save: Request | None = None  # the last request, where it is one and no segment follows
        server.answers.silent = self.recovered = True
        try:
            for what, frames in self.journal.replay():
                if what == REQUEST:
                    request = self._repeat(frames)
                    if request.header.kind != Kind.HELLO:
                        save = request if request.header.kind == Kind.SAVE else None
                        count += 1
                elif what == STATE:
                    self._meet_state(frames, first=count == 0)
                    save, count = None, count + 1
        except Exception as error:  # of files that may hold anything
            server.fail(f"server {server.index} cannot recover: {error}")
            return
        finally:
            server.answers.silent = False
        if save is not None:  # killed before the next segment was there
            self.begin_segment(save)
        seconds = time.monotonic() - begun
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
        """The beginning of a segment: of the first one all comes from there."""
        server = self.server
        if server.steps is None:
            raise WireError("a journal in which nobody describes the model")
        if not first:
            known = check_same(server.steps, frames)
        else:
            rows = self.journal.rows or []
            known = take_over(server.steps, frames, rows, server.folder)
            server.writer = Written(rows[-1][1] if rows else {})
        self.journal.save(known.save, known.delta)


# ---- what a server is, less its rows ------------------------------------------------------------


class KnownWorker(Section):
    """What a server knows of a worker, besides its hello."""

    step: int = Field(ge=0)
    done: bool
    orders: list[int] = Field(description="numbers of those that were carried out")
    answer: str | None = Field(description="to its last push: loss and count, in hex")
    with_dense: bool = Field(description="whether dense parameters follow in that answer")


class Known(Section):
    """What a server knows when a save begins, besides rows, dense parameters and hellos."""

    save: str = Field(description="name of the folder that is saved into")
    delta: bool
    applied: int = Field(ge=0)
    has_dense: bool
    steps: dict[str, int] = Field(description="table -> steps that its rows have had")
    workers: dict[str, KnownWorker]


def read_save(request: Request) -> Save:
    """What is to be saved."""
    return request.read(Save, "a save is {name: text, delta: true or false, held: true or false}")


def describe(steps: ServedSteps, save: Save) -> list[Any]:
    """The frames of a record: JSON, dense parameters, the state of their optimizer."""
    state, workers = steps.state, {}
    for number, worker in steps.members.items():
        answer = worker.answer or []
        workers[str(number)] = KnownWorker(
            step=worker.step,
            done=worker.done,
            orders=[order for order, carried_out in worker.orders.items() if carried_out],
            answer=bytes(answer[0]).hex() if answer else None,
            with_dense=len(answer) > 1,
        )
    known = Known(
        save=save.name,
        delta=save.delta,
        applied=steps.applied,
        has_dense=state.has_dense,
        steps={one.name: store.step for one, store in zip(state.spec.tables, state.stores)},
        workers=workers,
    )
    dense = state.dense_frame() if state.has_dense else b""
    optimizer = state.dense_state() if state.has_dense else {}
    return [known.model_dump_json().encode(), dense, format_tensors(optimizer)]


def take_over(
    steps: ServedSteps, frames: list[memoryview], rows: Rows, folder: Path | None
) -> Known:
    """Become what a record says, with the rows of these files; the workers have said hello."""
    known, dense, optimizer = _parse(frames)
    state = steps.state
    for number, (name, files) in enumerate(rows):
        values = {"name": committed(name), "files": files, "steps": known.steps}
        load = validated(Load, {**values, "fresh": number == 0}, "a journal's rows are not right")
        for _ in load_shards(state, folder, load):
            pass
    state.mark_saved()
    if known.has_dense:
        state.set_dense(dense, optimizer)
    steps.applied = known.applied
    for name, one in known.workers.items():
        worker = steps.members.get(int(name)) if name.isdecimal() else None
        if worker is None:
            raise WireError(f"a journal tells of worker {name[:20]}, who never said hello")
        worker.step, worker.done = one.step, one.done
        worker.orders = dict.fromkeys(one.orders, True)
        if one.answer is not None:
            told = [bytes.fromhex(one.answer)]
            worker.answer = [*told, *([state.dense_frame()] * one.with_dense)]
    return known


def check_same(steps: ServedSteps, frames: list[memoryview]) -> Known:
    """Refuse a journal that did not lead to what the server was: its numbers would be wrong."""
    known, dense, _ = _parse(frames)
    here = bytes(steps.state.dense_frame()) if known.has_dense else b""
    if known.applied != steps.applied or known.has_dense != steps.state.has_dense or here != dense:
        raise WireError("the journal does not lead to what the server was at its last save")
    return known


def _parse(frames: list[memoryview]) -> tuple[Known, memoryview, memoryview]:
    if len(frames) != 3:
        raise WireError(f"a journal's state in {len(frames)} frames; there must be 3")
    state, dense, optimizer = frames
    known = validated(Known, parse_json(state), "a journal's state is not right")
    return known, dense, optimizer

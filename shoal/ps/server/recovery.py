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
from typing import Any, Protocol

from shoal.ps.server.answers import Answers, Request
from shoal.ps.server.journal import Journal
from shoal.ps.server.known import check_same, describe, take_over
from shoal.ps.server.records import REQUEST, STATE
from shoal.ps.server.roster import Roster
from shoal.ps.server.shards import Written
from shoal.ps.server.state import State
from shoal.ps.server.steps import Steps
from shoal.ps.wire import Header, Kind, WireError, parse_header, parse_json

log = logging.getLogger("shoal")


class Recovering(Protocol):
    """A server, as far as its recovery needs it."""

    index: int
    folder: Path | None
    answers: Answers
    roster: Roster
    steps: Steps | None
    writer: Any
    refused: int

    def receive(self, address: bytes, head: Any, frames: list[memoryview]) -> None: ...

    def finish_jobs(self) -> None: ...

    def fail(self, why: str) -> None: ...


class Recovery:
    """The journal of a server, or none: then nothing here does anything."""

    def __init__(self, server: Recovering, with_journal: bool):
        self.server = server
        self.journal: Journal | None = None
        self.recovered = False  # what this process knows is of one before it
        self._hellos: dict[int, list[Any]] = {}  # worker -> header and frame of its hello
        if with_journal:
            if server.folder is None:
                raise ValueError("a journal needs a folder: start the server with --folder=DIR")
            self.journal = Journal(server.folder, server.index)

    @property
    def replaying(self) -> bool:
        return self.server.answers.silent

    # ---- while all is well ----------------------------------------------------------------------

    def write_down(self, request: Request) -> None:
        """Keep a request that changes the server; it is answered after that."""
        if self.journal is None:
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
        if self.journal is None or self.replaying or steps is None:
            return
        values = parse_json(request.frames[0])
        name, delta = values["name"], values.get("delta", False)
        state = describe(steps, self.server.roster, name, delta)
        hellos = [(REQUEST, frames) for frames in self._hellos.values()]
        with self._failing():
            self.journal.begin([*hellos, (STATE, state)])
        self.journal.save(name, delta)

    def know_files(self, files: dict[str, Any] | None) -> None:
        """The files of the last save, once they are written."""
        if self.journal is not None and files is not None:
            with self._failing():
                self.journal.files(files)

    def sweep(self, servers: int) -> None:
        """A run of so many servers begins; one before it may have had more."""
        if self.journal is not None and self.server.index == 0:
            self.journal.sweep(servers)

    def tidy(self) -> None:
        """Remove what a committed checkpoint has replaced."""
        if self.journal is not None:
            self.journal.tidy()

    def discard(self) -> None:
        """The run is over."""
        if self.journal is not None:
            self.journal.discard()

    def close(self) -> None:
        """What is written stays, for another process of this server."""
        if self.journal is not None:
            self.journal.close()

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

    def recognise(self, header: Header) -> None:
        """Whose is the journal that was found: of the run that speaks, or of one before it?"""
        if self.journal is None or not self.journal.found:
            return
        if (header.worker, header.session) in self.journal.sessions:
            self._recover(self.journal)
        elif header.kind == Kind.HELLO:
            self.journal.discard()

    def saved_before(self, state: State, values: dict[str, Any]) -> Written | None:
        """A save that is replayed, where its files are known; else it must be made again."""
        if self.journal is None:
            return None
        if self.server.steps is not None and self.server.steps.has_pushes:
            raise WireError("a save while gradients of a step wait for others, and with a journal")
        if not self.replaying:
            return None
        files = self.journal.written.get(str(values.get("name")))
        if files is None:
            return None
        state.mark_saved()
        return Written(files)

    def _recover(self, journal: Journal) -> None:
        server, begun, count = self.server, time.monotonic(), 0
        save: Request | None = None  # the last request, where it is one and no segment follows
        server.answers.silent = self.recovered = True
        try:
            for what, frames in journal.replay():
                if what == REQUEST:
                    request = self._repeat(frames)
                    if request.header.kind != Kind.HELLO:
                        save = request if request.header.kind == Kind.SAVE else None
                        count += 1
                elif what == STATE:
                    self._meet_state(journal, frames, first=count == 0)
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

    def _meet_state(self, journal: Journal, frames: list[memoryview], first: bool) -> None:
        """The beginning of a segment: of the first one all comes from there."""
        server = self.server
        if server.steps is None:
            raise WireError("a journal in which nobody describes the model")
        if not first:
            known = check_same(server.steps, frames)
        else:
            rows = journal.rows or []
            known = take_over(server.steps, server.roster, frames, rows, server.folder)
            server.writer = Written(rows[-1][1] if rows else {})
        journal.save(known.save, known.delta)

"""Server: answers workers over a socket, one message at a time, until all of them are done.

Everything about a message is checked before anything is touched: a wrong one is answered with an
error and changes nothing.
"""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import zmq
from safetensors.torch import save as format_tensors

from shoal.config.row_rules import TiersSection
from shoal.distributed.curve import Context, CurveKeys
from shoal.distributed.liveness import BEAT
from shoal.ps.server.answers import Answers, Request
from shoal.ps.server.members import Members
from shoal.ps.server.recovery import Recovery, read_save
from shoal.ps.server.shards import ShardWriter, Written, load_shards
from shoal.ps.server.state import make_state
from shoal.ps.server.steps import ServedSteps
from shoal.ps.sockets import listen
from shoal.ps.spec import Load, read_hello
from shoal.ps.wire import (
    COPY_BELOW,
    COUNT,
    IN_PIECES,
    MOST_FRAMES,
    Kind,
    MessageHeader,
    WireError,
    join_pieces,
    json_frame,
    parse_header,
    parse_json,
)

log = logging.getLogger("shoal")
OF_FIRST = (Kind.SET_DENSE, Kind.SAVE, Kind.LOAD, Kind.SAVED)  # what worker 0 alone may ask
# Carried out once, however often they come.
ORDERS = (Kind.SET_DENSE, Kind.SAVE, Kind.LOAD, Kind.TURN)
OVER = object()  # after the last part of long work


class Server:
    """One of the servers of a run."""

    def __init__(
        self,
        bind: str = "127.0.0.1:0",
        index: int = 0,
        keys: CurveKeys | None = None,
        timeout: float = 10.0,
        patience: float = math.inf,
        folder: str | Path | None = None,
        plain: bool = False,
        journal: bool = False,
        tiers: TiersSection | None = None,
    ):
        """bind: see address.py.

        patience: seconds without any word after which the first worker is not waited for
        folder: where it writes and reads checkpoints; without one it does neither
        plain: listen beyond this host without keys
        journal: write down what changes it; started again, it continues where it was
        tiers: what rows may take of host memory, and the folder of the others; None: no limit
        """
        self.index, self.tiers = index, tiers
        self.folder = None if folder is None else Path(folder)
        self.patience, self._heard = patience, time.monotonic()
        self.context = Context()
        self.socket = listen(self.context, bind, index, keys, plain)
        self.address = self.socket.getsockopt_string(zmq.LAST_ENDPOINT).removeprefix("tcp://")
        self.answers = Answers(self.socket)
        self.members = Members(index, self.answers, timeout)
        self.recovery = Recovery(self, journal)
        self.life = secrets.token_bytes(8)  # of this process: another one may have been before it
        self.steps: ServedSteps | None = None  # once a worker has described the model
        self.failure: str | None = None
        self._failed_at = 0.0
        self.writer: ShardWriter | None = None
        self._jobs: list[tuple[Request, Iterator[None]]] = []  # long work, done in parts
        self._ending = False  # a worker said goodbye
        self.stop_signal = 0  # the number of the signal that ended the server; 0: none so far
        self.messages = self.refused = 0

    # ---- the loop -------------------------------------------------------------------------------

    def serve(self) -> int:
        """Serve until all workers said goodbye or a signal comes; returns the exit status."""
        try:
            while True:
                self._take_one()
                if self.stop_signal:
                    return 128 + self.stop_signal
                if self._jobs:
                    self._continue_job()
                if time.monotonic() - self.members.looked > 0.5:
                    self._look_after_workers()
                if self._ending and self._all_done():
                    break
                # A server that gave up reports the reason to workers for a while.
                if self.failure and time.monotonic() - self._failed_at > 3.0:
                    log.error("server %d ends: %s", self.index, self.failure)
                    break
            self.recovery.journal.end()
            return 0 if self.failure is None else 1
        finally:
            self.close()

    def _take_one(self) -> None:
        """Answer a message, if one comes within a moment."""
        try:
            address = self.socket.recv(zmq.NOBLOCK if self._jobs else 0)
        except zmq.Again:
            return
        frame = self.socket.recv(copy=False)
        # Ids are read where they lie, which is anywhere in a small frame.
        head = frame.bytes if len(frame) < COPY_BELOW else frame.buffer
        frames = []
        while frame.more:
            frame = self.socket.recv(copy=False)
            frames.append(frame.buffer)
        self.receive(address, head, frames)

    def _look_after_workers(self) -> None:
        """Give up when one went silent, or when none comes."""
        BEAT.tick()
        lost = self.members.look_after()
        self._ending = self._ending or self.members.over
        if self.steps is None and time.monotonic() - self._heard > self.patience:
            lost = (
                f"no worker came within {self.patience:.0f} s: start the workers, see what ended "
                "them on their hosts, check --servers and the keys, or raise launch.join_timeout"
            )
        if lost is not None and self.failure is None:
            self.fail(lost)
        self.recovery.journal.tidy()

    def _all_done(self) -> bool:
        if self.members.elastic:
            return self.members.over
        return self.steps is not None and self.members.all_done(self.steps.spec.workers)

    def fail(self, why: str) -> None:
        """Fail the run: report it to all workers that wait, and to all later requests."""
        self.failure, self._failed_at = why, time.monotonic()
        for request in [] if self.steps is None else self.steps.abandon():
            self.answers.refuse(request.address, request.header, why, lost=True)

    def close(self) -> None:
        """Give the address back."""
        if self.writer is not None:
            self.writer.abandon()
        self.recovery.journal.close()
        self.answers.close()
        self.context.term()

    # ---- one message ----------------------------------------------------------------------------

    def receive(self, address: bytes, head: bytes | memoryview, frames: list[memoryview]) -> None:
        """Answer one message: its frame 0, and those that follow."""
        self.messages += 1
        header = MessageHeader(Kind.ERROR, 0)
        try:
            if len(frames) > 1 << 12:  # pieces of one
                raise WireError(f"a message of {1 + len(frames)} frames")
            header = parse_header(head)
            self._heard = time.monotonic()
            self.recovery.recognise(header)
            self._check_sender(header)
            if header.flags & IN_PIECES:
                frames = join_pieces(frames)
                header = header._replace(flags=header.flags & ~IN_PIECES)
            if len(frames) >= MOST_FRAMES:
                raise WireError(f"a message of {1 + len(frames)} frames")
            self._handle(Request(address, header, head, frames))
        except WireError as error:
            self._refuse(address, header, str(error))
        except Exception as error:  # checks that failed to foresee something must not end a server
            log.exception("server %d could not handle a message", self.index)
            self._refuse(address, header, f"internal error on server {self.index}: {error!r}")

    def _check_sender(self, header: MessageHeader) -> None:
        if header.kind >= Kind.OK:
            raise WireError("an answer, where a request must be")
        if header.kind == Kind.HELLO:
            return
        if self.failure is not None and header.kind not in (Kind.BYE, Kind.PING):
            raise WireError(self.failure)
        if self.steps is None:
            self.recovery.check_known(header)
        self.members.hear(header)
        if header.kind in OF_FIRST and header.worker != 0 and not self.members.elastic:
            raise WireError(
                f"worker {header.worker} orders what only worker 0 may: {header.kind.name}"
            )

    def _handle(self, request: Request) -> None:
        handler = HANDLERS[request.header.kind]
        if request.header.kind not in ORDERS:
            handler(self, request)
            return
        orders, number = self._orders(request), request.header.sequence
        if number in orders:  # repeated: its answer was late or lost
            if orders[number]:
                self.answers.reply(request, [])
            return
        orders[number] = False
        try:
            handler(self, request)
        except Exception:  # any: whatever it is, the order must not stay among those under way (a
            # worker that asks again would wait for ever); it is raised again, and answered there.
            orders.pop(number, None)
            raise
        while len(orders) > 1000:  # of each worker
            del orders[next(iter(orders))]

    def _orders(self, request: Request) -> dict[int, bool]:
        return self.members[request.header.worker].orders

    def _refuse(self, address: bytes, header: MessageHeader, why: str) -> None:
        self.refused += 1
        self.answers.refuse(address, header, why, lost=why == self.failure)

    def _carried_out(self, request: Request) -> None:
        self.recovery.append_to_journal(request)
        self._orders(request)[request.header.sequence] = True
        if request.header.kind == Kind.SAVE:
            self.recovery.begin_segment(request)
        self.answers.reply(request, [])

    # ---- workers --------------------------------------------------------------------------------

    def _hello(self, request: Request) -> None:
        header, known_spec = request.header, None if self.steps is None else self.steps.spec
        spec, host = read_hello(request.only(1)[0], header.worker, self.index, known_spec)
        if spec.elastic:
            header = header._replace(worker=self.members.number_of(header))
        if header.worker >= spec.workers:
            raise WireError(f"worker {header.worker} of {spec.workers}")
        if self.steps is None:
            state = make_state(spec, self.index, self.tiers)
            self.steps = ServedSteps(
                state, self.members, self.fail, self.recovery.append_to_journal
            )
            self.members.elastic = spec.elastic
        if self.members.register(header, host):
            self.recovery.append_to_journal(request)
        self.answers.reply(request, [self.life, COUNT.pack(header.worker)])

    def _ping(self, request: Request) -> None:
        worker, step = request.header.worker, self.members[request.header.worker].step
        if request.header.step > step and not self.recovery.recovered:
            raise WireError(f"worker {worker} speaks of {request.header.step} pushes of {step}")
        if request.header.step > step and self.failure is None:
            self.fail(
                f"server {self.index} has lost pushes of worker {worker} that it had answered "
                f"({step} of {request.header.step} are there): its host went down before its "
                "journal was on disk, or the journal was cut"
            )
        self.answers.reply(request, [(self.failure or "").encode(), self.life])

    def _bye(self, request: Request) -> None:
        number = request.header.worker
        if not self.members[number].done:
            self.recovery.append_to_journal(request)
        self.members[number].done = self._ending = True
        self.answers.reply(request, [])
        self._steps().leave(number)
        if self.members.elastic:
            self.members.remove_worker(number, over=bool(request.frames))

    def _turn(self, request: Request) -> None:
        self.members.turn(request)
        self._carried_out(request)

    # ---- rows and dense parameters --------------------------------------------------------------

    def _dense(self, request: Request) -> None:
        state = self._steps().state
        if not state.has_dense and state.num_dense:
            raise WireError("nobody has set the dense parameters yet")
        self.answers.reply(request, [state.dense_frame()])

    def _set_dense(self, request: Request) -> None:
        self._steps().state.set_dense(*request.only(2))
        self._carried_out(request)

    def _dense_state(self, request: Request) -> None:
        self.answers.reply(request, [format_tensors(self._steps().state.dense_state())])

    def _steps(self) -> ServedSteps:
        assert self.steps is not None  # a worker is known here when it has described the model
        return self.steps

    # ---- saving and loading ---------------------------------------------------------------------

    def _save(self, request: Request) -> None:
        save, state = read_save(request), self._steps().state
        if self.writer is not None and self.writer.running():
            raise WireError("the last save is still being written")
        if self.writer is not None:
            self.writer.abandon()  # a held save that was never released
        self.writer = self.recovery.saved_before(state, save.name)
        if self.writer is None:
            self.writer = ShardWriter(state, self.folder, save, again=self.recovery.replaying)
        self._carried_out(request)

    def _saved(self, request: Request) -> None:
        if self.writer is None:
            raise WireError("nothing was saved")
        if request.frames:  # a replica has written the same files
            files = parse_json(request.only(1)[0]).get("files")
            if not isinstance(files, dict):
                raise WireError("of what another server saved, its files must be told")
            self.writer.abandon()
            self.writer = Written(files)
        self.writer.release()
        report = self.writer.report()
        self.recovery.know_files(report.get("files"))
        self.answers.reply(request, [json_frame(report)])

    def _load(self, request: Request) -> None:
        wrong = "a load is {name: text, files: {...}, steps: {...}, fresh: true or false}"
        load = request.read(Load, wrong)
        self._jobs.append((request, load_shards(self._steps().state, self.folder, load)))

    def finish_jobs(self) -> None:
        """Do all of the long work."""
        while self._jobs:
            self._continue_job()

    def _continue_job(self) -> None:
        """Do a part of the long work, so that workers are answered in between."""
        request, job = self._jobs[0]
        try:
            if next(job, OVER) is None:
                return
            self._carried_out(request)
        except Exception as error:  # of a file that may hold anything; the server continues
            self._orders(request).pop(request.header.sequence, None)
            self._refuse(request.address, request.header, str(error))
        self._jobs.pop(0)

    def _stats(self, request: Request) -> None:
        state = self._steps().state
        stats = {
            "tables": {
                table.name: {"rows": len(store), "bytes": getattr(store, "memory", None)}
                for table, store in zip(state.spec.tables, state.stores)
            },
            "messages": self.messages,
            "refused": self.refused,
            "rewritten": state.rewritten,
        }
        self.answers.reply(request, [json_frame(stats)])


HANDLERS: dict[Kind, Callable[[Server, Request], None]] = {
    Kind.HELLO: Server._hello,
    Kind.PULL: lambda server, request: server._steps().pull(request),
    Kind.PUSH: lambda server, request: server._steps().push(request),
    Kind.DENSE: Server._dense,
    Kind.SET_DENSE: Server._set_dense,
    Kind.STATE: Server._dense_state,
    Kind.SAVE: Server._save,
    Kind.SAVED: Server._saved,
    Kind.LOAD: Server._load,
    Kind.STATS: Server._stats,
    Kind.PING: Server._ping,
    Kind.BYE: Server._bye,
    Kind.LEASE: lambda server, request: server.members.lease(request),
    Kind.TURN: Server._turn,
}

"""Server: answers workers over a socket, one message at a time, until all of them are done.

sync     a step's gradients wait until every worker's are here, and are applied as one
async    gradients are applied as they come; a worker far ahead of the slowest one waits
geo      workers teach copies of their own; what comes is added

Everything about a message is checked before anything is touched: a wrong one is answered with an
error and changes nothing. A push that is sent twice is applied once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import zmq
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as format_tensors
from torch import Tensor

from shoal.ps.curve import Gate
from shoal.ps.keys import Keys
from shoal.ps.shards import ShardWriter, load_shards
from shoal.ps.spec import Spec, parse_spec
from shoal.ps.state import Push, State
from shoal.ps.wire import (
    MOST_FRAMES,
    WITH_DENSE,
    Header,
    Kind,
    WireError,
    numbers,
    numbers_frame,
    parse_header,
    parse_json,
    parse_parts,
    receive_ids,
    receive_rows,
    send_rows,
)

log = logging.getLogger("shoal")
POLL_SECONDS = 0.2
LOOK_SECONDS = 0.5  # between looks for workers that went silent
PARTING_SECONDS = 3.0  # how long a server that gave up goes on telling workers why
MOST_AHEAD = 1000  # pushes that a worker may have under way
MOST_WAITING = 1000  # pulls that may wait for their time, of each worker
ORDERS = (Kind.SET_DENSE, Kind.SAVE, Kind.LOAD)  # carried out once, however often they come
COPY_BELOW = 1 << 16  # smaller frames are copied into zmq's own memory, which is cheaper


@dataclass
class Worker:
    """What a server knows of a worker."""

    session: int
    host: str
    heard: float  # when it was last heard of
    step: int = 0  # pushes that came
    answer: list[Any] | None = None  # to its last push, once it is given
    done: bool = False
    orders: dict[int, bool] = field(default_factory=dict)  # number of the last ones -> carried out


@dataclass
class Request:
    """A message whose answer is still due."""

    address: bytes
    header: Header
    frames: list[memoryview] = field(default_factory=list)
    ids: list[tuple[int, Tensor]] = field(default_factory=list)  # of a pull: table, its ids


class Server:
    """One of the servers of a run."""

    def __init__(
        self,
        bind: str = "127.0.0.1:0",
        index: int = 0,
        keys: Keys | None = None,
        timeout: float = 10.0,
        threads: int | None = None,
    ):
        self.index, self.timeout, self.threads = index, timeout, threads
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 2000)
        self.socket.setsockopt(zmq.SNDHWM, 0)  # answers are never dropped
        self.socket.setsockopt(zmq.RCVTIMEO, int(1000 * POLL_SECONDS))
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 0)
        if keys is not None:
            Gate(self.context, self.socket, keys)
        try:
            self.socket.bind(f"tcp://{bind}")
        except zmq.ZMQError as error:
            raise ValueError(
                f"server {index} cannot listen on {bind}: {error.strerror}; choose a free port and "
                "an address of this host"
            ) from error
        self.address = self.socket.getsockopt_string(zmq.LAST_ENDPOINT).removeprefix("tcp://")
        self.spec: Spec | None = None
        self.state: State | None = None
        self.workers: dict[int, Worker] = {}
        self.applied = 0  # steps (sync)
        self.failure: str | None = None
        self._failed_at = 0.0
        self._pushes: dict[int, tuple[Request, Push]] = {}  # sync: of the step under way
        self._waiting: dict[tuple[bytes, int], Request] = {}  # pulls whose time has not come
        self._looked = time.monotonic()  # when the workers were last looked after
        self._writer: ShardWriter | None = None
        self._jobs: list[tuple[Request, Iterator[None]]] = []  # long work, done in parts
        self._ending = False  # a worker said goodbye
        self.messages = self.refused = 0

    # ---- the loop -------------------------------------------------------------------------------

    def serve(self) -> int:
        """Until all workers said goodbye; the exit status."""
        try:
            while True:
                self._take_one()
                if self._jobs:
                    self._go_on()
                if time.monotonic() - self._looked > LOOK_SECONDS:
                    self._look_after_workers()
                if self._ending and self._all_done():
                    return 0 if self.failure is None else 1
                if self.failure and time.monotonic() - self._failed_at > PARTING_SECONDS:
                    log.error("server %d ends: %s", self.index, self.failure)
                    return 1
        finally:
            self.close()

    def _take_one(self) -> None:
        """Answer a message, if one comes within a moment."""
        try:
            flags = zmq.NOBLOCK if self._jobs else 0
            address, *frames = self.socket.recv_multipart(flags, copy=False)
        except zmq.Again:
            return
        self.receive(address.bytes, [frame.buffer for frame in frames])

    def close(self) -> None:
        """Give the address back."""
        if self._writer is not None:
            self._writer.abandon()
        self.socket.close()
        self.context.term()

    def receive(self, address: bytes, frames: list[memoryview]) -> None:
        """Answer one message."""
        self.messages += 1
        header = Header(Kind.ERROR, 0)
        try:
            if not 1 <= len(frames) <= MOST_FRAMES:
                raise WireError(f"a message of {len(frames)} frames")
            header = parse_header(frames[0])
            request = Request(address, header, frames[1:])
            self._check_sender(header)
            self._handle(request)
        except WireError as error:
            self._refuse(address, header, str(error))
        except Exception as error:  # checks that failed to foresee something must not end a server
            log.exception("server %d could not handle a message", self.index)
            self._refuse(address, header, f"server {self.index} stumbled: {error!r}")

    def _check_sender(self, header: Header) -> None:
        if header.kind >= Kind.OK:
            raise WireError("an answer, where a request must be")
        if header.kind == Kind.HELLO:
            return
        worker = self.workers.get(header.worker)
        if worker is None or worker.session != header.session:
            raise WireError(f"worker {header.worker} is not known here; it must say hello first")
        worker.heard = time.monotonic()
        if self.failure is not None and header.kind not in (Kind.BYE, Kind.PING):
            raise WireError(self.failure)

    def _handle(self, request: Request) -> None:
        kind = request.header.kind
        if kind not in ORDERS:
            HANDLERS[kind](self, request)
            return
        # What is asked again because its answer was late or lost may come at any later time.
        orders, number = self.workers[request.header.worker].orders, request.header.sequence
        if number not in orders:
            orders[number] = False
            try:
                HANDLERS[kind](self, request)
            except Exception:  # whatever it was: not carried out, so it may be asked again
                del orders[number]
                raise
            while len(orders) > MOST_AHEAD:
                del orders[next(iter(orders))]
        elif orders[number]:
            self._answer(request, [])

    def _carried_out(self, request: Request) -> None:
        self.workers[request.header.worker].orders[request.header.sequence] = True
        self._answer(request, [])

    # ---- workers --------------------------------------------------------------------------------

    def _hello(self, request: Request) -> None:
        header = request.header
        values = parse_json(_only(request.frames, 1)[0])
        host, server = str(values.pop("host", "?"))[:200], values.pop("server", None)
        spec = parse_spec(values)
        if header.worker >= spec.workers:
            raise WireError(f"worker {header.worker} of {spec.workers}")
        if server != self.index or self.index >= spec.servers:
            raise WireError(
                f"this is server {self.index}, and worker {header.worker} on host {host} takes it "
                f"for server {server} of {spec.servers}: give every host the same --servers"
            )
        if self.spec is None:
            try:
                self.state = State(spec, self.index, self.threads)
            except (ValueError, RuntimeError, MemoryError) as error:
                raise WireError(f"server {self.index} cannot hold this model: {error}") from None
            self.spec = spec
        elif spec.json() != self.spec.json():
            raise WireError(
                f"worker {header.worker} describes another model or run than the first worker "
                "did: give every host the same config and code"
            )
        known = self.workers.get(header.worker)
        if known is not None and known.session != header.session:
            raise WireError(
                f"there is a worker {header.worker} already, on host {known.host}: every worker "
                "needs a number of its own"
            )
        if known is None:
            self.workers[header.worker] = Worker(header.session, host, time.monotonic())
        self._answer(request, [])

    def _ping(self, request: Request) -> None:
        self._answer(request, [(self.failure or "").encode()])

    def _bye(self, request: Request) -> None:
        number = request.header.worker
        self.workers[number].done = self._ending = True
        self._answer(request, [])
        if self._pushes and number not in self._pushes:
            self._fail(f"worker {number} is done, and others wait for its gradients")
        self._release()  # a worker that is done keeps nobody waiting

    def _all_done(self) -> bool:
        if self.spec is None or len(self.workers) < self.spec.workers:
            return False
        return all(worker.done for worker in self.workers.values())

    def _look_after_workers(self) -> None:
        """Notice workers that went silent."""
        now = time.monotonic()
        busy, self._looked = now - self._looked > self.timeout / 2, now
        if busy:  # what came meanwhile may not have been handed over yet
            return
        for number, worker in self.workers.items():
            silent = now - worker.heard
            if self.failure is None and not worker.done and silent > self.timeout:
                self._fail(
                    f"worker {number} on host {worker.host} has been silent for {silent:.0f} s: it "
                    "died, or the network to it is cut"
                )

    def _fail(self, why: str) -> None:
        """Give up: tell everybody who waits, and everybody who will ask."""
        self.failure, self._failed_at = why, time.monotonic()
        waiting = [*self._waiting.values(), *(request for request, _ in self._pushes.values())]
        for request in waiting:
            self._send_error(request.address, request.header, why, lost=True)
        self._waiting, self._pushes = {}, {}

    # ---- rows and dense parameters --------------------------------------------------------------

    def _pull(self, request: Request) -> None:
        state, header = self._state(), request.header
        parts_bytes, ids_bytes = _only(request.frames, 2)
        pairs = parse_parts(parts_bytes, len(state.dims))
        all_ids = receive_ids(ids_bytes, [n for _, n in pairs], header.flags)
        request.ids = [(table, ids) for (table, _), ids in zip(pairs, all_ids)]
        for table, ids in request.ids:
            state.check_ids(table, ids)
        if self._is_time(header):
            self._answer_pull(request)
            return
        if header.step > self.workers[header.worker].step + MOST_AHEAD:
            raise WireError(f"rows of step {header.step}, far ahead of all others")
        if len(self._waiting) >= MOST_WAITING * state.spec.workers:
            raise WireError(f"{len(self._waiting)} requests for rows wait already")
        self._waiting[request.address, header.sequence] = request

    def _answer_pull(self, request: Request) -> None:
        state, flags = self._state(), request.header.flags
        rows = [state.stores[table].pull(ids) for table, ids in request.ids]
        self._answer(request, [send_rows(rows, flags)], flags)

    def _is_time(self, header: Header) -> bool:
        """Whether the rows that a pull of a step may see are ready."""
        if header.step < 0 or self.spec is None or self.spec.mode == "geo":
            return True
        if self.spec.mode == "sync":
            return header.step <= self.applied
        at_work = [worker.step for worker in self.workers.values() if not worker.done]
        joined = len(self.workers) == self.spec.workers
        slowest = min(at_work, default=0) if joined else 0
        return header.step - slowest <= self.spec.staleness

    def _release(self) -> None:
        """Answer the pulls whose time has come."""
        ready = [key for key, one in self._waiting.items() if self._is_time(one.header)]
        for key in ready:
            self._answer_pull(self._waiting.pop(key))

    def _push(self, request: Request) -> None:
        header, state = request.header, self._state()
        worker = self.workers[header.worker]
        push = self._parse_push(request, state)
        if header.step < worker.step:
            self._again(request, worker)
            return
        if header.step > worker.step:  # one before it was lost on the way; both will come again
            return
        if state.spec.mode != "sync":
            worker.step, worker.answer = header.step + 1, None
            self._apply([(request, push)])
            return
        done = [number for number, one in self.workers.items() if one.done]
        if done:
            raise WireError(f"gradients of step {header.step}, and worker {done[0]} is done")
        worker.step, worker.answer = header.step + 1, None
        self._pushes[header.worker] = request, push
        if len(self._pushes) == state.spec.workers:
            everyone = [self._pushes[number] for number in sorted(self._pushes)]
            self._pushes = {}
            self._apply(everyone)

    def _apply(self, everyone: list[tuple[Request, Push]]) -> None:
        try:
            self._state().apply([push for _, push in everyone])
        except Exception as error:  # a part may be applied: nobody may go on with that
            log.exception("server %d could not apply gradients", self.index)
            self._fail(f"server {self.index} could not apply gradients: {error!r}")
            for request, _ in everyone:
                self._send_error(request.address, request.header, str(self.failure), lost=True)
            return
        self.applied += 1
        self._applied(everyone)
        self._release()

    def _parse_push(self, request: Request, state: State) -> Push:
        flags = request.header.flags
        told, parts, ids, rows, dense = _only(request.frames, 5)
        lr, loss, count = numbers(told, 3)
        if not (lr >= 0 and lr < float("inf") and count >= 0):
            raise WireError(f"a learning rate of {lr} and a count of {count}")
        if request.header.step < 0:
            raise WireError(f"gradients of step {request.header.step}")
        pairs = parse_parts(parts, len(state.dims))
        counts = [n for _, n in pairs]
        all_ids = receive_ids(ids, counts, flags)
        all_rows = receive_rows(rows, counts, [state.dims[t] for t, _ in pairs], flags)
        for (table, _), some in zip(pairs, all_ids):
            state.check_ids(table, some)
        push = Push(request.header.worker, lr, loss, count)
        push.rows = {t: pair for (t, _), pair in zip(pairs, zip(all_ids, all_rows))}
        if flags & WITH_DENSE:
            if not state.has_dense:
                raise WireError("gradients of dense parameters that nobody has set")
            push.dense = _floats(dense, state.num_dense)
        elif len(dense):
            raise WireError("dense gradients that are not announced")
        return push

    def _applied(self, everyone: list[tuple[Request, Push]]) -> None:
        """Tell the workers of a step that it is done, and what the dense parameters are now."""
        loss = sum(push.loss for _, push in everyone)
        count = sum(push.count for _, push in everyone)
        told = numbers_frame(loss, count)
        dense = None
        for request, _ in everyone:
            frames: list[Any] = [told]
            if request.header.flags & WITH_DENSE:
                dense = send_rows([self._state().flat_dense()], 0) if dense is None else dense
                frames.append(dense)
            worker = self.workers[request.header.worker]
            worker.answer = frames
            self._answer(request, frames, request.header.flags)

    def _again(self, request: Request, worker: Worker) -> None:
        """A push that came before: it is not applied again."""
        if request.header.step < worker.step - 1:  # a later one was answered, or will be
            frames: list[Any] = [numbers_frame(0.0, 0.0)]
            if request.header.flags & WITH_DENSE:
                frames.append(send_rows([self._state().flat_dense()], 0))
            self._answer(request, frames, request.header.flags)
        elif worker.answer is not None:
            self._answer(request, worker.answer, request.header.flags)
        elif request.header.worker in self._pushes:  # still waits for the others
            push = self._pushes[request.header.worker][1]
            self._pushes[request.header.worker] = request, push

    def _dense(self, request: Request) -> None:
        state = self._state()
        if not state.has_dense and state.num_dense:
            raise WireError("nobody has set the dense parameters yet")
        self._answer(request, [send_rows([state.flat_dense()], 0)])

    def _set_dense(self, request: Request) -> None:
        state = self._state()
        values, optimizer = _only(request.frames, 2)
        flat = _floats(values, state.num_dense)
        try:
            tensors = parse_tensors(bytes(optimizer)) if len(optimizer) else {}
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise WireError(f"the optimizer's state cannot be read: {error}") from None
        state.set_dense(flat, tensors)
        self._carried_out(request)

    def _dense_state(self, request: Request) -> None:
        self._answer(request, [format_tensors(self._state().dense_state())])

    def _state(self) -> State:
        if self.state is None:
            raise WireError("nobody has described the model yet")
        return self.state

    # ---- saving and loading ---------------------------------------------------------------------

    def _save(self, request: Request) -> None:
        values = parse_json(_only(request.frames, 1)[0])
        state = self._state()
        if self._writer is not None and self._writer.running():
            raise WireError("the last save is still being written")
        self._writer = ShardWriter(state, values)
        self._carried_out(request)

    def _saved(self, request: Request) -> None:
        if self._writer is None:
            raise WireError("nothing was saved")
        self._answer(request, [json.dumps(self._writer.report()).encode()])

    def _load(self, request: Request) -> None:
        values = parse_json(_only(request.frames, 1)[0])
        self._jobs.append((request, load_shards(self._state(), values)))

    def _go_on(self) -> None:
        """A part of the long work, so that workers are answered in between."""
        if not self._jobs:
            return
        request, job = self._jobs[0]
        try:
            next(job)
        except StopIteration:
            self._jobs.pop(0)
            self._carried_out(request)
        except Exception as error:  # of a file that may hold anything; the server goes on
            self._jobs.pop(0)
            self.workers[request.header.worker].orders.pop(request.header.sequence, None)
            self._refuse(request.address, request.header, str(error))

    def _stats(self, request: Request) -> None:
        state = self._state()
        tables = {
            one.name: {"rows": len(store), "bytes": getattr(store, "memory", None)}  # type: ignore[arg-type]
            for one, store in zip(state.spec.tables, state.stores)
        }
        found = {"tables": tables, "messages": self.messages, "refused": self.refused}
        self._answer(request, [json.dumps(found).encode()])

    # ---- answers --------------------------------------------------------------------------------

    def _answer(self, request: Request, frames: list[Any], flags: int = 0) -> None:
        self._send(request.address, request.header.answer(Kind.OK, flags), frames)

    def _refuse(self, address: bytes, header: Header, message: str) -> None:
        self.refused += 1
        self._send_error(address, header, message)

    def _send_error(self, address: bytes, header: Header, message: str, lost: bool = False) -> None:
        lost = lost or message == self.failure
        text = json.dumps({"message": message, "lost": lost}).encode()
        self._send(address, header.answer(Kind.ERROR), [text])

    def _send(self, address: bytes, header: Header, frames: list[Any]) -> None:
        messages = [address, header.pack(), *frames]
        large = any(len(frame) > COPY_BELOW for frame in frames)
        with contextlib.suppress(zmq.ZMQError):  # whoever asked is gone
            self.socket.send_multipart(messages, zmq.NOBLOCK, copy=not large)


HANDLERS: dict[Kind, Callable[[Server, Request], None]] = {
    Kind.HELLO: Server._hello,
    Kind.PULL: Server._pull,
    Kind.PUSH: Server._push,
    Kind.DENSE: Server._dense,
    Kind.SET_DENSE: Server._set_dense,
    Kind.STATE: Server._dense_state,
    Kind.SAVE: Server._save,
    Kind.SAVED: Server._saved,
    Kind.LOAD: Server._load,
    Kind.STATS: Server._stats,
    Kind.PING: Server._ping,
    Kind.BYE: Server._bye,
}


def _only(frames: list[memoryview], count: int) -> list[memoryview]:
    if len(frames) != count:
        raise WireError(f"{len(frames)} frames after the header; there must be {count}")
    return frames


def _floats(frame: memoryview, count: int) -> Tensor:
    return receive_rows(frame, [count], [1], 0)[0].view(-1)


def run_server(
    bind: str,
    index: int,
    keys: Keys | None = None,
    timeout: float = 10.0,
    threads: int = 1,
    announce: str | None = None,
) -> int:
    """Serve from this process until the workers are done.

    It writes its address to the file `announce`, and why it failed to `announce`.failed.
    """
    torch.set_num_threads(threads)
    server = Server(bind, index, keys, timeout, threads)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if announce is not None:
        with open(announce + ".new", "w") as file:
            file.write(server.address)
        os.replace(announce + ".new", announce)
    log.info("server %d listens on %s", index, server.address)
    status = server.serve()
    if status and announce is not None:  # whoever started us tells it
        with open(announce + ".failed", "w") as file:
            json.dump({"message": server.failure}, file)
    return status

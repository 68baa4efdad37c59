"""Streams: byte streams between hosts, each carried by a ZeroMQ connection (curve.py).

A program at either end uses an ordinary socket; a thread of this process moves its bytes:

    local socket ──► Streams of host A ═══ DEALER ═ CURVE ═ ROUTER ═══ Streams of host B ──► target

One connection is one stream: its first message opens it, an empty message ends it, and a
connection that breaks ends it too. Connections are never made again by themselves, since a
stream in which bytes are missing is of no use.

Anybody who reaches a port can connect. A connection that has not proved within HANDSHAKE_SECONDS
that it holds the key is cut off by libzmq; until then it is one of a bounded number of newcomers
(newcomers.py).
"""

from __future__ import annotations

import logging
import queue
import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import zmq
from zmq.utils.monitor import parse_monitor_message

from shoal.distributed.curve import Context, CurveGate, CurveKeys, use_keys
from shoal.distributed.hosts import WorldError, listen_at, look_up
from shoal.distributed.newcomers import Newcomers

log = logging.getLogger("shoal")

HANDSHAKE_SECONDS = 5.0  # for the whole handshake of a connection
BLOCK = 1 << 16  # bytes of a message at most
MOST_UNSENT = 64  # messages of a stream that wait on either side; then its sender waits
REFUSALS = 5  # how often a listener hangs up during the handshake until it counts as a refusal
STALLED_MILLISECONDS = 1  # after which a stream tries again to send
# Of a handshake or a message that fails, libzmq would report more. But reporting it changes errno,
# after which it keeps a connection with a forged message instead of closing it (4.3.5).
EVENTS = (
    zmq.EVENT_ACCEPTED | zmq.EVENT_CLOSED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED
)

Target = str | tuple[str, int]  # where bytes are handed on: a Unix socket's path, or an address


class PeerRefused(WorldError):
    """The other end does not have our keys, or is no process of a run."""


@dataclass(eq=False)
class CarriedStream:
    """A local socket, and the connection that carries its bytes."""

    local: socket.socket
    remote: zmq.Socket
    identity: bytes | None = None  # of the peer, where the remote socket has many
    monitor: zmq.Socket | None = None  # what libzmq says of a remote socket of its own
    pending: bytes | None = None  # what could not be sent yet

    def send(self, data: bytes) -> bool:
        """Whether a message could be sent; else it is kept, to be tried again."""
        frames = [data] if self.identity is None else [self.identity, data]
        try:
            self.remote.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            self.pending = data
            return False
        except zmq.ZMQError:  # the peer is gone, of which its end will be heard
            pass
        self.pending = None
        return True


class Streams:
    """A thread that carries streams: those that come to a port, and those that it opens."""

    def __init__(self) -> None:
        self._context = Context()
        self._poller = zmq.Poller()
        self._handlers: dict[object, Callable[[], None]] = {}  # by socket or file descriptor
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._waking, self._wake = socket.socketpair()
        self._streams: set[CarriedStream] = set()
        self._stalled: set[CarriedStream] = set()
        self._listeners: list[socket.socket] = []
        self._router: zmq.Socket | None = None
        self._target: Target | None = None
        self._by_identity: dict[bytes, CarriedStream] = {}  # those of peers that came to our port
        self._identities: dict[int, bytes] = {}  # of these peers, by the descriptor of theirs
        self._ended: set[bytes] = set()  # peers of which messages may still come
        self._newcomers = Newcomers()
        self._closing = float("inf")  # when to stop although streams are left
        self._watch(self._waking, self._run_commands)
        self._thread = threading.Thread(target=self._run, name="streams", daemon=True)
        self._thread.start()

    # ---- called from any thread ------------------------------------------------------------------

    def listen(self, host: str, port: int, keys: CurveKeys | None, target: Target) -> int:
        """Hand streams that come to an address on to `target`; the port. OSError where it cannot.

        keys: None lets in everybody.
        """
        with listen_at(host, port) as probe:  # its error says why it cannot be
            address, port = probe.getsockname()[:2]
        router = self._context.socket(zmq.ROUTER)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a full queue is an error, not a loss
        router.setsockopt(zmq.BACKLOG, 1024)
        router.setsockopt(zmq.MAXMSGSIZE, 2 * BLOCK)  # CURVE makes them a little longer
        _set_options(router, address)
        if keys is not None:
            CurveGate(self._context, router, keys)
        monitor = _monitor_of(self._context, router)
        router.bind(_endpoint(address, port))
        self._call(lambda: self._start_listening(router, monitor, target, f"{host}:{port}"))
        return port

    def connect(
        self, host: str, port: int, keys: CurveKeys | None, timeout: float
    ) -> socket.socket:
        """A socket whose bytes go to the listener at an address, tried until it answers.

        Fails at once where the listener has other keys.
        """
        look_up(host)
        place = f"{host}:{port}"
        deadline, pause, refusals = time.monotonic() + timeout, 0.05, 0
        while True:
            try:
                remote, monitor = self._handshake(host, port, keys)
            except ConnectionError as error:
                refusals = refusals + 1 if isinstance(error, ConnectionResetError) else 0
                if refusals == REFUSALS:
                    raise _refused(place) from error
                if time.monotonic() > deadline:
                    raise WorldError(
                        f"nobody answered at {place} within {timeout:g} s ({error}); start the "
                        "first host (--group_offset=0), check --ip and --port, or raise "
                        "launch.join_timeout"
                    ) from error
            else:
                own_end, local = socket.socketpair()
                stream = CarriedStream(local, remote, monitor=monitor)
                break
            time.sleep(pause * random.uniform(0.5, 1.0))  # many are not to come at one moment
            pause = min(2 * pause, 1.0)
        self._call(lambda: self._carry(stream))
        return own_end

    def forward(
        self,
        local: tuple[str, int],
        remote: tuple[str, int],
        keys: CurveKeys | None,
        is_allowed: Callable[[tuple[str, int]], bool],
    ) -> None:
        """Listen at a local address, and carry what connects there to the listener at `remote`.

        is_allowed: whether one who connects from an address of this host may.
        """
        listener = socket.create_server(local, backlog=256)

        def accept() -> None:
            try:
                connection, peer = listener.accept()
            except OSError:  # it has left, or the system has no room
                return
            if not is_allowed(peer):
                connection.close()
                return
            arguments = (connection, remote, keys)
            threading.Thread(target=self._forward_one, args=arguments, daemon=True).start()

        self._call(lambda: self._start_accepting(listener, accept))

    def stop_listening(self) -> None:
        """Carry the streams there are, and let nobody else in."""
        self._call(self._shut)

    def close(self, grace: float = 0.0) -> None:
        """End all streams; those that are not over by themselves, after so many seconds."""
        self._closing = time.monotonic() + grace
        with suppress(OSError):
            self._wake.send(b"x")
        self._thread.join()

    # ---- connections of our own ------------------------------------------------------------------

    def _forward_one(
        self, local: socket.socket, address: tuple[str, int], keys: CurveKeys | None
    ) -> None:
        try:
            remote, monitor = self._handshake(*address, keys)
        except (WorldError, OSError) as error:
            log.warning("no connection to %s:%s: %s", *address, error)
            local.close()
            return
        _send_at_once(local)
        self._call(lambda: self._carry(CarriedStream(local, remote, monitor=monitor)))

    def _handshake(
        self, host: str, port: int, keys: CurveKeys | None
    ) -> tuple[zmq.Socket, zmq.Socket]:
        """A socket whose peer has proved that it has the key, and what libzmq says of it.

        ConnectionResetError where it hung up, and another ConnectionError where nobody answered.
        """
        address = _numeric(host)
        remote = self._context.socket(zmq.DEALER)
        remote.setsockopt(zmq.RECONNECT_IVL, -1)
        _set_options(remote, address)
        if keys is not None:
            use_keys(remote, keys)
        monitor = _monitor_of(self._context, remote)
        try:
            remote.connect(_endpoint(address, port))
            self._await_handshake(monitor, f"{host}:{port}")
        except BaseException:
            monitor.close(0)
            remote.close(0)
            raise
        return remote, monitor

    def _await_handshake(self, monitor: zmq.Socket, place: str) -> None:
        begin = time.monotonic()
        deadline = begin + HANDSHAKE_SECONDS
        while monitor.poll(max(0, int(1000 * (deadline - time.monotonic())))):
            event = parse_monitor_message(monitor.recv_multipart())
            kind = event["event"]
            if kind == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                return
            if kind == zmq.EVENT_CLOSED:
                raise ConnectionRefusedError("connection refused")
            if kind == zmq.EVENT_DISCONNECTED:
                if time.monotonic() - begin < 0.9 * HANDSHAKE_SECONDS:  # not libzmq's own limit
                    raise ConnectionResetError("the other end hung up")
                break
        raise ConnectionAbortedError("the other end is silent")

    # ---- the thread ------------------------------------------------------------------------------

    def _call(self, command: Callable[[], None]) -> None:
        """Run something in the thread, and wait for it."""
        done = threading.Event()

        def run() -> None:
            command()
            done.set()

        self._commands.put(run)
        with suppress(OSError):
            self._wake.send(b"x")
        while not done.wait(1.0):
            if not self._thread.is_alive():
                raise WorldError("the connections between hosts are closed")

    def _run_commands(self) -> None:
        self._waking.recv(1 << 12)
        while not self._commands.empty():
            self._commands.get()()

    def _watch(self, source: socket.socket | zmq.Socket, handle: Callable[[], None]) -> None:
        key = source if isinstance(source, zmq.Socket) else source.fileno()
        self._handlers[key] = handle
        self._poller.register(key, zmq.POLLIN)

    def _unwatch(self, source: socket.socket | zmq.Socket) -> None:
        key = source if isinstance(source, zmq.Socket) else source.fileno()
        if self._handlers.pop(key, None) is not None:
            self._poller.unregister(key)

    def _run(self) -> None:
        try:
            while time.monotonic() < self._closing:
                for source, _ in self._poller.poll(self._milliseconds()):
                    handle = self._handlers.get(source)
                    if handle is not None:  # it may have been ended just now
                        handle()
                for stream in list(self._stalled):
                    self._send_pending(stream)
                if self._closing < float("inf") and not self._streams:
                    break
        finally:
            self._end()

    def _milliseconds(self) -> int | None:
        """How long to wait for something to happen; None without end."""
        if self._stalled:
            return STALLED_MILLISECONDS
        if self._closing < float("inf"):
            return max(0, int(1000 * (self._closing - time.monotonic())))
        return None

    def _end(self) -> None:
        for stream in list(self._streams):
            self._finish(stream)
        for listener in self._listeners:
            listener.close()
        if self._router is not None:
            self._monitor.close(0)
            self._router.close(1000)
        self._waking.close()
        self._wake.close()
        self._context.term()

    def _shut(self) -> None:
        for listener in self._listeners:
            self._unwatch(listener)
            listener.close()
        self._listeners.clear()
        self._target = None

    def _carry(self, stream: CarriedStream) -> None:
        self._streams.add(stream)
        self._watch(stream.local, lambda: self._read(stream))
        if stream.identity is None:
            assert stream.monitor is not None
            self._watch(stream.remote, lambda: self._receive(stream))
            self._watch(stream.monitor, lambda: self._hear_of(stream))

    def _read(self, stream: CarriedStream) -> None:
        """Send what the local socket has."""
        try:
            data = stream.local.recv(BLOCK, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not stream.send(data):
            self._stalled.add(stream)
            self._unwatch(stream.local)
        elif not data:
            self._finish(stream)

    def _send_pending(self, stream: CarriedStream) -> None:
        """Try again to send what there was no room for."""
        data = stream.pending
        assert data is not None
        if not stream.send(data):
            return
        self._stalled.discard(stream)
        if data:
            self._watch(stream.local, lambda: self._read(stream))
        else:
            self._finish(stream)

    def _write(self, stream: CarriedStream, data: zmq.Frame) -> None:
        """Hand a message on to the local socket."""
        try:
            if len(data):
                stream.local.sendall(data.buffer)
                return
        except OSError:
            stream.send(b"")
        self._finish(stream)

    def _finish(self, stream: CarriedStream) -> None:
        if stream not in self._streams:
            return
        self._streams.discard(stream)
        self._stalled.discard(stream)
        self._unwatch(stream.local)
        stream.local.close()
        if stream.identity is not None:
            del self._by_identity[stream.identity]
            self._ended.add(stream.identity)
        else:
            assert stream.monitor is not None
            self._unwatch(stream.remote)
            self._unwatch(stream.monitor)
            stream.remote.disable_monitor()
            stream.monitor.close(0)
            stream.remote.close(1000)

    def _receive(self, stream: CarriedStream) -> None:
        """Hand on the messages of a connection that we opened."""
        for _ in range(MOST_UNSENT):
            try:
                data = stream.remote.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._write(stream, data)
            if stream not in self._streams:
                return

    def _hear_of(self, stream: CarriedStream) -> None:
        """End a stream whose connection is gone."""
        assert stream.monitor is not None
        try:
            event = parse_monitor_message(stream.monitor.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            return
        if event["event"] == zmq.EVENT_DISCONNECTED:
            while stream in self._streams and stream.remote.poll(0):
                self._receive(stream)
            self._finish(stream)

    # ---- the port --------------------------------------------------------------------------------

    def _start_accepting(self, listener: socket.socket, accept: Callable[[], None]) -> None:
        self._listeners.append(listener)
        self._watch(listener, accept)

    def _start_listening(
        self, router: zmq.Socket, monitor: zmq.Socket, target: Target, place: str
    ) -> None:
        self._router, self._monitor, self._target = router, monitor, target
        self._newcomers.place = place
        self._watch(router, self._take_messages)
        self._watch(monitor, self._hear_of_peers)

    def _take_messages(self) -> None:
        """Hand on the messages of those who came to our port."""
        assert self._router is not None
        for _ in range(MOST_UNSENT):
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            identity = frames[0].bytes
            if identity not in self._by_identity and identity not in self._ended:
                self._open(identity, frames[0].get(zmq.SRCFD))
            stream = self._by_identity.get(identity)
            if stream is not None:
                self._write(stream, frames[-1])

    def _open(self, identity: bytes, descriptor: int) -> None:
        """Open the stream of a peer that has proved that it belongs here."""
        assert self._router is not None
        # What libzmq says of a connection comes before its messages: now the descriptor is its own.
        self._hear_of_peers()
        self._newcomers.admit(descriptor)
        self._identities[descriptor] = identity
        try:
            local = _connect_to(self._target)
        except OSError:
            self._ended.add(identity)
            CarriedStream(self._wake, self._router, identity).send(b"")
            return
        stream = self._by_identity[identity] = CarriedStream(local, self._router, identity)
        self._carry(stream)

    def _hear_of_peers(self) -> None:
        while True:
            try:
                event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return
            kind, descriptor = event["event"], event["value"]
            if kind == zmq.EVENT_ACCEPTED:
                self._newcomers.accept(descriptor)
            elif kind == zmq.EVENT_DISCONNECTED:
                identity = self._identities.pop(descriptor, None)
                if identity in self._by_identity:
                    self._finish(self._by_identity[identity])
                self._newcomers.lose(descriptor)


def _refused(place: str) -> PeerRefused:
    return PeerRefused(
        f"{place} did not let us in: give every host the same launch.secret, and check --ip and "
        "--port"
    )


def _numeric(host: str) -> str:
    """The address that a host name means; ConnectionError where it means none."""
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise ConnectionAbortedError(f"{host} is unknown: {error.strerror}") from error


def _endpoint(address: str, port: int) -> str:
    """The address as ZeroMQ writes it."""
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def _set_options(remote: zmq.Socket, address: str) -> None:
    remote.setsockopt(zmq.IPV6, int(":" in address))
    remote.setsockopt(zmq.LINGER, 1000)
    remote.setsockopt(zmq.SNDHWM, MOST_UNSENT)
    remote.setsockopt(zmq.RCVHWM, MOST_UNSENT)
    remote.setsockopt(zmq.HANDSHAKE_IVL, int(1000 * HANDSHAKE_SECONDS))


def _monitor_of(context: zmq.Context, remote: zmq.Socket) -> zmq.Socket:
    """A socket that gets what libzmq says of another one's connections, however much it is."""
    address = f"inproc://monitor-{id(remote)}-{random.getrandbits(64)}"
    remote.monitor(address, EVENTS)
    monitor = context.socket(zmq.PAIR)
    monitor.setsockopt(zmq.RCVHWM, 0)
    monitor.setsockopt(zmq.LINGER, 0)
    monitor.connect(address)
    return monitor


def _connect_to(target: Target | None) -> socket.socket:
    if target is None:
        raise ConnectionRefusedError("no more connections are accepted")
    if isinstance(target, tuple):
        local = socket.create_connection(target)
        _send_at_once(local)
        return local
    local = socket.socket(socket.AF_UNIX)
    try:
        local.connect(target)
    except OSError:
        local.close()
        raise
    return local


def _send_at_once(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

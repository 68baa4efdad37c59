"""The parent of a service's processes: starts them, replaces one that ends, passes signals on.

It answers no request and loads no model; so it has nothing that could make it end. All processes
listen at one socket, which it has bound: what one does not accept, another one does.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from shoal.serving.http.listening import ServiceReach, check_reach, listen, url_of
from shoal.serving.processes.child import STABLE_SECONDS, Child, Place, Spread
from shoal.serving.processes.copies import CopyStore
from shoal.serving.processes.service_process import ServiceProcess
from shoal.serving.processes.sums import MetricsDocument, figure, lasting, summed

log = logging.getLogger("shoal")
MOST_ENDS = 10  # of one process, each soon after its start, before the service ends
LOOK_SECONDS = 1.0  # that the parent waits for figures; then those of the last time count
SWEEP_SECONDS = 10.0
LINE = "%(asctime)s    %(levelname)s  %(message)s"


def begin_processes(count: int, reach: ServiceReach) -> ServiceProcess | None:
    """Start `count` processes and return in each of them; the parent leaves by SystemExit.

    None: there is to be one process, which is this one. It must have started no threads.
    """
    if count == 1:
        return None
    check_reach(reach.host, reach.token, reach.certificate, reach.key, reach.plain)
    parent = Parent(count, reach, listen(reach.host, reach.port))
    process = parent.run()
    if process is None:
        raise SystemExit(parent.status)
    return process


class Parent:
    """The processes of a service, by number."""

    def __init__(self, count: int, reach: ServiceReach, listener: socket.socket):
        self.reach = reach
        self.listener = listener
        self.url = url_of(reach.host, listener, reach.certificate is not None)
        self.children: dict[int, Child] = {}
        # The first process finds what is wrong, once, and fills the copies; then come the others.
        self.places = [Place(start=None if number else 0.0) for number in range(count)]
        self.has_begun = self.is_announced = False
        self.stopping = 0  # the signal
        self.status = 0
        self.failure = ""
        self.restarts = 0
        self.copies = CopyStore()
        self.past: MetricsDocument = {}  # what processes that have ended counted
        self._spreads: dict[int, list[Spread]] = {}  # pid of a process -> what it waits for
        self._num_spreads = 0
        self._looks: dict[int, float] = {}  # number of a process that asks -> until when it waits
        self._selector = selectors.DefaultSelector()
        self._woken, self._wake = socket.socketpair()

    def run(self) -> ServiceProcess | None:
        """Lead the processes until all have ended; in a process: itself, at once."""
        handler = logging.StreamHandler(sys.stdout)  # a process has its own instead
        handler.setFormatter(logging.Formatter(LINE, "%d %b %H:%M"))
        log.addHandler(handler)
        self._take_signals()
        swept = time.monotonic()
        while self.children or not self._is_ending():
            for number in self._due():
                process = self._start(number)
                if process is not None:
                    return process
            self._wait()
            self._reap()
            self._answer_looks()
            self._answer_spreads()
            if time.monotonic() > swept + SWEEP_SECONDS:
                self.copies.sweep()
                swept = time.monotonic()
        if self.stopping and not self.has_begun:  # as a command that does not handle signals
            signal.signal(self.stopping, signal.SIG_DFL)
            os.kill(os.getpid(), self.stopping)
        if self.failure:
            raise ValueError(self.failure)
        return None

    # ---- starting --------------------------------------------------------------------------------

    def _due(self) -> Iterator[int]:
        """The processes that are to be started now."""
        if self._is_ending():
            return
        now = time.monotonic()
        for number, place in enumerate(self.places):
            if place.start is not None and now >= place.start:
                yield number

    def _start(self, number: int) -> ServiceProcess | None:
        own_control, control = socket.socketpair()
        own_link, link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._leave(own_control, own_link)
            return ServiceProcess(
                number,
                count=len(self.places),
                url=self.url,
                listener=self.listener,
                control=control,
                link=link,
                parent=parent,
            )
        control.close()
        link.close()
        child = self.children[number] = Child(number, pid, own_control, own_link)
        self.places[number].start = None
        self._selector.register(own_control, selectors.EVENT_READ, (child, self._read))
        self._selector.register(own_link, selectors.EVENT_READ, (child, self._give_copy))
        return None

    def _leave(self, *ends: socket.socket) -> None:
        """In a new process: close what is the parent's, so that it alone holds it."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        self.copies.close()
        others = [one for child in self.children.values() for one in (child.control, child.link)]
        for end in (*ends, *others, self._woken, self._wake):
            end.close()

    def _begin(self) -> None:
        """Start the other processes when the first is ready; let them listen when all are."""
        ready = [child for child in self.children.values() if child.state != "loading"]
        if len(ready) == 1:
            for number, place in enumerate(self.places):
                if number not in self.children and place.start is None:
                    place.start = 0.0
        if len(ready) == len(self.places):
            self.has_begun = True
            for child in ready:
                child.send({"go": True})

    def _announce(self) -> None:
        """Write the address when all processes listen for the first time."""
        states = [child.state for child in self.children.values()]
        if self.is_announced or states != ["listening"] * len(self.places):
            return
        self.is_announced = True
        if self.reach.announce is not None:
            Path(self.reach.announce).write_text(self.url)

    # ---- what comes ------------------------------------------------------------------------------

    def _take_signals(self) -> None:
        for end in (self._woken, self._wake):
            end.setblocking(False)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, lambda number, frame: None)
        self._selector.register(self._woken, selectors.EVENT_READ, None)

    def _wait(self) -> None:
        """Until something has come, a second at most."""
        for key, _ in self._selector.select(0.05 if self._looks else 1.0):
            if key.data is None:
                for number in self._woken.recv(4096):
                    if number != signal.SIGCHLD:
                        self._stop(number)
                continue
            child, handle = key.data
            try:
                handle(child)
            except (OSError, ValueError):  # it has ended, and is reaped
                self._selector.unregister(key.fileobj)

    def _give_copy(self, child: Child) -> None:
        self.copies.answer(child.link)

    def _read(self, child: Child) -> None:
        data = child.control.recv(1 << 20)
        if not data:
            raise OSError("the process has ended")
        *lines, child.lines = (child.lines + data).split(b"\n")
        for line in lines:
            self._take(child, json.loads(line))

    def _take(self, child: Child, message: dict[str, Any]) -> None:
        if "ready" in message:
            child.state = "ready"
            if self.stopping:
                os.kill(child.pid, signal.SIGKILL)
            elif self.has_begun:
                child.send({"go": True})
            else:
                self._begin()
        elif "listening" in message:
            child.state = "listening"
            if self.stopping:  # the signal came while it was opening its ears
                child.send({"stop": self.stopping})
            self._announce()
        elif "told" in message:
            child.document, child.is_asked = message["document"], False
        elif "spread" in message:
            self._spread(child)
        elif "caught_up" in message:
            for spread in chain.from_iterable(self._spreads.values()):
                if spread.number == message["caught_up"]:
                    spread.waits.discard(child.pid)
        elif "look" in message:
            child.document = message["document"]
            self._looks[child.number] = time.monotonic() + LOOK_SECONDS
            for other in self._others(child.number):
                if not other.is_asked:
                    other.is_asked = True
                    other.send({"tell": True})

    def _others(self, number: int) -> list[Child]:
        """The processes that answer, but for this one."""
        children = self.children.values()
        return [one for one in children if one.number != number and one.state == "listening"]

    def _answer_looks(self) -> None:
        """Send what all others told, to those who asked; who does not tell in time is not heard."""
        for number, until in list(self._looks.items()):
            others = self._others(number)
            is_late = time.monotonic() > until
            if any(other.is_asked for other in others) and not is_late:
                continue
            del self._looks[number]
            listening = 1 + len(others)
            documents = [other.document for other in others]
            looked = {
                "metrics": self._sum(documents, listening),
                "processes": listening,
                "ready": [document.get("ready") for document in documents],
            }
            if number in self.children:
                self.children[number].send({"looked": looked})

    def _spread(self, child: Child) -> None:
        """Let the others catch up with what a process has written."""
        self._num_spreads += 1
        spread = Spread(self._num_spreads, set())
        self._spreads.setdefault(child.pid, []).append(spread)
        for other in self.children.values():
            # Who is ready and listens soon reads its messages then; who loads reads the files.
            if other.number != child.number and other.state != "loading":
                spread.waits.add(other.pid)
                other.send({"catch_up": spread.number})

    def _answer_spreads(self) -> None:
        """Tell who has written something when all others that answer have it."""
        processes = {child.pid: child for child in self.children.values()}
        for pid, spreads in list(self._spreads.items()):
            while spreads and not spreads[0].waits & processes.keys():
                spreads.pop(0)
                if pid in processes:
                    processes[pid].send({"spread": True})
            if not spreads:
                del self._spreads[pid]

    def _sum(self, documents: list[dict[str, Any]], listening: int) -> MetricsDocument:
        """The figures that some processes told, of those that have ended, and the parent's own."""
        help_text = "Processes that were started for others that had ended"
        return summed(
            [
                self.past,
                figure("shoal_processes", "gauge", "Processes that answer", listening),
                figure("shoal_process_restarts", "counter", help_text, self.restarts),
                *[document.get("metrics", {}) for document in documents],
            ]
        )

    # ---- ends ------------------------------------------------------------------------------------

    def _stop(self, number: int) -> None:
        """Pass a signal on; who does not answer yet has no request to lose."""
        self.stopping = number
        for child in self.children.values():
            if child.state == "listening":
                child.send({"stop": number})
            elif child.state == "loading" or not self.has_begun:
                os.kill(child.pid, signal.SIGKILL)

    def _reap(self) -> None:
        """Take leave of processes that have ended."""
        for child in list(self.children.values()):
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if not pid:
                continue
            del self.children[child.number]
            self._looks.pop(child.number, None)
            self.past = summed([self.past, lasting(child.document.get("metrics", {}))])
            for end in (child.control, child.link):
                with suppress(KeyError, ValueError):
                    self._selector.unregister(end)
                end.close()
            self._judge(child, os.waitstatus_to_exitcode(status))

    def _judge(self, child: Child, code: int) -> None:
        """What follows from the end of a process."""
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        if self._is_ending():
            if code and child.state == "listening":
                self.status = 1
            return
        if not self.has_begun:
            self.status = code  # it has printed why
            if code <= 0:
                self.failure = f"a process of the service ended {how} before it was ready"
            return self._end_others()
        place = self.places[child.number]
        place.note_end(child)
        if place.ends >= MOST_ENDS:
            self.failure = (
                f"process {child.number} of the service ended {place.ends} times, each within "
                f"{STABLE_SECONDS:.0f} s of its start, the last time {how}; its messages say why"
            )
            return self._end_others()
        self.restarts += 1
        log.warning(
            "process %d of the service (pid %d) ended %s; another one is started",
            child.number,
            child.pid,
            how,
        )

    def _is_ending(self) -> bool:
        """Whether no process is started any more."""
        return bool(self.stopping or self.failure or self.status)

    def _end_others(self) -> None:
        """Stop the service: those who answer do so in order."""
        for child in self.children.values():
            if child.state == "listening":
                child.send({"stop": int(signal.SIGTERM)})
            else:
                os.kill(child.pid, signal.SIGKILL)

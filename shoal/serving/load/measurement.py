"""Measurement of a service on this machine: what it answers, how fast, and up to which rate.

The service is a process of its own, asked over loopback. Its clients share the machine with it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shoal.serving.load.clients import ClientLoad, LoadResult

CLIENTS = (1, 8, 64)
WARM_UP = 1.0  # seconds before each figure that do not count; at most as many as count
HALVINGS = 6  # of the step to the highest rate: it is found to 2 % of the fastest clients' rate
START = (  # of a service that ends with the process that measures it
    "from shoal.distributed.parent_process import end_with_parent; import runpy; "
    "end_with_parent({parent}); runpy.run_module('shoal', run_name='__main__', alter_sys=True)"
)


class MeasuredService:
    """A service in a process of its own, from its start until it listens to its end.

        with MeasuredService(["serve", "exported/monday"]) as service:
            service.address  # 'http://127.0.0.1:41873'

    words: of the command `shoal`; where it listens is added.
    """

    def __init__(self, words: Sequence[str]):
        self.words = words
        self.address = ""

    def __enter__(self) -> MeasuredService:
        self._folder = TemporaryDirectory(prefix="shoal-bench-")
        folder = Path(self._folder.name)
        announced, self._log = folder / "address", folder / "log"
        command = [sys.executable, "-c", START.format(parent=os.getpid()), *self.words]
        command += ["--host=127.0.0.1", "--port=0", "--drain=0", f"--announce={announced}"]
        environment = {name: text for name, text in os.environ.items() if name != "SHOAL_TOKEN"}
        with open(self._log, "w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            while not (announced.exists() and announced.read_text()):
                self.check_alive()
                time.sleep(0.05)
        except BaseException:
            self._end()
            raise
        self.address = announced.read_text()
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def check_alive(self) -> None:
        """Raise with the last line of the service's log where it has ended."""
        if self.process.poll() is not None:
            lines = self._log.read_text().strip().splitlines() or ["nothing was logged"]
            last = lines[-1].removeprefix("error: ")
            raise ValueError(f"the service ended with status {self.process.returncode}: {last}")

    def cpu_seconds(self) -> float | None:
        """CPU time that the service and its processes used; None where the system does not say."""
        with suppress(OSError):
            return _cpu_seconds(self.process.pid)
        return None

    def _end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._folder.cleanup()


def _cpu_seconds(pid: int) -> float:
    """CPU time of a process and of those that it started; OSError where it has ended."""
    text = Path(f"/proc/{pid}/stat").read_text()
    fields = text.rpartition(")")[2].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(_cpu_seconds(int(child)) for child in children)


@dataclass(frozen=True)
class ServiceFigure:
    """A figure of a service.

    load    what came: `8 clients`, or `120 requests/s`
    result  what was answered
    cpu     milliseconds of the service's CPU time for a question; None: not known
    """

    load: str
    result: LoadResult
    cpu: float | None


@dataclass(frozen=True)
class ServiceFigures:
    """Figures of a service.

    by_clients  with clients that ask again as soon as they are answered
    p99         the bound, in milliseconds, on the p99 of `highest`
    highest     at the highest rate of questions at random moments whose p99 is within the bound,
                with no question refused; None: at no rate that was tried
    """

    by_clients: list[ServiceFigure]
    p99: float
    highest: ServiceFigure | None


def measure_service(
    words: Sequence[str],
    path: str,
    questions: Sequence[Mapping[str, Any]],
    *,
    clients: Sequence[int] = CLIENTS,
    seconds: float = 5.0,
    p99: float = 50.0,
) -> ServiceFigures:
    """Start the service of a command, measure it, and end it.

    seconds: of each figure, some ten of which are taken
    """
    with MeasuredService(words) as service:
        load = ClientLoad(service.address, path, questions)

        def measured(name: str, run: Callable[[], LoadResult]) -> ServiceFigure:
            before = service.cpu_seconds()
            try:
                result = run()
            except OSError as error:
                service.check_alive()
                raise ValueError(f"the service cannot be reached: {error}") from error
            after = service.cpu_seconds()
            cpu = None if before is None or after is None else 1e3 * (after - before)
            return ServiceFigure(
                name, result, None if cpu is None else cpu / max(1, result.questions)
            )

        by_clients = [
            measured(
                f"{count} client{'s' * (count > 1)}",
                lambda count=count: asyncio.run(  # type: ignore[misc]
                    load.by_clients(count, seconds=seconds, warm_up=min(WARM_UP, seconds))
                ),
            )
            for count in clients
        ]

        def at_rate(rate: float) -> ServiceFigure:
            requests = max(1, round(rate * seconds))
            return measured(
                f"{rate:.0f} requests/s", lambda: asyncio.run(load.at_rate(rate, requests))
            )

        fastest = max(figure.result.rate for figure in by_clients)
        highest = _highest(at_rate, fastest, p99)
        return ServiceFigures(by_clients, p99, highest)


def _highest(
    at_rate: Callable[[float], ServiceFigure], fastest: float, p99: float
) -> ServiceFigure | None:
    """The figure of the highest rate, up to `fastest`, that keeps the bound: found by halves."""
    highest = None
    low, high = 0.0, fastest
    for _ in range(HALVINGS):
        rate = (low + high) / 2
        figure = at_rate(rate)
        if figure.result.refusals == 0 and figure.result.p99 <= p99:
            highest, low = figure, rate
        else:
            high = rate
    return highest

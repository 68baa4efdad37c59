"""Servers: start this host's parameter servers, watch them, and see them end.

They are processes of the command `shoal ps server`. Where all is on one host they listen on Unix
sockets in a folder that only this user may enter. They end by themselves when every worker said
goodbye; they are ended when the run fails, and they end when their launcher is gone. One that
keeps a journal is started again when it was killed, and continues where it was. Where several hold
the same rows (replicas), one that fails is reported, and the run continues without it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.config.schema import Config
from shoal.distributed.hosts import check_installed
from shoal.launch.children import RESUME, Children
from shoal.launch.hosts import LaunchError
from shoal.launch.watch import Hang, Signs, signs_of
from shoal.training.run_folder import RunFolder

END_SECONDS = 30.0  # for the last files of a checkpoint, after the workers are done


class Servers(Children):
    """The servers of this host: `with Servers(config) as servers: ...`."""

    seconds_to_end = 5.0

    def __init__(self, config: Config, binds: list[str] | None = None):
        self.config, self.section, section = config, config.strategy.ps, config.launch
        self.first = section.first_server
        self.folder = self._find_folder(config)
        # A private folder of this user. Short: the path of a socket takes 107 bytes.
        self._scratch = tempfile.TemporaryDirectory(prefix="shoal-servers-", dir=_short_folder())
        count = section.servers * self.section.replicas
        own_addresses = [f"ipc://{self._scratch.name}/{k}.socket" for k in range(count)]
        self.binds = binds or own_addresses
        super().__init__(self._scratch.name, section.hang_timeout, len(self.binds))
        # Of all hosts. Server k of the list has the rows of number k % shards.
        self._total = len(self.section.addresses) or count
        self._shards = self._total // self.section.replicas
        self._left_out: set[int] = set()  # that have failed, and others continue
        self.restarts = self.section.restarts if self.section.journal else 0  # that are left
        # Without any work, before it listens.
        self._start_seconds = max(60.0, section.join_timeout)
        self.culprit: str | None = None
        self._over = threading.Event()
        self._lock = threading.RLock()

    @staticmethod
    def _find_folder(config: Config) -> Path:
        """The only folder where the servers write and read checkpoints."""
        if config.run.output is None:
            raise ValueError(
                "servers on a host without the first worker must be told where checkpoints go: "
                "give every host the same run.output, on a disk that all hosts share"
            )
        return RunFolder(config.run.output).checkpoints.absolute()

    def __enter__(self) -> Servers:
        super().__enter__()
        try:
            self.addresses = [self._address(k) for k in range(len(self.binds))]
        except BaseException:
            self._end()
            raise
        threading.Thread(target=self._watch, name="watch servers", daemon=True).start()
        return self

    def find_stopped(self) -> str | None:
        """Find a server that was stopped by a signal; workers only see that it is silent."""
        for number, process in enumerate(self._processes):
            signs = signs_of(process.pid)
            if signs is not None and signs.stopped:
                return Hang("is stopped, and answers nobody", "").message(self._name(number))
        return None

    def _start(self, number: int) -> subprocess.Popen:
        replica, shard = divmod(self.first + number, self._shards)
        section, threads, tiers = self.section, self.config.run.threads or 1, self.config.rows.tiers
        # Hosts start one after the other, and servers may be the first.
        patience = 5.0 * self.config.launch.join_timeout
        words = ["ps", "server", f"--bind={self.binds[number]}", f"--index={shard}"]
        words += [f"--replica={replica}"] if replica else []
        words += [f"--timeout={section.timeout}", f"--threads={threads}"]
        words += [f"--announce={self._announce(number)}", f"--patience={patience}"]
        words += [f"--folder={self.folder}", f"--log={self.config.run.log}"]
        words += [f"--log-level={self.config.run.log_level}"]
        words += [f"--keys={section.keys}"] if section.keys is not None else []
        words += ["--plain"] if section.plain else []
        words += ["--journal"] if section.journal else []
        if tiers.ssd is not None:
            words += [f"--tiers-host={tiers.host}", f"--tiers-ssd={tiers.ssd}"]
        return self._spawn(number, words, threads)

    def _start_again(self, number: int) -> bool:
        """Restart a server that was killed, but not one that ended with an error report."""
        with self._lock:
            status = self._processes[number].poll()
            if self.restarts == 0 or self._over.is_set() or status is None or status >= 0:
                return status is None  # another thread may have brought it back
            self.restarts -= 1
            self._report(number, f"it is started again (restarts left: {self.restarts})")
            self._watch_on(number)
            self._processes[number] = self._start(number)
            return True

    def _leave_out(self, number: int) -> bool:
        """Whether the run continues without a server that failed, because another has its rows."""
        with self._lock:
            if number in self._left_out or self._over.is_set():
                return True
            others = range((self.first + number) % self._shards, self._total, self._shards)
            if not any(self._may_live(one - self.first) for one in others):
                return False
            self._left_out.add(number)
            self._report(number, "its replica goes on, and no other is started in its place")
            self._watch_on(number)
            return True

    def _may_live(self, number: int) -> bool:
        """Whether a server may be alive; servers on other hosts are the workers' concern."""
        is_local = 0 <= number < len(self._processes)
        return not is_local or self._processes[number].poll() in (None, 0)

    def _announce(self, number: int) -> Path:
        return self.scratch / str(number)

    def _address(self, number: int) -> str:
        """Where a server listens, once it does; one that works at it is given time."""
        worked = time.monotonic()
        before: Signs | None = None
        while not self._announce(number).exists():
            signs = signs_of(self._processes[number].pid)
            if signs != before:
                worked, before = time.monotonic(), signs
            if (
                self._processes[number].poll() is not None
                or time.monotonic() - worked > self._start_seconds
            ):
                raise LaunchError(self._why(number))
            time.sleep(0.02)
        return self._announce(number).read_text()

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            for number in range(len(self._processes)):
                failed = self._processes[number].poll() not in (None, 0)
                if not failed or self.culprit is not None:
                    continue
                if not self._start_again(number) and not self._leave_out(number):
                    self.culprit = self._why(number)

    def _why(self, number: int) -> str:
        """The message about a server that failed."""
        if self._processes[number].poll() is None and not self._announce(number).exists():
            seconds = f"{self._start_seconds:.0f} s"
            cause = f"does not listen, and has done nothing for {seconds}; {RESUME}"
            return f"{self._name(number)} {cause}"
        return self._describe(number, self._name(number))

    def _report(self, number: int, ending: str) -> None:
        print(self._describe(number, self._name(number), ending), file=sys.stderr, flush=True)

    def _name(self, number: int) -> str:
        pid = self._processes[number].pid
        replica, shard = divmod(self.first + number, self._shards)
        replica_text = (
            f" (replica {replica + 1} of {self.section.replicas})"
            if self.section.replicas > 1
            else ""
        )
        return f"server {shard}{replica_text} on host {socket.gethostname()} (pid {pid})"

    def wait(self, seconds: float | None = END_SECONDS) -> None:
        """Until they have ended, as they do when all workers are done."""
        if seconds is not None:
            self.restarts = 0  # no worker would connect to it
        for number in range(len(self._processes)):
            try:
                while self._processes[number].wait(seconds) and self._start_again(number):
                    pass
            except subprocess.TimeoutExpired:
                raise LaunchError(
                    f"{self._name(number)} did not end within {seconds:.0f} s after its workers, "
                    "and was stopped"
                ) from None
            if self._processes[number].wait() and not self._leave_out(number):
                raise LaunchError(self._why(number))
        if seconds is None and len(self._left_out) == len(self._processes):
            raise LaunchError("none of the servers of this host is left; see above which failed")

    def _end(self) -> None:
        with self._lock:
            self._over.set()
        super()._end()
        self._scratch.cleanup()


def _short_folder() -> str | None:
    """A folder for sockets where the default temporary path is too long; else None."""
    return "/tmp" if len(os.fsencode(tempfile.gettempdir())) > 60 else None


@contextmanager
def early_heartbeat(config: Config, rank: int) -> Iterator[None]:
    """Send heartbeats of a parameter-server worker while it reads its data."""
    section = config.strategy.ps
    if config.strategy.name != "ps" or not section.addresses:
        yield
        return
    check_installed("parameter servers")
    from shoal.distributed.key_files import read_keys
    from shoal.kernels.host_memory import keep_freed_memory
    from shoal.ps.worker.client import Client  # only here is pyzmq needed

    keep_freed_memory()
    keys = None if section.keys is None else read_keys(section.keys, "worker")
    client = Client(
        section.addresses,
        rank,
        keys,
        section.timeout,
        plain=section.plain,
        replicas=section.replicas,
    )
    client.start_heartbeat()
    try:
        yield
    finally:
        client.close()

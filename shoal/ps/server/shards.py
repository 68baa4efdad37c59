"""Shards: a server's rows as files of a checkpoint, written while training goes on.

A save forks: the child has the rows of that moment and writes them at its leisure, while the server
answers on. Files are keyed by id, so any number of servers can load what any number has written.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import signal
import stat
import tempfile
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as format_tensors
from torch import Tensor

from shoal.embedding.leaves.row_files import Taken, chunks, take_over, tell_lost
from shoal.embedding.placed.placement import Layout, Placement
from shoal.ps.server.folder import Folder, opened
from shoal.ps.server.state import State
from shoal.ps.wire import WireError

CHUNK_ROWS = 1 << 18
LIBC = ctypes.CDLL(None)
PARENT_DEATH_SIGNAL = 1  # of prctl


class ShardWriter:
    """One save of one server, in a process of its own."""

    def __init__(
        self, state: State, root: Path | None, values: dict[str, Any], again: bool = False
    ):
        """root: this server's folder, in which the save names another.

        again: it was begun by a process that was killed, whose files are written anew.
        A save may be held: the child has the rows and waits, in case another server, which writes
        the same files, is lost.
        """
        name, delta = values.get("name"), values.get("delta", False)
        held = values.get("held", False)
        switches = isinstance(delta, bool) and isinstance(held, bool)
        known = values.keys() <= {"name", "delta", "held"}
        if not isinstance(name, str) or not switches or not known:
            raise WireError("a save is {name: text, delta: true or false, held: true or false}")
        if delta and state.marks is None:
            raise WireError("a delta needs a whole save before it")
        if delta and state.rewritten:
            raise WireError("rows were dropped, or counts faded, since the last save: save whole")
        self._found: dict[str, Any] | None = None
        self._gate = -1  # of a save that is held: the end of a pipe whose other one the child reads
        self._report = tempfile.TemporaryFile()  # noqa: SIM115 (the child leaves its report there)
        try:
            with opened(root, name, again or held) as folder:
                self._fork(state, folder, state.marks if delta else None, held)
        except OSError as error:
            self._report.close()
            raise WireError(
                f"server {state.index} cannot see the folder {root}/{name} ({error.strerror}): "
                "run.output must be on a disk that all hosts share"
            ) from None
        state.mark_saved()

    def _fork(self, state: State, folder: Folder, marks: list[int] | None, held: bool) -> None:
        server = os.getpid()
        told, self._gate = os.pipe() if held else (-1, -1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the child starts no thread
            self._pid = os.fork()
        if self._pid == 0:
            self._write(state, folder, marks, server, told)
        if held:
            os.close(told)

    def _write(
        self, state: State, folder: Folder, marks: list[int] | None, server: int, told: int
    ) -> None:
        """In the child: write, report, and be gone without any clean-up of the parent's things."""
        status = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _follow(server)
            _close_sockets()
            if self._gate >= 0:
                os.close(self._gate)
                if not os.read(told, 1):
                    os._exit(1)
            torch.set_num_threads(1)
            report: dict[str, Any] = {"files": write_shards(state, folder, marks)}
            status = 0
        except BaseException as error:
            report = {"error": f"server {state.index} could not save its rows: {error}"}
        try:
            self._report.write(json.dumps(report).encode())
            self._report.flush()
        finally:
            os._exit(status)

    def running(self) -> bool:
        """Whether the child is still at it; not while the save is held."""
        return self._gate < 0 and self.report()["running"]

    def release(self) -> None:
        """Let a save that is held be written."""
        if self._gate >= 0:
            os.write(self._gate, b"\n")
            self._close_gate()

    def _close_gate(self) -> None:
        if self._gate >= 0:
            os.close(self._gate)
            self._gate = -1

    def report(self) -> dict[str, Any]:
        """running, and when it is over: files (name -> bytes, sha256) or error."""
        if self._found is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid == 0:
                return {"running": True}
            try:
                self._report.seek(0)  # the child has written through the same handle
                self._found = json.loads(self._report.read())
            except (OSError, ValueError):
                code = os.waitstatus_to_exitcode(status)
                self._found = {"error": f"a server's save ended with status {code}"}
            self._report.close()
        return {"running": False, **self._found}

    def abandon(self) -> None:
        """The server ends, or nobody needs the save: so does the child."""
        self._close_gate()
        if self._found is None:
            try:
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass


def _close_sockets() -> None:
    """In the child: where the server is gone, nobody shall find its sockets still open."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself is closed by now
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                os.close(int(name))


class Written:
    """A save of an earlier process of this server, or of its replica, whose files are known."""

    def __init__(self, files: dict[str, Any]):
        self._found = {"running": False, "files": files}

    def running(self) -> bool:
        return False

    def release(self) -> None:
        """Nothing is held."""

    def report(self) -> dict[str, Any]:
        return self._found

    def abandon(self) -> None:
        """Nothing is under way."""


def _follow(server: int) -> None:
    """In the child: end with the server, at once and however it ends.

    Another process of it may be started, which needs its port and writes the same files.
    """
    LIBC.prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(1)


def write_shards(state: State, folder: Folder, marks: list[int] | None) -> dict[str, Any]:
    """Write every row, or those changed since the marks; file -> bytes and SHA-256."""
    files: dict[str, Any] = {}
    for number, (table, store) in enumerate(zip(state.spec.tables, state.stores)):
        since = {} if marks is None else {"since": marks[number]}
        for part, tensors in enumerate(chunks(store, CHUNK_ROWS, **since)):
            data = format_tensors(tensors)
            name = f"rows-{table.name}-{state.index:03d}{part:05d}.safetensors"
            files[name] = folder.write(name, data)
    return files


def load_shards(state: State, root: Path | None, values: dict[str, Any]) -> Iterator[None]:
    """Take over the rows of a checkpoint that belong to this server, file by file.

    fresh: rows that the checkpoint has not are forgotten. Nothing changes before all is read.
    """
    name, files, steps = values.get("name"), values.get("files"), values.get("steps")
    fresh = values.get("fresh", False)
    if not (
        isinstance(name, str)
        and isinstance(files, dict)
        and all(isinstance(facts, dict) for facts in files.values())
        and isinstance(steps, dict)
        and all(type(step) is int and 0 <= step < 1 << 62 for step in steps.values())
        and isinstance(fresh, bool)
    ):
        raise WireError("a load is {name: text, files: {...}, steps: {...}, fresh: true or false}")
    where = f"{root}/{name}"
    stores = state.make_stores() if fresh else state.stores
    taken = {one.name: Taken() for one in state.spec.tables}
    numbers = {one.name: k for k, one in enumerate(state.spec.tables)}
    for file, facts in files.items():
        if not file.startswith("rows-") or "/" in file:
            raise WireError(f"{file!r} holds no rows")
        table = file[len("rows-") :].rsplit("-", 1)[0]
        if table not in numbers:
            raise WireError(f"the checkpoint has a table {table!r} that the model does not have")
        try:
            with opened(root, name) as folder:
                data = folder.read(file)
        except OSError as error:
            raise WireError(
                f"server {state.index} cannot read {where}/{file}: {error.strerror}; checkpoints "
                "must be on a disk that all hosts share"
            ) from None
        if hashlib.sha256(data).hexdigest() != facts.get("sha256"):
            raise WireError(f"checkpoint {where} is damaged: {file} fails its checksum")
        number = numbers[table]
        try:
            tensors = parse_tensors(data)
            here = partial(_numbers_of_here, server_layout(state, number), state.index)
            take_over(stores[number], tensors, taken[table], here)
        except (SafetensorError, KeyError, RuntimeError) as error:
            raise WireError(f"checkpoint {where} is damaged: {file}: {error}") from None
        yield
    for table, step in steps.items():
        if table not in numbers:
            continue
        store = stores[numbers[table]]
        if state.counted[numbers[table]]:
            # In async each server counts the pushes of all workers, and ages go by that count.
            step = max(step, taken[table].last_step, 0 if fresh else store.step)
        store.step = step
    if fresh:
        state.stores, state.marks = stores, None  # a delta cannot tell of rows that are forgotten
        if state.index == 0:  # it is the same on all servers, and with the deltas that follow
            for table, number in numbers.items():
                tell_lost(stores[number], taken[table])


def _numbers_of_here(layout: Layout, index: int, ids: Tensor) -> Tensor:
    """Which of the ids belong to this server."""
    return (layout.owners(ids) == index).nonzero().squeeze(1)


def server_layout(state: State, number: int) -> Layout:
    """Which server holds which row of a table."""
    return Layout(state.spec.tables[number].table(), Placement("row"), state.spec.servers)

"""Shards: a server's rows as files of a checkpoint, written while training continues.

A save forks: the child has the rows of that moment and writes them at its leisure, while the server
answers on. Files are keyed by id, so any number of servers can load what any number has written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import stat
import tempfile
import threading
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

from shoal.distributed.parent_process import end_with_parent
from shoal.embedding.engines.row_files import RowFilesRead, chunks, take_over, warn_lost
from shoal.embedding.rows.placement import Placement, Sharding
from shoal.ps.server.folder import Folder, opened
from shoal.ps.server.state import State
from shoal.ps.spec import Load, Save
from shoal.ps.wire import WireError, json_frame

_forking = threading.Lock()


class ShardWriter:
    """One save of one server, in its own process."""

    def __init__(self, state: State, root: Path | None, save: Save, again: bool = False):
        """root: this server's folder, in which the save names another.

        again: it was begun by a process that was killed, whose files are written anew.
        A save may be held: the child has the rows and waits, in case another server, which writes
        the same files, is lost.
        """
        if save.delta and state.marks is None:
            raise WireError("a delta needs a whole save before it")
        if save.delta and state.rewritten:
            raise WireError("rows were dropped, or counts faded, since the last save: save whole")
        self._result: dict[str, Any] | None = None
        self._gate = -1  # of a save that is held: the end of a pipe whose other one the child reads
        self._report = tempfile.TemporaryFile()  # noqa: SIM115 (the child leaves its report there)
        try:
            with opened(root, save.name, again or save.held) as folder:
                self._fork(state, folder, state.marks if save.delta else None, save.held)
        except OSError as error:
            self._report.close()
            raise WireError(
                f"server {state.index} cannot see the folder {root}/{save.name} "
                f"({error.strerror}): run.output must be on a disk that all hosts share"
            ) from None
        state.mark_saved()

    def _fork(self, state: State, folder: Folder, marks: list[int] | None, held: bool) -> None:
        server = os.getpid()
        gate_end, self._gate = os.pipe() if held else (-1, -1)
        # One at a time: what other libraries do around a fork may fail in two threads at once.
        with _forking, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the child starts no thread
            self._pid = os.fork()
        if self._pid == 0:
            self._write(state, folder, marks, server, gate_end)
        if held:
            os.close(gate_end)

    def _write(
        self, state: State, folder: Folder, marks: list[int] | None, server: int, gate_end: int
    ) -> None:
        """In the child: write, report, and exit without cleaning up objects of the parent."""
        status = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            # Another process of this server may be started, which writes the same files.
            end_with_parent(server)
            _close_sockets()
            if self._gate >= 0:
                os.close(self._gate)
                if not os.read(gate_end, 1):
                    os._exit(1)
            torch.set_num_threads(1)
            report: dict[str, Any] = {"files": write_shards(state, folder, marks)}
            status = 0
        except BaseException as error:
            report = {"error": f"server {state.index} could not save its rows: {error}"}
        try:
            self._report.write(json_frame(report))
            self._report.flush()
        finally:
            os._exit(status)

    def running(self) -> bool:
        """Whether the child is still at it; not while the save is held."""
        return self._gate < 0 and self.report()["running"]

    def release(self) -> None:
        """Start to write a save that is held."""
        if self._gate >= 0:
            os.write(self._gate, b"\n")
            self._close_gate()

    def _close_gate(self) -> None:
        if self._gate >= 0:
            os.close(self._gate)
            self._gate = -1

    def report(self) -> dict[str, Any]:
        """running, and when it is over: files (name -> bytes, sha256) or error."""
        if self._result is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid == 0:
                return {"running": True}
            try:
                self._report.seek(0)  # the child has written through the same handle
                self._result = json.loads(self._report.read())
            except (OSError, ValueError):
                code = os.waitstatus_to_exitcode(status)
                self._result = {"error": f"a server's save ended with status {code}"}
            self._report.close()
        return {"running": False, **self._result}

    def abandon(self) -> None:
        """End the child: the server ends, or the save is not needed."""
        self._close_gate()
        if self._result is None:
            try:
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
            except (ProcessLookupError, ChildProcessError):
                pass


class Written(ShardWriter):
    """A save of an earlier process of this server, or of its replica, whose files are known."""

    def __init__(self, files: dict[str, Any]):
        self._result, self._gate = {"files": files}, -1


def _close_sockets() -> None:
    """Close sockets in the child, so that they do not stay open when the server is gone."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself is closed by now
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                os.close(int(name))


def write_shards(state: State, folder: Folder, marks: list[int] | None) -> dict[str, Any]:
    """Write every row, or those changed since the marks; file -> bytes and SHA-256."""
    files: dict[str, Any] = {}
    for number, (table, store) in enumerate(zip(state.spec.tables, state.stores)):
        since = {} if marks is None else {"since": marks[number]}
        for part, tensors in enumerate(chunks(store, 1 << 18, **since)):
            name = f"rows-{table.name}-{state.index:03d}{part:05d}.safetensors"
            files[name] = folder.write(name, format_tensors(tensors))
    return files


def load_shards(state: State, root: Path | None, load: Load) -> Iterator[None]:
    """Take over the rows of a checkpoint that belong to this server, file by file.

    Where all others are forgotten, nothing changes before all is read.
    """
    place = f"{root}/{load.name}"
    stores = state.make_stores() if load.fresh else state.stores
    files_read = {one.name: RowFilesRead() for one in state.spec.tables}
    numbers = {one.name: k for k, one in enumerate(state.spec.tables)}
    for file, facts in load.files.items():
        if not file.startswith("rows-") or "/" in file:
            raise WireError(f"{file!r} holds no rows")
        table = file[len("rows-") :].rsplit("-", 1)[0]
        if table not in numbers:
            raise WireError(f"the checkpoint has a table {table!r} that the model does not have")
        try:
            with opened(root, load.name) as folder:
                data = folder.read(file)
        except OSError as error:
            raise WireError(
                f"server {state.index} cannot read {place}/{file}: {error.strerror}; checkpoints "
                "must be on a disk that all hosts share"
            ) from None
        if hashlib.sha256(data).hexdigest() != facts.get("sha256"):
            raise WireError(f"checkpoint {place} is damaged: {file} fails its checksum")
        number = numbers[table]
        try:
            tensors = parse_tensors(data)
            take_over(stores[number], tensors, files_read[table], partial(_chosen, state, number))
        except (SafetensorError, KeyError, RuntimeError) as error:
            raise WireError(f"checkpoint {place} is damaged: {file}: {error}") from None
        yield
    for table, step in load.steps.items():
        if table not in numbers:
            continue
        store = stores[numbers[table]]
        if state.counted[numbers[table]]:
            # In async each server counts the pushes of all workers, and ages go by that count.
            step = max(step, files_read[table].last_step, 0 if load.fresh else store.step)
        store.step = step
    if load.fresh:
        state.stores, state.marks = stores, None  # a delta cannot name rows that are forgotten
        if state.index == 0:  # it is the same on all servers, and with the deltas that follow
            for table, number in numbers.items():
                warn_lost(stores[number], files_read[table])


def _chosen(state: State, number: int, ids: Tensor) -> Tensor:
    """The places of those of a table's ids that belong to this server."""
    sharding = Sharding(state.spec.tables[number].table(), Placement("row"), state.spec.servers)
    return (sharding.owners(ids) == state.index).nonzero().squeeze(1)

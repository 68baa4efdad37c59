"""Checkpoints: either committed and verified, or not there.

    RUN/checkpoints/step-000000120/
        manifest.json               sizes and SHA-256 of every other file, and the trainer's state
        dense.safetensors           dense parameters and buffers
        optimizer.safetensors       the dense optimizer's state
        rows-item-00000.safetensors rows of table `item`, keyed by id, with their optimizer state

A checkpoint is written into a hidden folder and renamed into place when every byte is on disk.
Rows are keyed by id, not by rank, so loading into another number of ranks is an ordinary load.
A checkpoint may be a delta, which holds only the rows that changed since the checkpoint that its
manifest names as its base. Parameter servers write the files of their own rows.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from shoal.distributed.world import PeerLost, World
from shoal.files.durable import sync_folder, write_counted, write_durably
from shoal.files.folders import inner_folder, opened_folder, remove_folder
from shoal.training.checkpoint.reading import FORMAT, MANIFEST, digest, manifest_value, read
from shoal.training.checkpoint.remote import Copies
from shoal.training.checkpoint.snapshot import (
    CheckpointError,
    OverflowedCheckpointError,
    Snapshot,
    restore_into,
    take_snapshot,
)
from shoal.training.strategies.base import Strategy

__all__ = [
    "CheckpointError",
    "Checkpoints",
    "Snapshot",
    "read",
    "restore_into",
    "take_snapshot",
    "write",
]
WRITER = "checkpoint writer"
log = logging.getLogger("shoal")


class Checkpoints:
    """The checkpoints of one run's folder. Rank 0 reads and writes for all ranks."""

    def __init__(
        self,
        folder: Path,
        world: World,
        keep: int = 2,
        rows_apart: bool = False,
        whole_every: int = 1,
        copy_to: str | None = None,
        journal: bool = False,
    ):
        """journal: whether servers keep a journal next to the checkpoints."""
        self.folder, self.world, self.keep = Path(folder), world, keep
        self.rows_apart = rows_apart  # rows are read where they live, not here
        self.whole_every, self.journal = whole_every, journal
        self.copies = None if copy_to is None else Copies(copy_to, self.folder)
        self._base: str | None = None  # what a delta may build upon
        self._deltas = 0
        self._marks: dict[str, int] = {}  # of this rank's rows at the last save
        self._writer: threading.Thread | None = None
        self._swept = False
        self._failure: BaseException | None = None

    def save(self, strategy: Strategy, state: dict[str, Any]) -> None:
        """Snapshot now, write in the background; a failed write surfaces at the next call."""
        self.wait()
        path = self.folder / step_name(state["step"])
        delta = self._is_delta(strategy, path.name)
        marks = self._marks if delta and not strategy.saves_rows else None
        if not self.world.is_main:
            take_snapshot(strategy, state, None, marks)
            self._mark(strategy)
            if strategy.saves_rows:
                self.world.barrier()
            return
        files = Files(hidden_of(path))
        base, rows_written = self._base if delta else None, files.write_held
        try:
            self._prepare(path, files)
            snapshot = take_snapshot(strategy, state, files.put, marks)
            self._mark(strategy)
            if files.failure is not None:
                raise files.failure
            if strategy.saves_rows:
                rows_written = strategy.start_saving(files.folder, delta)
                self.world.barrier()  # no rank continues before every server has begun
        except OSError as error:
            self._failure = error
            discard(files.folder)
            if strategy.saves_rows:
                self.world.barrier()
            return
        except BaseException:  # stopped by a signal: what has only begun is not left behind
            discard(files.folder)
            raise
        arguments = (path, files.folder, snapshot, base, rows_written)
        self._writer = threading.Thread(target=self._write, args=arguments, name=WRITER)
        try:
            self._writer.start()
        except BaseException:  # a thread that runs already will end by itself
            if not self._writer.is_alive():
                discard(files.folder)
            raise

    def claim(self) -> None:
        """Before a run trains: refuse to copy to a place of another run."""
        if self.copies is not None and self.world.is_main:
            self.copies.claim(self.committed())

    def finish_copies(self) -> dict[str, Any] | None:
        """At the end of a run: which checkpoints did not arrive, where and why; None: all did."""
        self.wait()
        if self.copies is None or not self.world.is_main:
            return None
        missing = self.copies.finish(self.committed())
        if not missing:
            return None
        return {"to": self.copies.url, "checkpoints": missing, "why": self.copies.problem}

    def _is_delta(self, strategy: Strategy, name: str) -> bool:
        """Whether only changed rows are saved; rank 0 decides for all ranks."""
        follows = self._base is not None and self._base < name  # not the same step again
        delta = follows and self._deltas < self.whole_every - 1 and strategy.can_save_delta()
        if self.whole_every == 1 or self.world.size == 1 or strategy.saves_rows:
            return delta  # servers' rows are no business of other ranks
        return self.world.broadcast_bytes(bytes([delta]) if self.world.is_main else None) == b"\1"

    def _mark(self, strategy: Strategy) -> None:
        """The next delta begins here."""
        if self.whole_every > 1 and not strategy.saves_rows:
            self._marks = {name: store.mark() for name, store in strategy.rows.saved()}

    def _prepare(self, path: Path, files: Files) -> None:
        """An empty folder to write into; a failure is kept, since others wait."""
        try:
            self._sweep()
            begin(path)
        except OSError as error:
            files.failure = error

    def wait(self) -> None:
        """Until the last save is committed."""
        if self._writer is not None:
            self._writer.join()
            self._writer = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            why = getattr(failure, "strerror", None) or failure
            raise CheckpointError(
                f"could not write a checkpoint under {self.folder}: {why}. Those before it are "
                "untouched; fix the cause and continue with --resume"
            ) from failure

    def _sweep(self) -> None:
        if not self._swept:
            sweep(self.folder)
            if not self.journal:  # of servers that this run had and has no more
                remove_folder(self.folder.parent, self.folder.name, "journal")
            self._swept = True

    def _write(
        self,
        path: Path,
        hidden: Path,
        snapshot: Snapshot,
        base: str | None,
        rows_written: Callable[[], dict[str, Any]],
    ) -> None:
        """In a thread: commit what was taken; rows_written: waits for files with rows."""
        last, self._base = self._base, None  # a save that fails is followed by a whole one
        try:
            write(path, snapshot, hidden, rows_written(), base)
            self._deltas = self._deltas + 1 if base is not None and base == last else 0
            self._base = path.name
            self._prune(path)
            if self.copies is not None:
                self.copies.update(self.committed())
        except BaseException as error:
            discard(hidden)
            self._failure = error

    def _prune(self, newest: Path) -> None:
        """Keep the last K and what each of them calls the best: any may be gone back to."""
        for path in self.committed():
            if path.name > newest.name:  # damaged, and passed over when the run was resumed
                remove(path)
        stay = needed(self.committed()[: self.keep])
        for old in self.committed():
            if old not in stay:
                remove(old)

    def committed(self) -> list[Path]:
        """Committed checkpoints, newest first."""
        if not self.folder.is_dir():
            return []
        return sorted(
            (p for p in self.folder.iterdir() if p.name.startswith("step-")), reverse=True
        )

    def load_newest(self) -> Snapshot | None:
        """The newest checkpoint that is whole; damaged ones are reported and passed over."""
        return self._shared(self._read_newest)

    def load_step(self, step: int) -> Snapshot:
        """The checkpoint of one step."""
        snapshot = self._shared(lambda: self._read(self.folder / step_name(step)))
        assert snapshot is not None
        return snapshot

    def load_best(self, newest: Snapshot, instead: str) -> Snapshot | None:
        """The best checkpoint that a checkpoint names; None, with a warning, where it is damaged.

        instead: what happens in that case, for the warning.
        """

        def load() -> Snapshot | None:
            try:
                return self._read(self.folder / step_name(newest.state["best_step"]))
            except CheckpointError as error:
                log.warning("the best checkpoint is lost, %s: %s", instead, error)
                return None

        if newest.state["best_step"] in (None, newest.state["step"]):
            return newest
        return self._shared(load)

    def _read_newest(self) -> Snapshot | None:
        if self.copies is not None and not self.committed():
            self.copies.fetch()
        paths = self.committed()
        overflows = 0
        for path in paths:
            try:
                return self._read(path)
            except CheckpointError as error:
                overflows += isinstance(error, OverflowedCheckpointError)
                log.warning("%s; trying the one before", error)
        if paths and overflows == len(paths):
            raise OverflowedCheckpointError(
                f"numbers overflowed in training: every checkpoint in {self.folder} holds NaN or "
                "infinite numbers; train anew with a lower train.lr, or with features and ratings "
                "near 1"
            )
        if paths:
            raise CheckpointError(
                f"every checkpoint in {self.folder} is damaged ({len(paths)} tried, see above); "
                "train anew in another folder with --output"
            )
        return None

    def _read(self, path: Path) -> Snapshot:
        return read(path, not self.rows_apart)

    def _shared(self, load: Callable[[], Snapshot | None]) -> Snapshot | None:
        """Load on rank 0 and send to the others, so that only one host needs the files."""
        if self.world.size == 1:
            return load()
        loaded, failure = None, None
        head: Any = None  # of what rank 0 has
        if self.world.is_main:
            try:
                loaded = load()
                head = loaded and [loaded.state, list(loaded.files), loaded.rows]
            except CheckpointError as error:
                failure, head = error, "failed"
        payload = json.dumps(head).encode() if self.world.is_main else None
        head = json.loads(self.world.broadcast_bytes(payload))
        if failure is not None:
            raise failure
        if head == "failed":
            raise PeerLost("rank 0 could not load a checkpoint")
        if head is None or self.world.is_main:
            return loaded
        state, files, rows = head
        return Snapshot(state, dict.fromkeys(files), [(folder, names) for folder, names in rows])


def step_name(step: int) -> str:
    return f"step-{step:09d}"


def best_name(path: Path) -> str | None:
    """The checkpoint that a committed one calls the best so far."""
    state = manifest_value(path, "state")
    step = state.get("best_step") if isinstance(state, dict) else None
    return None if step is None else step_name(step)


def needed(kept: list[Path]) -> set[Path]:
    """Checkpoints, what each of them calls the best, and what a delta among these builds upon."""
    bests = [path.parent / name for path in kept if (name := best_name(path)) is not None]
    needed_paths = set()
    for path in [*kept, *bests]:
        while path.exists():
            needed_paths.add(path)
            base = manifest_value(path, "base")
            if base is None:
                break
            path = path.parent / base
    return needed_paths


def sweep(folder: Path) -> None:
    """Remove what a killed run left half written."""
    inner_folder(folder.parent, folder.name, make=False)
    for leftover in folder.glob(".step-*") if folder.is_dir() else ():
        discard(leftover)


def discard(path: Path) -> None:
    """Remove a folder of the checkpoints' folder as far as the system lets it go."""
    with suppress(OSError):
        remove_folder(path.parent.parent, path.parent.name, path.name)


def remove(path: Path) -> None:
    """Remove a committed checkpoint; killed meanwhile, it is hidden and not half there."""
    folder, hidden = path.parent, f".{path.name}.old"
    inner_folder(folder.parent, folder.name, path.name, make=False)
    with opened_folder(folder.parent, folder.name) as handle:
        os.rename(path.name, hidden, src_dir_fd=handle, dst_dir_fd=handle)
    remove_folder(folder.parent, folder.name, hidden)


def finish_writing(seconds: float) -> None:
    """Wait a limited time for writes that are under way, before the process ends."""
    for thread in threading.enumerate():
        if thread.name == WRITER and thread.is_alive():  # a signal may come before it began
            thread.join(seconds)


def hidden_of(path: Path) -> Path:
    """The folder in which a checkpoint is written before it is committed."""
    return path.parent / f".{path.name}.new"


def begin(path: Path) -> Path:
    """The hidden folder that a checkpoint is written into, empty."""
    folder, hidden = path.parent, hidden_of(path)
    folder.parent.mkdir(parents=True, exist_ok=True)
    inner_folder(folder.parent, folder.name)
    remove_folder(folder.parent, folder.name, hidden.name)
    hidden.mkdir()
    return hidden


def write(
    path: Path,
    snapshot: Snapshot,
    hidden: Path | None = None,
    written: dict[str, Any] | None = None,
    base: str | None = None,
) -> None:
    """Write and commit one checkpoint; `written`: files that are there already."""
    hidden = hidden or begin(path)
    old = path.parent / f".{path.name}.old"
    try:
        files = dict(written or {})
        for name, data in snapshot.files.items():
            data = data.read_bytes() if isinstance(data, Path) else data
            assert data is not None
            files[name] = write_counted(hidden / name, data)
        manifest: dict[str, Any] = {"format": FORMAT, "state": snapshot.state, "files": files}
        if base is not None:
            manifest["base"] = base
        # The manifest carries a checksum of itself: the state in it matters as much as the rows.
        manifest["sha256"] = digest(manifest)
        write_durably(hidden / MANIFEST, json.dumps(manifest, indent=1).encode())
        sync_folder(hidden)
        if path.exists():  # the same step again: it was damaged, and the run went back behind it
            os.rename(path, old)
        os.rename(hidden, path)
        sync_folder(path.parent)
        discard(old)
    except BaseException:
        discard(hidden)
        raise


class Files:
    """Files of a checkpoint that is being taken: a few are held, to be written in the background,
    the others are written as they come. After a failure they are dropped.
    """

    held_bytes = 1 << 28  # of rows that are kept in memory until they are written

    def __init__(self, folder: Path):
        self.folder = folder
        self.held: dict[str, dict[str, Tensor]] = {}
        self.written: dict[str, Any] = {}  # name -> bytes and checksum
        self.failure: OSError | None = None
        self._room = self.held_bytes

    def put(self, name: str, tensors: dict[str, Tensor]) -> None:
        """Take one file. Other ranks send on whatever happens here, so nothing is raised."""
        size = sum(tensor.nbytes for tensor in tensors.values())
        if size <= self._room:
            self.held[name] = tensors
            self._room -= size
        elif self.failure is None:
            try:
                self.written[name] = write_tensors(self.folder / name, tensors)
            except OSError as error:
                self.failure = error

    def write_held(self) -> dict[str, Any]:
        """Write those too, and let go of them; of all of them bytes and checksum."""
        while self.held:
            name = next(iter(self.held))
            self.written[name] = write_tensors(self.folder / name, self.held.pop(name))
        return self.written


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Write a safetensors file durably; its bytes and checksum."""
    dense = torch.contiguous_format  # a column of one number has its table's stride otherwise
    copies = {name: tensor.clone(memory_format=dense) for name, tensor in tensors.items()}
    return write_counted(path, save(copies))

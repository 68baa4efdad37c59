"""Checkpoints: either committed and verified, or not there.

    RUN/checkpoints/step-000000120/
        manifest.json               sizes and SHA-256 of every other file, and the trainer's state
        dense.safetensors           dense parameters and buffers
        optimizer.safetensors       the dense optimizer's state
        rows-item-00000.safetensors rows of table `item`, keyed by id, with their optimizer state

A checkpoint is written into a hidden folder and renamed into place when every byte is on disk.
Rows are keyed by id, not by rank, so loading into another number of ranks is an ordinary load.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as format_tensors
from torch import Tensor

from shoal.embedding.store import Rows
from shoal.strategy.base import Strategy
from shoal.world import PeerLost, World

FORMAT = 1
WRITER = "checkpoint writer"
log = logging.getLogger("shoal")


class CheckpointError(ValueError):
    """A checkpoint is absent, damaged, or belongs to another model."""


@dataclass
class Snapshot:
    """A checkpoint in memory: file name -> bytes, and the trainer's state (plain JSON values)."""

    state: dict[str, Any]
    files: dict[str, bytes] = field(default_factory=dict)


def take(strategy: Strategy, state: dict[str, Any]) -> Snapshot:
    """Copy everything that training changes. Only rank 0's snapshot is written."""
    snapshot = Snapshot({**state, "steps": {name: s.step for name, s in strategy.stores.items()}})
    if strategy.world.is_main:
        dense = {name: tensor.contiguous() for name, tensor in strategy.model.state_dict().items()}
        snapshot.files["dense.safetensors"] = format_tensors(dense)
        snapshot.files["optimizer.safetensors"] = format_tensors(_optimizer_tensors(strategy))
    for name, store in strategy.owned_rows():  # all ranks: an export may need every one of them
        for number, rows in enumerate(store.export()):
            tensors = {"ids": rows.ids, "values": rows.values}
            tensors |= {f"state.{key}": value for key, value in rows.state.items()}
            tensors = {key: value.contiguous() for key, value in tensors.items()}
            snapshot.files[f"rows-{name}-{number:05d}.safetensors"] = format_tensors(tensors)
    return snapshot


def give(strategy: Strategy, snapshot: Snapshot) -> None:
    """Put a snapshot back into a model that was set up."""
    model = strategy.model
    dense = parse_tensors(snapshot.files["dense.safetensors"])
    missing, unexpected = (
        model.state_dict().keys() - dense.keys(),
        dense.keys() - model.state_dict().keys(),
    )
    if missing or unexpected:
        raise CheckpointError(
            f"the checkpoint belongs to another model: it lacks {sorted(missing)} and has "
            f"{sorted(unexpected)} besides"
        )
    model.load_state_dict(dense)
    _restore_optimizer(strategy, parse_tensors(snapshot.files["optimizer.safetensors"]))
    for file, data in snapshot.files.items():
        if not file.startswith("rows-"):
            continue
        name = file[len("rows-") :].rsplit("-", 1)[0]
        if name not in strategy.stores:
            raise CheckpointError(f"the checkpoint has a table {name!r} that the model has not")
        tensors = parse_tensors(data)
        state = {k[len("state.") :]: v for k, v in tensors.items() if k.startswith("state.")}
        strategy.stores[name].restore(Rows(tensors["ids"], tensors["values"], state))
    for name, step in snapshot.state["steps"].items():
        strategy.stores[name].step = step


def _optimizer_tensors(strategy: Strategy) -> dict[str, Tensor]:
    """The dense optimizer's state as flat tensors: "3.exp_avg" belongs to parameter 3."""
    tensors: dict[str, Tensor] = {}
    if strategy.dense_optimizer is not None:
        for number, parameter in enumerate(strategy.dense):
            for key, value in strategy.dense_optimizer.state.get(parameter, {}).items():
                if value is not None:
                    tensors[f"{number}.{key}"] = torch.as_tensor(value).contiguous()
    return tensors


def _restore_optimizer(strategy: Strategy, tensors: dict[str, Tensor]) -> None:
    if strategy.dense_optimizer is None:
        return
    for name, value in tensors.items():
        number, key = name.split(".", 1)
        parameter = strategy.dense[int(number)]
        device = "cpu" if key == "step" else parameter.device
        strategy.dense_optimizer.state[parameter][key] = value.to(device)


class Checkpoints:
    """The checkpoints of one run's folder. Rank 0 reads and writes; others are told."""

    def __init__(self, folder: Path, world: World, keep: int = 2):
        self.folder, self.world, self.keep = Path(folder), world, keep
        self._writer: threading.Thread | None = None
        self._swept = False
        self._failure: BaseException | None = None

    def save(
        self, strategy: Strategy, state: dict[str, Any], then: Callable[[], None] | None = None
    ) -> None:
        """Snapshot now, write in the background; a failed write surfaces at the next call."""
        self.wait()
        snapshot = take(strategy, state)
        if not self.world.is_main:
            return
        self._writer = threading.Thread(target=self._write, args=(snapshot, then), name=WRITER)
        self._writer.start()

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
                "untouched; mend the cause and continue with --resume"
            ) from failure

    def _write(self, snapshot: Snapshot, then: Callable[[], None] | None) -> None:
        try:
            if not self._swept:
                sweep(self.folder)
                self._swept = True
            path = self.folder / step_name(snapshot.state["step"])
            write(path, snapshot)
            if then is not None:
                then()
            self._prune(path)
        except BaseException as error:
            self._failure = error

    def _prune(self, newest: Path) -> None:
        """Keep the last K and what each of them calls the best: any may be gone back to."""
        for path in self.committed():
            if path.name > newest.name:  # damaged, and passed over when the run was resumed
                remove(path)
        kept = self.committed()[: self.keep]
        names = {path.name for path in kept} | {best_name(path) for path in kept}
        for old in self.committed():
            if old.name not in names:
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
        snapshot = self._shared(lambda: read(self.folder / step_name(step)))
        assert snapshot is not None
        return snapshot

    def is_whole(self, step: int) -> bool:
        """Whether the checkpoint of one step can be loaded; if not, says why."""

        def look() -> Snapshot | None:
            try:
                read(self.folder / step_name(step))
            except CheckpointError as error:
                log.warning("%s", error)
                return None
            return Snapshot({})

        return self._shared(look) is not None

    def _read_newest(self) -> Snapshot | None:
        paths = self.committed()
        for path in paths:
            try:
                return read(path)
            except CheckpointError as error:
                log.warning("%s; trying the one before", error)
        if paths:
            raise CheckpointError(
                f"every checkpoint in {self.folder} is damaged ({len(paths)} tried, see above); "
                "train anew in another folder with --output"
            )
        return None

    def _shared(self, load: Callable[[], Snapshot | None]) -> Snapshot | None:
        """Rank 0 loads and tells the others, so that only its host needs the files."""
        if self.world.size == 1:
            return load()
        payload, failure = None, None
        if self.world.is_main:
            try:
                payload = b"y" + _pack(load())
            except CheckpointError as error:
                failure, payload = error, b"n"
        payload = self.world.broadcast_bytes(payload)
        if failure is not None:
            raise failure
        if payload == b"n":
            raise PeerLost("rank 0 could not load a checkpoint")
        return _unpack(payload[1:])


def _pack(snapshot: Snapshot | None) -> bytes:
    if snapshot is None:
        return b""
    sizes = {name: len(data) for name, data in snapshot.files.items()}
    head = json.dumps({"state": snapshot.state, "sizes": sizes}).encode()
    return b"".join([len(head).to_bytes(8, "little"), head, *snapshot.files.values()])


def _unpack(data: bytes) -> Snapshot | None:
    if not data:
        return None
    position = 8 + int.from_bytes(data[:8], "little")
    head = json.loads(data[8:position])
    snapshot = Snapshot(head["state"])
    for name, size in head["sizes"].items():
        snapshot.files[name] = data[position : position + size]
        position += size
    return snapshot


def step_name(step: int) -> str:
    return f"step-{step:09d}"


def best_name(path: Path) -> str | None:
    """The checkpoint that a committed one calls the best so far."""
    try:
        step = json.loads((path / "manifest.json").read_bytes())["state"]["best_step"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None if step is None else step_name(step)


def sweep(folder: Path) -> None:
    """Remove what a killed run left half written."""
    for left in folder.glob(".step-*") if folder.is_dir() else ():
        shutil.rmtree(left, ignore_errors=True)


def remove(path: Path) -> None:
    """Remove a committed checkpoint; killed meanwhile, it is hidden and not half there."""
    hidden = path.parent / f".{path.name}.old"
    os.rename(path, hidden)
    shutil.rmtree(hidden)


def finish_writing(seconds: float) -> None:
    """Give writes under way some time before the process ends."""
    for thread in threading.enumerate():
        if thread.name == WRITER:
            thread.join(seconds)


def write(path: Path, snapshot: Snapshot) -> None:
    """Write and commit one checkpoint."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.parent / f".{path.name}.new"
    old = path.parent / f".{path.name}.old"
    shutil.rmtree(hidden, ignore_errors=True)
    hidden.mkdir()
    try:
        files = {}
        for name, data in snapshot.files.items():
            write_durably(hidden / name, data)
            files[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        manifest: dict[str, Any] = {"format": FORMAT, "state": snapshot.state, "files": files}
        # The manifest carries a checksum of itself: the state in it matters as much as the rows.
        manifest["sha256"] = _digest(manifest)
        write_durably(hidden / "manifest.json", json.dumps(manifest, indent=1).encode())
        if path.exists():  # the same step again: it was damaged, and the run went back behind it
            os.rename(path, old)
        os.rename(hidden, path)
        _sync_folder(path.parent)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise


def read(path: Path) -> Snapshot:
    """Read one checkpoint and verify every byte of it."""
    try:
        manifest = json.loads((path / "manifest.json").read_bytes())
        stated = manifest.pop("sha256")
        if stated != _digest(manifest):
            raise CheckpointError(f"checkpoint {path} is damaged: its manifest was changed")
        if manifest["format"] != FORMAT:
            raise CheckpointError(
                f"checkpoint {path} has format {manifest['format']}; this version reads {FORMAT}"
            )
        snapshot = Snapshot(manifest["state"])
        for name, facts in manifest["files"].items():
            data = (path / name).read_bytes()
            if len(data) != facts["bytes"] or hashlib.sha256(data).hexdigest() != facts["sha256"]:
                raise CheckpointError(f"checkpoint {path} is damaged: {name} fails its checksum")
            snapshot.files[name] = data
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"checkpoint {path} is damaged: {error}") from error
    return snapshot


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def write_durably(path: Path, data: bytes) -> None:
    """Write a file and wait until the disk has it."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_durably(path: Path, data: bytes) -> None:
    """Replace a file so that a reader sees the old or the new one, never a part."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write_durably(hidden, data)
        os.replace(hidden, path)
    except OSError as error:
        hidden.unlink(missing_ok=True)
        raise ValueError(f"cannot write {path}: {error.strerror}; make room or mend it") from error


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

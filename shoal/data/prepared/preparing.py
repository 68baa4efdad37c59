"""Raw files -> a prepared folder, in memory of a stated size.

1. The files are read in pieces; users and items become codes by first appearance, and columns of
   codes and numbers are written as they come.
2. Filters choose rows, pass by pass.
3. What stays is numbered by first appearance and appended to the folder's columns.
4. The rows are split and brought together by user (views.py).

A new folder is written under a hidden name and renamed when it is whole. An append writes behind
what is there, and replacing the manifest makes it count: before that, nothing has changed.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from shoal.config.schema import DataSection
from shoal.config.yaml_io import inline
from shoal.data.prepared import views
from shoal.data.prepared.dataset import (
    DECIDED,
    MANIFEST,
    VERSION,
    all_stored,
    for_view,
    map_columns,
)
from shoal.data.prepared.engine import Engine, Here
from shoal.data.prepared.files import (
    Appender,
    Stored,
    check_arrays,
    map_array,
    read_document,
    write_document,
)
from shoal.data.prepared.inputs import Input, expand, open_input, read_in_order
from shoal.data.prepared.keeping import kept_rows, looks_at_all
from shoal.data.prepared.numbering import (
    append_words,
    code_words,
    known_words,
    number_codes,
    stored_words,
)
from shoal.data.prepared.partition import chunks

logger = logging.getLogger(__name__)

Progress = Callable[[int], object]  # is told of bytes that were read


@dataclass
class Job:
    """What is to be prepared, and how."""

    inputs: list[str]
    to: Path
    config: DataSection
    seed: int = 2020
    memory: int = 2 << 30  # bytes, about, besides the vocabularies
    append: bool = False
    command: str = ""
    progress: Progress = field(default=lambda size: None)
    engine: Engine = field(default_factory=Here)  # what parses files and brings users together


def prepare(job: Job) -> dict[str, Any]:
    """Prepare a folder, or add to it; its manifest. What is there already is not done again."""
    refuse_unsupported(job.config)
    to = job.to
    paths = expand(job.inputs)
    to.parent.mkdir(parents=True, exist_ok=True)
    with locked(to):
        if not (to / MANIFEST).is_file():
            if to.exists() and any(to.iterdir()):
                raise ValueError(
                    f"{to} is there and is no prepared folder; name a new one with --to"
                )
            if job.append:
                raise ValueError(
                    f"{to} is no prepared folder, so there is nothing to append to; leave out "
                    "--append to make it"
                )
            return _make(job, paths)
        manifest = read_document(to / MANIFEST, VERSION)
        there = [tuple(state) for state in manifest["inputs"]]
        states = [state_of(path) for path in paths]
        _check_same_options(job, manifest)
        new = [path for path, state in zip(paths, states) if state not in there]
        if not new:
            _add_view(job, manifest)
            logger.info("%s: these inputs are in it already; nothing to do", to)
            return manifest
        if not job.append:
            raise ValueError(
                f"{to} was prepared from other inputs: {new[0]} is not among them, or has changed "
                "since; add it with --append, or name another folder with --to"
            )
        return _append(job, new, manifest)


@contextmanager
def locked(to: Path) -> Iterator[None]:
    """No other prepare works on the same folder; one that is interrupted leaves no lock."""
    with open(to.parent / f".{to.name}.lock", "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"another `shoal prepare` is writing {to}; wait for its end, or name another "
                "folder with --to"
            ) from None
        yield


def state_of(path: Path) -> tuple[str, int, int]:
    """What tells an input from another: its name, size and time of change."""
    stat = path.stat()
    return (path.name, stat.st_size, stat.st_mtime_ns)


def check(to: Path) -> int:
    """Compare every file of a prepared folder with its checksum; how many there are."""
    manifest = read_document(to / MANIFEST, VERSION)
    stored = all_stored(manifest)
    check_arrays(to, stored, whole=True)
    for view in sorted((to / "views").iterdir()):
        if not view.name.startswith("."):
            entries = read_document(view / views.DOCUMENT, views.VERSION)["arrays"]
            some = [Stored.of(entry) for entry in entries.values()]
            check_arrays(view, some, whole=True)
            stored += some
    return len(stored)


def refuse_unsupported(config: DataSection) -> None:
    """Options that a prepared folder cannot honour."""
    unsaid = DataSection()
    for key in ("normalize", "presplit", "extra_suffixes"):
        if getattr(config, key) != getattr(unsaid, key):
            raise ValueError(
                f"data.{key} is {inline(getattr(config, key))}; a prepared folder holds the "
                "interactions alone, split by data.split: leave it out"
            )
    for key in ("load", "unload"):
        others = [suffix for suffix in getattr(config, key) or {} if suffix != "inter"]
        if others:
            raise ValueError(
                f"data.{key} names {', '.join(others)}; a prepared folder holds interactions alone"
            )


def _check_same_options(job: Job, manifest: dict[str, Any]) -> None:
    now, was = job.config.model_dump(), manifest["options"]
    for key in DECIDED:
        if now[key] != was[key]:
            raise ValueError(
                f"data.{key} is {inline(now[key])}, and {job.to} was prepared with "
                f"{inline(was[key])}; give it the same, or name another folder with --to"
            )


def _make(job: Job, paths: list[Path]) -> dict[str, Any]:
    work = job.to.with_name(f".{job.to.name}.part")
    shutil.rmtree(work, ignore_errors=True)  # of a prepare that was interrupted
    work.mkdir()
    empty = {
        "version": VERSION,
        "name": job.to.name,
        "rows": 0,
        "columns": {},
        "words": {},
        "options": {key: job.config.model_dump()[key] for key in DECIDED},
        "inputs": [],
        "commands": [],
    }
    with _cleaned(work, job):
        manifest = _add(job, paths, work, empty)
        _add_view(job, manifest, work)
        write_document(work / MANIFEST, manifest)
        if job.to.exists():
            job.to.rmdir()  # it is empty
        work.rename(job.to)
    return manifest


def _append(job: Job, paths: list[Path], manifest: dict[str, Any]) -> dict[str, Any]:
    if needed := looks_at_all(job.config):
        raise ValueError(
            f"--append: {job.to} was prepared with {', '.join(needed)}, which looks at all rows, "
            "and those that were left out are not kept; prepare all files again, into another "
            "folder"
        )
    work = job.to.with_name(f".{job.to.name}.part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    before = views.view_key(manifest["interactions"], job.config.split, job.seed)
    with _cleaned(work, job):
        manifest = _add(job, paths, job.to, manifest, work)
        _add_view(job, manifest)
        write_document(job.to / MANIFEST, manifest)
    shutil.rmtree(job.to / "views" / before, ignore_errors=True)
    return manifest


@contextmanager
def _cleaned(work: Path, job: Job) -> Iterator[None]:
    """Whatever happens, nothing half done stays; a full disk is told as such."""
    try:
        yield
    except OSError as error:
        shutil.rmtree(work, ignore_errors=True)
        raise ValueError(
            f"cannot write {job.to}: {error.strerror or error}; make room there, or name another "
            "place with --to. Nothing was changed"
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _add(
    job: Job, paths: list[Path], folder: Path, manifest: dict[str, Any], work: Path | None = None
) -> dict[str, Any]:
    """Append the rows of files to the columns in `folder`; the manifest that will name them."""
    scratch = (work or folder) / "scratch"
    scratch.mkdir()
    config, fields = job.config, job.config.fields
    inputs = [open_input(path, config) for path in paths]
    kinds = _kinds(inputs, manifest)
    words = {name: known_words(folder, manifest, name) for name, k in kinds.items() if k == "token"}
    known = {name: len(index) for name, index in words.items()}
    raw = _read(job, inputs, kinds, words, scratch)
    sizes = {name: len(index) for name, index in words.items()}
    keep = kept_rows(raw, sizes, config, job.memory, scratch)
    numbers = {name: number_codes(raw[name], keep, known[name], sizes[name]) for name in words}
    columns = dict(manifest["columns"])
    threshold = dict(config.threshold or {})
    for place, (name, kind) in enumerate(kinds.items()):
        target = fields.label if name in threshold else name
        entry = columns.get(target)
        dtype = "<i4" if kind == "token" else "<f8" if name == fields.time else "<f4"
        stored = (
            Stored(f"column-{place}.bin", dtype) if entry is None else Stored.of(entry["values"])
        )
        writer = Appender(folder, stored)
        for part in chunks(len(raw[name])):
            values = raw[name][part] if keep is None else raw[name][part][keep[part]]
            if kind == "token":
                values = numbers[name][values]
            elif name in threshold:
                values = values >= threshold[name]
            writer.write(values)
        writer.close()
        columns[target] = {"type": kind, "values": stored.entry()}
    new_words = {
        name: append_words(
            *(folder, manifest["words"].get(name), place),
            *(index, numbers[name], known[name]),
        )
        for place, (name, index) in enumerate(words.items())
    }
    shutil.rmtree(scratch)
    made = {
        **manifest,
        "rows": len(Stored.of(columns[fields.user]["values"])),
        "columns": columns,
        "words": new_words,
        "inputs": [*manifest["inputs"], *(list(state_of(path)) for path in paths)],
        "commands": [*manifest["commands"], job.command],
    }
    made["interactions"] = _digest(folder, made)
    return made


def _kinds(inputs: list[Input], manifest: dict[str, Any]) -> dict[str, Any]:
    """Field -> type, the same in all inputs."""
    kinds = inputs[0].types
    for one in inputs[1:]:
        if one.types != kinds:
            raise ValueError(
                f"{one.path} has the fields {inline(dict(one.types))}, and {inputs[0].path} has "
                f"{inline(dict(kinds))}; choose those that all have with data.load.inter"
            )
    there = {name: column["type"] for name, column in manifest["columns"].items()}
    label = manifest["options"]["fields"]["label"]
    if there and label not in there and there != kinds:
        raise ValueError(
            f"{inputs[0].path} has the fields {inline(dict(kinds))}, and the prepared folder has "
            f"{inline(there)}; append files of the same fields"
        )
    return dict(kinds)


def _read(
    job: Job,
    inputs: list[Input],
    kinds: dict[str, Any],
    words: dict[str, dict[str, int]],
    scratch: Path,
) -> dict[str, np.ndarray]:
    """Columns of codes and numbers of all inputs, mapped; `words` learns the new ones."""
    stored = {
        name: Stored(f"raw-{place}", "<i4" if kind == "token" else "<f8")
        for place, (name, kind) in enumerate(kinds.items())
    }
    writers = {name: Appender(scratch, one) for name, one in stored.items()}
    for piece, taken in read_in_order(inputs, job.memory, job.engine):
        for name, column in piece.columns.items():
            if column.words is None:
                writers[name].write(column.values)
            else:
                codes = code_words(words[name], column.words.tolist(), name)
                writers[name].write(codes[column.values])
        job.progress(taken)
    for writer in writers.values():
        writer.close()
    if not len(next(iter(stored.values()))):
        raise ValueError(f"{job.inputs[0]} holds no rows after its header; name files with rows")
    return {name: map_array(scratch, one) for name, one in stored.items()}


def _digest(folder: Path, manifest: dict[str, Any]) -> str:
    """Of users and items and their words: that of the same data read without preparation."""
    digest, columns = hashlib.sha256(), map_columns(folder, manifest)
    fields = manifest["options"]["fields"]
    for name in (fields["user"], fields["item"]):
        for part in chunks(len(columns[name])):
            digest.update(columns[name][part].astype(np.int64).data)
        digest.update("\n".join(stored_words(folder, manifest["words"][name])).encode())
    return digest.hexdigest()


def _add_view(job: Job, manifest: dict[str, Any], folder: Path | None = None) -> None:
    """The split that the config asks for, where it is not there."""
    folder, split = folder or job.to, job.config.split
    key = views.view_key(manifest["interactions"], split, job.seed)
    place = folder / "views" / key
    fields, columns = manifest["options"]["fields"], map_columns(folder, manifest)
    words = (manifest["words"][fields[side]]["ends"] for side in ("user", "item"))
    users, items = (len(Stored.of(entry)) for entry in words)
    if views.open_view(place, len(columns[fields["user"]]), (users, items)) is not None:
        return
    chosen = for_view(manifest, columns, split.order)
    sizes = (users, items)
    views.make_view(place, chosen, fields["user"], sizes, split, job.seed, job.memory, job.engine)

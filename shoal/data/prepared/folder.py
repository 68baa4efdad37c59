"""How a prepared folder comes to be, whatever it holds: made whole, added to, or left as it is.

A new folder is written under a hidden name and renamed when it is whole. An append writes behind
what is there, and replacing the manifest makes it count: before that, nothing has changed.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.config.schema import DataSection
from shoal.config.yaml_io import inline
from shoal.data.column_store import all_stored, check_arrays, read_document, sync, write_document
from shoal.data.prepared import views
from shoal.data.prepared.dataset import MANIFEST, VERSION
from shoal.data.prepared.engine import Here
from shoal.files.durable import sole_holder
from shoal.files.folders import remove_folder

logger = logging.getLogger(__name__)

Progress = Callable[[int], object]  # called with the number of bytes that were read
Document = dict[str, Any]  # what manifest.json holds, of interactions or of a click log


@dataclass
class PrepareJob:
    """What is to be prepared, and how."""

    inputs: list[str]
    to: Path
    config: DataSection
    seed: int = 2020
    memory: int = 2 << 30  # bytes, about, besides the vocabularies
    append: bool = False
    command: str = ""
    progress: Progress = field(default=lambda size: None)
    engine: Here = field(default_factory=Here)  # what parses files and brings users together


class PrepareSteps:
    """What is done for one kind of data: interactions, or a click log."""

    def paths(self, job: PrepareJob) -> list[Path]:
        """The raw files; options that cannot be honoured are refused."""
        raise NotImplementedError  # every kind of data writes its own

    def options(self, job: PrepareJob) -> dict[str, Any]:
        """The options that decide what a folder holds."""
        raise NotImplementedError  # every kind of data writes its own

    def add(
        self, job: PrepareJob, paths: list[Path], folder: Path, manifest: Document, work: Path
    ) -> Document:
        """Write the rows of files behind those in `folder`; the manifest that will name them."""
        raise NotImplementedError  # every kind of data writes its own

    def check(self, job: PrepareJob, manifest: Document, new: list[Path]) -> None:
        """Refuse inputs and options that do not fit an existing folder."""

    def finish(self, job: PrepareJob, manifest: Document, folder: Path) -> None:
        """Write what is computed from all rows, where it is missing: the split."""

    def outdated(self, job: PrepareJob, manifest: Document, new_manifest: Document) -> list[Path]:
        """Files and folders that an append has replaced, to remove."""
        return []


def carry_out(job: PrepareJob, steps: PrepareSteps) -> Document:
    """Prepare a folder, or add to it; its manifest. What is there already is not done again."""
    to, paths = job.to, steps.paths(job)
    to.parent.mkdir(parents=True, exist_ok=True)
    with locked(to):
        if not (to / MANIFEST).is_file():
            if job.append or (to.exists() and any(to.iterdir())):
                hint = "leave out --append, or " if job.append else ""
                raise ValueError(f"{to} is no prepared folder; {hint}name another one with --to")
            empty = {"version": VERSION, "name": to.name, "rows": 0, "inputs": [], "commands": []}
            return _add(job, paths, {**empty, "options": steps.options(job)}, steps, is_new=True)
        manifest = read_document(to / MANIFEST, VERSION)
        known_states = [tuple(state) for state in manifest["inputs"]]
        new = [path for path in paths if state_of(path) not in known_states]
        _check_same_options(job, manifest, steps.options(job))
        steps.check(job, manifest, new)
        if not new:
            steps.finish(job, manifest, to)
            logger.info("%s: these inputs are in it already; nothing to do", to)
            return manifest
        if not job.append:
            raise ValueError(
                f"{to} was prepared from other inputs: {new[0]} is not among them, or has changed "
                "since; add it with --append, or name another folder with --to"
            )
        check_arrays(to, all_stored(manifest))  # nothing is written behind what is damaged
        return _add(job, new, manifest, steps, is_new=False)


@contextmanager
def locked(to: Path) -> Iterator[None]:
    """No other prepare works on the same folder; none leaves a lock, however it ends."""
    lock = to.parent / f".{to.name}.lock"
    with ExitStack() as stack:
        try:
            stack.enter_context(sole_holder(lock, wait=False))
        except BlockingIOError:
            raise ValueError(
                f"another `shoal prepare` is writing {to}; wait for its end, or name another "
                "folder with --to"
            ) from None
        stack.callback(lock.unlink, missing_ok=True)
        yield


def state_of(path: Path) -> tuple[str, int, int]:
    """What distinguishes an input from another: its name, size and time of change."""
    stat = path.stat()
    return (path.name, stat.st_size, stat.st_mtime_ns)


def check(to: Path) -> int:
    """Compare every file of a prepared folder with its checksum; how many there are."""
    stored = all_stored(read_document(to / MANIFEST, VERSION))
    check_arrays(to, stored, whole=True)
    for view in sorted((to / "views").iterdir()) if (to / "views").is_dir() else []:
        if not view.name.startswith("."):
            view_arrays = all_stored(read_document(view / views.DOCUMENT, views.VERSION))
            check_arrays(view, view_arrays, whole=True)
            stored += view_arrays
    return len(stored)


def _check_same_options(job: PrepareJob, manifest: Document, now: dict[str, Any]) -> None:
    was = manifest["options"]
    if ("clicks" in was) != ("clicks" in now):
        raise ValueError(
            f"{job.to} holds a click log where these are interactions, or the other way round; "
            "name another folder with --to"
        )
    for key in now:
        if now[key] != was.get(key):
            raise ValueError(
                f"data.{key} is {inline(now[key])}, and {job.to} was prepared with "
                f"{inline(was.get(key))}; give it the same, or name another folder with --to"
            )


def _add(
    job: PrepareJob, paths: list[Path], manifest: Document, steps: PrepareSteps, is_new: bool
) -> Document:
    """Write the rows of files into a new folder, or behind those that are there."""
    with _work(job) as work:
        folder = work if is_new else job.to
        new_manifest = steps.add(job, paths, folder, manifest, work)
        states = [list(state_of(path)) for path in paths]
        new_manifest["inputs"] = [*manifest["inputs"], *states]
        new_manifest["commands"] = [*manifest["commands"], job.command]
        steps.finish(job, new_manifest, folder)
        sync(folder, all_stored(new_manifest))
        write_document(folder / MANIFEST, new_manifest)
        if is_new:
            if job.to.exists():
                job.to.rmdir()  # it is empty
            work.rename(job.to)
    for path in [] if is_new else steps.outdated(job, manifest, new_manifest):
        if path.is_dir():
            remove_folder(job.to, *path.relative_to(job.to).parts)
        else:
            path.unlink(missing_ok=True)
    return new_manifest


@contextmanager
def _work(job: PrepareJob) -> Iterator[Path]:
    """A folder to work in. Whatever happens, no partial file stays; a full disk is reported."""
    work = job.to.with_name(f".{job.to.name}.part")
    shutil.rmtree(work, ignore_errors=True)  # of a prepare that was interrupted
    work.mkdir()
    try:
        yield work
    except OSError as error:
        raise ValueError(
            f"cannot write {job.to}: {error.strerror or error}; make room there, or name another "
            "place with --to. Nothing was changed"
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)

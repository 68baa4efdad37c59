"""Kept: the checkpoints of a run looked after by hand: which are whole, which stay, copies."""

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shoal.distributed.world import World
from shoal.files.durable import no_links, open_regular, sync_folder
from shoal.training.checkpoint.reading import read, read_manifest
from shoal.training.checkpoint.snapshot import CheckpointError
from shoal.training.checkpoint.writing import Checkpoints, begin, needed, remove, sweep
from shoal.training.run_folder import RunFolder

COPIED = ("config.yaml", "metrics.jsonl", "result.json")  # of a run, besides checkpoints


@dataclass(frozen=True)
class Found:
    """A committed checkpoint, and what is wrong with it."""

    path: Path
    size: int  # bytes
    problem: str | None


def verify(run: Path) -> list[Found]:
    """Read every byte of a run's checkpoints, newest first."""
    RunFolder(run).check_is_run()
    results: dict[str, Found] = {}
    for path in Checkpoints(RunFolder(run).checkpoints, World()).committed()[::-1]:
        size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
        problem = None
        try:
            read(path, alone=True)
            base = read_manifest(path).get("base")  # older: it was looked at before
            if base is not None and (base not in results or results[base].problem is not None):
                problem = f"checkpoint {path} builds upon {base}, which is damaged or not there"
        except CheckpointError as error:
            problem = str(error)
        results[path.name] = Found(path, size, problem)
    return list(results.values())[::-1]


def prune(run: Path, keep: int) -> list[Path]:
    """Remove all but the newest `keep` that are whole and what these need; those removed."""
    folder = RunFolder(run)
    folder.check_is_run()
    with folder.locked():
        results = verify(run)
        kept = needed([one.path for one in _whole(run, results)[:keep]])
        removed = [one.path for one in results if one.path not in kept]
        sweep(folder.checkpoints)
        for path in removed:
            remove(path)
    return removed


def copy(run: Path, target: Path) -> list[Path]:
    """Copy the newest checkpoint that is whole, with what it needs, as a separate run.

    It can be resumed, evaluated and used like the first one.
    """
    source, copied = RunFolder(run), RunFolder(target)
    chosen = _whole(run, verify(run))[0].path
    copied.create(resume=False)
    copies = []
    for path in sorted(needed([chosen])):  # a base before what builds upon it
        committed = copied.checkpoints / path.name
        hidden = begin(committed)
        for name in ["manifest.json", *read_manifest(path)["files"]]:
            shutil.copyfile(path / name, hidden / name)
            with open(hidden / name, "rb") as file:
                os.fsync(file.fileno())
        sync_folder(hidden)
        hidden.rename(committed)
        read(committed)
        copies.append(committed)
    for name in COPIED:
        with suppress(FileNotFoundError):
            _copy_own(source.path / name, target / name)
    return copies


def _copy_own(path: Path, to: Path) -> None:
    """Copy a file of a run; a link would bring along whatever it leads to."""
    try:
        with open_regular(path, links=False) as file, open(to, "wb", opener=no_links) as out:
            shutil.copyfileobj(file, out)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"cannot copy {path} to {to}: {error.strerror}") from error


def _whole(run: Path, results: list[Found]) -> list[Found]:
    whole = [one for one in results if one.problem is None]
    if not whole:
        raise ValueError(f"{run} has no checkpoint that is whole ({len(results)} looked at)")
    return whole

"""Follow: train on the files of a folder as they come, each once, and export now and then.

A file is whole when it has its name: its writer writes `.NAME`, `NAME.tmp` or `NAME.part`, and then
renames it. Every file has its own run, which continues from the run before (OUT/000001, ...), so
that an interrupted file is resumed by that run, exactly once. OUT/ledger.json records which run has
which file before the run begins, and that it is done after its last checkpoint; after a kill in
between, the run is found with nothing left to do. The model is tested on a file before it learns
from it.
"""

from __future__ import annotations

import gc
import json
import logging
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from shoal.config import Resolved
from shoal.data.loading.location import data_values
from shoal.files.durable import is_plain_name, replace_durably
from shoal.files.folders import inner_folder, remove_folder
from shoal.models import find
from shoal.runs.run import train
from shoal.runs.run_files import metrics_of, read_object, text_of
from shoal.serving.artifact import files
from shoal.serving.artifact.export import export
from shoal.training.run_folder import RunFolder

log = logging.getLogger("shoal")
LEDGER = "ledger.json"
UNFINISHED = (".tmp", ".part")


@dataclass
class Entry:
    """A file, and the run that learned from it."""

    name: str
    bytes: int
    run: str
    done: bool = False
    before: dict[str, float] = field(default_factory=dict)  # metrics before it was learned from
    export: str | None = None  # the artifact that was made then


class TrainedFiles:
    """The ledger: files that were trained on, in order."""

    def __init__(self, folder: Path):
        self.file = folder / LEDGER
        self.entries: list[Entry] = []
        if self.file.exists():
            try:
                self.entries = [_entry(one) for one in json.loads(text_of(self.file))]
            except (OSError, ValueError, TypeError, RecursionError) as error:
                raise ValueError(
                    f"cannot read {self.file}: {error}; put back a copy of it, or name another "
                    "folder with --output"
                ) from error
        self._warned: set[str] = set()

    def save(self) -> None:
        """Write the ledger to the disk, whole or not at all."""
        text = json.dumps([asdict(one) for one in self.entries], indent=1)
        replace_durably(self.file, (text + "\n").encode())

    def next(self, folder: Path) -> tuple[Entry, Path] | None:
        """The next file: one that was begun, or the first new one by name; None: there is none."""
        if self.entries and not self.entries[-1].done:
            entry = self.entries[-1]
            path = folder / entry.name
            if not path.is_file() or path.stat().st_size != entry.bytes:
                raise ValueError(
                    f"{path} was begun and is gone or changed; bring back its {entry.bytes} bytes"
                )
            return entry, path
        entries_by_name = {one.name: one for one in self.entries}
        for path in sorted(folder.iterdir()):
            if not is_whole(path):
                continue
            size = path.stat().st_size
            if path.name not in entries_by_name:
                entry = Entry(path.name, size, f"{len(self.entries) + 1:06d}")
                self.entries.append(entry)
                self.save()
                return entry, path
            if entries_by_name[path.name].bytes != size and path.name not in self._warned:
                self._warned.add(path.name)
                log.warning(
                    "%s was trained on and has changed since: it is passed over; give new data a "
                    "name of its own",
                    path,
                )
        return None


def _entry(values: dict[str, Any]) -> Entry:
    """An entry of the ledger, whose names are folders that will be written and deleted."""
    entry = Entry(**values)
    names = [entry.name, entry.run, *([] if entry.export is None else [entry.export])]
    sound = all(map(is_plain_name, names)) and type(entry.bytes) is int and entry.done in (0, 1)
    if not sound or not isinstance(entry.before, dict):
        raise ValueError(f"an entry is not what `shoal train --follow` writes: {values!r:.200}")
    return entry


def is_whole(path: Path) -> bool:
    """Whether a file of the folder has come: not hidden, not named as one that is being written."""
    return not path.name.startswith(".") and path.suffix not in UNFINISHED and path.is_file()


def follow(
    resolved: Resolved,
    folder: Path,
    output: Path,
    start: str,
    to: Path | None = None,
    export_seconds: float = 600.0,
    once: bool = False,
    trust: bool = False,
) -> int:
    """Train on files as they come, until a signal ends the process; return how many there were.

    resolved: the config of the run to continue from, with changes; start: that run's folder.
    to: the folder of exports, one every `export_seconds`. once: end when all files are done.
    """
    if not folder.is_dir():
        raise ValueError(f"--follow: there is no folder {folder}")
    output.mkdir(parents=True, exist_ok=True)
    with RunFolder(output).locked():
        ledger = TrainedFiles(output)
        if to is not None:
            for entry in ledger.entries:  # what a kill left half done
                remove_folder(to, files.hidden_of(to / entry.run).name)
        count, exported = 0, time.monotonic() - export_seconds
        while True:
            new_file = ledger.next(folder)
            if new_file is not None:
                _train_on_file(resolved, output, ledger, new_file, start)
                count += 1
            done = [entry for entry in ledger.entries if entry.done]
            waits = new_file is None and once
            due = waits or time.monotonic() - exported >= export_seconds
            if to is not None and due and done and done[-1].export is None:
                _export(output, to, done, trust)
                ledger.save()
                exported = time.monotonic()
            if waits:
                return count
            if new_file is None:
                time.sleep(1.0)


def _train_on_file(
    resolved: Resolved,
    folder: Path,
    ledger: TrainedFiles,
    new_file: tuple[Entry, Path],
    start: str,
) -> None:
    """Train on one file, in a run that continues from the run before."""
    entry, path = new_file
    before = [one.run for one in ledger.entries if one.done]
    last = str(folder / before[-1]) if before else start
    output = inner_folder(folder, entry.run, make=False)
    values: dict[str, Any] = {"start.run": last, "run.output": str(output)}
    if (Path(last) / "vocabulary.safetensors").is_file():
        values["start.vocabulary"] = last
    values |= data_of(resolved, path.absolute(), folder)
    log.info("%s: %s", entry.run, path)
    result = train(resolved.with_values(values, "--follow"), resume=output.exists())
    outcome = result or read_object(output / "result.json")
    entry.before, entry.done = metrics_of(outcome, "before"), True
    ledger.save()
    gc.unfreeze()  # what a trainer froze is this run's, and goes with it
    gc.collect()
    for old_entry in ledger.entries[:-2]:  # the last stays, and the one that it went on from
        remove_folder(folder, old_entry.run)


def data_of(resolved: Resolved, path: Path, output: Path) -> dict[str, Any]:
    """The config values that make one file the data of a run."""
    config = resolved.config
    file = path
    if path.suffix == ".inter":  # an atomic file lies in a folder of its name
        file = inner_folder(output, "data", path.stem) / path.name
        if not file.is_symlink():
            file.symlink_to(path)
    values = data_values(file, config.data, find(config.model.name).kind == "clicks")
    if "data.clicks.train" in values:
        return values | {"data.clicks.valid": str(file), "data.clicks.test": None}
    return values | {"data.split.by": "ratio", "data.split.ratio": [1.0, 0.0, 0.0]}


def _export(output: Path, folder: Path, done: list[Entry], trust: bool) -> None:
    """Export the last run: rows that changed since the last export, now and then all rows."""
    entry = done[-1]
    earlier = [one.export for one in done if one.export is not None]
    # After 32 exports upon each other comes a whole one.
    base = folder / earlier[-1] if earlier and len(earlier) % 32 else None
    if base is not None and not base.is_dir():
        base = None
    to = folder / entry.run
    if not to.exists():  # else a kill came after it was made and before it was noted
        begin = time.perf_counter()
        export(output / entry.run, to, delta=base, trust=trust)
        log.info("exported %s in %.1f s", to, time.perf_counter() - begin)
    entry.export = entry.run


def seconds_of(text: str) -> float:
    """`30s`, `10m`, `2h` -> seconds."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    try:
        return units[text[-1:]] * float(text[:-1])
    except (KeyError, ValueError):
        raise ValueError(f"--every {text!r}: say 30s, 10m or 2h") from None

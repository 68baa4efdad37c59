"""Follow: train on the files of a folder as they come, each once, and export now and then.

A file is whole when it has its name: whoever writes it writes `.NAME`, `NAME.tmp` or `NAME.part`
and renames it. Every file is a run of its own that goes on from the one before (OUT/000001, ...),
so what a kill interrupts is resumed by that run, exactly once. Which run has which file is written
into OUT/ledger.json before the run begins, and that it is done after its last checkpoint; a kill in
between finds a run with nothing left to do. The model is tested on a file before it learns from it.
"""

from __future__ import annotations

import gc
import json
import logging
import shutil
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from shoal.config import Resolved
from shoal.data.prepared.named import data_values
from shoal.models import find
from shoal.runs.artifact import files
from shoal.runs.artifact.export import export
from shoal.runs.run import train
from shoal.training.run_folder import RunFolder
from shoal.world.durable import replace_durably

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
    """What was trained on, in order."""

    def __init__(self, folder: Path):
        self.file = folder / LEDGER
        self.entries: list[Entry] = []
        if self.file.exists():
            try:
                self.entries = [Entry(**one) for one in json.loads(self.file.read_text())]
            except (OSError, ValueError, TypeError, RecursionError) as error:
                raise ValueError(f"cannot read {self.file}: {error}") from error
        self._told: set[str] = set()

    def save(self) -> None:
        """Write it, whole."""
        text = json.dumps([asdict(one) for one in self.entries], indent=1)
        replace_durably(self.file, (text + "\n").encode())

    def next(self, folder: Path) -> tuple[Entry, Path] | None:
        """The file to go on with: the one that was begun, or the first by name that is new."""
        if self.entries and not self.entries[-1].done:
            entry = self.entries[-1]
            path = folder / entry.name
            if not path.is_file() or path.stat().st_size != entry.bytes:
                raise ValueError(
                    f"{path} was begun and is gone or changed; bring back its {entry.bytes} bytes"
                )
            return entry, path
        known = {one.name: one for one in self.entries}
        for path in sorted(folder.iterdir()):
            if not is_whole(path):
                continue
            size = path.stat().st_size
            if path.name not in known:
                entry = Entry(path.name, size, f"{len(self.entries) + 1:06d}")
                self.entries.append(entry)
                self.save()
                return entry, path
            if known[path.name].bytes != size and path.name not in self._told:
                self._told.add(path.name)
                log.warning(
                    "%s was trained on and has changed since: it is passed over; give new data a "
                    "name of its own",
                    path,
                )
        return None


def is_whole(path: Path) -> bool:
    """Whether a file of the folder has come: not hidden, not named as one that is being written."""
    return not path.name.startswith(".") and path.suffix not in UNFINISHED and path.is_file()


def follow(
    resolved: Resolved,
    folder: Path,
    output: Path,
    start: str,
    to: Path | None = None,
    every: float = 600.0,
    once: bool = False,
    trust: bool = False,
) -> int:
    """Train on files as they come, until the process is told to end; how many there were.

    resolved: the config of the run to go on from, with what is other; start: that run's folder.
    to: where it exports, every so many seconds. once: end when all files that are there are done.
    """
    if not folder.is_dir():
        raise ValueError(f"--follow: there is no folder {folder}")
    output.mkdir(parents=True, exist_ok=True)
    with RunFolder(output).locked():
        ledger = TrainedFiles(output)
        if to is not None:
            for one in ledger.entries:  # what a kill left half done
                shutil.rmtree(files.hidden_of(to / one.run), ignore_errors=True)
        count, exported = 0, time.monotonic() - every
        while True:
            found = ledger.next(folder)
            if found is not None:
                _learn(resolved, output, ledger, found, start)
                count += 1
            done = [one for one in ledger.entries if one.done]
            waits = found is None and once
            due = waits or time.monotonic() - exported >= every
            if to is not None and due and done and done[-1].export is None:
                _export(output, to, done, trust)
                ledger.save()
                exported = time.monotonic()
            if waits:
                return count
            if found is None:
                time.sleep(1.0)


def _learn(
    resolved: Resolved,
    folder: Path,
    ledger: TrainedFiles,
    found: tuple[Entry, Path],
    start: str,
) -> None:
    """One file: a run that goes on from the one before."""
    entry, path = found
    before = [one.run for one in ledger.entries if one.done]
    last = str(folder / before[-1]) if before else start
    output = folder / entry.run
    values: dict[str, Any] = {"start.run": last, "run.output": str(output)}
    if (Path(last) / "vocabulary.safetensors").is_file():
        values["start.words"] = last
    values |= data_of(resolved, path.absolute(), folder)
    log.info("%s: %s", entry.run, path)
    result = train(resolved.with_values(values, "--follow"), resume=output.exists())
    told = result or json.loads((output / "result.json").read_text())
    entry.before, entry.done = told.get("before", {}), True
    ledger.save()
    gc.unfreeze()  # what a trainer froze is this run's, and goes with it
    gc.collect()
    for old in ledger.entries[:-2]:  # the last stays, and the one that it went on from
        shutil.rmtree(folder / old.run, ignore_errors=True)


def data_of(resolved: Resolved, path: Path, output: Path) -> dict[str, Any]:
    """The config values that make one file the data of a run."""
    config = resolved.config
    file = path
    if path.suffix == ".inter":  # an atomic file lies in a folder of its name
        file = output / "data" / path.stem / path.name
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.is_symlink():
            file.symlink_to(path)
    values = data_values(file, config.data, find(config.model.name).kind == "clicks")
    if "data.clicks.train" in values:
        return values | {"data.clicks.valid": str(file), "data.clicks.test": None}
    return values | {"data.split.by": "ratio", "data.split.ratio": [1.0, 0.0, 0.0]}


def _export(output: Path, folder: Path, done: list[Entry], trust: bool) -> None:
    """An artifact of the last run: what changed since the one before, now and then all of it."""
    entry = done[-1]
    earlier = [one.export for one in done if one.export is not None]
    # After 32 exports upon each other comes a whole one.
    base = folder / earlier[-1] if earlier and len(earlier) % 32 else None
    if base is not None and not base.is_dir():
        base = None
    to = folder / entry.run
    if not to.exists():  # else a kill came after it was made and before it was noted
        begun = time.perf_counter()
        export(output / entry.run, to, delta=base, trust=trust)
        log.info("exported %s in %.1f s", to, time.perf_counter() - begun)
    entry.export = entry.run


def seconds_of(text: str) -> float:
    """`30s`, `10m`, `2h` -> seconds."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    try:
        return units[text[-1:]] * float(text[:-1])
    except (KeyError, ValueError):
        raise ValueError(f"--every {text!r}: say 30s, 10m or 2h") from None

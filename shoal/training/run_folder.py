"""RunFolder: what a run leaves behind.

config.yaml       the resolved config
train.log         the log
metrics.jsonl     a line per epoch
result.json       the outcome
evaluation/       what the test found for each user and item, see evaluation/user_results.py
failure.json      why it ended without one: {"state": "failed", "reason": "one line"}
model/            of a custom model: a copy of its file, and its SHA-256
checkpoints/      see checkpoint/writing.py
progress.json     how far it is, while it trains
tensorboard/      curves, and what other trackers keep (run.trackers)
"""

import fcntl
import hashlib
import json
import logging
import math
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import Any, ClassVar, cast

import shoal
from shoal.distributed.rank_variables import is_first_of_host
from shoal.files.durable import no_links, replace_durably, sole_holder, write_all, written
from shoal.files.folders import inner_folder

log = logging.getLogger("shoal")
host_log = logging.getLogger("shoal.host")  # lines of every host: its first rank shows them
# Folders that a run writes in, inside its own; none may be a link.
INNER_FOLDERS = ("checkpoints", "evaluation", "model", "tensorboard", "wandb")
STUDY_FILES = ("config.yaml", "best.yaml", "space.yaml")  # configs that a search leaves
TRAINED_IN: list[Path] = []  # the folder that this process trains in, or did last


class RunFolder:
    """One run's folder, written by rank 0; failure.json also by the launcher."""

    created: "ClassVar[RunFolder | None]" = None  # the one that this process trains in

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"

    @property
    def is_run(self) -> bool:
        """Whether a run was started in this folder."""
        return (self.path / "config.yaml").is_file()

    @property
    def is_finished(self) -> bool:
        """Whether the run of this folder is finished."""
        return (self.path / "result.json").is_file()

    def check_is_run(self) -> None:
        """Refuse a folder where none was."""
        if not self.is_run:
            raise ValueError(
                f"{self.path} is not a run's folder: it has no config.yaml; `shoal runs` lists runs"
            )

    @classmethod
    def new_name(cls, root: str, label: str) -> str:
        """A name for a new run: ROOT/LABEL-Nov-15-2026_03-10-53, numbered if taken."""
        stem = f"{label}-{time.strftime('%b-%d-%Y_%H-%M-%S')}"
        path, number = Path(root) / stem, 1
        while path.exists():
            number += 1
            path = Path(root) / f"{stem}-{number}"
        return str(path)

    def create(self, resume: bool) -> None:
        """Make the folder; refuse one that already holds a run unless it is to be resumed."""
        if not resume and ((self.path / "metrics.jsonl").exists() or self.checkpoints.exists()):
            raise ValueError(
                f"{self.path} already holds a run; continue it with --resume, or name another "
                "folder with --output"
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".probe.{os.getpid()}"
            os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
            probe.unlink()
        except OSError as error:
            raise ValueError(
                f"cannot write the run's folder {self.path}: {error.strerror}; name another with "
                "--output"
            ) from error
        self.check_inner_folders()
        RunFolder.created = self

    def check_inner_folders(self) -> None:
        """Refuse folders inside that are links: what lies behind them is not this run's."""
        for name in INNER_FOLDERS:
            inner_folder(self.path, name, make=False)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training in this folder; the system frees it if we die."""
        path = self.path / ".lock"
        with ExitStack() as stack:
            file = None
            for pause in (0.05, 0.2, 0.0):  # a process that checks for use holds it for a moment
                with suppress(BlockingIOError):
                    file = stack.enter_context(sole_holder(path, wait=False))
                    break
                time.sleep(pause)
            if file is None:
                holder = path.read_text().strip() or "another process"
                raise ValueError(
                    f"{self.path} is in use by {holder}; wait for it, stop it, or name another "
                    "folder with --output"
                )
            with written(path):
                os.ftruncate(file.fileno(), 0)
                write_all(file, f"process {os.getpid()} on host {socket.gethostname()}\n".encode())
            TRAINED_IN[:] = [self.path]
            yield

    def write_config(self, text: str) -> None:
        """Keep the config of a run that starts or resumes; an earlier failure no longer counts."""
        replace_durably(self.path / "config.yaml", text.encode())
        with suppress(OSError):
            (self.path / "failure.json").unlink()

    @contextmanager
    def recording_failure(self) -> Iterator[None]:
        """Record why a run ends without a result, for `shoal runs`.

        A run that is refused did not start: its config is unchanged, and nothing is recorded.
        """
        before = _written(self.path / "config.yaml")
        try:
            yield
        except BaseException as error:
            if _written(self.path / "config.yaml") not in (before, None):
                stopped = isinstance(error, shoal.Interrupted | KeyboardInterrupt)
                state = "stopped" if stopped else "failed"
                text = json.dumps({"state": state, "reason": _in_one_line(error, stopped)}) + "\n"
                with suppress(OSError):  # a full disk may be the very reason
                    replace_durably(self.path / "failure.json", text.encode())
            raise

    @property
    def is_in_use(self) -> bool:
        """Whether a process trains in this folder now."""
        try:
            file = os.open(self.path / ".lock", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks
            return False
        finally:
            os.close(file)
        return False

    def keep_code(self, name: str, text: bytes) -> None:
        """Keep a copy of a model's file, and its hash as `sha256sum -c` reads it."""
        folder = inner_folder(self.path, "model")
        old = folder / name
        if old.is_file() and old.read_bytes() != text:
            log.info("%s is another than the run began with: the folder keeps the new one", name)
        replace_durably(old, text)
        digest = hashlib.sha256(text).hexdigest()
        replace_durably(folder / f"{name}.sha256", f"{digest}  {name}\n".encode())

    def kept_code(self, name: str) -> Path | None:
        """The copy of a model's file, its hash verified; None where there is none."""
        file, note = self.path / "model" / name, self.path / "model" / f"{name}.sha256"
        if not file.is_file() or not note.is_file():
            return None
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        if self.code_hashes().get(name) != digest:
            raise ValueError(
                f"{file} is not the text that the run was trained with: its SHA-256 is {digest}, "
                f"and {note} says another; name the model's file with --model=FILE.py:Class"
            )
        return file.absolute()

    def code_hashes(self) -> dict[str, str]:
        """The SHA-256 of each file that `keep_code` kept, by name."""
        notes = sorted((self.path / "model").glob("*.sha256"))
        return {note.stem: note.read_text().partition(" ")[0] for note in notes}

    def write_result(self, result: dict[str, Any]) -> None:
        replace_durably(self.path / "result.json", (json.dumps(result, indent=2) + "\n").encode())

    def forget_after(self, epoch: int) -> None:
        """Drop lines of epochs that a resumed run will do again."""
        path = self.path / "metrics.jsonl"
        if path.exists():
            lines = path.read_text().splitlines()
            remaining = [line for line in lines if _epoch_of(line) < epoch]
            replace_durably(path, "".join(line + "\n" for line in remaining).encode())

    def append_metrics(self, line: dict[str, Any]) -> None:
        """Add a line for an epoch, whole or not at all."""
        path = self.path / "metrics.jsonl"
        with written(path), open(path, "ab", buffering=0, opener=no_links) as file:
            size = file.tell()
            try:
                write_all(file, (json.dumps(line) + "\n").encode())
            except OSError:
                os.ftruncate(file.fileno(), size)
                raise


def _written(path: Path) -> int | None:
    """When a file was written; None where there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _in_one_line(error: BaseException, stopped: bool) -> str:
    """An error as one line; internal errors with their type."""
    first = next(iter(str(error).splitlines()), "")[:500]
    if stopped:
        return f"stopped by {first or 'SIGINT'}"
    mendable = isinstance(error, ValueError | OSError | RuntimeError)
    return first if mendable and first else f"{type(error).__name__}: {first}"


def is_run_config(path: str) -> bool:
    """Whether a file is the config of a run's folder, or one that the folder of a search holds."""
    folder, name = os.path.split(path)

    def has(*names: str) -> bool:
        return any(os.path.exists(os.path.join(folder, one)) for one in names)

    of_run = name == "config.yaml" and has("checkpoints", "metrics.jsonl", "model")
    of_study = name in STUDY_FILES and has("space.yaml") and has("study.db", "trials")
    return of_run or of_study


def _epoch_of(line: str) -> float:
    """The epoch of a line; a torn last line of a killed run counts as never written."""
    try:
        epoch = json.loads(line)["epoch"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return math.inf
    return epoch if type(epoch) is int else math.inf


class LogFile(logging.FileHandler):
    """A log file that gives up, and reports it once, when it cannot be written."""

    def _open(self) -> TextIOWrapper:
        return cast(TextIOWrapper, open(self.baseFilename, self.mode, opener=no_links))

    def handleError(self, record: logging.LogRecord) -> None:
        log.removeHandler(self)
        log.warning(
            "cannot write %s: %s; the log goes on here only", self.baseFilename, sys.exception()
        )


class Stdout(logging.StreamHandler):
    """Lines for whatever is sys.stdout when they come: a notebook or a test may change it."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stdout
        super().emit(record)


class JsonFormatter(logging.Formatter):
    """{"time": ..., "level": ..., "message": ..., and the figures that a line is about}"""

    def __init__(self, rank: int):
        super().__init__()
        self.of_rank = {"rank": rank} if rank else {}

    def format(self, record: logging.LogRecord) -> str:
        return json_line(
            record.levelname, record.getMessage(), self.of_rank | getattr(record, "figures", {})
        )


def json_line(level: str, message: str, figures: dict[str, Any]) -> str:
    """One line of a log for machines; a figure that is no number is null."""
    time_ = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = {"time": time_, "level": level.lower(), "message": message, **figures}
    return json.dumps(_finite(line))


def _finite(value: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def start_logging(level: str, rank: int = 0, file: Path | None = None, form: str = "text") -> None:
    """Lines such as `15 Nov 03:10    INFO  epoch 0 training [...]`; form json: JsonFormatter.

    Rank 0 shows all of them, the first rank of another host those of `host_log`, others warnings.
    """
    prefix = f"[rank {rank}] " if rank else ""
    line = f"%(asctime)s    %(levelname)s  {prefix}%(message)s"
    formatter = JsonFormatter(rank) if form == "json" else logging.Formatter(line, "%d %b %H:%M")
    for old in list(log.handlers):
        log.removeHandler(old)
        old.close()
    handlers: list[logging.Handler] = [Stdout()]
    if file is not None:
        handlers.append(LogFile(file))
    for handler in handlers:
        handler.setFormatter(formatter)
        log.addHandler(handler)
    log.setLevel(logging.WARNING if rank else level.upper())
    quiet = rank and not is_first_of_host()
    host_log.setLevel(logging.WARNING if quiet else level.upper())
    log.propagate = False

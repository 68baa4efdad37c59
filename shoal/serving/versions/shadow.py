"""Shadow: a version that is asked what others are asked, and whose answers nobody gets.

It computes in a process of its own (shadow_process.py), at low priority, and gets a question after
the answer to it has gone. At most `MOST_WAITING` wait for it; those that come when it lags behind
are dropped and counted. So it can neither delay an answer nor fail one.
"""

from __future__ import annotations

import json
import logging
import queue
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from shoal.distributed.child_module import command_of
from shoal.serving.artifact.files import ArtifactError
from shoal.serving.items.folder import ItemsFolder

log = logging.getLogger("shoal")
MOST_WAITING = 256  # questions
PAUSE = 30.0  # seconds until a process that ended is started again
KINDS = ("recommend", "score", "similar", "predict")  # an explanation asks hundreds of times


@dataclass
class ShadowCounts:
    """What a shadow did; lists: those compared with answers, equal_lists and overlap over them.

    >>> counts = ShadowCounts()
    >>> counts.add(requests=2, overlap=0.5)
    >>> counts.requests, counts.overlap
    (2, 0.5)
    """

    requests: int = 0
    failed: int = 0
    dropped: int = 0
    lists: int = 0
    equal_lists: int = 0
    overlap: float = 0.0
    seconds: float = 0.0
    ends: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def add(self, **numbers: float) -> None:
        """Add to counts, by name; threads may do so at once."""
        with self._lock:
            for name, number in numbers.items():
                setattr(self, name, getattr(self, name) + number)

    @classmethod
    def fields(cls) -> list[str]:
        """The names of all counts."""
        return [field.name for field in fields(cls)]


@dataclass(frozen=True)
class AnsweredQuestion:
    """A question, and the answer that a version gave."""

    kind: str
    question: Any
    answer: dict[str, Any]

    def lists(self) -> list[list[Any]]:
        """The items of each list in the answer."""
        if "users" in self.answer:
            return [[one["item"] for one in user["items"]] for user in self.answer["users"]]
        return [[one["item"] for one in self.answer["items"]]] if "items" in self.answer else []


class Shadow:
    """An artifact in a process of its own, and the questions that wait for it."""

    def __init__(
        self,
        folder: Path,
        sha256: str,
        counts: ShadowCounts,
        batch_size: int,
        items: ItemsFolder | None = None,
    ):
        """items: the folder of new items, which its process reads as well."""
        self.folder = folder
        self.sha256 = sha256  # of its manifest
        self.counts = counts
        self.batch_size = max(1, batch_size)
        self.items = items
        self.kind = ""  # of the artifact, once it is loaded
        self._waiting: queue.Queue[AnsweredQuestion | None] = queue.Queue(MOST_WAITING)
        self._process: subprocess.Popen[str] | None = None
        self._closed = False
        self._opened: queue.Queue[Exception | None] = queue.Queue()
        self._again = 0.0  # when it may be started again

    def start(self) -> None:
        """Load the artifact; ArtifactError where that cannot be done."""
        # A process started by a thread may not outlive it (end_with_parent): this one stays.
        threading.Thread(target=self._run, name="shadow", daemon=True).start()
        error = self._opened.get()
        if error is not None:
            raise error

    def offer(self, kind: str, question: Any, answer: dict[str, Any]) -> None:
        """Take a question that was answered, if there is room; returns at once."""
        if kind not in KINDS:
            return
        try:
            self._waiting.put_nowait(AnsweredQuestion(kind, question, answer))
        except queue.Full:
            self.counts.add(dropped=1)

    def close(self) -> None:
        """End the process; questions that wait are dropped."""
        self._closed = True
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        with suppress(queue.Full):
            self._waiting.put_nowait(None)

    def _open(self) -> None:
        module = "shoal.serving.versions.shadow_process"
        places = [] if self.items is None else [self.items.path]
        command = command_of(module, self.folder, self.batch_size, *places)
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        try:
            facts = self._read()
        except (OSError, ValueError) as error:
            raise ArtifactError(
                f"the process of the shadow ended while it opened {self.folder}"
            ) from error
        if "error" in facts:
            raise ArtifactError(facts["error"])
        self.kind = facts["kind"]
        if self._closed:
            self._process.kill()

    def _run(self) -> None:
        try:
            self._open()
        except Exception as error:
            self._opened.put(error)
            return
        self._opened.put(None)
        while not self._closed and (first := self._waiting.get()) is not None:
            batch = [first]
            with suppress(queue.Empty):
                while len(batch) < self.batch_size:
                    if (following := self._waiting.get_nowait()) is None:
                        return
                    batch.append(following)
            for kind in KINDS:
                questions = [entry for entry in batch if entry.kind == kind]
                if questions:
                    self._ask(kind, questions)

    def _ask(self, kind: str, questions: list[AnsweredQuestion]) -> None:
        """Ask the process, and add to the counts what it found."""
        if not self._is_open():
            self.counts.add(dropped=len(questions))
            return
        document = {
            "kind": kind,
            "questions": [entry.question.model_dump(exclude_defaults=True) for entry in questions],
            "lists": [entry.lists() for entry in questions],
            "items": 0 if self.items is None else self.items.last,
        }
        try:
            assert self._process is not None and self._process.stdin is not None
            self._process.stdin.write(json.dumps(document) + "\n")
            self._process.stdin.flush()
            new_counts = self._read()
        except (OSError, ValueError) as error:
            self.counts.add(dropped=len(questions))
            self._lose(error)
            return
        self.counts.add(**new_counts)

    def _is_open(self) -> bool:
        """Whether the process lives; where it ended a while ago, another one is started."""
        if self._process is not None:
            return True
        if self._closed or time.monotonic() < self._again:
            return False
        try:
            self._open()
        except (OSError, ValueError) as error:
            self._lose(error)
        return self._process is not None

    def _lose(self, error: Exception) -> None:
        """Give the process up for a while."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = None
        if self._closed:
            return
        self._again = time.monotonic() + PAUSE
        self.counts.add(ends=1)
        log.warning("the shadow %s ended (%s); again in %.0f s", self.folder, error, PAUSE)

    def _read(self) -> dict[str, Any]:
        """The next line of the process; ValueError where it ended."""
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ValueError("its process ended")
        return json.loads(line)

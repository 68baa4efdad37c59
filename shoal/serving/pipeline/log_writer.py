"""Request log: a line of JSON for each answered question, in files that are never edited.

requests-YYYYMMDD-HHMMSS-PROCESS.jsonl     a new file when one has 64 MB

A line is in its file before the answer is on its way. Where it cannot be written (a full disk) the
answer goes out all the same, and the line is counted as lost.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from shoal.data.ids import word_of
from shoal.files.durable import no_links
from shoal.serving.pipeline.question import PipelineAnswer, PipelineQuestion

log = logging.getLogger("shoal")
MOST_BYTES = 64_000_000  # of a file


class RequestLog:
    """The log of a pipeline's answers, in a folder.

    written, lost: lines so far.
    """

    def __init__(self, folder: str | Path, most_bytes: int = MOST_BYTES):
        self.folder = Path(folder)
        self.most_bytes = most_bytes
        self.written = self.lost = 0
        self._file: int | None = None  # its descriptor
        self._bytes = 0
        self._lock = Lock()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._open()
        except OSError as error:
            raise ValueError(
                f"--log {folder}: no file can be written there: {error.strerror}"
            ) from error

    def add(
        self,
        pipeline: str,
        requests: Sequence[str],
        questions: Sequence[PipelineQuestion],
        answers: Sequence[PipelineAnswer],
    ) -> None:
        """Write the lines of a batch. pipeline: its version; requests: their ids."""
        now = time.time()
        lines = [
            json.dumps(entry(request, now, pipeline, question, answer)).encode() + b"\n"
            for request, question, answer in zip(requests, questions, answers)
        ]
        with self._lock:
            try:
                self._write(b"".join(lines))
                self.written += len(lines)
            except OSError as error:
                if not self.lost:
                    log.warning(
                        "%s: the request log cannot be written: %s; answers go out without it",
                        self.folder,
                        error.strerror,
                    )
                self.lost += len(lines)

    def close(self) -> None:
        """End it; nothing is added afterwards."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _write(self, lines: bytes) -> None:
        """All of these lines, or none of them."""
        if self._file is None or self._bytes >= self.most_bytes:
            self._open()
        assert self._file is not None
        try:
            remaining = memoryview(lines)
            while remaining:
                remaining = remaining[os.write(self._file, remaining) :]
        except OSError:
            os.ftruncate(self._file, self._bytes)
            raise
        self._bytes += len(lines)

    def _open(self) -> None:
        """Begin a new file; one of the same second has another name."""
        stem = f"requests-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.getpid()}"
        for number in range(1000):
            name = f"{stem}.{number}.jsonl" if number else f"{stem}.jsonl"
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
                file = no_links(str(self.folder / name), flags)
            except FileExistsError:
                continue
            if self._file is not None:
                os.close(self._file)
            self._file, self._bytes = file, 0
            return
        raise OSError(0, f"there are 1,000 files {stem} already")


def entry(
    request: str, now: float, pipeline: str, question: PipelineQuestion, answer: PipelineAnswer
) -> dict[str, Any]:
    """The line of one answer, as docs/reference/pipeline.md has it; now: in seconds since 1970."""
    history = question.history
    return {
        "request": request,
        "time": round(now, 3),
        "pipeline": pipeline,
        "user": None if question.user is None else word_of(question.user),
        "history": None if history is None else [word_of(item) for item in history],
        "context": dict(question.context),
        "items": [word_of(shown.item) for shown in answer],
        "scores": [shown.score for shown in answer],
        "propensity": [shown.propensity for shown in answer],
        "place_propensity": [shown.place_propensity for shown in answer],
        "sources": [list(shown.sources) for shown in answer],
        "fallbacks": list(answer.fallbacks),
    }

"""Curves: losses and metrics of each epoch, for TensorBoard."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

log = logging.getLogger("shoal")


class Curves:
    """A folder of TensorBoard's. Its library comes in with the first epoch that has ended.

    A disk that does not take them does not end the run: metrics.jsonl has the same numbers.
    """

    def __init__(self, folder: Path, first: int | None):
        """first: what an earlier part of the run wrote from this epoch on is not shown."""
        self._folder, self._first = folder, first
        self._writer: Any = None
        self._failed = False

    def add(self, epoch: int, line: dict[str, Any]) -> None:
        """One line of metrics.jsonl."""
        with self._tried():
            if self._writer is None and not self._failed:
                from torch.utils.tensorboard import SummaryWriter

                _hush_writers()
                self._writer = SummaryWriter(str(self._folder), purge_step=self._first)
            if self._writer is not None:
                self._writer.add_scalar("loss/train", line["loss"], epoch)
                for name, value in line.get("valid", {}).items():
                    self._writer.add_scalar(f"valid/{name}", value, epoch)

    def close(self) -> None:
        """Write what is left."""
        with self._tried():
            if self._writer is not None:
                self._writer.close()

    @contextmanager
    def _tried(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._failed, self._writer = True, None
            why = error.strerror or error
            log.warning("cannot write %s: %s; the run goes on without curves", self._folder, why)


def _hush_writers() -> None:
    """Print no traceback of TensorBoard's own threads: what fails there, its next call raises."""
    before = threading.excepthook
    if getattr(before, "__name__", "") == "without_writers":
        return

    def without_writers(args: threading.ExceptHookArgs) -> None:
        theirs = type(args.thread).__module__.startswith("tensorboard.")
        if not (theirs and isinstance(args.exc_value, OSError)):
            before(args)

    threading.excepthook = without_writers

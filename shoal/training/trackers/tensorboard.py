"""TensorBoard: curves of each epoch in RUN/tensorboard. Its library comes in with the first one."""

import threading
from pathlib import Path
from typing import Any

from shoal.training.trackers.figures import figures_of


class TensorBoard:
    """Writes event files; what an earlier part of the run wrote from an epoch on is not shown."""

    def begin(self, config: dict[str, Any], folder: Path) -> None:
        self._folder = folder / "tensorboard"
        self._writer: Any = None

    def epoch(self, line: dict[str, Any]) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            _hush_writers()
            self._writer = SummaryWriter(str(self._folder), purge_step=line["epoch"])
        for name, value in figures_of(line).items():
            self._writer.add_scalar(name, value, line["epoch"])

    def end(self, result: dict[str, Any] | None) -> None:
        if self._writer is not None:
            self._writer.close()


def _hush_writers() -> None:
    """Print no traceback of TensorBoard's own threads: what fails there, its next call raises."""
    before = threading.excepthook
    if getattr(before, "__name__", "") == "without_writers":
        return

    def without_writers(args: threading.ExceptHookArgs) -> None:
        is_writer = type(args.thread).__module__.startswith("tensorboard.")
        if not (is_writer and isinstance(args.exc_value, OSError)):
            before(args)

    threading.excepthook = without_writers

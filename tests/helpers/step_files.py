"""Which files of the package a training step runs, by thread."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import shoal
from shoal.config.schema import Config
from shoal.data.reader import one_ahead
from shoal.distributed.world import World
from shoal.runs.build import build

PACKAGE = str(Path(shoal.__file__).parent)
WARM = 4  # steps before the one that is recorded: first lookups differ


class StepFiles:
    """Files in which a function began while recording: of this thread, and of those of servers."""

    def __init__(self) -> None:
        self.by_thread: dict[str, dict[str, None]] = {}  # thread -> files, in order of first use
        self._recording = False
        self._here = threading.current_thread()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch this thread, and threads that start in here."""
        before = sys.getprofile()
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        try:
            yield
        finally:
            sys.setprofile(before)
            threading.setprofile(None)  # type: ignore[arg-type]

    @contextmanager
    def recording(self) -> Iterator[None]:
        self._recording = True
        try:
            yield
        finally:
            self._recording = False

    def _called(self, frame: FrameType, event: str, argument: Any) -> None:
        file = frame.f_code.co_filename
        if self._recording and event == "call" and file.startswith(PACKAGE):
            thread = threading.current_thread()
            name = "worker" if thread is self._here else thread.name
            files = self.by_thread.setdefault(name, {})
            files["shoal" + file[len(PACKAGE) :]] = None


def record_step(
    world: World, config: Config, files: StepFiles | None = None, steps: int = 1
) -> dict[str, list[str]]:
    """The files of a step, by thread: a batch is made, sent ahead, and the one before is trained.

    What the trainer does around it (the cursor, progress, losses) is not part of it. files: has
    watched servers start in this process.
    """
    files = files or StepFiles()
    with files.watching():
        parts = build(config, world)
        strategy, reader = parts.strategy, parts.reader
        parts.model.train()
        batches = islice(reader.batches(0, world.rank, world.size), WARM)
        for batch, following in one_ahead(map(strategy.receive, batches)):
            if following is not None:
                strategy.prefetch(following)
            strategy.step([batch])
        batches = reader.batches(1, world.rank, world.size)
        batch = strategy.receive(next(batches))
        strategy.prefetch(batch)
        batches = reader.batches(2, world.rank, world.size)
        with files.recording():
            for following in map(strategy.receive, islice(batches, steps)):
                strategy.prefetch(following)
                strategy.step([batch])
                batch = following
        strategy.synchronize()
        strategy.close()
    return {name: list(thread_files) for name, thread_files in files.by_thread.items()}

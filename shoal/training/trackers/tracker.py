"""Trackers: who follows a run besides its folder (`run.trackers`), and the three that come along.

A tracker of your own is a class with three methods, named FILE.py:Class:

    class Printed:
        def begin(self, config, folder): ...   # the run begins, or continues
        def epoch(self, line): ...             # an epoch ended: its line of metrics.jsonl
        def end(self, result): ...             # what result.json holds; None: it ended without
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, Self, cast

from shoal import how_to_install
from shoal.config.launch_section import TRACKERS
from shoal.config.plugins import load_code
from shoal.distributed.liveness import BEAT

log = logging.getLogger("shoal")


class Tracker(Protocol):
    """Follows one run; of your own: `run.trackers: [FILE.py:Class]`.

    >>> from shoal.training.trackers.tracker import Tracker
    >>> class Losses(Tracker):
    ...     def begin(self, config, folder):
    ...         self.seen = []
    ...
    ...     def epoch(self, line):
    ...         self.seen.append(line["loss"])
    ...
    ...     def end(self, result):
    ...         print(self.seen)
    >>> tracker = Losses()
    >>> tracker.begin({}, folder=None), tracker.epoch({"epoch": 0, "loss": 0.7})
    (None, None)
    >>> tracker.end(result=None)
    [0.7]
    """

    def begin(self, config: dict[str, Any], folder: Path) -> None:
        """The run begins, or continues. config: its values by section; folder: the run's."""

    def epoch(self, line: dict[str, Any]) -> None:
        """An epoch ended: {"epoch", "step", "loss", "train_seconds", "valid": {...}, ...}"""

    def end(self, result: dict[str, Any] | None) -> None:
        """The run ended, with what result.json holds; None: it failed or was stopped."""


class Trackers:
    """The trackers of one run. A tracker that fails is reported once and left out.

    with Trackers(["tensorboard"]) as trackers:
        trackers.begin(config, folder)
        trackers.epoch({"epoch": 0, "loss": 0.7})
        trackers.end(result)
    """

    def __init__(self, names: Sequence[str]):
        classes = {name: find_tracker(name) for name in names}
        self._classes = {name: tracker for name, tracker in classes.items() if tracker is not None}
        self._absent = [name for name, tracker in classes.items() if tracker is None]
        self._begun: dict[str, Tracker] = {}

    def begin(self, config: dict[str, Any], folder: Path) -> None:
        for name in self._absent:
            log.info("no curves: %s is not installed: %s", name, how_to_install(name))
        for name, tracker in self._classes.items():
            with self._tried(name):
                self._begun[name] = tracker()
                self._begun[name].begin(config, folder)

    def epoch(self, line: dict[str, Any]) -> None:
        for name, tracker in list(self._begun.items()):
            with self._tried(name):
                tracker.epoch(line)

    def end(self, result: dict[str, Any] | None) -> None:
        for name, tracker in list(self._begun.items()):
            with self._tried(name):
                tracker.end(result)
        self._begun.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end(None)  # of those that were not ended with a result

    @contextmanager
    def _tried(self, name: str) -> Iterator[None]:
        try:
            with BEAT.waiting(f"the tracker {name}", bounded=True):  # it may speak to a server
                yield
        except Exception as error:
            self._begun.pop(name, None)
            why = getattr(error, "strerror", None) or next(iter(str(error).splitlines()), "")
            why = why or type(error).__name__
            log.warning("the tracker %s failed: %s; the run goes on without it", name, why)


def find_tracker(name: str) -> type[Tracker] | None:
    """The class of a tracker; ValueError where it cannot be had.

    None for TensorBoard where it is not installed, since it is on by default.
    """
    if name in TRACKERS:
        if find_spec(name) is None:
            if name == "tensorboard":
                return None
            raise ValueError(
                f"run.trackers: {name} is not installed: {how_to_install(name)}; or leave it out"
            )
        place, class_name = TRACKERS[name].split(":")
        module = import_module(place)
    else:
        place, _, class_name = name.rpartition(":")
        module = load_code(place, f"run.trackers {name}", "FILE.py:Class or package.module:Class")
    tracker_class = getattr(module, class_name, None)
    methods = (getattr(tracker_class, method, None) for method in ("begin", "epoch", "end"))
    if not isinstance(tracker_class, type) or not all(map(callable, methods)):
        raise ValueError(
            f"run.trackers: {name} is no class with begin(config, folder), epoch(line) and "
            "end(result)"
        )
    return cast(type[Tracker], tracker_class)

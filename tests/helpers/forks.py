"""Processes of tests, forked from one that has imported what all need: each starts at once."""

import multiprocessing
import os
from collections.abc import Callable
from typing import Any

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["pytest", "hypothesis", "shoal.runs.run", "shoal.runs.trained_run", "shoal.ps.server.process"]
)


def forked(target: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """A process that is not started yet."""
    given = (dict(os.environ), target, arguments, options)
    return CONTEXT.Process(target=call, args=given)


def call(
    environment: dict[str, str],
    target: Callable[..., Any],
    arguments: tuple[Any, ...],
    options: dict[str, Any],
) -> None:
    """In the process: with the environment of who asked, not of the process it was forked from."""
    os.environ.clear()
    os.environ.update(environment)
    target(*arguments, **options)

"""Files of runs that a search trains: what is read from them, and a lock for their folder."""

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from shoal.config import Resolved
from shoal.runs.growth import TAKEN
from shoal.runs.listing import read_json
from shoal.runs.tuning.worker import OUTPUT
from shoal.world.durable import sole_holder

Curve = list[tuple[int, float]]  # (epoch, validation metric)


def drop_model(folder: Path) -> None:
    """Drop what a run that is not wanted has trained; a search of many would fill a disk."""
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    (folder / TAKEN).unlink(missing_ok=True)


def in_folder(resolved: Resolved, folder: Path, keep_users: bool) -> Resolved:
    """The config of a run that nobody watches: metrics.jsonl has the numbers of the curves.

    keep_users: values of each user are kept, to compare runs by them.
    """
    trackers = [one for one in resolved.config.run.trackers if one != "tensorboard"]
    values: dict[str, Any] = {"run.output": str(folder), "run.trackers": trackers}
    values |= {"run.progress": False, "eval.per_user": keep_users and resolved.config.eval.per_user}
    return resolved.with_values(values, "the search")


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes from working in this folder."""
    with ExitStack() as stack:
        try:
            stack.enter_context(sole_holder(folder / ".lock", wait=False))
        except BlockingIOError:
            raise ValueError(
                f"another process works in {folder}; wait for it, stop it, or name another folder "
                "with --output"
            ) from None
        yield


def read_curve(folder: Path, metric: str) -> Curve:
    """(epoch, validation metric) of a run so far; what cannot be read ends it."""
    curve: Curve = []
    try:
        lines = (folder / "metrics.jsonl").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return curve
    for line in lines:
        try:
            one = json.loads(line)
            if metric in one.get("valid", {}):
                curve.append((int(one["epoch"]), float(one["valid"][metric])))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            break  # torn by a kill: it is written again
    return curve


def why_failed(folder: Path, status: int) -> str:
    """Why a run ended without a result, in a line."""
    reason = read_json(folder / "failure.json", {}).get("reason")
    if reason:
        return str(reason)
    if status < 0:
        return f"killed by signal {-status}"
    try:
        lines = (folder / OUTPUT).read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1].removeprefix("error: ")[:500] if lines else f"exit status {status}"

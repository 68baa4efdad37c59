"""Files of runs that a search trains: what is read from them, and a lock for their folder."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from shoal.config import Resolved
from shoal.config.trust import OwnValues, check_kept_code
from shoal.experiments.tuning.worker import OUTPUT
from shoal.files.durable import sole_holder
from shoal.files.folders import inner_folder, opened_folder, remove_folder
from shoal.runs.run import resolve_run
from shoal.runs.run_files import mapping, number, objects, read_object, text_of, whole
from shoal.runs.user_code import own_code
from shoal.runs.vocabulary_growth import TAKEN
from shoal.training.run_folder import RunFolder

Curve = list[tuple[int, float]]  # (epoch, validation metric)


def check_begun(folder: Path, agreed_values: OwnValues, trust: bool) -> None:
    """Refuse to continue a run of this folder that names code which the user has not agreed to.

    agreed_values: values of the config of the search or sweep, which the user has agreed to.
    """
    run = RunFolder(folder)
    run.check_inner_folders()
    if trust or not run.is_run or run.is_finished:
        return
    values = {"run.output": str(folder)}
    resolved = resolve_run(folder, values=values, trusted_values=agreed_values)
    for name, text in own_code(resolved.config.model.name, resolved.config.eval.metrics).items():
        check_kept_code(folder / "model" / name, "model.name", text)


def run_folders(root: Path, name: str) -> list[Path]:
    """The folders of runs in ROOT/NAME, in the order of their names; ROOT/NAME is no link."""
    try:
        with opened_folder(root, name):
            names = sorted(one.name for one in (root / name).iterdir())
    except FileNotFoundError:
        return []
    return [inner_folder(root, name, one) for one in names if (root / name / one).is_dir()]


def drop_model(root: Path, *names: str) -> None:
    """Drop what the run ROOT/NAME/… has trained; a search of many would fill a disk."""
    remove_folder(root, *names, "checkpoints")
    (inner_folder(root, *names, make=False) / TAKEN).unlink(missing_ok=True)


def in_folder(resolved: Resolved, folder: Path, keep_users: bool) -> Resolved:
    """The config of a run in a folder, without progress bar and tensorboard: nobody watches it.

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
        lines = objects(text_of(folder / "metrics.jsonl"))
    except (OSError, ValueError):
        return curve
    for line in lines:
        epoch, valid = whole(line.get("epoch")), mapping(line, "valid")
        if metric in valid:
            value = valid[metric]
            diverged = isinstance(value, float) and math.isnan(value)
            value = math.nan if diverged else number(value)
            if epoch is None or value is None:
                break
            curve.append((epoch, value))
        elif epoch is None:
            break  # torn by a kill: it is written again
    return curve


def why_failed(folder: Path, status: int) -> str:
    """Why a run ended without a result, in a line."""
    reason = read_object(folder / "failure.json").get("reason")
    if reason:
        return str(reason)[:500]
    if status < 0:
        return f"killed by signal {-status}"
    try:
        lines = text_of(folder / OUTPUT).strip().splitlines()
    except (OSError, ValueError):
        lines = []
    return lines[-1].removeprefix("error: ")[:500] if lines else f"exit status {status}"

"""What is read from the folders of a study's runs: curves, and why a run failed."""

import math
from pathlib import Path

from shoal.experiments.tuning.worker import OUTPUT
from shoal.files.folders import inner_folder, opened_folder, remove_folder
from shoal.kernels.host_memory import describe_kill
from shoal.runs.run_files import mapping, number, objects, read_object, text_of, whole
from shoal.runs.vocabulary_growth import TAKEN

Curve = list[tuple[int, float]]  # (epoch, validation metric)


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
        return describe_kill(-status)
    try:
        lines = text_of(folder / OUTPUT).strip().splitlines()
    except (OSError, ValueError):
        lines = []
    return lines[-1].removeprefix("error: ")[:500] if lines else f"exit status {status}"

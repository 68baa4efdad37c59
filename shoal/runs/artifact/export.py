"""Export: from a trained run to an artifact that proves itself.

When all is written (writer.py), a fresh process loads the artifact and answers what the trained
model was asked on held-out samples. Where the answers differ nothing is left behind.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from shoal.runs.artifact import files
from shoal.runs.artifact.card import write_card
from shoal.runs.artifact.loaded import Artifact
from shoal.runs.artifact.tables import Kind
from shoal.runs.artifact.writer import Writer
from shoal.runs.trained import Trained
from shoal.world.durable import replace_durably

CHECK = ".check.safetensors"
EXPORTS = "exports.json"  # in a run's folder: where it was exported


def export(
    run: str | Path,
    to: str | Path,
    rows: Kind = "float32",
    delta: str | Path | None = None,
    histories: bool = True,
    tolerance: float | None = None,
    trust: bool = False,
    onnx: bool = False,
) -> dict[str, Any]:
    """Export a run's best checkpoint to a folder; what was found when it was checked.

    >>> import shoal  # after the example of shoal.run
    >>> found = shoal.export("runs/first", to="exported/first")
    >>> found["largest_difference"] <= found["allowed"]
    True
    """
    path = Path(to)
    hidden = files.begin(path)
    try:
        trained = Trained(run, trust=trust)
        base = None if delta is None else _base_of(delta, path)
        asked = Writer(trained, hidden, rows, base, histories).write()
        save_file(asked, hidden / CHECK)
        found = check_apart(hidden, rows, tolerance)
        (hidden / CHECK).unlink()
        if onnx:
            from shoal.runs.artifact.onnx import write_onnx

            found |= write_onnx(hidden, Artifact(hidden, check=False), asked)
        write_card(hidden, trained, found)
        files.write_manifest(hidden)
        files.commit(hidden, path)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    _note(Path(run), path, rows)
    return found


def _base_of(delta: str | Path, path: Path) -> Artifact:
    base = Artifact(delta)
    if base.folder.resolve().parent != path.resolve().parent:
        raise ValueError(
            f"a delta lies beside what it builds upon: export to {base.folder.parent}/..., or "
            "leave --delta out"
        )
    return base


def check_apart(hidden: Path, rows: Kind, tolerance: float | None) -> dict[str, Any]:
    """Load the artifact in a fresh process and compare; what it found, or an error."""
    files.write_manifest(hidden)
    command = [sys.executable, "-m", "shoal.runs.artifact.check", str(hidden), str(hidden / CHECK)]
    command += [] if tolerance is None else [str(tolerance)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        why = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["it ended without a word"]
        raise ValueError(f"the artifact does not answer as the trained model does: {why[0]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _note(run: Path, path: Path, rows: Kind) -> None:
    """Remember in the run's folder where it was exported."""
    file = run / EXPORTS
    try:
        known = json.loads(file.read_text())
        known = known if isinstance(known, list) else []
    except (OSError, ValueError):
        known = []
    known.append({"to": str(path.absolute()), "rows": rows, "at": time.strftime("%Y-%m-%d %H:%M")})
    replace_durably(file, (json.dumps(known, indent=1) + "\n").encode())

"""Export: from a trained run to an artifact that proves itself.

When all is written (writer.py), a fresh process loads the artifact and answers what the trained
model was asked on held-out samples. Where the answers differ nothing is left behind.
"""

from __future__ import annotations

import json
import logging
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from shoal.distributed.child_module import command_of
from shoal.files.durable import replace_durably, write_durably
from shoal.kernels.host_memory import describe_kill
from shoal.runs.run_files import metrics_of, read_list, read_object
from shoal.runs.trained_run import Trained
from shoal.serving.artifact import files
from shoal.serving.artifact.artifact import Artifact
from shoal.serving.artifact.tables import Kind
from shoal.serving.artifact.writer import Writer

CHECK = ".check.safetensors"
log = logging.getLogger("shoal")


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
    """Export a run's best checkpoint to a folder; the figures of its check.

    >>> import shoal  # after the example of shoal.run
    >>> figures = shoal.export("runs/first", to="exported/first")
    >>> figures["largest_difference"] <= figures["allowed"]
    True
    """
    path = Path(to)
    with files.new_folder(path) as hidden:
        trained = Trained(run, trust=trust)
        if trained.model.not_exported is not None:
            title = trained.config.model.title
            raise ValueError(f"{title} cannot be exported: {trained.model.not_exported}")
        base = None if delta is None else _base_of(delta, path)
        reference = Writer(trained, hidden, rows, base, histories).write()
        figures = finish(hidden, path, reference, partial(card_of_run, trained), tolerance, onnx)
    exports = Path(run) / "exports.json"  # where it was exported
    entry = {"to": str(path.absolute()), "rows": rows, "at": time.strftime("%Y-%m-%d %H:%M")}
    entries = [*read_list(exports), entry]
    try:
        replace_durably(exports, (json.dumps(entries, indent=1) + "\n").encode())
    except OSError as error:  # somebody else's run, or one on a disk that is only read
        log.warning("%s is whole; it is not noted in %s: %s", path, exports, error.strerror)
    return figures


def finish(
    hidden: Path,
    path: Path,
    reference: dict[str, Tensor],
    card: Callable[[dict[str, Any]], list[str]],
    tolerance: float | None = None,
    onnx: bool = False,
) -> dict[str, Any]:
    """Check an artifact whose parts are written, move it into place; the figures of the check."""
    save_file(reference, hidden / CHECK)
    figures = check_apart(hidden, tolerance)
    (hidden / CHECK).unlink()
    if onnx:
        from shoal.serving.artifact.onnx import write_onnx

        figures |= write_onnx(hidden, Artifact(hidden, check=False), reference)
    write_durably(hidden / "README.md", "\n".join(card(figures)).encode())
    files.write_manifest(hidden)
    files.commit(hidden, path)
    return figures


def _base_of(delta: str | Path, path: Path) -> Artifact:
    base = Artifact(delta)
    if base.folder.resolve().parent != path.resolve().parent:
        raise ValueError(
            f"a delta lies beside what it builds upon: export to {base.folder.parent}/..."
        )
    return base


def check_apart(hidden: Path, tolerance: float | None) -> dict[str, Any]:
    """Load the artifact in a fresh process and compare its answers; the figures, or an error."""
    files.write_manifest(hidden)
    tolerances = [] if tolerance is None else [tolerance]
    command = command_of("shoal.serving.artifact.check", hidden, hidden / CHECK, *tolerances)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode < 0:
        raise ValueError(
            f"the process that checks the artifact was {describe_kill(-done.returncode)}"
        )
    if done.returncode:
        why = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["it ended without a word"]
        raise ValueError(f"the artifact does not answer as the trained model does: {why[0]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


# ---- the card: what the model is, what it was trained on, how good, how checked -----------------


def card_of_run(trained: Trained, figures: dict[str, Any]) -> list[str]:
    """The lines of README.md for a run."""
    config, state = trained.config, trained.state
    use = "predict(...)" if figures.get("samples") else "recommend(user, topk=10)"
    lines = [
        f"# {config.model.title} trained on {config.data.name}",
        "",
        "Exported by [Shoal](https://pypi.org/project/shoal-rec/). It needs neither the config nor "
        "the data it was trained with.",
        "",
        "```python",
        "import shoal",
        f'model = shoal.load("PATH/OF/THIS/FOLDER")\nmodel.{use}',
        "```",
        "",
        "## Training",
        "",
        f"- {state['step']} steps, best epoch {state['best_epoch']}, seed {config.run.seed}",
        f"- options: `{json.dumps(config.model.options)}`",
        f"- optimizer: {config.train.optimizer.name}, lr {config.train.optimizer.lr}",
        "",
    ]
    result = read_object(trained.folder.path / "result.json")
    if result:
        lines += ["## Metrics", "", "| metric | best valid | test |", "| --- | --- | --- |"]
        valid, test = metrics_of(result, "best_valid"), metrics_of(result, "test")
        for name in test:
            lines.append(f"| {name} | {valid.get(name, float('nan')):.4f} | {test[name]:.4f} |")
        lines.append("")
    return [*lines, *checked(figures)]


def checked(figures: dict[str, Any]) -> list[str]:
    """The lines of README.md about the check of the artifact."""
    table = [f"| {name.replace('_', ' ')} | {value} |" for name, value in figures.items()]
    return [
        "## Checked",
        "",
        "A fresh process loaded this artifact and answered as the trained model did, on held-out "
        "samples.",
        "",
        "| | |",
        "| --- | --- |",
        *table,
        "",
        f"Rows are stored as {figures['rows']}; no value of a row differs by more than "
        f"{figures['largest_row_error']:.3g} from the one that was trained.",
        "",
    ]

"""The card of an artifact: what the model is, what it was trained on, how good, how checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shoal.runs.trained import Trained
from shoal.world.durable import write_durably


def write_card(folder: Path, trained: Trained, found: dict[str, Any]) -> None:
    """Write README.md."""
    config, state = trained.config, trained.state
    result = _result(trained)
    lines = [
        f"# {config.model.title} trained on {config.data.name}",
        "",
        "Exported by [Shoal](https://pypi.org/project/shoal-rec/). It needs neither the config nor "
        "the data it was trained with.",
        "",
        "```python",
        "import shoal",
        'model = shoal.load("PATH/OF/THIS/FOLDER")',
        "model.predict(...)"
        if config.model.name and found.get("samples")
        else "model.recommend(user, topk=10)",
        "```",
        "",
        "## Training",
        "",
        f"- {state['step']} steps, best epoch {state['best_epoch']}, seed {config.run.seed}",
        f"- options: `{json.dumps(config.model.options)}`",
        f"- optimizer: {config.train.optimizer.name}, lr {config.train.optimizer.lr}",
        "",
    ]
    if result:
        lines += ["## Metrics", "", "| metric | best valid | test |", "| --- | --- | --- |"]
        valid, test = result.get("best_valid") or {}, result.get("test") or {}
        for name in test:
            lines.append(f"| {name} | {valid.get(name, float('nan')):.4f} | {test[name]:.4f} |")
        lines.append("")
    lines += [
        "## Checked",
        "",
        "A fresh process loaded this artifact and was asked what the trained model was asked, on "
        "held-out samples.",
        "",
        "| | |",
        "| --- | --- |",
        *(
            f"| {name.replace('_', ' ')} | {value} |"
            for name, value in found.items()
            if value != []
        ),
        "",
        "Rows are stored as "
        f"{found['rows']}; no value of a row differs by more than {found['largest_row_error']:.3g} "
        "from the one that was trained.",
        "",
    ]
    write_durably(folder / "README.md", "\n".join(lines).encode())


def _result(trained: Trained) -> dict[str, Any]:
    try:
        found = json.loads((trained.folder.path / "result.json").read_text())
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}

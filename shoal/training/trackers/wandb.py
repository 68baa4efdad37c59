"""Weights & Biases: one of its runs per run folder, which a resumed run continues (RUN/wandb.id).

WANDB_MODE=offline keeps it in RUN/wandb, for `wandb sync`; WANDB_PROJECT and the like hold.
"""

from pathlib import Path
from typing import Any

from shoal.training.trackers.figures import figures_of, keep_id, kept_id, outcome_of


class WeightsAndBiases:
    """A run by `wandb.init`, with the config and the figures of each epoch."""

    def begin(self, config: dict[str, Any], folder: Path) -> None:
        import wandb

        earlier_id = kept_id(folder, "wandb")
        self._run = wandb.init(
            project=config["run"]["project"],
            name=folder.name,
            dir=str(folder),
            config=config,
            id=earlier_id,
            resume=None if earlier_id is None else "allow",
        )
        keep_id(folder, "wandb", self._run.id)

    def epoch(self, line: dict[str, Any]) -> None:
        figures = figures_of(line) | {"train_seconds": line["train_seconds"]}
        self._run.log(figures, step=line["epoch"])

    def end(self, result: dict[str, Any] | None) -> None:
        if result is not None:
            self._run.summary.update(outcome_of(result) | {"best_epoch": result["best_epoch"]})
        self._run.finish(exit_code=int(result is None))

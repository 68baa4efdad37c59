"""MLflow: one of its runs per run folder, which a resumed run continues (RUN/mlflow.id).

Where it is kept is MLflow's affair: MLFLOW_TRACKING_URI, or a store in the present folder.
"""

import os
import time
from pathlib import Path
from typing import Any

from shoal.config.output import flat
from shoal.training.trackers.figures import figures_of, keep_id, kept_id, outcome_of

AT_A_TIME = 100  # parameters that MLflow takes in one request


class MLflow:
    """Speaks to the tracking server itself: a run that is active in a notebook stays so."""

    def begin(self, config: dict[str, Any], folder: Path) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client = MlflowClient()
        earlier_id = kept_id(folder, "mlflow")
        if earlier_id is not None:
            self._id = earlier_id
            self._client.update_run(earlier_id, status="RUNNING")
            return
        name = config["run"]["project"] or os.environ.get("MLFLOW_EXPERIMENT_NAME", "Default")
        experiment = self._client.get_experiment_by_name(name)
        place = (
            self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        )
        self._id = self._client.create_run(place, run_name=folder.name).info.run_id
        params = [Param(key, str(value)[:500]) for key, value in flat(config).items()]
        for first in range(0, len(params), AT_A_TIME):
            self._client.log_batch(self._id, params=params[first : first + AT_A_TIME])
        keep_id(folder, "mlflow", self._id)

    def epoch(self, line: dict[str, Any]) -> None:
        self._log(figures_of(line) | {"train_seconds": line["train_seconds"]}, line["epoch"])

    def end(self, result: dict[str, Any] | None) -> None:
        if result is not None:
            self._log(outcome_of(result), result["epochs"])
        self._client.set_terminated(self._id, "KILLED" if result is None else "FINISHED")

    def _log(self, figures: dict[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        # MLflow's names have no @.
        metrics = [Metric(n.replace("@", "_at_"), v, now, step) for n, v in figures.items()]
        self._client.log_batch(self._id, metrics=metrics)

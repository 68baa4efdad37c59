"""The pipeline that is in service, and the one that takes its place when its files change."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from shoal.serving.artifact import files
from shoal.serving.pipeline.folder import read_any_pipeline
from shoal.serving.pipeline.pipeline import RANK, Pipeline
from shoal.serving.pipeline.trial import trial_question
from shoal.serving.service.live import LiveService, State, state_of_file, state_of_tree
from shoal.serving.service.service import make_ready, state_of
from shoal.serving.service.statistics import Count


class LivePipeline(LiveService[Pipeline]):
    """A pipeline in service: its file, its artifacts and its table are looked at again and again.

    batch_size: so many questions are answered together at most. seed: of what rules draw.
    """

    def __init__(self, path: str | Path, batch_size: int = 0, seed: int | None = None):
        self.batch_size = batch_size
        self.seed = seed
        super().__init__(path)

    def places(self) -> list[Path]:
        return [self.path]

    def state(self, place: Path) -> State:
        if place.is_dir():
            return state_of_tree(place)
        state: list[State] = [state_of_file(place)]
        with suppress(Exception):  # what cannot be read yet names nothing
            file = read_any_pipeline(place)
            state += [state_of(file.folder(name)) for name in file.artifact_names()]
            state += [] if file.items is None else [state_of_file(file.items)]
        return tuple(state)

    def is_served(self, place: Path, state: State) -> bool:
        return state == self._state

    def place_in_service(self) -> Path:
        return self.path

    def load(self, place: Path, state: State) -> Pipeline:
        with files.private():
            pipeline = Pipeline(place, self.seed)
            make_ready(pipeline.artifacts, self.batch_size)
            pipeline.prepare(trial_question(pipeline))
        if self.state(place) != state:
            raise ValueError(f"{place} changed while it was loaded")
        self._state = state
        return pipeline

    def counts(self) -> dict[str, Count]:
        """How often something took the place of a stage of the pipeline in service."""
        pipeline = self.model
        if pipeline.fallback is None:
            return {}
        stages = ["retrieve", *pipeline.sources, *[RANK] * (pipeline.ranker is not None)]
        return {"fallbacks_total": {stage: pipeline.fallbacks[stage] for stage in stages}}

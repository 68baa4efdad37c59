"""The HTTP service of several versions of a model: each client stays at one of them.

Routes, limits and batches are those of one artifact (serving/service/app.py). A queue holds the
questions to one version, so that a slow version does not delay the answers of another.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import shoal
from shoal.serving.artifact.artifact import Artifact
from shoal.serving.http.listening import ServiceReach
from shoal.serving.processes.service_process import ServiceProcess
from shoal.serving.service.api import Limits, refusal
from shoal.serving.service.app import Api, names_of
from shoal.serving.service.batching import Batcher
from shoal.serving.service.questions import Predict, Question, Recommend, Similar, answer_batch
from shoal.serving.service.server import live_items, serve_api
from shoal.serving.service.statistics import VersionMetrics
from shoal.serving.versions.live_versions import LiveVersions, Versions


class VersionsApi(Api):
    """The handlers of the routes, for several versions."""

    service: LiveVersions

    def __init__(
        self,
        service: LiveVersions,
        limits: Limits,
        token: str | None = None,
        local: bool = True,
        items_token: str | None = None,
    ):
        super().__init__(service, limits, token, local, items_token)
        self.version_metrics = VersionMetrics(self.metrics.registry)
        self._queues: dict[tuple[str, str], Batcher] = {}  # (kind, name of an artifact) -> queue

    def shown(self) -> Artifact:
        return self.service.model.largest()

    def ready(self) -> dict[str, Any]:
        versions = self.service.model
        shares = versions.shares()
        artifacts = [{**names_of(one), **self.added(one)} for one in versions.artifacts.values()]
        document: dict[str, Any] = {
            "versions": [{**facts, "share": shares[str(facts["artifact"])]} for facts in artifacts]
        }
        if versions.shadow is not None:
            document["shadow"] = versions.shadow.folder.name
        return document

    def labels(self) -> list[dict[str, str]]:
        artifacts = self.service.model.artifacts.values()
        return [{**names_of(artifact), "shoal": shoal.__version__} for artifact in artifacts]

    def all_batchers(self) -> Iterable[Batcher]:
        return self._queues.values()

    def close(self) -> None:
        super().close()
        self.service.close()

    async def answer(self, kind: str, question: Any) -> Any:
        """The answer of the version that the question's client stays at."""
        versions = self.service.model
        if isinstance(question, Recommend) and question.users is not None and not question.key:
            return await self._answer_users(versions, question)
        artifact = versions.choose(key_of(question))
        return await self._ask(versions, artifact, kind, question)

    async def _answer_users(self, versions: Versions, question: Recommend) -> dict[str, Any]:
        """The lists of several users, each from the version that the user stays at."""
        assert question.users is not None
        parts: dict[str, list[int]] = {}  # name of an artifact -> places in the list of users
        artifacts: dict[str, Artifact] = {}
        for place, user in enumerate(question.users):
            artifact = versions.choose(user)
            artifacts[artifact.folder.name] = artifact
            parts.setdefault(artifact.folder.name, []).append(place)
        answers = await asyncio.gather(
            *[
                self._ask(
                    versions,
                    artifacts[name],
                    "recommend",
                    question.model_copy(update={"users": [question.users[k] for k in places]}),
                )
                for name, places in parts.items()
            ]
        )
        lists: dict[int, dict[str, Any]] = {}
        for (name, places), answer in zip(parts.items(), answers):
            for place, entry in zip(places, answer["users"]):
                lists[place] = {**entry, "artifact": name}
        users = [lists[place] for place in range(len(question.users))]
        return {"users": users, **({"artifact": name} if len(parts) == 1 else {})}

    async def _ask(
        self, versions: Versions, artifact: Artifact, kind: str, question: Question
    ) -> dict[str, Any]:
        """The answer of a version, counted; then the shadow may have the question."""
        name, begun, status = artifact.folder.name, time.perf_counter(), 503
        try:
            answer = await self._queue(kind, name).ask((artifact, question))
            status = 200
        except Exception as error:
            refused = refusal(error)
            status = 500 if refused is None else refused.status
            raise
        finally:
            self.version_metrics.add(name, status, time.perf_counter() - begun)
        if versions.shadow is not None:
            versions.shadow.offer(kind, question, answer)
        return answer

    def _queue(self, kind: str, name: str) -> Batcher:
        """The questions of a kind to the artifact of this name."""
        queue = self._queues.get((kind, name))
        if queue is None:
            queue = self._queues[kind, name] = self.batcher(kind)
            queue.work = lambda questions: answer_chosen(kind, questions)
        return queue


def answer_chosen(kind: str, questions: Sequence[tuple[Artifact, Any]]) -> list[Any]:
    """The answers to questions of one kind, each beside the artifact that was chosen for it.

    They are several where the artifact of a name was replaced while questions waited.
    """
    answers: list[Any] = [None] * len(questions)
    artifacts = {id(artifact): artifact for artifact, _ in questions}
    for artifact in artifacts.values():
        places = [place for place, (chosen, _) in enumerate(questions) if chosen is artifact]
        batch = answer_batch(artifact, kind, [questions[place][1] for place in places])
        for place, answer in zip(places, batch):
            answers[place] = answer
    return answers


def key_of(question: Any) -> str:
    """What keeps the client of a question at one version.

    Its `key`; else the user, the oldest item of a history, the item, or the first sample.
    """
    if question.key is not None:
        return question.key
    if isinstance(question, Similar):
        return question.item
    if isinstance(question, Predict):
        return json.dumps(question.samples[0], sort_keys=True)
    if question.user is not None:
        return question.user
    if question.history is not None:
        return question.history[0] if question.history else ""
    return json.dumps(question.sample, sort_keys=True)


def serve_versions(
    file: str | Path,
    reach: ServiceReach,
    limits: Limits,
    process: ServiceProcess | None = None,
    items: str | Path | None = None,
) -> None:
    """Serve the versions of a file until a signal comes.

    process: this one, of several. items: the folder of new items; None: none are taken.
    """

    def api(local: bool) -> VersionsApi:
        service = LiveVersions(file, limits.state_bytes, limits.batch, live_items(items, reach))
        return VersionsApi(service, limits, reach.token, local, reach.items_token)

    serve_api(api, reach, process)

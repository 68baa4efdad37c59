"""Questions to try a service with, of the users, histories and items that it knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from shoal.serving.artifact.artifact import Artifact
from shoal.serving.pipeline.pipeline import Pipeline

COUNT = 500  # different questions
HISTORY = 50  # items, at most, of a history that is drawn


def artifact_questions(
    artifact: Artifact, count: int = COUNT, seed: int = 0
) -> tuple[str, list[dict[str, Any]]]:
    """The route of a service of this artifact, and bodies for it.

    Models that read histories get those of their users, or random ones where the export has none;
    others get users. Click models get samples of one row with ids from their data.
    """
    random = np.random.default_rng(seed)
    if artifact.kind == "clicks":
        return "/v1/predict", [{"samples": [one]} for one in _samples(artifact, count, random)]
    artifact.needs_catalogue()
    users = _users(artifact, count, random)
    if artifact.reads_histories:
        return "/v1/recommend", [
            {"history": history} for history in _histories(artifact, users, count, random)
        ]
    return "/v1/recommend", [{"user": artifact.users.values[user]} for user in users.tolist()]


def pipeline_questions(
    pipeline: Pipeline, count: int = COUNT, seed: int = 0
) -> tuple[str, list[dict[str, Any]]]:
    """The route of a service of this pipeline, and bodies for it.

    Users are those of the first source; where it has none, histories of random items. Columns of
    the context are drawn from what the ranker knows of them.
    """
    random = np.random.default_rng(seed)
    first = next(iter(pipeline.sources.values())).artifact
    users = _users(first, count, random)
    if len(users):
        askers = [{"user": first.users.values[user]} for user in users.tolist()]
    else:
        askers = [{"history": one} for one in _random_histories(first, count, random)]
    ranker = pipeline.ranker
    if ranker is None:
        return "/v1/recommend", askers
    samples = _samples(ranker.artifact, count, random)
    contexts = [{name: sample[name] for name in ranker.context} for sample in samples]
    return "/v1/recommend", [
        {**asker, "context": context} for asker, context in zip(askers, contexts)
    ]


def _users(artifact: Artifact, count: int, random: np.random.Generator) -> np.ndarray:
    """Numbers of random users, int64 [count]; none where the artifact knows no users."""
    rows = len(artifact.users)  # the first is nobody's
    return random.integers(1, rows, count) if rows > 1 else np.zeros(0, np.int64)


def _histories(
    artifact: Artifact, users: np.ndarray, count: int, random: np.random.Generator
) -> Sequence[list[Any]]:
    """Histories of users, oldest first; random ones where there is none."""
    try:
        pairs = [artifact.seen(np.array([user]))[1] for user in users]
    except ValueError:  # exported without what users took
        pairs = []
    taken = [items[-HISTORY:] for items in pairs if len(items)]
    if not taken:
        return _random_histories(artifact, count, random)
    return [artifact.items.values[items].tolist() for items in taken]


def _random_histories(
    artifact: Artifact, count: int, random: np.random.Generator
) -> Sequence[list[Any]]:
    lengths = random.integers(1, HISTORY + 1, count).tolist()
    rows = len(artifact.items)
    return [artifact.items.values[random.integers(1, rows, length)].tolist() for length in lengths]


def _samples(
    artifact: Artifact, count: int, random: np.random.Generator
) -> Sequence[dict[str, Any]]:
    """Samples of a click model: ids that it knows, and empty cells where columns have none."""
    ids_by_column = getattr(artifact.encoder, "ids", {})
    samples: list[dict[str, Any]] = [dict.fromkeys(artifact.encoder.columns) for _ in range(count)]
    for name, ids in ids_by_column.items():
        if name in artifact.encoder.columns and len(ids) > 1:
            values = ids.values[random.integers(1, len(ids), count)].tolist()
            for sample, value in zip(samples, values):
                sample[name] = value
    return samples

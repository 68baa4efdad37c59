"""The process of a shadow: answers questions again, and compares lists with those of the answers.

One line of JSON in, one out, until its input ends:

    {"kind": "recommend", "questions": [{"user": "196"}], "lists": [[["50", "181"]]], "items": 0}
    {"requests": 1, "failed": 0, "lists": 1, "equal_lists": 0, "overlap": 0.5, "seconds": 0.002}

items: the last file of new items that the service has read.

Its words: ARTIFACT BATCH [FOLDER OF NEW ITEMS]
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from shoal.serving.artifact import files
from shoal.serving.artifact.artifact import Artifact
from shoal.serving.artifact.trial_run import limit_memory
from shoal.serving.items.folder import ItemsFolder
from shoal.serving.items.live_items import LiveItems
from shoal.serving.service.questions import QUESTIONS, answer_batch
from shoal.serving.versions.shadow import AnsweredQuestion

NICE = 10  # answers that somebody waits for come first


def main() -> None:
    """Load the artifact, then answer every line."""
    folder, batch_size, *places = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM):  # it ends with its input
        signal.signal(number, signal.SIG_IGN)
    os.nice(NICE)
    torch.set_num_threads(1)
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes elsewhere
    try:
        with files.private():
            model = Artifact(Path(folder))
            limit_memory()  # no trial in another process: this one is nobody's but the graph's
            model.prepare(int(batch_size))
        items = LiveItems(ItemsFolder(places[0])) if places else None
        model = _brought_up(model, items)
    except (OSError, ValueError) as error:
        print(json.dumps({"error": str(error)}), file=lines, flush=True)
        return
    print(json.dumps({"kind": model.kind}), file=lines, flush=True)
    for line in sys.stdin:
        document = json.loads(line)
        if items is not None and document["items"] > items.folder.last:
            model = _brought_up(model, items)
        counts = compare(model, document["kind"], document["questions"], document["lists"])
        print(json.dumps(counts), file=lines, flush=True)


def _brought_up(model: Artifact, items: LiveItems | None) -> Artifact:
    """The model with the new items of the folder."""
    if items is None:
        return model
    items.folder.read()
    return items.brought_up(model)


def compare(
    model: Artifact,
    kind: str,
    documents: Sequence[dict[str, Any]],
    lists: Sequence[Sequence[Sequence[Any]]],
) -> dict[str, float]:
    """Answer questions of one kind, and count; lists: of each question those that were answered."""
    questions = [QUESTIONS[kind].model_validate(document) for document in documents]
    begun = time.perf_counter()
    answers = answer_each(model, kind, questions)
    counts = {"requests": len(questions), "seconds": time.perf_counter() - begun}
    counts |= {"failed": 0, "lists": 0, "equal_lists": 0, "overlap": 0.0}
    for question, answer, expected in zip(questions, answers, lists, strict=True):
        if isinstance(answer, Exception):
            counts["failed"] += 1
            continue
        own_lists = AnsweredQuestion(kind, question, answer).lists()
        for own, other in zip(own_lists, expected):
            counts["lists"] += 1
            counts["equal_lists"] += own == other
            counts["overlap"] += overlap(own, other)
    return counts


def answer_each(model: Artifact, kind: str, questions: Sequence[Any]) -> list[Any]:
    """The answer to each question, or the error that it ends with."""
    try:
        return answer_batch(model, kind, questions)
    except Exception as error:  # a question that cannot be answered fails no other
        if len(questions) == 1:
            return [error]
        return [answer for question in questions for answer in answer_each(model, kind, [question])]


def overlap(items: Sequence[Any], others: Sequence[Any]) -> float:
    """The part of two lists' items that both have.

    >>> overlap(["50", "181"], ["181", "7"])
    0.5
    """
    longest = max(len(items), len(others))
    return len(set(items) & set(others)) / longest if longest else 1.0

"""Check: a fresh process loads an artifact and gives the answers of the trained model.

Its words: ARTIFACT REFERENCE.safetensors [TOLERANCE]. The reference holds what the trained model
was asked, and what it answered.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from shoal.data.batch import Jagged
from shoal.serving.artifact.artifact import GRAPHS, Artifact
from shoal.serving.artifact.kept_histories import ALWAYS_EXTENDED

# Of the spread of the answers: what rounding to so few bits may change.
TOLERANCES = {"float32": 1e-5, "float16": 0.02, "int8": 0.2}


def main() -> int:
    """Print the figures of the comparison; return 1 where the answers differ."""
    folder, reference, *tolerances = sys.argv[1:]
    tolerance = float(tolerances[0]) if tolerances else None
    try:
        facts, wrong = compare(Artifact(Path(folder)), load_file(reference), tolerance)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    if wrong:
        print(wrong, file=sys.stderr)
        return 1
    print(json.dumps(facts))
    return 0


def compare(
    artifact: Artifact, reference: dict[str, Tensor], tolerance: float | None
) -> tuple[dict[str, Any], str | None]:
    """Figures of the comparison, and a sentence about the difference; None where there is none."""
    rows = artifact.signature["rows"]
    if artifact.kind in GRAPHS:
        expected, answers = _clicks(artifact, reference)
        facts: dict[str, Any] = {"samples": len(expected)}
    else:
        expected, answers = reference["scores"], _scores(artifact, reference)
        facts = {"users": len(expected), "items": expected.shape[1]}
    allowed = (TOLERANCES[rows] if tolerance is None else tolerance) * _spread(expected)
    difference = (expected.double() - answers.double()).abs()
    if (
        artifact.kind not in GRAPHS
        and artifact.keep_histories(1 << 26, ALWAYS_EXTENDED) is not None
    ):
        again = (expected.double() - _scores(artifact, reference).double()).abs()
        difference = torch.maximum(difference, again)
    worst = float(difference.max())
    tables = artifact.signature["tables"].values()
    facts |= {
        "rows": rows,
        "largest_difference": worst,
        "mean_difference": float(difference.mean()),
        "allowed": allowed,
        "largest_row_error": max((one["largest_error"] for one in tables), default=0.0),
    }
    if not worst <= allowed:  # also where it is NaN
        return facts, f"scores differ by up to {worst:.3g}; {allowed:.3g} is allowed"
    if artifact.kind not in GRAPHS:
        lists, wrong = _lists(artifact, reference, allowed)
        facts |= lists
        if wrong:
            return facts, f"lists of users {wrong} differ"
    return facts, None


def _spread(expected: Tensor) -> float:
    """The size of the answers: differences are measured by it."""
    return max(1e-6, float(expected.double().abs().max()))


def _scores(artifact: Artifact, reference: dict[str, Tensor]) -> Tensor:
    query = {name[4:]: one for name, one in reference.items() if name.startswith("ids.")}
    size = len(query[artifact.user_field])
    return artifact.recommender.scores(query, size, reference["items"])


def _lists(
    artifact: Artifact, reference: dict[str, Tensor], allowed: float
) -> tuple[dict[str, Any], list[int]]:
    """How many recommended items are the same, and the users whose lists have other scores."""
    wrong, kept, total = [], 0, 0
    for name, items in reference.items():
        if not (name.startswith("list.") and name.endswith(".items")):
            continue
        user = int(name.split(".")[1])
        best, best_scores = artifact.recommender.rank_users(np.array([user]), 10)
        numbers = best[best > 0]
        total, kept = total + len(items), kept + len(np.intersect1d(numbers, items.numpy()))
        scores = torch.from_numpy(best_scores[best > 0])
        expected = reference[f"list.{user}.scores"]
        if len(scores) != len(expected) or not bool(((scores - expected).abs() <= allowed).all()):
            wrong.append(user)
    return {"lists": total, "lists_kept": kept}, wrong


def _clicks(artifact: Artifact, reference: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    expected, answers = [], []
    number = 0
    while f"{number}.logits" in reference:
        fields: dict[str, Tensor | Jagged] = {}
        for name, tensor in reference.items():
            batch, kind, *field = name.split(".", 2)
            if batch != str(number) or not field:
                continue
            if kind in ("ids", "dense"):
                fields[field[0]] = tensor
            elif kind == "values":
                offsets = reference[f"{number}.offsets.{field[0]}"]
                weights = reference.get(f"{number}.weights.{field[0]}")
                fields[field[0]] = Jagged(tensor, offsets, weights)
        expected.append(reference[f"{number}.logits"])
        answers.append(artifact.logits(fields))
        number += 1
    return torch.cat(expected), torch.cat(answers)

"""Check: a fresh process loads an artifact and answers what the trained model was asked.

python -m shoal.runs.artifact.check ARTIFACT ASKED.safetensors [TOLERANCE]
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
from shoal.runs.artifact.loaded import GRAPHS, Artifact

# Of the spread of the answers: what rounding to so few bits may change.
TOLERANCES = {"float32": 1e-5, "float16": 0.02, "int8": 0.2}


def main() -> int:
    """Print what was found; 1 where the answers differ."""
    tolerance = float(sys.argv[3]) if len(sys.argv) > 3 else None
    facts, wrong = compare(Artifact(Path(sys.argv[1])), load_file(sys.argv[2]), tolerance)
    if wrong:
        print(wrong, file=sys.stderr)
        return 1
    print(json.dumps(facts))
    return 0


def compare(
    artifact: Artifact, asked: dict[str, Tensor], tolerance: float | None
) -> tuple[dict[str, Any], str | None]:
    """Figures of the comparison; and what is wrong, None where nothing is."""
    rows = artifact.signature["rows"]
    if artifact.kind in GRAPHS:
        expected, found = _clicks(artifact, asked)
        facts: dict[str, Any] = {"samples": len(expected)}
    else:
        expected, found = asked["scores"], _scores(artifact, asked)
        facts = {"users": len(expected), "items": expected.shape[1]}
    allowed = (TOLERANCES[rows] if tolerance is None else tolerance) * _spread(expected)
    difference = (expected.double() - found.double()).abs()
    if artifact.kind not in GRAPHS and artifact.keep_histories(1 << 26) is not None:
        again = (expected.double() - _scores(artifact, asked).double()).abs()
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
        lists, wrong = _lists(artifact, asked, allowed)
        facts |= lists
        if wrong:
            return facts, f"lists of users {wrong} differ"
    return facts, None


def _spread(expected: Tensor) -> float:
    """The size of the answers: differences are measured by it."""
    return max(1e-6, float(expected.double().abs().max()))


def _scores(artifact: Artifact, asked: dict[str, Tensor]) -> Tensor:
    query = {name[4:]: one for name, one in asked.items() if name.startswith("ids.")}
    size = len(query[artifact.user_field])
    return artifact.recommender.scores(query, size, asked["items"])


def _lists(
    artifact: Artifact, asked: dict[str, Tensor], allowed: float
) -> tuple[dict[str, Any], list[int]]:
    """Whether users are recommended the same, but for what scores alike; how much of it is."""
    wrong, kept, total = [], 0, 0
    for name, items in asked.items():
        if not (name.startswith("list.") and name.endswith(".items")):
            continue
        user = int(name.split(".")[1])
        best, own = artifact.recommender.rank_users(np.array([user]), 10)
        numbers = best[best > 0]
        total, kept = total + len(items), kept + len(np.intersect1d(numbers, items.numpy()))
        scores = torch.from_numpy(own[best > 0])
        expected = asked[f"list.{user}.scores"]
        if len(scores) != len(expected) or not bool(((scores - expected).abs() <= allowed).all()):
            wrong.append(user)
    return {"lists": total, "lists_kept": kept}, wrong


def _clicks(artifact: Artifact, asked: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    expected, found = [], []
    number = 0
    while f"{number}.logits" in asked:
        fields: dict[str, Tensor | Jagged] = {}
        for name, one in asked.items():
            batch, what, *field = name.split(".", 2)
            if batch != str(number) or not field:
                continue
            if what in ("ids", "dense"):
                fields[field[0]] = one
            elif what == "values":
                rest = (
                    asked[f"{number}.offsets.{field[0]}"],
                    asked.get(f"{number}.weights.{field[0]}"),
                )
                fields[field[0]] = Jagged(one, *rest)
        expected.append(asked[f"{number}.logits"])
        found.append(artifact.logits(fields))
        number += 1
    return torch.cat(expected), torch.cat(found)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ValueError as error:
        print(error, file=sys.stderr)
        sys.exit(1)

"""Metrics beyond accuracy, computed by Shoal and by other tools on the same lists, on ml-100k.

    python benchmarks/metrics.py --data FOLDER --peer PYTHON [--elliot FOLDER]

FOLDER of --data holds ml-100k/ with its atomic files. PYTHON is of an environment with
`pip install rectools recommenders recmetrics scikit-learn`; Elliot's --elliot is a clone of
its repository, of which two classes are used. What is not there is left out and said. Exit status 1
where a value differs by more than 1e-6. benchmarks/metrics_peer.py is the other side.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.runs.run import run
from shoal.runs.trained_run import Trained, open_config
from shoal.training.evaluation import Evaluator

METRICS = ["NDCG", "MAP", "RBP", "MedRank", "GAUC", "UAUC", "Novelty", "Serendipity"]
METRICS += ["Personalisation", "IntraListDiversity", "Miscalibration", "UserGap", "ItemGap"]
K = 10


def shoals(data: str, folder: Path) -> tuple[dict[str, float], dict[str, Any]]:
    """Values of a short run of BPR, and all that others need to compute them."""
    values = {
        **{"data.path": data, "data.load": {"user": ["*"], "item": ["*"]}, "data.cache": False},
        **{"train.epochs": 8, "run.output": str(folder / "run"), "run.progress": False},
        **{"eval.metrics": METRICS, "eval.topk": [K], "eval.valid_metric": f"NDCG@{K}"},
        **{"eval.groups": {"user": "gender", "item": "class"}, "run.trackers": []},
    }
    result = run("BPR", "ml-100k", None, values)
    trained = Trained(result["folder"], open_config(result["folder"]))
    evaluator = trained.parts.evaluator
    assert isinstance(evaluator, Evaluator)
    found = evaluator.evaluate(trained.model, "test", keep=True)
    # Items of one group each, for a peer that has no others: release years.
    single = {"eval.groups": {"user": "gender", "item": "release_year"}}
    years = Trained(result["folder"], open_config(result["folder"], values=single))
    assert isinstance(years.parts.evaluator, Evaluator)
    by_year = years.parts.evaluator.evaluate(years.model, "test")
    found["itemgap@10 by year"] = by_year[f"itemgap@{K}"]
    results, dataset, groups = evaluator.results, evaluator.dataset, evaluator.groups
    assert results is not None and groups.items is not None and groups.users is not None
    released = years.parts.evaluator.groups.items
    assert released is not None
    phase, _ = evaluator._prepared("test")
    scores, candidates = [], []
    for place, user in enumerate(phase.users):
        batch = evaluator.query(np.array([user]), None)
        with torch.inference_mode():
            row = trained.model.score(batch, torch.arange(dataset.num_items))[0]  # type: ignore[operator]
        seen = phase.masked.chosen(np.array([place])).items
        left = np.setdiff1d(np.arange(1, dataset.num_items), seen)
        candidates.append(left.tolist())
        scores.append(row[left].double().tolist())
    facts = {
        **{"k": K, "num_items": dataset.num_items - 1, "users": phase.users.tolist()},
        "lists": results.kept.items.tolist(),
        "positives": [
            phase.positives.chosen(np.array([n])).items.tolist() for n in range(len(phase.users))
        ],
        "train": [dataset.user_ids("train").tolist(), dataset.item_ids("train").tolist()],
        "user_groups": groups.users.tolist(),
        "item_groups": [
            part.tolist() for part in np.split(groups.items.values, groups.items.offsets[1:-1])
        ],
        "years": [part.tolist() for part in np.split(released.values, released.offsets[1:-1])],
        **{"candidates": candidates, "scores": scores},
    }
    return found, facts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", default="dataset", help="folder that holds ml-100k/")
    parser.add_argument("--peer", required=True, help="interpreter of the peers' environment")
    parser.add_argument("--elliot", help="a clone of Elliot's repository")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        ours, facts = shoals(given.data, Path(scratch))
        file = Path(scratch) / "facts.json"
        file.write_text(json.dumps(facts))
        script = str(Path(__file__).with_name("metrics_peer.py"))
        words = [given.peer, script, str(file), *([given.elliot] if given.elliot else [])]
        done = subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True)
    worst = 0.0
    print(
        "\n| metric | peer | Shoal | peer's value | difference |\n| --- | --- | --- | --- | --- |"
    )
    for key, peer, value in json.loads(done.stdout.splitlines()[-1]):
        if value is None:
            print(f"| {key} | {peer} | {ours[key]:.9f} | not there | – |")
            continue
        worst = max(worst, abs(ours[key] - value))
        print(f"| {key} | {peer} | {ours[key]:.9f} | {value:.9f} | {abs(ours[key] - value):.1e} |")
    sys.exit(worst > 1e-6)


if __name__ == "__main__":
    main()

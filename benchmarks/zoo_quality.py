"""Every model that RecBole 1.2.1 has too, trained on both sides with several seeds, on ml-100k.

    python benchmarks/zoo_quality.py --data FOLDER --recbole PYTHON [--workers 4] [MODEL ...]

The same settings (of many models RecBole's own file), the same number of passes over the samples
and, by the seed, the same split on both sides; no early stopping; the epoch that validates best is
tested. Every worker keeps two processes, one of each side, one thread each, and asks them in turn.
Seconds are CPU time of the process. Each pair of runs is a line of --lines as soon as it is there,
and a pair that has its line is not run again; `--store` puts the lines into
benchmarks/zoo/quality.json, of which `python benchmarks/zoo.py page` makes tables of
docs/understand/zoo.md.
"""

from __future__ import annotations

import argparse
import json
import queue
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from zoo import QUALITY
from zoo_settings import ROOT, RUNS
from zoo_speed import BY_FILE, CLICKS, HERE, MODELS, PASSES, THERE, Side

from shoal.config.yaml_io import read_file

SEEDS = [2020, 2021, 2022]
EPOCHS = {
    **{"BPR": 60, "ENMF": 40, "MultiVAE": 150, "LightGCN": 20, "EASE": 1, "ItemKNN": 1},
    **{"SGL": 5, "SimpleX": 10, "NGCF": 10, "NeuMF": 15, "RecVAE": 10},
    **{"DCNV2": 5, "AutoInt": 5, "xDeepFM": 2},
    **{name: 60 for name in ("MultiDAE", "CDAE", "MacridVAE", "RaCT", "DiffRec", "LDiffRec")},
    **{name: 10 for name in ("SpectralCF", "NCL", "GCMC", "DMF")},
    **{"lightgbm": 1, "xgboost": 1},
    # Minutes an epoch or an evaluation there: compared while they learn.
    **{name: 2 for name in ("FISM", "NAIS", "NNCF", "DGCF", "ConvNCF", "RepeatNet", "SRGNN")},
    **{name: 2 for name in ("GCSAN", "FEARec", "NextItNet", "BERT4Rec", "LightSANs", "FDSA")},
}
# Of these RecBole finds neither the class nor its own file by one name: the class has capitals.
CLASSES = {"lightgbm": "LightGBM", "xgboost": "XGBoost"}
ORDER = [
    *("BPR", "NeuMF", "LightGCN", "MultiVAE", "FM", "DeepFM"),
    *("EASE", "ItemKNN", "NGCF", "RecVAE", "ENMF", "SimpleX"),
    *("LR", "NFM", "WideDeep", "DCN", "PNN", "FwFM", "FFM", "AFM"),
    *("CKE", "CFKG", "KGCN", "MKR", "RippleNet"),
    *("DCNV2", "AutoInt", "SGL", "KGAT", "KGIN", "xDeepFM"),
    *BY_FILE,
]


def settings(model: str) -> dict[str, Any]:
    """What both sides are told, in RecBole's words."""
    given = MODELS.get(model) or RUNS.get(model) or BY_FILE[model]
    epochs = EPOCHS.get(model, usual_epochs(given))
    return {**given, "epochs": epochs, "eval_step": max(1, epochs // 5), "stopping_step": 100}


def usual_epochs(given: dict[str, Any]) -> int:
    """Epochs of a model that EPOCHS does not name, by what it reads."""
    if given.get("epochs") == 1:  # in closed form
        return 1
    if given is CLICKS:
        return 10
    return 3 if "kg" in given["load_col"] or given["eval_args"]["order"] == "TO" else 20


def model_file(model: str, recbole: str) -> dict[str, Any]:
    """RecBole's own file of a model, which RecBole reads by itself."""
    if model not in BY_FILE:
        return {}
    asked = "import importlib.util; print(importlib.util.find_spec('recbole').origin)"
    found = subprocess.run([recbole, "-c", asked], capture_output=True, text=True, check=True)
    return read_file(Path(found.stdout).parent / "properties" / "model" / f"{model}.yaml")[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", default=ORDER, help="default: all")
    parser.add_argument("--data", help="folder that holds ml-100k/")
    parser.add_argument("--recbole", help="interpreter of an environment with RecBole 1.2.1")
    parser.add_argument("--workers", type=int, default=1, help="pairs of processes at a time")
    parser.add_argument("--lines", type=Path, default=Path("zoo_quality.jsonl"))
    parser.add_argument("--store", action="store_true", help="only keep the lines that are there")
    options = parser.parse_args()
    if options.store:
        store(options.lines)
        return
    done = {(one["model"], one["seed"]) for one in read(options.lines)}
    jobs: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
    for model in options.models:
        for seed in SEEDS:
            if (model, seed) not in done:
                jobs.put((model, seed))
    lock = threading.Lock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (jobs, lock, folder, options)
        workers = [threading.Thread(target=work, args=arguments) for _ in range(options.workers)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


def work(
    jobs: queue.SimpleQueue[tuple[str, int]],
    lock: threading.Lock,
    folder: str,
    options: argparse.Namespace,
) -> None:
    """Take pairs of runs until none is left."""
    data = str(Path(options.data).resolve())
    speed = str(ROOT / "benchmarks" / "zoo_speed.py")
    peer = str(ROOT / "benchmarks" / "recbole_peer.py")
    mine = tempfile.mkdtemp(dir=folder)
    commands = {
        "shoal": [sys.executable, speed, "--serve"],
        "recbole": [options.recbole, peer, "--many", "--data", data],
    }
    sides = {name: Side(command, mine) for name, command in commands.items()}
    while True:
        try:
            model, seed = jobs.get_nowait()
        except queue.Empty:
            return
        config = Path(mine) / f"{model}.yaml"
        both = {**settings(model), "seed": seed}
        asked = {"model": model, "config": str(config), "epochs": both["epochs"], "data": data}
        asked |= {"seed": seed, "stopping_step": both["stopping_step"]}
        asked["here"] = {f"model.{key}": value for key, value in HERE.get(model, {}).items()}
        found: dict[str, Any] = {"model": model, "seed": seed, "epochs": both["epochs"]}
        for name in commands:
            if name == "recbole":
                told = {**both, **THERE.get(model, {})}
            else:
                passes = PASSES.get(model, 1)
                lengths = {key: passes * both[key] for key in ("epochs", "eval_step")}
                told = {**both, **lengths}
            if name == "shoal" or model in CLASSES:
                told = {**model_file(model, options.recbole), **told}
            config.write_text(json.dumps(told))
            called = CLASSES.get(model, model) if name == "recbole" else model
            try:
                found[name] = sides[name].ask({**asked, "model": called})
            except SystemExit as end:  # one that died takes its model with it, no more
                found[name] = {"failed": str(end)[-500:]}
                sides[name] = Side(commands[name], mine)
        with lock, options.lines.open("a") as lines:
            lines.write(json.dumps(found) + "\n")
            print(shown(found), flush=True)


def shown(found: dict[str, Any]) -> str:
    """One pair of runs, for who watches."""
    cells = [f"{found['model']} {found['seed']}"]
    for side in ("recbole", "shoal"):
        one = found[side]
        if "failed" in one:
            cells.append(f"{side} {one['failed'][:200]}")
            continue
        test = " ".join(f"{name} {one['test'][name]:.4f}" for name in judged(one["test"]))
        cells.append(f"{side} {test}, {one['epoch'] or 0:.2f} s, {one['eval'] or 0:.2f} s")
    return " | ".join(cells)


def judged(test: dict[str, float]) -> list[str]:
    return [name for name in ("recall@10", "ndcg@10", "auc", "logloss") if name in test]


def read(lines: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.read_text().splitlines()] if lines.is_file() else []


def store(lines: Path) -> None:
    """Models -> runs of both sides, added to what is kept."""
    kept = json.loads(QUALITY.read_text()) if QUALITY.is_file() else {}
    for one in read(lines):
        if any("failed" in one[side] for side in ("shoal", "recbole")):
            continue
        runs = [run for run in kept.get(one["model"], []) if run["seed"] != one["seed"]]
        kept[one["model"]] = sorted([*runs, one], key=lambda run: run["seed"])
    QUALITY.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()

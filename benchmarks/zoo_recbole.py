"""Every model that RecBole 1.2.1 has too, trained on both sides, on ml-100k.

    python benchmarks/zoo_recbole.py quality --data FOLDER --recbole PYTHON [--gpu] [MODEL ...]
    python benchmarks/zoo_recbole.py seconds --data FOLDER --recbole PYTHON [MODEL ...]
    python benchmarks/zoo_recbole.py quality --store

FOLDER holds ml-100k/ (atomic files); PYTHON is the interpreter of an environment with RecBole. Both
sides have the same settings (those of RecBole's own file of the model, where none is named), the
same number of passes over the samples and, by the seed, the same split; no early stopping; the
epoch that validates best is tested. `quality` trains with three seeds; `seconds` trains two epochs
with one seed, for the times alone. Seconds are CPU time of the process, one thread each; with --gpu
none are kept.

Every worker (--workers) keeps two processes, one of each side, and asks them in turn. Each pair of
runs is a line of --lines as soon as it is there, and a pair that has its line is not run again;
`--store` puts the lines into benchmarks/zoo/quality.json or speed.json, of which
`python benchmarks/zoo.py page` makes tables of docs/understand/zoo.md.
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

from zoo_settings import BY_FILE, CLICKS, HERE, MODELS, PASSES, QUALITY, ROOT, RUNS, SPEED, THERE
from zoo_sides import Side

from shoal.config.yaml_io import read_file

SEEDS = {"quality": [2020, 2021, 2022], "seconds": [2020]}
EPOCHS = {
    **{"BPR": 60, "ENMF": 40, "MultiVAE": 150, "LightGCN": 20, "EASE": 1, "ItemKNN": 1},
    **{"SGL": 5, "SimpleX": 10, "NGCF": 10, "NeuMF": 15, "RecVAE": 10},
    **{"DCNV2": 5, "AutoInt": 5, "xDeepFM": 2},
    **{name: 60 for name in ("MultiDAE", "CDAE", "MacridVAE", "RaCT", "DiffRec", "LDiffRec")},
    **{name: 10 for name in ("SpectralCF", "NCL", "GCMC", "DMF")},
    **{"lightgbm": 1, "xgboost": 1},
    # Minutes an epoch or an evaluation on a CPU there: compared while they learn.
    **{name: 5 for name in ("FISM", "NAIS", "NNCF", "DGCF", "ConvNCF", "RepeatNet", "SRGNN")},
    **{name: 5 for name in ("GCSAN", "FEARec", "NextItNet", "BERT4Rec", "LightSANs", "FDSA")},
}
# Of these RecBole finds neither the class nor its own file by one name: the class has capitals.
CLASSES = {"lightgbm": "LightGBM", "xgboost": "XGBoost"}
ORDER = [*MODELS, *(name for name in RUNS if name not in MODELS), *BY_FILE]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["quality", "seconds"])
    parser.add_argument("models", nargs="*", default=ORDER, help="default: all")
    parser.add_argument("--data", help="folder that holds ml-100k/")
    parser.add_argument("--recbole", help="interpreter of an environment with RecBole 1.2.1")
    parser.add_argument("--workers", type=int, default=1, help="pairs of processes at a time")
    parser.add_argument("--gpu", action="store_true", help="both sides on the GPU that is here")
    parser.add_argument("--lines", type=Path, help="default: zoo_quality.jsonl, zoo_seconds.jsonl")
    parser.add_argument("--store", action="store_true", help="only keep the lines that are there")
    options = parser.parse_intermixed_args()
    options.lines = options.lines or Path(f"zoo_{options.what}.jsonl")
    if options.store:
        {"quality": store_quality, "seconds": store_seconds}[options.what](options.lines)
        return
    done = {(one["model"], one["seed"]) for one in read(options.lines)}
    jobs: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
    for model in options.models:
        for seed in SEEDS[options.what]:
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


# ---- runs ---------------------------------------------------------------------------------------


def work(
    jobs: queue.SimpleQueue[tuple[str, int]],
    lock: threading.Lock,
    folder: str,
    options: argparse.Namespace,
) -> None:
    """Take pairs of runs until none is left."""
    data = str(Path(options.data).resolve())
    peer = [options.recbole, str(ROOT / "benchmarks" / "recbole_peer.py"), "--many", "--data", data]
    commands = {
        "shoal": [sys.executable, str(ROOT / "benchmarks" / "zoo_sides.py")],
        "recbole": [*peer, "--gpu"] if options.gpu else peer,
    }
    mine = tempfile.mkdtemp(dir=folder)
    sides = {name: Side(command, mine) for name, command in commands.items()}
    while True:
        try:
            model, seed = jobs.get_nowait()
        except queue.Empty:
            return
        both = {**settings(model, options.what), "seed": seed}
        found: dict[str, Any] = {"model": model, "seed": seed, "epochs": both["epochs"]}
        config = Path(mine) / f"{model}.yaml"
        asked = {"model": model, "config": str(config), "data": data, "seed": seed}
        asked |= {"epochs": both["epochs"], "stopping_step": both["stopping_step"]}
        for name in commands:
            config.write_text(json.dumps(settings_of_side(name, model, both, options)))
            if name == "recbole":
                more: dict[str, Any] = {"model": CLASSES.get(model, model)}
            else:
                device = {"run.device": "cuda" if options.gpu else "cpu"}
                options_here = {f"model.{key}": value for key, value in HERE.get(model, {}).items()}
                more = {"here": {**options_here, **device}}
            try:
                found[name] = sides[name].ask({**asked, **more})
            except SystemExit as end:  # one that died takes its model with it, no more
                found[name] = {"failed": str(end)[-500:]}
                sides[name] = Side(commands[name], mine)
            if options.gpu and "failed" not in found[name]:
                found[name] |= {"epoch": None, "eval": None}
        with lock, options.lines.open("a") as lines:
            lines.write(json.dumps(found) + "\n")
            print(shown(found), flush=True)


def settings(model: str, what: str) -> dict[str, Any]:
    """What both sides are told, in RecBole's words."""
    given = MODELS.get(model) or RUNS.get(model) or BY_FILE[model]
    epochs = EPOCHS.get(model, usual_epochs(given))
    if what == "seconds":
        epochs = min(epochs, 2)
    return {**given, "epochs": epochs, "eval_step": max(1, epochs // 5), "stopping_step": 100}


def usual_epochs(given: dict[str, Any]) -> int:
    """Epochs of a model that EPOCHS does not name, by what it reads."""
    if given.get("epochs") == 1:  # in closed form
        return 1
    if given.get("threshold") == CLICKS["threshold"]:
        return 10
    return 3 if "kg" in given["load_col"] or given["eval_args"]["order"] == "TO" else 20


def settings_of_side(
    side: str, model: str, both: dict[str, Any], options: argparse.Namespace
) -> dict[str, Any]:
    """What one side is told: both's settings, and what it alone needs for the same training."""
    if side == "recbole":
        mine = {**both, **THERE.get(model, {})}
    else:
        passes = PASSES.get(model, 1)
        mine = {**both, **{key: passes * both[key] for key in ("epochs", "eval_step")}}
    if side == "shoal" or model in CLASSES:  # RecBole finds its file by itself
        mine = {**model_file(model, options.recbole), **mine}
    return mine


def model_file(model: str, recbole: str) -> dict[str, Any]:
    """RecBole's own file of a model: what it reads by itself, said to the other side."""
    asked = "import importlib.util; print(importlib.util.find_spec('recbole').origin)"
    found = subprocess.run([recbole, "-c", asked], capture_output=True, text=True, check=True)
    return read_file(Path(found.stdout).parent / "properties" / "model" / f"{model}.yaml")[0]


# ---- what came of them --------------------------------------------------------------------------


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


def whole(lines: Path) -> list[dict[str, Any]]:
    """The lines of which neither side failed."""
    sides = ("shoal", "recbole")
    return [one for one in read(lines) if not any("failed" in one[side] for side in sides)]


def store_quality(lines: Path) -> None:
    """Models -> runs of both sides, added to what is kept."""
    kept = json.loads(QUALITY.read_text()) if QUALITY.is_file() else {}
    for one in whole(lines):
        runs = [run for run in kept.get(one["model"], []) if run["seed"] != one["seed"]]
        kept[one["model"]] = sorted([*runs, one], key=lambda run: run["seed"])
    QUALITY.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


def store_seconds(lines: Path) -> None:
    """Models -> seconds of both sides, added to what is kept."""
    kept = json.loads(SPEED.read_text()) if SPEED.is_file() else {}
    for one in whole(lines):
        kept[one["model"]] = {side: one[side] for side in ("shoal", "recbole")}
    SPEED.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()

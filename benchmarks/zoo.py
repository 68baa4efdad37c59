"""The zoo beside RecBole 1.2.1 on ml-100k and beside published figures: stored, shown as a page.

    python benchmarks/zoo.py run EASE ItemKNN --data FOLDER --recbole PYTHON --seeds 2020 2021 2022
    python benchmarks/zoo.py page

`run` trains a model with one YAML of settings, here and in RecBole, in turn for each seed, and
keeps the figures in benchmarks/zoo/NAME.json. FOLDER holds ml-100k/ (atomic files); PYTHON is the
interpreter of an environment with RecBole; without it this side alone is run. `page` writes
docs/zoo.md from what is stored. benchmarks/README.md says how to make RecBole's environment.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STORED = ROOT / "benchmarks" / "zoo"
PAGE = ROOT / "docs" / "zoo.md"

GENERAL: dict[str, Any] = {
    "load_col": {"inter": ["user_id", "item_id"]},
    "train_batch_size": 2048,
    "eval_batch_size": 4096,
    "eval_args": {
        "group_by": "user",
        "order": "RO",
        "split": {"RS": [0.8, 0.1, 0.1]},
        "mode": "full",
    },
    "metrics": ["Recall", "MRR", "NDCG", "Hit", "Precision"],
    "topk": [10],
    "valid_metric": "MRR@10",
    "stopping_step": 10,
    "learning_rate": 0.001,
}
SEQUENTIAL: dict[str, Any] = {
    **GENERAL,
    "load_col": {"inter": ["user_id", "item_id", "timestamp"]},
    "eval_args": {
        "group_by": "user",
        "order": "TO",
        "split": {"LS": "valid_and_test"},
        "mode": "full",
    },
    "MAX_ITEM_LIST_LENGTH": 50,
    "train_neg_sample_args": None,
    "loss_type": "CE",
}
USERS = {"train_neg_sample_args": None, "train_batch_size": 64}  # a sample is a user
# model -> settings of both sides, in RecBole's words. Those of a model are RecBole's defaults.
RUNS: dict[str, dict[str, Any]] = {
    "EASE": {**GENERAL, "epochs": 1, "reg_weight": 250.0},
    "ItemKNN": {**GENERAL, "epochs": 1, "k": 100, "shrink": 0.0},
    "BPR": {**GENERAL, "epochs": 200, "embedding_size": 64},
    "LightGCN": {**GENERAL, "epochs": 200, "embedding_size": 64, "n_layers": 2},
    "NGCF": {
        **GENERAL,
        "epochs": 100,
        "embedding_size": 64,
        "hidden_size_list": [64, 64, 64],
        "message_dropout": 0.1,
        "reg_weight": 1e-5,
    },
    "ENMF": {
        **GENERAL,
        **USERS,
        "epochs": 100,
        "embedding_size": 64,
        "dropout_prob": 0.7,
        "negative_weight": 0.5,
    },
    "MultiVAE": {
        **GENERAL,
        **USERS,
        "epochs": 100,
        "mlp_hidden_dimension": [600],
        "latent_dimension": 128,
        "dropout_prob": 0.5,
        "anneal_cap": 0.2,
        "total_anneal_steps": 200_000,
    },
    "GRU4Rec": {
        **SEQUENTIAL,
        "epochs": 50,
        "embedding_size": 64,
        "hidden_size": 128,
        "num_layers": 1,
        "dropout_prob": 0.3,
    },
    "NARM": {**SEQUENTIAL, "epochs": 20, "embedding_size": 64, "hidden_size": 128, "n_layers": 1},
    "STAMP": {**SEQUENTIAL, "epochs": 20, "embedding_size": 64},
}
# Figures of others and what the recipes reach: written by hand from the runs that it names.
ML_1M = STORED / "ml-1m.json"
SPEED = STORED / "speed.json"  # by zoo_speed.py
QUALITY = STORED / "quality.json"  # by zoo_quality.py


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train models and keep their figures")
    run.add_argument("models", nargs="+", choices=RUNS)
    run.add_argument("--data", required=True, help="folder that holds ml-100k/")
    run.add_argument("--recbole", help="interpreter of an environment with RecBole 1.2.1")
    run.add_argument("--seeds", type=int, nargs="+", default=[2020, 2021, 2022])
    run.add_argument("--epochs", type=int, help="at most so many, on both sides")
    commands.add_parser("page", help="write docs/zoo.md")
    options = parser.parse_args()
    if options.command == "page":
        PAGE.write_text(page())
        return
    for model in options.models:
        measure(model, options)


def measure(model: str, options: argparse.Namespace) -> None:
    """Train on both sides, seed by seed, and keep the figures."""
    settings = dict(RUNS[model])
    if options.epochs:
        settings["epochs"] = min(settings["epochs"], options.epochs)
    found: dict[str, Any] = {"model": model, "settings": settings, "shoal": [], "recbole": []}
    found["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, 1 thread each"
    for seed in options.seeds:
        found["shoal"].append({"seed": seed, **shoal(model, settings, seed, options.data)})
        if options.recbole:
            theirs = recbole(model, settings, seed, options)
            found["recbole"].append({"seed": seed, **theirs})
        for side in ("shoal", "recbole"):
            if found[side]:
                last = found[side][-1]
                shown = f"NDCG@10 {last['test']['ndcg@10']:.4f}, {last['epoch']:.2f} s/epoch"
                print(f"{model} seed {seed} {side}: {shown}", flush=True)
        STORED.mkdir(exist_ok=True)
        (STORED / f"{model}.json").write_text(json.dumps(found, indent=1) + "\n")


def shoal(model: str, settings: dict[str, Any], seed: int, data: str) -> dict[str, Any]:
    """Figures of one run here."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "settings.yaml"
        config.write_text(json.dumps({**settings, "data_path": str(Path(data).resolve())}))
        given = ["--model", model, "--dataset", "ml-100k", f"--run.output={folder}/run"]
        given += [f"--seed={seed}", "--run.progress=false", "--run.tensorboard=false"]
        call([sys.executable, "-m", "shoal", "train", str(config), *given], ROOT)
        result = json.loads((Path(folder) / "run" / "result.json").read_text())
    return figures(result)


def recbole(
    model: str, settings: dict[str, Any], seed: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Figures of one run in RecBole."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "settings.yaml"
        config.write_text(json.dumps(settings))
        given = ["--data", str(Path(options.data).resolve()), "--config", str(config)]
        given += ["--model", model, "--seed", str(seed), "--epochs", str(settings["epochs"])]
        peer = ROOT / "benchmarks" / "recbole_peer.py"
        said = call([options.recbole, str(peer), *given], Path(folder))
    return figures(json.loads(said.strip().splitlines()[-1]))


def call(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def figures(result: dict[str, Any]) -> dict[str, Any]:
    seconds = result["seconds"]
    test = {name: result["test"][name] for name in ("recall@10", "mrr@10", "ndcg@10")}
    epochs = {"epochs": result["epochs"], "best_epoch": result["best_epoch"]}
    return {
        "test": test,
        **epochs,
        "epoch": seconds["train_epoch_median"] or 0.0,
        "eval": seconds["eval_median"] or 0.0,
    }


# ---- the page -----------------------------------------------------------------------------------


def page() -> str:
    """docs/zoo.md."""
    sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]
    from shoal.models import MODELS, find

    lines = [
        "# The zoo",
        "",
        "Written by `python benchmarks/zoo.py page` from the models' own headings and from "
        "`benchmarks/zoo/*.json`.",
        "",
        "Every model is one file, reads rows through `Embeddings` alone, and runs unchanged under "
        "`single`, `ddp`, `sharded` and `ps`. `tests/contract/test_zoo.py` holds, for each: a "
        "batch may be cut anywhere (dropout included) and the losses of its parts add up; two "
        "processes under `ddp`, `sharded` and `ps` (sync) have the losses of one; scores "
        "of a block of items are those among all. `tests/contract/test_learning.py` holds "
        "that each learns.",
        "",
        "## Models",
        "",
        "| model | family | paper | compared |",
        "| --- | --- | --- | --- |",
    ]
    for name in MODELS:
        compared = "RecBole" if (STORED / f"{name}.json").is_file() else "–"
        lines.append(f"| `{name}` | {find(name).kind} | {paper(name)} | {compared} |")
    lines += ["", "## Beside RecBole 1.2.1", "", *beside_recbole()]
    lines += ["", "## Seconds beside RecBole 1.2.1", "", *speeds()]
    lines += ["", "## Recipes beside published figures", "", *recipes()]
    return "\n".join([*lines, ""])


def paper(name: str) -> str:
    """The first paragraph of a model's heading, without its name."""
    from shoal.models import MODELS

    text = importlib.import_module(MODELS[name]).__doc__ or ""
    first = " ".join(text.split("\n\n")[0].split())
    return first.partition(": ")[2].rstrip(".")


def beside_recbole() -> list[str]:
    """The table of stored runs: means over seeds ± a standard error, and seconds."""
    lines = [
        "ml-100k, the same settings on both sides; the same seed gives both the same split. Means "
        "over seeds ± one standard error; seconds are medians on a shared machine, both sides in "
        "turn: the ratio counts, not the times. Epochs are the most of either side; with few of "
        "them figures are of models still learning. Models in closed form are made at the start, "
        "and have no epoch.",
        "",
        "| model | seeds | epochs | NDCG@10 RecBole | NDCG@10 here | R@10 RecBole | R@10 here | "
        "s/epoch RecBole | here | ratio | evaluation RecBole | here |",
        "| --- " * 12 + "|",
    ]
    for file in sorted(STORED / f"{name}.json" for name in RUNS):
        if not file.is_file():
            continue
        found = json.loads(file.read_text())
        ours, theirs = found["shoal"], found["recbole"]
        most = str(found["settings"]["epochs"])
        cells = [f"`{found['model']}`", str(len(ours)), most]
        for metric in ("ndcg@10", "recall@10"):
            cells += [spread([one["test"][metric] for one in side]) for side in (theirs, ours)]
        for what in ("epoch", "eval"):
            pair = [[one[what] for one in side] for side in (theirs, ours)]
            shown = [statistics.median(one) if one else 0.0 for one in pair]
            cells += [f"{one:.2f}" if one > 0.005 else "–" for one in shown]
            if what == "epoch":
                cells.append(f"{shown[0] / shown[1]:.1f} ×" if min(shown) > 0.005 else "–")
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def speeds() -> list[str]:
    """The table of zoo_speed.py."""
    from zoo_speed import line

    lines = [
        "ml-100k, `python benchmarks/zoo_speed.py`: both sides in turn in two processes that stay, "
        "one thread each, the same sizes; CPU seconds of the process, on a machine that was busy "
        "with other work, for an epoch (a median, RecBole's first left out) and for an "
        "evaluation. Clicks are evaluated by AUC on a tenth of the ratings, the others by "
        "ranking all items. Where layers are wide (DCN, DeepFM, NeuMF, MultiVAE) much of an epoch "
        "goes into the same products of matrices on both sides. An epoch of RecBole's RecVAE is "
        "four passes over the users, here it is one.",
        "",
        "| model | epoch, RecBole | here | ratio | evaluation, RecBole | here | ratio |",
        "| --- " * 7 + "|",
    ]
    stored = json.loads(SPEED.read_text()) if SPEED.is_file() else {}
    good = {name: found for name, found in stored.items() if "failed" not in found["shoal"]}
    return lines + [line(name, found) for name, found in sorted(good.items())]


def recipes() -> list[str]:
    """The table of ml-1m.json."""
    stored = json.loads(ML_1M.read_text())
    lines = [f"{stored['machine']} {stored['note']}", ""]
    for protocol in stored["protocols"]:
        metrics = protocol["metrics"]
        lines += [
            f"{protocol['what']}: {', '.join(metrics)}.",
            "",
            "| recipe | source | here | epochs | s/epoch | source of the figures |",
            "| --- " * 6 + "|",
        ]
        for one in protocol["runs"]:
            both = [" / ".join(f"{v:.4f}" for v in one[side]) for side in ("source", "here")]
            ran = f"{one['epochs']} | {one['epoch_seconds']}"
            lines.append(f"| `{one['recipe']}` | {both[0]} | {both[1]} | {ran} | {one['from']} |")
        lines.append("")
    return lines[:-1]


def spread(values: list[float]) -> str:
    if not values:
        return "–"
    mean = f"{statistics.mean(values):.4f}"
    if len(values) == 1:
        return mean
    return f"{mean} ± {statistics.stdev(values) / len(values) ** 0.5:.4f}"


if __name__ == "__main__":
    main()

"""Seconds of an epoch and of an evaluation, of every model that RecBole 1.2.1 has too, on ml-100k.

    python benchmarks/zoo_speed.py --data FOLDER --recbole PYTHON [--epochs 3] [MODEL ...]

Two processes stay for the whole run, one of each side, and train the models in turn: Shoal, then
RecBole, with one YAML of settings. FOLDER holds ml-100k/ (atomic files); PYTHON is the interpreter
of an environment with RecBole. Seconds are CPU time of the process, one thread each: other work on
the machine does not count. Figures go to benchmarks/zoo/speed.json and, by
`python benchmarks/zoo.py page`, into docs/understand/zoo.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from zoo_settings import GENERAL, ROOT, RUNS, SEQUENTIAL, STORED, USERS

KEPT = STORED / "speed.json"
CLICKS: dict[str, Any] = {
    "load_col": {
        "inter": ["user_id", "item_id", "rating"],
        "user": ["user_id", "age", "gender", "occupation"],
        "item": ["item_id", "release_year", "class"],
    },
    "threshold": {"rating": 4},
    "normalize_all": True,
    "train_neg_sample_args": None,
    "train_batch_size": 2048,
    "eval_batch_size": 4096,
    "eval_args": {
        "group_by": None,
        "order": "RO",
        "split": {"RS": [0.8, 0.1, 0.1]},
        "mode": "labeled",
    },
    "metrics": ["AUC", "LogLoss"],
    "valid_metric": "AUC",
}
KNOWLEDGE: dict[str, Any] = {
    **GENERAL,
    "load_col": {
        "inter": ["user_id", "item_id"],
        "kg": ["head_id", "relation_id", "tail_id"],
        "link": ["item_id", "entity_id"],
    },
    "embedding_size": 64,
}
# What RecBole has and Shoal too. Options of a model are RecBole's defaults; those here agree, but
# for click models: see HERE.
MODELS: dict[str, dict[str, Any]] = {
    **{name: RUNS[name] for name in ("BPR", "LightGCN", "NGCF", "ENMF", "MultiVAE")},
    **{name: GENERAL for name in ("NeuMF", "SGL")},
    "SimpleX": {**GENERAL, "margin": 0.9, "train_neg_sample_args": {"sample_num": 100}},
    "RecVAE": {**GENERAL, **USERS},
    **{name: RUNS[name] for name in ("GRU4Rec", "NARM", "STAMP")},
    "FPMC": {**SEQUENTIAL, "loss_type": "BPR", "train_neg_sample_args": {"sample_num": 1}},
    **{name: SEQUENTIAL for name in ("SASRec", "BERT4Rec", "Caser", "SRGNN", "NextItNet", "CORE")},
    **{name: CLICKS for name in ("LR", "FM", "NFM", "AFM", "PNN", "FwFM", "FFM", "DeepFM")},
    **{name: CLICKS for name in ("WideDeep", "DCN", "DCNV2", "xDeepFM", "AutoInt")},
    **{name: KNOWLEDGE for name in ("CKE", "CFKG", "KGCN", "KGAT", "RippleNet", "KGIN", "MKR")},
}
# These run by RecBole's own file of the model, on both sides.
FEATURED: dict[str, Any] = {
    **SEQUENTIAL,
    "load_col": {**SEQUENTIAL["load_col"], "item": ["item_id", "class"]},
    "selected_features": ["class"],
}
SOLVED = {**GENERAL, "epochs": 1}
BY_FILE: dict[str, dict[str, Any]] = {
    **{name: SOLVED for name in ("ADMMSLIM", "AsymKNN", "NCEPLRec", "SLIMElastic", "Pop")},
    **{name: {**GENERAL, **USERS} for name in ("MultiDAE", "CDAE", "MacridVAE", "RaCT")},
    **{name: {**GENERAL, **USERS} for name in ("DiffRec", "LDiffRec")},
    **{name: GENERAL for name in ("LINE", "SpectralCF", "DGCF", "ConvNCF")},
    "NCL": {**GENERAL, "num_clusters": 100},  # 1000 of the file are more than there are users
    **{name: GENERAL for name in ("DMF", "FISM", "GCMC", "NNCF", "NAIS")},
    **{name: SEQUENTIAL for name in ("LightSANs", "FEARec", "GCSAN", "SINE", "RepeatNet")},
    **{name: SEQUENTIAL for name in ("GRU4RecCPR", "SASRecCPR", "HGN", "SHAN", "NPE", "HRM")},
    "FOSSIL": SEQUENTIAL,
    "TransRec": {**SEQUENTIAL, "train_neg_sample_args": {"sample_num": 1}},
    **{name: FEATURED for name in ("GRU4RecF", "SASRecF", "FDSA")},
    **{name: KNOWLEDGE for name in ("KTUP", "KGNNLS", "MCCLK")},
    **{name: CLICKS for name in ("FNN", "EulerNet", "FiGNN", "KD_DAGFM", "lightgbm", "xgboost")},
}
# RecBole's defaults in the words of Shoal, vectors as large at the start as there.
BEGIN: dict[str, Any] = {"dim": 10, "initial_range": 0.047}
HERE: dict[str, dict[str, Any]] = {
    # RecBole gives half of the latent dimension to means, half to variances, and next to no noise.
    "MultiVAE": {"latent_dimension": 64, "noise": 0.01},
    "FM": BEGIN,
    "FwFM": BEGIN,
    "FFM": BEGIN,
    "AFM": {**BEGIN, "attention_size": 25, "dropout": 0.3},
    "NFM": {**BEGIN, "layers": [64, 64, 64]},
    "PNN": {**BEGIN, "layers": [128, 256, 128]},
    "DeepFM": {**BEGIN, "layers": [128, 128, 128], "dropout": 0.2},
    "WideDeep": {**BEGIN, "layers": [32, 16, 8], "dropout": 0.1, "wide_slots": True},
    "DCN": {**BEGIN, "layers": [256, 256, 256], "cross_layers": 6, "dropout": 0.2},
    "DCNV2": {
        **{**BEGIN, "dim": 16, "layers": [768, 768], "cross_layers": 3},
        **{"structure": "stacked", "dropout": 0.2},
    },
    "xDeepFM": {
        **{**BEGIN, "layers": [128, 128, 128], "cross_layers": [100, 100, 100]},
        "dropout": 0.2,
    },
    "AutoInt": {**BEGIN, "attention_size": 16, "layers": [128, 128], "dropout": 0.2},
    "EulerNet": {"initial_range": BEGIN["initial_range"]},
}
# What RecBole alone is told: models here have no penalty on the weights of layers, and a layer
# of xDeepFM hands on all that it has. Where samples have labels, RecBole counts the negatives that
# it draws as samples of the batch.
THERE: dict[str, dict[str, Any]] = {
    # RecBole gives half of the latent dimension to means, half to variances, and next to no noise.
    "MultiVAE": {"latent_dimension": 64, "noise": 0.01},
    **{name: {"train_batch_size": 4096} for name in ("NeuMF", "MKR", "RippleNet")},
    **{name: {"train_batch_size": 4096} for name in ("DMF", "FISM", "GCMC", "NNCF", "NAIS")},
    "SimpleX": {"train_batch_size": 204_800},
    **{name: {"reg_weight": 0.0} for name in ("DCN", "DCNV2", "AFM")},
    "xDeepFM": {"reg_weight": 0.0, "direct": True},
}

# Passes over the samples in one of RecBole's epochs, where it is not one: the encoder's and the
# decoder's. Here a step has users of both kinds, and an epoch is one pass.
PASSES = {"RecVAE": 4}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", default=list(MODELS), help="default: all")
    parser.add_argument("--data", help="folder that holds ml-100k/")
    parser.add_argument("--recbole", help="interpreter of an environment with RecBole 1.2.1")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--serve", action="store_true", help="the side of Shoal, as started here")
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    stored = json.loads(KEPT.read_text()) if KEPT.is_file() else {}
    with tempfile.TemporaryDirectory() as folder:
        peer = str(ROOT / "benchmarks" / "recbole_peer.py")
        data = str(Path(options.data).resolve())
        ours = Side([sys.executable, __file__, "--serve"], folder)
        theirs = Side([options.recbole, peer, "--many", "--data", data], folder)
        for model in options.models:
            config = Path(folder) / f"{model}.yaml"
            both = {**MODELS[model], "epochs": options.epochs}
            asked = {"model": model, "config": str(config), "epochs": options.epochs, "data": data}
            asked["here"] = {f"model.{key}": value for key, value in HERE.get(model, {}).items()}
            config.write_text(json.dumps(both))
            found = {"shoal": ours.ask(asked)}
            config.write_text(json.dumps({**both, **THERE.get(model, {})}))
            found["recbole"] = theirs.ask(asked)
            stored[model] = found
            STORED.mkdir(exist_ok=True)
            KEPT.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")
            print(line(model, found), flush=True)


def line(model: str, found: dict[str, Any]) -> str:
    """A model's line of the table: seconds there, here and how many times quicker."""
    cells = [f"`{model}`"]
    for what in ("epoch", "eval"):
        there, here = (found[side].get(what) for side in ("recbole", "shoal"))
        cells += [f"{value:.2f}" if value is not None else "–" for value in (there, here)]
        cells.append(f"{there / here:.1f} ×" if there and here else "–")
    why = [f"{side}: {found[side]['failed'][:90]}" for side in found if "failed" in found[side]]
    return f"| {' | '.join(cells)} |" + (f" {'; '.join(why)}" if why else "")


class Side:
    """A process that trains what it is told to, a line of JSON each way."""

    def __init__(self, command: list[str], folder: str):
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "SHOAL_BENCHMARK_CLOCK": "cpu"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )

    def ask(self, what: dict[str, Any]) -> dict[str, Any]:
        """What came of it: seconds, or why it failed."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        answer = last_json(self.process.stdout)
        if answer is None:
            self.errors.seek(0)
            sys.exit(f"{what['model']}: the process ended\n{self.errors.read()[-3000:]}")
        if "failed" in answer:
            return answer
        seconds = answer["seconds"]
        test = {name: round(value, 4) for name, value in answer["test"].items()}
        return {
            "epoch": seconds["train_epoch_median"],
            "eval": seconds["eval_median"],
            "test": test,
        }


def last_json(output: IO[str]) -> dict[str, Any] | None:
    """The next line that is an answer; a library may print others between."""
    for said in output:
        if said.startswith('{"'):
            return json.loads(said)
    return None


def serve() -> None:
    """Train here whatever the input names."""
    import shoal

    for said in sys.stdin:
        asked = json.loads(said)
        with tempfile.TemporaryDirectory() as folder:
            try:
                result = shoal.run(
                    model=asked["model"],
                    dataset="ml-100k",
                    config_file_list=[asked["config"]],
                    config_dict={
                        **asked["here"],
                        "data_path": asked["data"],
                        "run.output": f"{folder}/run",
                        "run.progress": False,
                        "run.trackers": [],
                    },
                )
            except Exception as error:  # one model that fails is a line of the table, no more
                result = {"failed": f"{type(error).__name__}: {error}"}
        kept = {key: result[key] for key in ("failed", "seconds", "test") if key in result}
        print(json.dumps(kept), flush=True)


if __name__ == "__main__":
    if os.environ.get("SHOAL_BENCHMARK_CLOCK") == "cpu":
        time.perf_counter = time.process_time
    main()

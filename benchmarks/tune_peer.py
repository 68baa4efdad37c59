"""RecBole's own HyperTuning for so many seconds; prints one JSON line. Started by `tune.py`.

It runs in RecBole's environment (with hyperopt), and imports nothing of Shoal.
"""

import argparse
import json
import sys
import time
import types
from contextlib import suppress

import recbole_peer  # noqa: F401  # it puts back names of numpy and torch


class TimeIsOver(Exception):
    pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="folder that holds ml-100k/")
    parser.add_argument("--config", required=True, help="RecBole's settings, a YAML file")
    parser.add_argument("--space", required=True, help="RecBole's hyper-parameter file")
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    sys.argv = sys.argv[:1]  # RecBole reads it too
    begun = time.perf_counter()
    from recbole.quick_start import quick_start
    from recbole.trainer import HyperTuning

    quick_start.tune = types.SimpleNamespace(report=lambda **_: None)  # Ray's, which has no session
    fixed = {"model": "BPR", "dataset": "ml-100k", "data_path": options.data, "use_gpu": False}
    fixed |= {"gpu_id": "", "show_progress": False}
    done = []

    def objective(params, files):
        found = quick_start.objective_function({**fixed, **params}, files)
        if time.perf_counter() - begun > options.seconds:
            raise TimeIsOver  # this one ended too late to count
        done.append((params, found))
        print(f"trial {len(done)}: {found['best_valid_score']:.4f}", file=sys.stderr, flush=True)
        return found

    tuning = HyperTuning(
        objective,
        params_file=options.space,
        fixed_config_file_list=[options.config],
        algo="bayes",
        max_evals=100_000,
        early_stop=100_000,
    )
    tuning.plot_hyper = lambda: None
    with suppress(TimeIsOver):
        tuning.run()
    params, best = max(done, key=lambda one: one[1]["best_valid_score"])
    report = {"trials": len(done), "valid": float(best["best_valid_score"])}
    report["test"] = float(best["test_result"]["ndcg@10"])
    report["params"] = {key: float(value) for key, value in params.items()}
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()

"""How wrong the planner is: beside published machines, a published breakdown, and runs of ours.

    python benchmarks/plan.py                              # MLPerf, HSTU, steps of ours
    python benchmarks/plan.py --measure-here runs.jsonl    # train small configs here, a line each
    python benchmarks/plan.py --runs runs.jsonl            # predicted beside those

Constants of a kind of machine (what is reached of peaks and bandwidths) begin with what is known of
each and may move by what is plausible; leaving one row out and fitting the others tells the error
on a machine that nobody fitted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from published_models import dlrm_dcnv2, hstu

from shoal.planning.cluster import Cluster, Efficiency, Estimate
from shoal.planning.prediction import RunLayout
from shoal.planning.presets import CLUSTERS
from shoal.planning.step_time import predict, step_of
from shoal.planning.step_work import Work

# Median step times of DLRM-DCNv2 in MLPerf Training, from the logs that submitters published.
# round, submitter, cluster, GPUs, hosts, global batch, ms a step
MLPERF = [
    ("v3.1", "Dell, 4 x H100-SXM", "DGX-H100", 4, 1, 28_000, 3.70),
    ("v3.0", "Dell, 8 x A100-SXM", "DGX-A100", 8, 1, 55_296, 7.15),
    ("v4.0", "NVIDIA, 8 x H100-SXM", "DGX-H100", 8, 1, 55_296, 3.53),
    ("v4.0", "NVIDIA, 8 x H200-SXM", "DGX-H200", 8, 1, 55_296, 3.25),
    ("v3.1", "ASUSTeK, 8 x H100-PCIe", "8xH100-PCIe", 8, 1, 55_296, 10.35),
    ("v3.1", "xFusion, 8 x L40S", "8xL40S", 8, 1, 55_296, 20.29),
    ("v4.1", "NVIDIA, 64 x H100-SXM", "DGX-H100", 64, 8, 135_168, 2.35),
    ("v5.0", "NVIDIA, 8 x B200-SXM", "DGX-B200", 8, 1, 55_296, 2.15),
]
# What may be said of constants without these rows: value, and by which share it may be wrong.
GPU_PRIOR = {
    "gemm": (0.70, 0.10),  # 0.74 on an H200 of ours at this model, 0.76 in NVIDIA's HSTU
    "gather": (0.60, 0.20),  # 0.55 to 0.82 of a copy on an H200
    "kernel": (5e-6, 0.60),  # 3 to 8 us, as profiles of small kernels show
    "pcie": (0.60, 0.60),  # NCCL reaches 0.3 to 0.8, by how devices are bridged
    "infiniband": (0.80, 0.20),  # what NCCL reaches in large messages
}
CORE_PRIOR = {
    "gemm": (0.60, 0.50),
    "attention": (0.40, 0.50),
    "stream": (0.60, 0.50),
    "gather": (0.55, 0.50),
    "row": (40e-9, 0.50),
    "launch": (6e-6, 0.50),
    "memory": (0.70, 0.70),
    "meet": (150e-6, 0.70),
}
OWN_GPU_PRIOR = {
    "gemm": (0.70, 0.20),
    "attention": (0.37, 0.50),
    "stream": (0.80, 0.50),
    "gather": (0.65, 0.20),
    "row": (0.06e-9, 0.50),
    "kernel": (3.7e-6, 0.50),
    "launch": (8e-6, 0.50),
}
MODEL_ERROR = 0.08  # a row may be off by about this for reasons that no constant has
# NVIDIA's recsys-examples, HSTU on 16 H100: ms of a step.
HSTU = {"attention": 79.9, "products": 43.9, "elementwise": 39.5} | {
    "embedding": 10.6, "idle": 6.2, "NCCL": 3.8
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A step that was measured."""

    name: str
    work: Work
    cluster: Cluster
    layout: RunLayout
    ms: float

    def predicted(self, constants: Mapping[str, float]) -> float:
        """Milliseconds with these constants."""
        cluster = replace(self.cluster, efficiency=_with(self.cluster.efficiency, constants))
        return 1e3 * sum(step_of(self.work, cluster, self.layout).seconds.values())


def _with(rates: Efficiency, constants: Mapping[str, float]) -> Efficiency:
    made: dict[str, Estimate] = {
        name: replace(getattr(rates, name), value=value) for name, value in constants.items()
    }
    return replace(rates, **made)


def fit(rows: Sequence[Row], prior: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Constants that make errors small without leaving what was known of them (Gauss-Newton)."""
    names = list(prior)

    def constants(x: np.ndarray) -> dict[str, float]:
        return {name: prior[name][0] * float(np.exp(v)) for name, v in zip(names, x)}

    def misfit(x: np.ndarray) -> np.ndarray:
        found = constants(x)
        errors = [np.log(row.predicted(found) / row.ms) / MODEL_ERROR for row in rows]
        return np.array([*errors, *(v / prior[name][1] for name, v in zip(names, x))])

    x, damp = np.zeros(len(names)), 1e-3
    now = misfit(x)
    for _ in range(30):
        moved = [(misfit(x + 1e-4 * e) - now) / 1e-4 for e in np.eye(len(names))]
        slope = np.stack(moved, axis=1)
        step = np.linalg.solve(slope.T @ slope + damp * np.eye(len(names)), -slope.T @ now)
        after = misfit(x + step)
        if after @ after < now @ now:
            x, now, damp = x + step, after, damp / 3
        else:
            damp *= 10
    return constants(x)


def judged(rows: Sequence[Row], prior: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """A table of errors: as known before, fitted, each row left out of its fit; what was fitted."""
    before, fitted = {name: value for name, (value, _) in prior.items()}, fit(rows, prior)
    print("| row | measured, ms | before any fit | fitted | left out |")
    print("| --- | --- | --- | --- | --- |")
    errors: dict[str, list[float]] = {"before": [], "fitted": [], "left out": []}
    for row in rows:
        others = [one for one in rows if one is not row]
        cells = []
        for key, found in (
            ("before", before),
            ("fitted", fitted),
            ("left out", fit(others, prior)),
        ):
            ms = row.predicted(found)
            errors[key].append(abs(ms / row.ms - 1))
            cells.append(f"{ms:.3g} ({ms / row.ms - 1:+.1%})")
        print(f"| {row.name} | {row.ms:.4g} | {' | '.join(cells)} |")
    for key, some in errors.items():
        print(f"{key}: median error {statistics.median(some):.1%}, worst {max(some):.1%}")
    shown = ", ".join(f"{name} {value:.3g}" for name, value in fitted.items())
    print(f"fitted: {shown}\n")
    return fitted


# ---- what others published ----------------------------------------------------------------------


def published() -> None:
    """MLPerf's rows."""
    print("## MLPerf, DLRM-DCNv2\n")
    rows = []
    for number, who, cluster, gpus, hosts, batch, ms in MLPERF:
        there = CLUSTERS[cluster].of_size(hosts)
        layout = RunLayout("sharded", gpus, hosts)
        rows.append(Row(f"{number} {who}", dlrm_dcnv2(batch), there, layout, ms))
    judged(rows, GPU_PRIOR)
    as_shipped = [row.predicted({}) / row.ms - 1 for row in rows]
    shown = ", ".join(f"{error:+.1%}" for error in as_shipped)
    print(f"with the constants of `shoal plan`: {shown}\n")


def breakdown() -> None:
    """NVIDIA's HSTU, part by part."""
    print("## HSTU on 16 H100, NVIDIA's recsys-examples\n")
    made = predict(hstu(16 * 32), CLUSTERS["DGX-H100"].of_size(2), RunLayout("sharded", 16, 2))
    parts, kinds = made.parts, made.dense_by_kind
    dense = sum(parts[name] for name in ("dense_forward", "dense_backward"))
    found = {
        **kinds,
        "embedding": parts["rows_read"] + parts["rows_updated"],
        "idle": parts["idle"] + dense - sum(kinds.values()) + parts["optimizer"],
        "NCCL": sum(parts[p] for p in ("exchange_inside", "exchange_between", "all_reduce")),
    }
    print("| part | published, ms | predicted, ms |\n| --- | --- | --- |")
    for name, ms in HSTU.items():
        print(f"| {name} | {ms} | {found[name]:.1f} |")
    print(f"| all | 187 | {made.step.value:.1f} ({made.step.value / 187 - 1:+.1%}) |\n")


# ---- runs of ours -------------------------------------------------------------------------------


def known() -> None:
    """Steps that RESULTS.md has."""
    from plan_known import on_cores, on_gpu

    print("## Steps of ours, one H200\n")
    judged(on_gpu(), OWN_GPU_PRIOR)
    print("## Steps of ours, two ARM cores\n")
    judged(on_cores(), {name: CORE_PRIOR[name] for name in ("gather", "row")})


def runs(path: Path, clusters: Callable[[str], Cluster]) -> None:
    """Every run of a file, by machine; and whether the fastest strategy was known."""
    from plan_runs import rows_of

    for machine, found in rows_of(path, clusters).items():
        print(f"## {machine}: {len(found)} runs\n")
        rows = [row for row, _ in found]
        prior = OWN_GPU_PRIOR if rows[0].cluster.host.on_gpu else CORE_PRIOR
        rates = rows[0].cluster.efficiency  # of a preset, or as `shoal plan --measure` found them
        judged(
            rows, {name: (getattr(rates, name).value, share) for name, (_, share) in prior.items()}
        )
        right = groups = 0
        for model in dict.fromkeys(group for _, group in found):
            some = [row for row, group in found if group == model]
            if len(some) < 2:
                continue
            groups += 1
            best = min(some, key=lambda row: row.predicted({}))
            near = best.ms <= 1.05 * min(row.ms for row in some)
            right += near
            print(f"{model}: {'right' if near else 'WRONG'}, {best.name} was to be the fastest")
        print(
            f"the fastest of each model's runs, before any fit, within 5 %: {right} of {groups}\n"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure-here", type=Path, metavar="FILE", help="train, a line each")
    parser.add_argument("--minutes", type=float, default=60.0, help="then it stops; go on later")
    parser.add_argument("--rounds", type=int, default=1, help="each so often; the median counts")
    parser.add_argument("--runs", type=Path, metavar="FILE", help="predict the runs of a file")
    parser.add_argument("--clusters", type=Path, help="folder of MACHINE.yaml, instead of presets")
    args = parser.parse_args()
    if args.measure_here is not None:
        from plan_runs import measure_here

        measure_here(args.measure_here, args.minutes, args.rounds)
    elif args.runs is not None:
        from plan_runs import cluster_named

        runs(args.runs, lambda name: cluster_named(name, args.clusters))
    else:
        published()
        breakdown()
        known()


if __name__ == "__main__":
    main()

"""The page docs/understand/zoo.md and its picture: the zoo beside RecBole and published figures.

    python benchmarks/zoo.py page

It is written from the models' headings and from benchmarks/zoo/*.json: quality.json and
speed.json by zoo_recbole.py, published.json by hand. The settings of both
sides are in zoo_settings.py.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable
from typing import Any

from zoo_picture import draw_zoo
from zoo_settings import BY_FILE, PASSES, QUALITY, ROOT, SOLVED, SPEED, STORED

PAGE = ROOT / "docs" / "understand" / "zoo.md"

# Figures of others and what the recipes reach: written by hand from the runs that it names.
PUBLISHED = STORED / "published.json"
TIMED = ("epoch", "eval")
T_95 = {3: 4.303, 4: 3.182, 5: 2.776}  # Student's t: half of a 95 % interval, by number of runs
SHOWN = {"recall@10": "R@10", "ndcg@10": "NDCG@10", "auc": "AUC", "logloss": "log loss"}
# What is known to differ, of models whose sides may be further apart than chance.
NORMED = "RecBole's layers have batch normalisation"
REASONS: dict[str, str] = {
    "LR": "weights begin at 0 here, at random there",
    "FM": "weights of the first order begin at 0 here, at random there",
    "FwFM": "weights of pairs begin at 1 and learn; RecBole's are random and never learn",
    "NFM": f"{NORMED}, and a sigmoid for a relu",
    "AFM": "RecBole's last weights begin as wide as 1",
    "DCN": f"{NORMED}, and its crossing weights begin as wide as 1",
    "DCNV2": f"{NORMED}, and its crossing weights begin as wide as 1",
    "WideDeep": "weights of the first order begin at 0 here, at random there",
    "DeepFM": "weights of the first order begin at 0 here, at random there",
    "RecVAE": "users of the encoder and of the decoder share a step here, and take turns there",
    "NGCF": "each layer of RecBole reads the normalised vectors of the one before it; here, as in "
    "the paper's code, plain ones",
    "SGL": "views of the graph are drawn anew for every step here, for every epoch there",
    "Pop": "RecBole counts an item that a batch has several times once",
    "SLIMElastic": "at most 30 sweeps over the items here, 100 there, in another order",
    "DiffRec": "none is known: losses of the first 24 epochs agree within 2 %",
    "TransRec": "the squared distance of the paper here, its root there",
    "SASRec": "a step has every place of some windows here, prefixes of any users there",
    "KGIN": "edges are walked both ways, and none is dropped; there one way, and half of them",
    "KGCN": "neighbours are drawn with replacement here, and there is no penalty",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("page", help="write docs/understand/zoo.md and its picture")
    parser.parse_args()
    PAGE.write_text(page())
    stored = json.loads(QUALITY.read_text())
    draw_zoo(stored, seconds_of(stored))


# ---- the page -----------------------------------------------------------------------------------


def page() -> str:
    """docs/understand/zoo.md."""
    sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

    lines = [
        "# The zoo",
        "",
        "For those who ask what each model was compared with. Written by "
        "`python benchmarks/zoo.py page` from "
        "`benchmarks/zoo/*.json`.",
        "",
        "Every model is one file, reads rows through `Embeddings` alone, and runs unchanged under "
        "`single`, `ddp`, `sharded` and `ps`. `tests/contract/test_zoo.py` holds, for each: a "
        "batch may be cut anywhere (dropout included) and the losses of its parts add up; two "
        "processes under `ddp`, `sharded` and `ps` (sync) have the losses of one; scores "
        "of a block of items are those among all. `tests/contract/test_learning.py` holds "
        "that each learns.",
        "",
        "[Models](../reference/models.md) lists them all, with their papers.",
    ]
    stored = json.loads(QUALITY.read_text())
    picture = "![Models beside RecBole: quality and seconds](../pictures/zoo.svg)"
    lines += ["", "## Beside RecBole 1.2.1", "", picture, "", *beside_recbole(stored)]
    lines += ["", "## Seconds beside RecBole 1.2.1", "", *speeds(stored)]
    lines += ["", "## Recipes beside published figures", "", *recipes()]
    return "\n".join([*lines, ""])


def beside_recbole(stored: dict[str, Any]) -> list[str]:
    """The tables of `zoo_recbole.py quality`: means over seeds, and how far the sides are apart."""
    lines = [
        "ml-100k, `python benchmarks/zoo_recbole.py quality`: the same settings and epochs on both "
        "sides, the same split by the same seed, one negative; the epoch that validates best is"
        " tested. Means over seeds ± one standard error, and the difference of the two runs of "
        "a seed (here less RecBole), likewise. Few epochs: figures are of models still "
        "learning, where how weights begin counts most. Where the difference is more than two "
        "standard errors of it, what is known to differ stands behind. "
        f"{beside(stored)}",
    ]
    for kind, metrics in (("Ranking", ("recall@10", "ndcg@10")), ("Clicks", ("auc", "logloss"))):
        heads = [f"{name} RecBole | here | difference" for name in (SHOWN[m] for m in metrics)]
        lines += [
            "",
            f"| {kind} | seeds | epochs | {' | '.join(heads)} | what differs |",
            "| --- " * 10 + "|",
        ]
        for name, runs in stored.items():
            if metrics[0] not in runs[0]["shoal"]["test"]:
                continue
            cells, far = [f"`{name}`", str(len(runs)), str(runs[0]["epochs"])], False
            for metric in metrics:
                ours, theirs = ([r[s]["test"][metric] for r in runs] for s in ("shoal", "recbole"))
                apart = [here - there for here, there in zip(ours, theirs, strict=True)]
                cells += [spread(theirs), spread(ours), spread(apart, "+")]
                far |= abs(statistics.mean(apart)) > 2 * error(apart) + 5e-5
            cells.append(REASONS.get(name, "") if far else "")
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def beside(stored: dict[str, Any]) -> str:
    """How many models are no worse than RecBole's, as far as their seeds can tell."""
    worse = [
        f"`{name}`"
        for name, runs in stored.items()
        if any(metric in runs[0]["shoal"]["test"] and is_worse(runs, metric) for metric in SHOWN)
    ]
    return (
        f"Of {len(stored)} models {len(stored) - len(worse)} are better than RecBole's or within "
        "the 95 % interval of the difference (4.3 standard errors with three seeds); "
        f"below it: {', '.join(worse) or 'none'}."
    )


def is_worse(runs: list[dict[str, Any]], metric: str) -> bool:
    """Whether these runs are below RecBole's of the same seeds by more than chance explains."""
    sign = -1 if metric == "logloss" else 1
    apart = [sign * (run["shoal"]["test"][metric] - run["recbole"]["test"][metric]) for run in runs]
    return statistics.mean(apart) < -T_95[len(runs)] * error(apart) - 5e-5


def speeds(stored: dict[str, Any]) -> list[str]:
    """The table of seconds."""
    lines = [
        "ml-100k, both sides in turn, one thread each, the same sizes; CPU seconds of the "
        "process for an epoch (a median, RecBole's first left out) and for an evaluation. "
        "Clicks are evaluated by AUC on a tenth of the ratings, the others by ranking all "
        "items. Where layers are wide (DCN, DeepFM, NeuMF, MultiVAE) most of an epoch goes "
        "into the same products of matrices on both sides, by the same library. An epoch of "
        "RecBole's RecVAE is four passes over the users; the seconds here are of four. Models"
        " in closed form are made at the start, and have no epoch. Of CFKG the sides ran one "
        "after the other, on two machines of one kind. Other work ran on the machine of the "
        "rest, and a ratio differs between runs and machines: FM's was 3.2, 3.5, 4.5, 4.8 and"
        " 4.2, LR's 3.6, 3.7, 4.0, 5.0, 6.2 and 5.9, LightGCN's 3.4 on ARM. The table has the"
        " last run: on ARM (aarch64, 4 epochs) of LR, FM, FwFM, FFM, NFM, AFM, PNN, DeepFM, "
        "WideDeep, DCN, AutoInt, BPR, NeuMF, NGCF, LightGCN and MultiVAE, on x86 of the "
        "others.",
        "",
        "| model | epoch, RecBole | here | ratio | evaluation, RecBole | here | ratio |",
        "| --- " * 7 + "|",
    ]
    found = seconds_of(stored)
    means = [
        f"{geometric_mean(found.values(), what):.2f} × {of}"
        for what, of in (("epoch", "an epoch"), ("eval", "an evaluation"))
    ]
    lines[0] += f" The geometric means of the ratios: {' and '.join(means)}."
    return lines + [line(name, one) for name, one in sorted(found.items())]


def line(model: str, found: dict[str, Any]) -> str:
    """A model's line of the table: seconds there, here and how many times quicker."""
    cells = [f"`{model}`"]
    for what in TIMED:
        there, here = (found[side].get(what) for side in ("recbole", "shoal"))
        cells += [f"{value:.2f}" if value is not None else "–" for value in (there, here)]
        cells.append(f"{there / here:.1f} ×" if there and here else "–")
    return f"| {' | '.join(cells)} |"


def seconds_of(stored: dict[str, Any]) -> dict[str, Any]:
    """Models -> CPU seconds of both sides: those of speed.json, else of the runs for quality."""
    found = json.loads(SPEED.read_text()) if SPEED.is_file() else {}
    for name, runs in stored.items():
        if name in found or any(run["recbole"].get("epoch") is None for run in runs):
            continue  # measured apart; or RecBole was not on a CPU
        found[name] = {
            side: {what: statistics.median(run[side][what] for run in runs) for what in TIMED}
            for side in ("recbole", "shoal")
        }
        is_solved = BY_FILE.get(name) is SOLVED or found[name]["shoal"]["epoch"] < 0.001
        if is_solved:  # in closed form: RecBole does it outside of its epochs
            for side in found[name].values():
                side["epoch"] = None
    for name, passes in PASSES.items():
        found[name]["shoal"]["epoch"] *= passes
    return found


def geometric_mean(models: Iterable[dict[str, Any]], what: str) -> float:
    """Of RecBole's seconds ÷ ours, over the models that have both."""
    pairs = [(sides["recbole"].get(what), sides["shoal"].get(what)) for sides in models]
    return statistics.geometric_mean(there / here for there, here in pairs if there and here)


def recipes() -> list[str]:
    """The tables of published.json."""
    stored = json.loads(PUBLISHED.read_text())
    lines = [f"{stored['machine']} {stored['note']}", ""]
    for protocol in stored["protocols"]:
        metrics = protocol["metrics"]
        lines += [
            f"{protocol['what']}: {', '.join(metrics)}.",
            "",
            "| recipe | source | seeds | here | epochs | s/epoch | source of the figures |",
            "| --- " * 7 + "|",
        ]
        for one in protocol["runs"]:
            source = " / ".join(f"{value:.4f}" for value in one["source"])
            here = " / ".join(spread(list(values)) for values in zip(*one["here"], strict=True))
            cells = [
                source,
                len(one["here"]),
                here,
                one["epochs"],
                one["epoch_seconds"],
                one["from"],
            ]
            lines.append(f"| `{one['recipe']}` | {' | '.join(map(str, cells))} |")
        lines.append("")
    return lines[:-1]


def spread(values: list[float], sign: str = "") -> str:
    """Mean ± standard error."""
    mean = f"{statistics.mean(values):{sign}.4f}"
    return mean if len(values) == 1 else f"{mean} ± {error(values):.4f}"


def error(values: list[float]) -> float:
    """The standard error of a mean."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


if __name__ == "__main__":
    main()

"""`shoal pipeline serve`: 500,000 items, SASRec's best 1,000 -> DCN-V2 -> rules -> 20.

    python benchmarks/pipeline_serve.py [--prepared FOLDER] [--rates 32 64 128] [--seconds 20]

Data are generated: the models learn nothing much, but tables, histories and features are as many
as a shop's of this size. Clients send requests at random moments (Poisson), whether or not those
before are answered; times count from the moment at which a request was due. Printed are, for each
rate, the answers in a second, their p50 and p99, and the CPU time of the service for each, which
other load on the machine hardly changes. --cpu 300 asks so many requests one after the other and
prints that CPU time alone. With --prepared the trained folder is kept and used again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from shoal.serving.load.clients import ClientLoad
from shoal.serving.load.measurement import MeasuredService

ITEMS, USERS, TAKEN = 500_000, 25_000, 24
QUESTIONS = 2_000  # different ones, of a rate
PIPELINE = """\
items: items.parquet
retrieve:
  - {artifact: sasrec, number: 1000}
rank: {artifact: dcnv2}
rules:
  - seen
  - allowed: {attribute: in_stock, values: ["yes"]}
  - freshness: {attribute: since, half_life: 30, weight: 0.01}
  - at_most: {number: 3, attribute: category}
fallback: {artifact: sasrec, by: popularity, number: 100}
"""


def main() -> None:
    """Prepare, measure, print."""
    options = command_line()
    if options.load:
        return print(json.dumps(asyncio.run(load(options))))
    with tempfile.TemporaryDirectory(prefix="pipeline-serve-") as scratch:
        root = Path(options.prepared or scratch)
        if not (root / "pipeline.yaml").exists():
            prepare(root, options)
        print(f"$ python {' '.join(sys.argv)}")
        print(f"{platform.machine()}, {os.cpu_count()} cores, clients included")
        words = ["pipeline", "serve", str(root / "pipeline.yaml"), f"--threads={options.threads}"]
        words += [f"--deadline={options.deadline}"] if options.deadline else []
        with MeasuredService(words) as service:
            if options.cpu:
                measure(service, options, rate=0.0, requests=options.cpu // 10 + 1)
                cost = measure(service, options, rate=0.0, requests=options.cpu)
                print(f"{cost['cpu']:.1f} CPU ms a request, {cost['p50']:.1f} ms by the clock")
                return
            print("| requests/s due | answered | refused | p50, ms | p99, ms | CPU ms |")
            print("| --- " * 6 + "|")
            measure(service, options, rate=20.0, requests=60)  # to warm up
            for rate in options.rates:
                count = int(rate * options.seconds)
                cost = measure(service, options, rate=rate, requests=count)
                print(
                    f"| {rate:.0f} | {cost['rate']:.0f} | {cost['refused']:.0f} | "
                    f"{cost['p50']:.1f} | {cost['p99']:.1f} | {cost['cpu']:.1f} |",
                    flush=True,
                )


# ---- a shop --------------------------------------------------------------------------------------


def prepare(root: Path, options: argparse.Namespace) -> None:
    """Train both models on generated data, export them, and write the pipeline."""
    import shoal

    interactions, clicks, table = generate(root, options.items)
    quiet: dict[str, Any] = {
        "train.epochs": 1,
        "train.eval_every": 0,
        "run.progress": False,
        "run.trackers": [],
    }
    sequences = {
        "data.max_len": TAKEN,
        "train.batch_size": 256,
        "model.loss_type": "BPR",
        "train.negatives.num": 1,
        "run.output": str(root / "sasrec-run"),
    }
    shoal.fit("SASRec", interactions, user="user", item="item", time="time", **quiet, **sequences)
    ranking = {
        "model.dim": 16,
        "model.layers": [256, 128],
        "run.output": str(root / "dcnv2-run"),
    }
    shoal.fit(
        "DCNV2", clicks, user="user", item="item", label="click", items=table, **quiet, **ranking
    )
    for name in ("sasrec", "dcnv2"):
        shoal.export(root / f"{name}-run", root / name)
    (root / "pipeline.yaml").write_text(PIPELINE)


def generate(root: Path, count: int) -> tuple[Any, Any, Any]:
    """Interactions, clicks and a table of so many items; items.parquet has what rules read, too."""
    import numpy as np
    import polars as pl

    draw, taken = np.random.default_rng(7), USERS * TAKEN
    items = draw.permutation(np.resize(np.arange(count), max(taken, count)))[:taken]
    times = 1_700_000_000 + np.tile(np.arange(TAKEN) * 3600, USERS)
    users = np.repeat(np.arange(USERS), TAKEN)
    interactions = pl.DataFrame({"user": users, "item": items, "time": times})
    table = pl.DataFrame(
        {
            "item": np.arange(count),
            "category": draw.integers(0, 300, count),
            "brand": draw.integers(0, 5000, count),
            "price": draw.gamma(2.0, 20.0, count).round(2),
        }
    )
    shown = table.with_columns(
        since=pl.Series(1_690_000_000 + draw.integers(0, 10_000_000, count)),
        in_stock=pl.Series(np.where(draw.random(count) < 0.9, "yes", "no")),
    )
    root.mkdir(parents=True, exist_ok=True)
    shown.write_parquet(root / "items.parquet")
    clicks = pl.DataFrame(
        {
            "user": draw.integers(0, USERS, count),
            "item": draw.permutation(count),
            "device": draw.choice(["phone", "desk", "tablet"], count),
            "click": draw.integers(0, 2, count).astype(np.float64),
        }
    )
    return interactions, clicks, table


# ---- measuring -----------------------------------------------------------------------------------


def measure(
    service: MeasuredService, options: argparse.Namespace, rate: float, requests: int
) -> dict[str, float]:
    """Requests at a rate (0: one after the other), by clients in a process of their own."""
    used = service.cpu_seconds() or 0.0
    words = [__file__, "--load", service.address, f"--rate={rate}", f"--requests={requests}"]
    words += [f"--items={options.items}"]
    done = subprocess.run([sys.executable, *words], stdout=subprocess.PIPE, text=True, check=True)
    used = (service.cpu_seconds() or 0.0) - used
    return {**json.loads(done.stdout), "cpu": 1e3 * used / requests}


async def load(options: argparse.Namespace) -> dict[str, float]:
    """Send requests, as `shoal pipeline serve --bench` does: rate, times, how many were refused."""
    draw = random.Random(int(options.rate))
    questions = []
    for _ in range(min(options.requests, QUESTIONS)):
        history = [str(draw.randrange(options.items)) for _ in range(draw.randint(3, TAKEN))]
        question = {"history": history, "number": 20, "context": {"device": "phone"}}
        questions.append({"user": str(draw.randrange(USERS)), **question})
    clients = ClientLoad(options.load, "/v1/recommend", questions)
    if options.rate:
        result = await clients.at_rate(options.rate, options.requests, seed=int(options.rate))
    else:
        result = await clients.by_clients(1, requests=options.requests)
    answer = json.loads(clients.last)
    assert len(answer["items"]) == 20 and not answer["fallbacks"], answer
    return {
        "rate": result.rate,
        "refused": result.refusals,
        "p50": result.p50,
        "p99": result.p99,
    }


def command_line() -> argparse.Namespace:
    """What is typed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--items", type=int, default=ITEMS)
    parser.add_argument("--rates", type=float, nargs="+", default=[16, 32, 64, 96, 128, 192])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--deadline", type=float, help="milliseconds, as the service takes it")
    parser.add_argument("--prepared", help="a folder to keep what was trained in")
    parser.add_argument("--cpu", type=int, help="requests, one after the other: CPU time alone")
    parser.add_argument("--requests", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rate", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--load", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()

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
import time
import urllib.request
from pathlib import Path
from typing import Any

ITEMS, USERS, TAKEN = 500_000, 25_000, 24
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
        process, url = start(root, Path(scratch), options)
        try:
            if options.cpu:
                measure(url, process.pid, options, rate=0.0, requests=options.cpu // 10 + 1)
                cost = measure(url, process.pid, options, rate=0.0, requests=options.cpu)
                print(f"{cost['cpu']:.1f} CPU ms a request, {cost['p50']:.1f} ms by the clock")
                return
            print("| requests/s due | answered | refused | p50, ms | p99, ms | CPU ms |")
            print("| --- " * 6 + "|")
            measure(url, process.pid, options, rate=20.0, requests=60)  # to warm up
            for rate in options.rates:
                count = int(rate * options.seconds)
                cost = measure(url, process.pid, options, rate=rate, requests=count)
                print(
                    f"| {rate:.0f} | {cost['rate']:.0f} | {cost['refused']:.0f} | "
                    f"{cost['p50']:.1f} | {cost['p99']:.1f} | {cost['cpu']:.1f} |",
                    flush=True,
                )
        finally:
            process.terminate()
            process.wait()


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


def start(
    root: Path, scratch: Path, options: argparse.Namespace
) -> tuple[subprocess.Popen[bytes], str]:
    """A service that listens, and where."""
    announced = scratch / "url"
    words = ["-m", "shoal", "pipeline", "serve", str(root / "pipeline.yaml"), "--port=0"]
    words += [f"--announce={announced}", f"--threads={options.threads}", "--drain=0"]
    words += [f"--deadline={options.deadline}"] if options.deadline else []
    process = subprocess.Popen([sys.executable, *words], stdout=sys.stderr)
    while not (announced.exists() and announced.read_text()):
        if process.poll() is not None:
            sys.exit(f"the service ended with {process.returncode}")
        time.sleep(0.1)
    url = announced.read_text()
    urllib.request.urlopen(f"{url}/health").read()
    return process, url


def measure(
    url: str, pid: int, options: argparse.Namespace, rate: float, requests: int
) -> dict[str, float]:
    """Requests at a rate (0: one after the other), by clients in a process of their own."""
    used = cpu_seconds(pid)
    words = [__file__, "--load", url, f"--rate={rate}", f"--requests={requests}"]
    words += [f"--items={options.items}"]
    done = subprocess.run([sys.executable, *words], stdout=subprocess.PIPE, text=True, check=True)
    return {**json.loads(done.stdout), "cpu": 1e3 * (cpu_seconds(pid) - used) / requests}


def cpu_seconds(pid: int) -> float:
    """What a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def load(options: argparse.Namespace) -> dict[str, float]:
    """Send requests; their rate, times and how many were refused."""
    host, port = options.load.removeprefix("http://").split(":")
    draw = random.Random(int(options.rate))
    times: list[float] = []
    refused = 0
    free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    def body() -> bytes:
        history = [str(draw.randrange(options.items)) for _ in range(draw.randint(3, TAKEN))]
        question = {"history": history, "number": 20, "context": {"device": "phone"}}
        data = json.dumps({"user": str(draw.randrange(USERS)), **question}).encode()
        head = f"POST /v1/recommend HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data

    async def ask(due: float) -> None:
        nonlocal refused
        reader, writer = free.pop() if free else await asyncio.open_connection(host, int(port))
        writer.write(body())
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        answer = json.loads(await reader.readexactly(size))
        free.append((reader, writer))
        if b" 200 " not in head[:20]:
            refused += 1
            return
        assert len(answer["items"]) == 20 and not answer["fallbacks"], answer
        times.append(time.perf_counter() - due)

    begin = due = time.perf_counter()
    tasks = []
    for _ in range(options.requests):
        if not options.rate:
            await ask(time.perf_counter())
            continue
        due += draw.expovariate(options.rate)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(ask(due)))
    await asyncio.gather(*tasks)
    seconds = time.perf_counter() - begin
    times.sort()
    return {
        "rate": len(times) / seconds,
        "refused": refused,
        "p50": 1e3 * times[len(times) // 2],
        "p99": 1e3 * times[int(len(times) * 0.99)],
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

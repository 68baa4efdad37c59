"""`shoal serve` and a plain FastAPI + torch service of the same model, over loopback.

    python benchmarks/serve.py [--items 20000] [--clients 1 8 64] [--seconds 5] [--rounds 3]

A SASRec model (50 positions, width 64) is trained for an epoch on synthetic data and exported. The
peer is what one writes first: FastAPI on uvicorn (httptools, uvloop), a `def` endpoint that runs
the trained torch model on one history and takes torch.topk. Both answer POST {"history": [...],
"topk": 10} with JSON; torch has one thread for each request or batch. Clients keep their connection
and ask again as soon as they are answered. The two take turns; printed are medians over rounds,
and the CPU time of the service for each request, which other load on the machine does not change.
Needs the extra `serve` and `fastapi`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

MAX_LEN = 50


def main() -> None:
    """Measure and print the table."""
    options = command_line()
    if options.peer:
        return peer(options)
    if options.load:
        return print(json.dumps(asyncio.run(load(options))))
    with tempfile.TemporaryDirectory(prefix="serve-") as scratch:
        root = Path(scratch)
        count = prepare(root, options)
        print(f"$ python {' '.join(sys.argv)}")
        print(f"{platform.machine()}, {os.cpu_count()} cores, clients included; {count} items")
        print("| clients | FastAPI + torch, requests/s | p50, ms | p99, ms | CPU ms |", end="")
        print(" Shoal, requests/s | p50, ms | p99, ms | CPU ms | requests/s | CPU |")
        print("| --- " * 11 + "|")
        found: dict[tuple[str, int], list[dict[str, float]]] = {}
        for _ in range(options.rounds):
            for side in ("fastapi", "shoal"):
                process, url = start(side, root, options)
                try:
                    for clients in options.clients:
                        one = measure(url, root, clients, options, process.pid)
                        found.setdefault((side, clients), []).append(one)
                finally:
                    process.terminate()
                    process.wait()
        for clients in options.clients:
            cells, rates = [], []
            for side in ("fastapi", "shoal"):
                rounds = found[side, clients]
                rates.append([one["rate"] for one in rounds])
                cells += [
                    f"{statistics.median(one[key] for one in rounds):.{digits}f}"
                    for key, digits in (("rate", 0), ("p50", 1), ("p99", 1), ("cpu", 2))
                ]
            ratio = statistics.median(b / a for a, b in zip(*rates))
            costs = [[one["cpu"] for one in found[side, clients]] for side in ("fastapi", "shoal")]
            less = statistics.median(a / b for a, b in zip(*costs))
            print(f"| {clients} | {' | '.join(cells)} | {ratio:.2f} × | 1/{less:.2f} |")


def prepare(root: Path, options: argparse.Namespace) -> int:
    """Train and export; how many items somebody took, which are those of the catalogue."""
    import shoal

    shoal.run(
        model="SASRec",
        config_dict={
            "data.name": "synthetic",
            "data.synthetic.users": 4000,
            "data.synthetic.items": options.items,
            "data.synthetic.interactions": 20_000,
            "data.max_len": MAX_LEN,
            "train.epochs": 1,
            "train.eval_every": 0,
            "run.progress": False,
            "run.trackers": [],
            "run.log_level": "warning",
            "run.output": str(root / "run"),
        },
    )
    shoal.export(root / "run", root / "artifact")
    items = shoal.load(root / "artifact").items.values[1:].tolist()
    (root / "names.json").write_text(json.dumps(items))
    return len(items)


def start(side: str, root: Path, options: argparse.Namespace) -> tuple[subprocess.Popen, str]:
    """A service that listens, and where."""
    announced = root / f"{side}.url"
    announced.unlink(missing_ok=True)
    if side == "shoal":
        words = ["-m", "shoal", "serve", str(root / "artifact"), "--port=0"]
        words += [f"--announce={announced}", f"--threads={options.threads}"]
    else:
        words = [__file__, "--peer", str(root / "run"), "--announce", str(announced)]
        words += [f"--threads={options.threads}"]
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
    while not (announced.exists() and announced.read_text()):
        if process.poll() is not None:
            sys.exit(f"the service of {side} ended with {process.returncode}")
        time.sleep(0.1)
    url = announced.read_text()
    while True:
        try:
            urllib.request.urlopen(f"{url}/health").read()
            return process, url
        except OSError:
            time.sleep(0.1)


def measure(
    url: str, root: Path, clients: int, options: argparse.Namespace, pid: int
) -> dict[str, float]:
    """Requests per second and their times, by clients in a process of their own."""
    used = cpu_seconds(pid)
    words = [__file__, "--load", url, "--clients", str(clients), f"--items={options.items}"]
    words += [f"--seconds={options.seconds}", f"--names={root / 'names.json'}"]
    done = subprocess.run([sys.executable, *words], stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    return {**found, "cpu": 1e3 * (cpu_seconds(pid) - used) / found["all"]}


def cpu_seconds(pid: int) -> float:
    """What a process has used so far: other load on the machine does not count."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def load(options: argparse.Namespace) -> dict[str, float]:
    """Clients that ask again as soon as they are answered, as those of `shoal serve --bench`."""
    from shoal.serving.load.clients import ClientLoad

    draw = random.Random(0)
    known = json.loads(Path(options.names).read_text())
    questions = [
        {"history": [draw.choice(known) for _ in range(draw.randint(5, MAX_LEN))], "topk": 10}
        for _ in range(500)
    ]
    clients = ClientLoad(options.load, "/v1/recommend", questions)
    gc.freeze()  # the clients must not wait for a collector of their own
    count = options.clients[0]
    if options.requests:  # a fixed number, warmed up by whoever asks for it
        result = await clients.by_clients(count, requests=options.requests)
    else:
        result = await clients.by_clients(count, seconds=options.seconds, warm_up=1.0)
    assert len(json.loads(clients.last)["items"]) == 10
    assert not result.refusals, result
    return {"all": result.questions, "rate": result.rate, "p50": result.p50, "p99": result.p99}


def peer(options: argparse.Namespace) -> None:
    """The plain service: FastAPI and the trained torch model."""
    import socket

    import torch
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel

    from shoal.data.batch import Batch
    from shoal.runs.trained_run import Trained

    trained = Trained(options.peer)
    torch.set_num_threads(1)  # its endpoints run in threads already
    model, dataset = trained.model, trained.parts.dataset
    words = dataset.vocab[dataset.item_field].tolist()
    numbers = {word: k for k, word in enumerate(words)}
    with torch.inference_mode():
        vectors = model.encode_item(torch.arange(len(words)))
    app = FastAPI()

    class Ask(BaseModel):
        history: list[str]
        topk: int = 10

    def recommend(ask):  # type: ignore[no-untyped-def]
        with torch.inference_mode():
            items = [numbers[word] for word in ask.history][-MAX_LEN:]
            history = torch.zeros(1, MAX_LEN, dtype=torch.int64)
            history[0, : len(items)] = torch.tensor(items)
            batch = Batch(
                1, {dataset.user_field: torch.zeros(1, dtype=torch.int64), "history": history}
            )
            scores = (model.encode_query(batch) @ vectors.T)[0]
            scores[0] = -torch.inf
            best = torch.topk(scores, ask.topk)
        pairs = zip(best.indices.tolist(), best.values.tolist())
        return {"items": [{"item": words[k], "score": score} for k, score in pairs]}

    recommend.__annotations__ = {"ask": Ask}  # FastAPI does not find names within a function
    app.post("/v1/recommend")(recommend)

    @app.get("/health")
    @app.get("/ready")
    async def ready() -> dict:
        return {"status": "ready"}

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    Path(options.announce).write_text(f"http://127.0.0.1:{listener.getsockname()[1]}")
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
    server.run(sockets=[listener])


def command_line() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--items", type=int, default=20_000, help="synthetic; some are never taken")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=2)
    for hidden in ("--peer", "--load", "--announce", "--names"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()

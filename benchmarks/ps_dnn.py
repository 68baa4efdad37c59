"""Parameter servers at the shape of a click model: samples per second, and where the time goes.

    python benchmarks/ps_dnn.py [--seconds 8] [--cases single async geo ...] [--paddle PYTHON]
    python benchmarks/ps_dnn.py --guarded [--repeats 9]   what it costs that nobody else gets in

26 slots, 13 dense values, rows of 9, layers 400-400-400, batch 512, one million ids, Adam, one
thread per process. Every worker and every server is a process of its own on this machine. Batches
are made before the clock starts, or parsed from slot lines while it runs ("from text"). Figures of
one run compare; other programs on the machine make all of them slower.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

SHAPES: dict[str, dict[str, Any]] = {
    "dnn": {"slots": 26, "dense": 13, "dim": 9, "layers": [400, 400, 400], "batch": 512},
    "sparse": {"slots": 200, "dense": 13, "dim": 64, "layers": [64, 32], "batch": 512},
}
IDS = 1_000_000


def make_batches(shape: dict[str, Any], worker: int, count: int = 24) -> list[Any]:
    """Batches with ids of a power law, as click logs have them; labels depend on the ids."""
    from shoal.data.batch import Batch

    random = torch.Generator().manual_seed(100 + worker)
    size, slots = shape["batch"], shape["slots"]
    batches = []
    for _ in range(count):
        spread = torch.rand(size, slots, generator=random, dtype=torch.float64)
        ids = (IDS**spread).long() * 2654435761 % IDS
        dense = torch.rand(size, shape["dense"], generator=random)
        labels = ((ids[:, 0] * 7 + ids[:, 1]) % 4 == 0).float()
        batches.append(Batch(size, {"slots": ids}, {"dense": dense}, labels))
    return batches


def make_strategy(shape: dict[str, Any], world: Any, how: dict[str, Any]) -> Any:
    from shoal.config.schema import OptimizerSection, ServersSection, StrategySection
    from shoal.models.base import Facts
    from shoal.models.clicks.dnn import DNN
    from shoal.training.strategies import make_strategy

    torch.manual_seed(1)
    facts = Facts(num_slots=shape["slots"], num_dense=shape["dense"], rows=IDS)
    model = DNN(DNN.Options(dim=shape["dim"], layers=shape["layers"]), facts)
    section = StrategySection(name=how.get("name", "ps"), ps=ServersSection(**how.get("ps", {})))
    strategy = make_strategy(section, world)
    strategy.setup(model, OptimizerSection(name="adam", lr=1e-3), seed=1)
    model.train()
    return strategy


class Clock:
    """Adds up the time inside some calls of an object."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def watch(self, owner: Any, method: str, label: str) -> None:
        inner = getattr(owner, method)

        def timed(*arguments: Any, **more: Any) -> Any:
            begun = time.perf_counter()
            try:
                return inner(*arguments, **more)
            finally:
                spent = time.perf_counter() - begun
                self.seconds[label] = self.seconds.get(label, 0.0) + spent

        setattr(owner, method, timed)


def worker(rank: int, size: int, port: int, task: dict[str, Any], out: str) -> None:
    """Train for some seconds; writes what it saw."""
    torch.set_num_threads(1)
    from shoal.distributed.rank_variables import set_rank
    from shoal.distributed.world import PeerLost, World, connect

    if size > 1:
        set_rank(rank, size, rank, size, "127.0.0.1", port)
        world = connect("cpu", 60.0, threads=1)
    else:
        world = World()
    shape = SHAPES[task["shape"]]
    strategy = make_strategy(shape, world, task)
    batches = make_batches(shape, rank)
    clock = Clock()
    if task.get("profile"):
        clock.watch(strategy.rows, "begin", "pull")
        clock.watch(strategy.client, "start_push", "push")
        clock.watch(strategy.model, "forward", "forward")
        clock.watch(strategy, "backward", "backward")
    source = text_batches(shape, task["text"]) if task.get("text") else None
    for k in range(6):
        strategy.train_step(batches[k % len(batches)])
    clock.seconds = {}
    world.barrier()
    begun, steps, samples = time.perf_counter(), 0, 0
    following = next(source) if source else batches[0]
    while time.perf_counter() - begun < task["seconds"]:
        batch = following
        following = next(source) if source else batches[(steps + 1) % len(batches)]
        strategy.prefetch(following)
        try:
            strategy.train_step(batch)
        except PeerLost:  # in sync the clock of another worker may run out a step earlier
            if time.perf_counter() - begun < 0.9 * task["seconds"]:
                raise
            break
        steps, samples = steps + 1, samples + batch.size
    spent = time.perf_counter() - begun
    parts = {name: seconds / spent for name, seconds in clock.seconds.items()}
    found = {"samples": samples, "seconds": spent, "parts": parts}
    Path(out).write_text(json.dumps(found))
    if task.get("ps"):
        strategy.client.bye()  # nobody is to wait for it
    os._exit(0)  # servers are stopped from outside; batches under way do not matter


def write_lines(shape: dict[str, Any], path: str, count: int = 120_000) -> None:
    """A file of slot lines as PaddleRec's reader writes them."""
    random = torch.Generator().manual_seed(7)
    with open(path, "w") as file:
        for _ in range(count // 2000):
            spread = torch.rand(2000, shape["slots"], generator=random, dtype=torch.float64)
            ids = ((IDS**spread).long() * 2654435761 % IDS).tolist()
            dense = torch.rand(2000, shape["dense"], generator=random).tolist()
            for row, values in zip(ids, dense):
                words = [f"click:{int((row[0] * 7 + row[1]) % 4 == 0)}"]
                words += [f"dense_feature:{value:.4f}" for value in values]
                words += [f"{slot}:{id_}" for slot, id_ in enumerate(row, start=1)]
                file.write(" ".join(words) + "\n")


def text_batches(shape: dict[str, Any], path: str) -> Iterator[Any]:
    """Batches parsed from slot lines by the reader of a run, over and over."""
    from shoal.clicks.log import ClickLog, make_layout
    from shoal.clicks.stream import Stream
    from shoal.config.schema import ClicksSection

    section = ClicksSection(slots=shape["slots"], dense=shape["dense"], rows=IDS)
    log = ClickLog([Path(path)], "slots", make_layout(section, "slots"))
    reader = Stream(log, shape["batch"], None)
    for epoch in range(1_000_000):
        yield from reader.batches(epoch)


def serve(
    queue: Any, number: int, index: int, bind: str, keys: str | None, journal: str | None
) -> None:
    from shoal.distributed.key_files import read_keys
    from shoal.ps.server.server import Server

    torch.set_num_threads(1)
    known = None if keys is None else read_keys(keys, "server")
    how = {"folder": journal, "journal": journal is not None}
    server = Server(bind, index, known, timeout=60, **how)
    queue.put((number, server.address))
    sys.exit(server.serve())


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def measure(workers: int, servers: int, task: dict[str, Any]) -> dict[str, Any]:
    """Samples per second of all workers together; journal: where servers keep theirs."""
    context = mp.get_context("spawn")
    queue = context.Queue()
    with tempfile.TemporaryDirectory() as folder:  # which only its user can enter
        guard, keys = task.get("guard"), None
        if guard == "keys":
            from shoal.distributed.key_files import make_keys

            keys = str(make_keys(f"{folder}/keys"))
        count = servers * task.get("ps", {}).get("replicas", 1)
        binds = ["127.0.0.1:0"] * count
        if guard == "socket":
            binds = [f"ipc://{folder}/{k}.socket" for k in range(count)]
        more = keys, task.get("journal")
        serving = [
            context.Process(target=serve, args=(queue, k, k % servers, bind, *more))
            for k, bind in enumerate(binds)
        ]
        for process in serving:
            process.start()
        addresses = dict(queue.get(timeout=120) for _ in serving)
        if servers:
            found = [addresses[k] for k in range(count)]
            task["ps"] = {**task.get("ps", {}), "addresses": found, "timeout": 60.0, "keys": keys}
        outs = [f"{folder}/{k}" for k in range(workers)]
        port = free_port()
        working = [
            context.Process(target=worker, args=(k, workers, port, task, outs[k]))
            for k in range(workers)
        ]
        for process in working:
            process.start()
        for process in working:
            process.join()
        seen = [json.loads(Path(out).read_text()) for out in outs]
        for process in serving:
            process.terminate()
            process.join()
    rate = sum(one["samples"] / one["seconds"] for one in seen)
    return {"rate": rate, "parts": seen[0]["parts"]}


CASES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "single": (1, 0, {"name": "single"}),
    "sync 1+1": (1, 1, {"ps": {"mode": "sync"}}),
    "async 1+1": (1, 1, {"ps": {"mode": "async"}}),
    "async 1+1, from text": (1, 1, {"ps": {"mode": "async"}, "text": True}),
    "geo 1+1": (1, 1, {"ps": {"mode": "geo"}}),
    "async 2+1": (2, 1, {"ps": {"mode": "async"}}),
    "geo 2+1": (2, 1, {"ps": {"mode": "geo"}}),
    "sync 2+1": (2, 1, {"ps": {"mode": "sync"}}),
}
# The first is open to whoever is on the host; the second is what a launch on one host takes.
GUARDED: dict[str, tuple[int, int, dict[str, Any]]] = {
    "TCP in the clear": (1, 1, {"ps": {"mode": "async"}}),
    "socket of the user": (1, 1, {"ps": {"mode": "async"}, "guard": "socket"}),
    "TCP with keys": (1, 1, {"ps": {"mode": "async"}, "guard": "keys"}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", nargs="+", default=list(CASES))
    parser.add_argument("--guarded", action="store_true", help="async 1+1, guarded and not")
    parser.add_argument("--shape", choices=SHAPES, default="dnn")
    parser.add_argument("--profile", action="store_true", help="also the shares of a worker's time")
    parser.add_argument("--paddle", help="python of an environment with paddlepaddle 2.6.2")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {platform.machine()}, {os.cpu_count()} cores")
    scratch = tempfile.TemporaryDirectory()
    lines = f"{scratch.name}/lines.txt"
    if any("text" in name for name in options.cases):
        write_lines(SHAPES[options.shape], lines)
    cases = GUARDED if options.guarded else {name: CASES[name] for name in options.cases}
    rates: dict[str, list[float]] = {}
    parts: dict[str, dict[str, float]] = {}
    for _ in range(options.repeats):
        if options.paddle:
            for name, rate in paddle(options.paddle, options.seconds).items():
                rates.setdefault(name, []).append(rate)
        for name, (workers, servers, task) in cases.items():
            task = {**task, "shape": options.shape, "seconds": options.seconds}
            task["text"] = lines if task.get("text") else None
            task["profile"] = options.profile and servers > 0 and "geo" not in name
            found = measure(workers, servers, task)
            rates.setdefault(name, []).append(found["rate"])
            parts[name] = found["parts"]
    print(f"\n{options.shape}: samples per second, median of {options.repeats} runs")
    for name, some in rates.items():
        shares = ", ".join(f"{k} {v:.0%}" for k, v in parts.get(name, {}).items())
        if options.guarded:  # of each round: the machine is not as fast in all of them
            turns = zip(some, rates["TCP in the clear"])
            shares = f"{statistics.median(one / clear for one, clear in turns):.3f} of in the clear"
        print(f"  {name:<24}{statistics.median(some):12,.0f}    {shares}")


def paddle(python: str, seconds: float) -> dict[str, float]:
    """Paddle's own rates at the same shape, from its own environment."""
    here = Path(__file__).with_name("ps_dnn_peer.py")
    done = subprocess.run(
        [python, str(here), str(seconds)], capture_output=True, text=True, timeout=600
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"paddle gave no figures:\n{done.stdout[-800:]}{done.stderr[-2000:]}")
    return {f"paddle {name}": rate for name, rate in json.loads(lines[-1]).items()}


if __name__ == "__main__":
    main()

"""What a killed server costs: it alone comes back, its replica goes on, or the whole run restarts.

    python benchmarks/ps_recovery.py [--kills 5] [--seconds 3] [--repeats 1]

One epoch of NeuMF on synthetic data, two workers and two servers (sync), 1000 steps, a checkpoint
every 50. Server 1 is killed so often, evenly over the epoch: with `strategy.ps.journal` it is
started again and workers wait, with `launch.max_restarts` everything begins again from the last
checkpoint. With `strategy.ps.replicas: 2` one of its two processes is killed once, after which
there is no other.
Seconds lost per kill: of the whole command, beyond the same command without kills. For replicas,
where that is less than such commands differ by: the slowest step of a worker, one of whose two
servers is killed. Then what both cost: processor time of a push at the server with a journal, which
other programs on the machine hardly change, and samples per second, all of the click model of
ps_dnn.py, with and without, in turn.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from ps_dnn import IDS, SHAPES, make_batches, make_strategy, measure, serve

EVERY = 50  # steps between checkpoints
CONFIG = {
    "model": "NeuMF",
    "data.name": "synthetic",
    "data.synthetic.users": 2000,
    "data.synthetic.items": 1000,
    "data.synthetic.interactions": 40_000,
    "train.epochs": 1,
    "train.batch_size": 32,
    "checkpoint.every_steps": EVERY,
    "launch.join_timeout": 600.0,
    "run.threads": 1,
    "run.progress": False,
    "run.trackers": [],
}
RUNS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "whole run restarted": {"launch.max_restarts": 100},
    "journal": {"strategy.ps.journal": True},
    "journal, server restarted": {"strategy.ps.journal": True, "strategy.ps.restarts": 100},
    "replicas: 2": {"strategy.ps.replicas": 2},
    "replicas: 2, one killed": {"strategy.ps.replicas": 2},
}


def server(launcher: int, index: int) -> int | None:
    """The process of a server that a launcher started; of its replicas the first."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            mine = int(parent) == launcher and f"--index={index}".encode() in words
            mine = mine and b"--replica=1" not in words
            if mine and b"server" in words:
                return int(entry.name)
    return None


def newest(folder: Path) -> int:
    """The last step that is saved."""
    steps = [int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*")]
    return max(steps, default=0)


def run(
    config: Path, folder: Path, more: dict[str, Any], kills: int, last: int
) -> tuple[float, int]:
    """Seconds of a command in which a server is killed so often; how often it came to that."""
    words = ["launch", "--worker_num=2", "--server_num=2", "-m", str(config)]
    words += [f"--{key}={json.dumps(value)}" for key, value in more.items()]
    begun, killed = time.perf_counter(), 0
    with open(folder.with_suffix(".txt"), "w") as out:
        command = [sys.executable, "-m", "shoal", *words, "--output", str(folder)]
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        for number in range(1, kills + 1):
            place = last * number // (kills + 1)
            while process.poll() is None and newest(folder) < place:
                time.sleep(0.02)
            time.sleep(0.1)  # some steps after the checkpoint
            if process.poll() is None and (pid := server(process.pid, 1)) is not None:
                os.kill(pid, signal.SIGKILL)
                killed += 1
                while server(process.pid, 1) in (pid, None) and process.poll() is None:
                    time.sleep(0.02)
        if process.wait():
            raise SystemExit(folder.with_suffix(".txt").read_text())
    return time.perf_counter() - begun, killed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=5, help="0: none of these runs")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each rate; 0: no rates")
    parser.add_argument("--repeats", type=int, default=1, help="of each rate")
    options = parser.parse_args()
    print(f"python benchmarks/ps_recovery.py --kills {options.kills}")
    print(f"torch {torch.__version__}, {platform.machine()}, {os.cpu_count()} cores\n")
    with tempfile.TemporaryDirectory() as place:
        if options.kills:
            recovered(Path(place), options.kills)
        slowest_step()
        push_costs(Path(place))
        if options.seconds:
            rates(options.seconds, options.repeats, place)


def recovered(place: Path, kills: int) -> None:
    config = place / "config.json"  # which is YAML, too
    config.write_text(json.dumps(CONFIG))
    last = int(0.8 * CONFIG["data.synthetic.interactions"] / CONFIG["train.batch_size"])  # type: ignore[operator]
    seconds, killed, metrics = {}, {}, {}
    for number, (name, more) in enumerate(RUNS.items()):
        folder, most = place / f"run{number}", 1 if "strategy.ps.replicas" in more else kills
        seconds[name], killed[name] = run(config, folder, more, most * (number % 2), last)
        metrics[name] = json.loads((folder / "result.json").read_text())["test"]
    print("| | seconds | kills | seconds lost per kill | test metrics |")
    print("| --- | --- | --- | --- | --- |")
    for number, name in enumerate(RUNS):
        beyond = seconds[name] - seconds[list(RUNS)[number - 1]]
        lost = f"{beyond / killed[name]:.1f}" if killed[name] else "–"
        same = "the same" if metrics[name] == metrics["as it is"] else "others"
        print(f"| {name} | {seconds[name]:.1f} | {killed[name]} | {lost} | {same} |")


STEPS = 120


def slowest_step() -> None:
    """What a worker notices of the loss of one of two servers."""
    context = mp.get_context("spawn")
    queue = context.Queue()
    processes = [
        context.Process(target=serve, args=(queue, k, 0, "127.0.0.1:0", None, None))
        for k in range(2)
    ]
    for process in processes:
        process.start()
    addresses = dict(queue.get(timeout=600) for _ in processes)
    from shoal.distributed.world import World

    how = {"addresses": [addresses[0], addresses[1]], "replicas": 2, "timeout": 60.0}
    strategy = make_strategy(SHAPES["dnn"], World(), {"ps": how})
    batches, spent = make_batches(SHAPES["dnn"], 0), []
    for step in range(STEPS):
        if step == STEPS // 2:
            processes[0].kill()  # which is read from
        begun = time.perf_counter()
        strategy.train_step(batches[step % len(batches)])
        spent.append(1000 * (time.perf_counter() - begun))
    strategy.close()
    for process in processes:
        process.join()
    usual, after = statistics.median(spent), max(spent[STEPS // 2 :])
    print(f"\nreplicas: 2, sync, a step: {usual:.0f} ms (median of {STEPS}); the slowest ", end="")
    print(f"after one of two servers is killed: {after:.0f} ms")


PUSHES = 200


def push_costs(place: Path) -> None:
    """Processor time of one push at a server, without sockets."""
    from shoal.config.schema import OptimizerSection
    from shoal.ps.server.server import Server
    from shoal.ps.spec import Spec, TableSpec
    from shoal.ps.wire import (
        WITH_DENSE,
        Kind,
        MessageHeader,
        numbers_frame,
        parts_frame,
        send_ids,
        send_rows,
    )

    shape = SHAPES["dnn"]
    sides = [shape["slots"] * shape["dim"] + shape["dense"], *shape["layers"], 1]
    layers = [one for pair in pairwise(sides) for one in ([*pair], [pair[1]])]
    table = TableSpec(name="slots", dim=shape["dim"], rows=IDS, init="uniform", scale=0.1)
    how = {"workers": 1, "servers": 1, "mode": "async", "staleness": 1}
    optimizer = OptimizerSection(name="adam", lr=1e-3)
    spec = Spec(seed=1, tables=[table], optimizer=optimizer, dense=layers, **how)
    dense = send_rows([torch.randn(sum(spec.sizes))], 0)
    ids = [batch.ids["slots"].unique() for batch in make_batches(shape, 0)]
    bodies = []
    for some in ids:
        rows = send_rows([torch.randn(len(some), shape["dim"])], 0)
        head = numbers_frame(1e-3, 1.0, 512.0), parts_frame([(0, len(some))])
        bodies.append([*map(memoryview, (*head, send_ids([some], 0), rows, dense))])
    spent: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(6):
        kept = turn % 2 == 1
        server = Server(folder=place / f"pushes{turn}", journal=kept)
        hello = json.dumps({**spec.model_dump(mode="json"), "server": 0}).encode()
        server.receive(b"x", MessageHeader(Kind.HELLO, 0, session=7).pack(), [memoryview(hello)])
        header = MessageHeader(Kind.SET_DENSE, 0, 0, 1, -1, 7)
        server.receive(b"x", header.pack(), [memoryview(dense), memoryview(b"")])
        begun = 0.0
        for step in range(PUSHES):
            if step == PUSHES // 5:  # rows and pages are there
                begun = time.process_time()
            header = MessageHeader(Kind.PUSH, 0, WITH_DENSE, 2 + step, step, 7)
            server.receive(b"x", header.pack(), bodies[step % len(bodies)])
        assert server.steps.applied == PUSHES and not server.refused
        spent[kept].append((time.process_time() - begun) / (PUSHES - PUSHES // 5))
        server.close()
    size = sum(map(len, bodies[0])) / 2**20
    plain, kept = (1000 * statistics.median(spent[one]) for one in (False, True))
    print(f"\na push of {size:.1f} MiB at the server: {plain:.2f} ms of processor time, ", end="")
    print(f"with a journal {kept:.2f} ({kept / plain:.2f})")


def rates(seconds: float, repeats: int, place: str) -> None:
    found: dict[str, list[float]] = {}
    for _ in range(repeats):
        for mode in ("sync", "async"):
            for more in ("", ", journal", ", replicas: 2"):
                how = {"mode": mode, "replicas": 2 if "replicas" in more else 1}
                task: dict[str, Any] = {"ps": how, "shape": "dnn", "seconds": seconds}
                if "journal" in more:
                    task["journal"] = place
                found.setdefault(mode + more, []).append(measure(1, 1, task)["rate"])
    print(f"\nsamples per second, 1 worker and 1 server (with replicas 2), median of {repeats}")
    for name, some in found.items():
        base = statistics.median(found[name.split(",")[0]])
        print(f"{name:<22}{statistics.median(some):12,.0f}{statistics.median(some) / base:8.2f}")


if __name__ == "__main__":
    main()

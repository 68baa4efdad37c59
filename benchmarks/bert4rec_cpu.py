"""BERT4Rec records per second on CPUs: Shoal beside TorchRec's example, in alternating runs.

    python benchmarks/bert4rec_cpu.py --torchrec PYTHON

Random data as the example makes it: 49,079 ids, length 16, dim 128, 2 heads, 2 layers, a fifth of
the items masked, full softmax, Adam, one thread per process. PYTHON is the interpreter of an
environment with TorchRec; without it the peer is the example's model in plain PyTorch under DDP.
Printed: medians over rounds of each run's median step, and ratios to the peer in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SHAPE = {"vocabulary": 49_079, "length": 16, "dim": 128, "heads": 2, "layers": 2, "mask": 0.2}


def main() -> None:
    """Run every side in turn and print the table."""
    options = command_line()
    if options.worker:
        shoal_rank(json.loads(options.worker))
        return
    has_torchrec = version_of(options.torchrec, "torchrec")
    peers = ["torch ddp", "torchrec dmp"] if has_torchrec else ["torch ddp"]
    sides = {
        1: ["shoal single", "shoal sharded", *peers],
        2: ["shoal ddp", "shoal sharded", *peers],
    }
    print(f"command: {' '.join(['python', *sys.argv])}")
    print(
        f"machine: {platform.machine()}, {os.cpu_count()} cores; TorchRec: {has_torchrec or 'none'}"
    )
    rows = []
    for batch in options.batch:
        for processes in options.processes:
            rates: dict[str, list[float]] = {side: [] for side in sides[processes]}
            work: dict[str, list[float]] = {side: [] for side in sides[processes]}
            for _ in range(options.rounds):
                for side in list(rates):
                    result = measure(side, batch, processes, options)
                    if result is None:
                        del rates[side]
                        continue
                    rates[side].append(batch * processes / statistics.median(result["seconds"]))
                    work[side].append(1e3 * statistics.median(result["cpu"]))
            medians = {k: statistics.median(v) for k, v in rates.items()}
            busy = {k: statistics.median(work[k]) for k in rates}
            rows.append((batch, processes, medians, busy))
    print_table(rows)


def print_table(rows: list[tuple[int, int, dict[str, float], dict[str, float]]]) -> None:
    """The work of a step is in CPU milliseconds of rank 0, which other programs disturb less."""
    print(
        "\n| batch per process | processes | side | records/s | × torch ddp | × torchrec dmp ",
        end="",
    )
    print("| CPU ms per step |\n| --- | --- | --- | --- | --- | --- | --- |")
    for batch, processes, rates, busy in rows:
        for side, rate in rates.items():
            ratios = [
                f"{rate / rates[peer]:.2f}" if peer in rates and "shoal" in side else "–"
                for peer in ("torch ddp", "torchrec dmp")
            ]
            print(
                f"| {batch} | {processes} | {side} | {rate:.1f} | {ratios[0]} | {ratios[1]} "
                f"| {busy[side]:.0f} |"
            )


def measure(side: str, batch: int, processes: int, options: argparse.Namespace) -> dict | None:
    """One run of one side; None (and why) where it cannot run."""
    tool, mode = side.split()
    steps = max(3, options.steps // (1 if batch < 64 else 4))
    given = {**SHAPE, "mode": mode, "batch": batch, "steps": steps, "warm_up": 2}
    if tool == "shoal":
        command = [sys.executable, __file__, "--worker", json.dumps(given)]
    else:
        python = options.torchrec or sys.executable
        command = [python, str(HERE / "bert4rec_peer.py"), json.dumps(given)]
    search = [str(HERE.parent)]
    if command[0] == sys.executable:  # another environment has packages of its own
        search += [one for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(processes):
        env = dict(os.environ, OMP_NUM_THREADS="1", RANK=str(rank))
        env |= {"WORLD_SIZE": str(processes), "LOCAL_RANK": str(rank), "MASTER_PORT": str(port)}
        env |= {"MASTER_ADDR": "127.0.0.1", "LOCAL_WORLD_SIZE": str(processes)}
        env |= {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(search)}
        ranks.append(
            subprocess.Popen(
                command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    outputs = [rank.communicate() for rank in ranks]
    if any(rank.returncode for rank in ranks):
        reason = (outputs[0][1].strip().splitlines() or ["no message"])[-1]
        print(
            f"{side}, {processes} processes, batch {batch}: did not run: {reason}", file=sys.stderr
        )
        return None
    return json.loads(outputs[0][0].strip().splitlines()[-1])


def shoal_rank(given: dict) -> None:
    """One rank of Shoal, with the reader, the model and the strategy of a real run."""
    import time

    from shoal.data.reader import one_ahead
    from shoal.distributed.world import connect
    from shoal.runs.build import build
    from shoal.runs.run import resolve

    world = connect("cpu", 120.0, threads=1)
    flags = {
        "--model": "BERT4Rec",
        "--dataset_name": "random",
        "--random_user_count": 2000,
        "--random_item_count": given["vocabulary"] - 2,
        "--random_size": 600_000,  # every item occurs
        "--mask_prob": given["mask"],
        "--max_len": given["length"],
        "--emb_dim": given["dim"],
        "--nhead": given["heads"],
        "--num_layers": given["layers"],
        "--train_batch_size": given["batch"],
        "--dupe_factor": 1,
        "--strategy.name": given["mode"],
    }
    config = resolve((), [f"{key}={value}" for key, value in flags.items()]).config
    parts = build(config, world)
    parts.model.train()
    seconds, cpu, loss = [], [], 0.0
    batches = one_ahead(parts.reader.batches(0, world.rank, world.size))
    for _ in range(given["warm_up"] + given["steps"]):
        begun, begun_cpu = time.perf_counter(), time.process_time()
        batch, following = next(batches)
        parts.strategy.prefetch(following)  # as the trainer does
        loss = float(parts.strategy.train_step(batch))
        seconds.append(time.perf_counter() - begun)
        cpu.append(time.process_time() - begun_cpu)
    world.barrier()
    if world.is_main:
        first = given["warm_up"]
        print(
            json.dumps({"seconds": seconds[first:], "cpu": cpu[first:], "loss": loss}), flush=True
        )
    world.close()


def version_of(python: str | None, package: str) -> str | None:
    """The version of a package in another environment; None where it is not there."""
    if python is None:
        return None
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True)
    return found.stdout.strip() or None if found.returncode == 0 else None


def command_line() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torchrec", default=os.environ.get("TORCHREC_PYTHON"), metavar="PYTHON")
    parser.add_argument("--batch", type=int, nargs="+", default=[8, 128])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2], choices=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()

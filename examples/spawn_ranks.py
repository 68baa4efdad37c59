"""Start the ranks yourself with torch.multiprocessing: one host, or one of several.

On one host with two processes:

    python examples/spawn_ranks.py --nproc=2

On two hosts with four processes each, where 192.0.2.1 is the address of the first: on it

    python examples/spawn_ranks.py --ip=192.0.2.1 --port=5678 --world_size=8 --nproc=4

and on the second the same with --group_offset=4.
"""

from __future__ import annotations

import argparse

import torch.multiprocessing as mp

import shoal


def main() -> None:
    parser = argparse.ArgumentParser(description="Start the ranks of this host.")
    parser.add_argument("--model", default="BPR")
    parser.add_argument("--dataset", default="planted")
    parser.add_argument("--config_files", nargs="*", default=[])
    parser.add_argument("--ip", default="localhost", help="address of the first host")
    parser.add_argument("--port", default="5678", help="a free port of the first host")
    parser.add_argument("--world_size", type=int, default=-1, help="processes on all hosts")
    parser.add_argument("--nproc", type=int, default=2, help="processes on this host")
    parser.add_argument("--group_offset", type=int, default=0, help="first rank of this host")
    args = parser.parse_args()

    # Optional, only needed to get the result.
    queue = mp.get_context("spawn").SimpleQueue()

    config_dict = {
        "world_size": args.world_size,
        "ip": args.ip,
        "port": args.port,
        "nproc": args.nproc,
        "offset": args.group_offset,
    }
    kwargs = {"config_dict": config_dict, "queue": queue}
    mp.spawn(
        shoal.run_rank,
        args=(args.model, args.dataset, args.config_files, kwargs),
        nprocs=args.nproc,
        join=True,
    )

    # Rank 0 put one item; on the other hosts the queue is empty.
    result = None if queue.empty() else queue.get()
    print("result:", result and result["test"])


if __name__ == "__main__":
    main()

"""Host A of two: ranks 0 to 3 of eight, which torch.multiprocessing starts.

python run_a.py --ip=10.0.0.1            on host A, whose address that is
python run_b.py --ip=10.0.0.1            on host B, with the same SHOAL_SECRET

Without --ip both run on this host. On one host alone: python run_a.py --nproc=2 --world_size=2
"""

from __future__ import annotations

import argparse

import torch.multiprocessing as mp

from shoal import run_rank as run_recboles


def main(group_offset: int = 0) -> None:
    parser = argparse.ArgumentParser(description="Start the ranks of this host.")
    parser.add_argument("--model", default="BPR")
    parser.add_argument("--dataset", default="ml-100k")
    parser.add_argument("--config_files", nargs="*", default=["test.yaml"])
    parser.add_argument("--ip", default="127.0.0.1", help="address of the first host")
    parser.add_argument("--port", default="5678", help="a free port of the first host")
    parser.add_argument("--world_size", type=int, default=8, help="processes on all hosts")
    parser.add_argument("--nproc", type=int, default=4, help="processes on this host")
    args = parser.parse_args()

    # Optional, only needed to get the result.
    queue = mp.get_context("spawn").SimpleQueue()

    config_dict = {
        "world_size": args.world_size,
        "ip": args.ip,
        "port": args.port,
        "nproc": args.nproc,
        "offset": group_offset,
    }
    kwargs = {"config_dict": config_dict, "queue": queue}
    mp.spawn(
        run_recboles,
        args=(args.model, args.dataset, args.config_files, kwargs),
        nprocs=args.nproc,
        join=True,
    )

    # Rank 0 put one item; on the other host the queue is empty.
    result = None if queue.empty() else queue.get()
    print("result:", result and result["test"])


if __name__ == "__main__":
    main()

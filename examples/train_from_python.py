"""Train from Python with one call, on one process or several.

python examples/train_from_python.py
python examples/train_from_python.py --nproc=2 --epochs=5
python examples/train_from_python.py --dataset=ml-100k --config_files test.yaml
"""

from __future__ import annotations

import argparse

import shoal


def main() -> None:
    parser = argparse.ArgumentParser(description="Train from Python with one call.")
    parser.add_argument("--model", default="BPR")
    parser.add_argument("--dataset", default="synthetic")
    parser.add_argument("--config_files", nargs="*", default=[])
    parser.add_argument("--nproc", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--output", help="folder of the run; a new one under runs/ if not given")
    parser.add_argument("--user", default="1", help="recommend to this user afterwards")
    args = parser.parse_args()

    result = shoal.run(
        model=args.model,
        dataset=args.dataset,
        config_file_list=args.config_files,
        nproc=args.nproc,  # any config key may stand here
        epochs=args.epochs,
        config_dict={"run.output": args.output},
    )
    print("test:", result["test"])

    # The trained run, used: the best items for a user, original ids in and out.
    for item, score in shoal.recommend(result["folder"], args.user, topk=5):
        print(f"user {args.user}: item {item} ({score:.3f})")


if __name__ == "__main__":
    main()

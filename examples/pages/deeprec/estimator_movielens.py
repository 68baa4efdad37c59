"""An Estimator on MovieLens' ratings: DeepRec's example of CollectiveStrategy, carried over.

python3 -m tensorflow.python.distribute.launch --nproc 2 estimator_movielens.py
python -m shoal.launch --nproc 2 estimator_movielens.py --data ml-100k/u.data --steps 300

--data: MovieLens-100k's u.data, or RecBole's ml-100k.inter; without it ratings are generated.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import shoal
from shoal.embedding.rows.table import Init


def read_ratings(path: Path | None) -> dict[str, np.ndarray]:
    """Columns user_id, movie_id and user_rating, in a fixed random order."""
    if path is None:  # users and movies have tastes of two numbers; ratings are 1 to 5
        random = np.random.default_rng(2021)
        users, movies = random.integers(1, 300, 20_000), random.integers(1, 200, 20_000)
        tastes = random.normal(size=(500, 2))
        match = (tastes[users] * tastes[movies + 299]).sum(1)
        ratings = np.clip(np.round(3.5 + match), 1, 5)
    else:
        skip = int(not path.read_text()[:1].isdigit())  # an atomic file has a header
        table = np.loadtxt(path, delimiter="\t", skiprows=skip, usecols=(0, 1, 2))
        users, movies, ratings = table[:, 0].astype(int), table[:, 1].astype(int), table[:, 2]
    order = np.random.default_rng(2021).permutation(len(users))
    columns = {"user_id": users, "movie_id": movies, "user_rating": ratings.astype(np.float32)}
    return {name: column[order] for name, column in columns.items()}


def main(words: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="Train an Estimator on ratings.")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--model_dir", default="runs/estimator", help="and where to export")
    parser.add_argument("--export", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--tensorboard", action="store_true")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--init", type=float, default=0.1, help="rows begin in +- this")
    parser.add_argument("--accumulator", type=float, default=1e-6, help="Adagrad begins with it")
    args = parser.parse_args(words)
    torch.manual_seed(2021)
    ratings = read_ratings(args.data)
    first = Init("uniform", args.init)
    held_out = len(ratings["user_id"]) // 10

    def batches(start: int, stop: int, repeat: bool) -> Iterator[tuple[dict[str, Any], Any]]:
        while True:
            for low in range(start, stop, 256):
                some = slice(low, min(low + 256, stop))
                features = {"movie_id": ratings["movie_id"][some]}
                features["user_id"] = ratings["user_id"][some]
                yield features, (ratings["user_rating"][some] > 3).astype(np.float32)
            if not repeat:
                return

    def input_receiver() -> dict[str, Any]:
        return {"movie_id": ratings["movie_id"][:4], "user_id": ratings["user_id"][:4]}

    # STEP 1: initialize a collective strategy
    strategy = shoal.CollectiveStrategy()
    # STEP 2: define the data parallel scope
    with strategy.scope():

        def model_fn(
            features: dict[str, Tensor], labels: Tensor | None, mode: str, params: dict[str, Any]
        ) -> shoal.EstimatorSpec:
            # STEP 3: define the model parallel scope
            with strategy.embedding_scope():
                columns = [
                    strategy.module(name, lambda name=name: shoal.Embedding(name, 16, init=first))
                    for name in ("movie_id", "user_id")
                ]
            deep = torch.cat([column(features[column.table.name]) for column in columns], dim=-1)
            hidden = strategy.module("hidden", lambda: nn.Linear(32, 32))
            head = strategy.module("head", lambda: nn.Linear(32, 1))
            logits = head(torch.relu(hidden(deep))).squeeze(-1)
            scores = torch.sigmoid(logits)
            if mode == shoal.ModeKeys.PREDICT:
                return shoal.EstimatorSpec(mode, predictions={"likes": scores})
            loss = functional.binary_cross_entropy_with_logits(logits, labels)
            if mode == shoal.ModeKeys.EVAL:
                right = ((scores > 0.5) == (labels > 0.5)).float()
                metrics = {"AUC": (scores, labels), "accuracy": right}
                return shoal.EstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
            optimizer = functools.partial(
                torch.optim.Adagrad, lr=params["lr"], initial_accumulator_value=args.accumulator
            )
            return shoal.EstimatorSpec(mode, loss, train_op=strategy.minimize(loss, optimizer))

        estimator = strategy.estimator(
            model_fn=model_fn,
            model_dir=args.model_dir,
            config=shoal.RunConfig(100, log_step_count_steps=50, tensorboard=args.tensorboard),
            params={"lr": args.lr},
        )
        total = len(ratings["user_id"])
        found = estimator.train_and_evaluate(
            shoal.TrainSpec(lambda: batches(held_out, total, repeat=True), max_steps=args.steps),
            shoal.EvalSpec(lambda: batches(0, held_out, repeat=False), steps=None),
        )
        some = next(iter(estimator.predict(lambda: batches(0, 5, repeat=False))))
        if args.export:  # into a new folder there, named by the time
            estimator.export_saved_model(args.model_dir, input_receiver)
    if strategy.rank == 0:
        print(f"{found}; the first rating is liked with probability {float(some['likes']):.3f}")
    return found


if __name__ == "__main__":
    main()

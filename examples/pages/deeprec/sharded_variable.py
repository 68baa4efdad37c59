"""A variable that is spread over the processes, and FTRL: DeepRec's first example as a plain loop.

python sharded_variable.py
python3 -m tensorflow.python.distribute.launch --nproc 2 sharded_variable.py
"""

from __future__ import annotations

import torch

import shoal
from shoal.embedding.rows.table import Init


def main() -> list[float]:
    # STEP 1: initialize a collective strategy
    strategy = shoal.CollectiveStrategy(reduction="sum")  # the loss below is a sum
    # STEP 2 and 3: define the data parallel scope and the model parallel one
    with strategy.scope(), strategy.embedding_scope():
        var = shoal.Embedding("var_1", dim=3, rows=1000, init=Init("constant", 1.0))
    optimizer = strategy.optimizer(
        rows="ftrl", lr=0.1, l1=2.0, l2=0.00001, initial_accumulator_value=0.1
    )
    losses = []
    for ids in strategy.split([torch.tensor([0, 1, 2, 5, 6, 7])] * 3):
        loss = (var(ids) * 2.0).sum()
        loss.backward()
        optimizer.step()
        losses.append(strategy.mean(loss))
    if strategy.rank == 0:
        print("losses:", losses)
    return losses


if __name__ == "__main__":
    main()

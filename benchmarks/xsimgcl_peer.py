"""XSimGCL in plain PyTorch, by the formulas of RecBole-GNN, on the split of recipes/ml-1m-xsimgcl.

    python benchmarks/xsimgcl_peer.py --data FOLDER [--seeds 1 2] [--temperature 0.2] [--weight 0.1]

What a published table says of other splits, versions and chance cannot be told apart from what a
model does otherwise; this can. Nothing of Shoal but its reader, whose split at random is that of
RecBole for the same seed: torch's sparse products, dense Adam, exact ranks by torch.topk. Prints
the validation of each epoch, and the test of the one that validates best by MRR@10.
FOLDER holds ml-1m. Meant for a GPU, where an epoch takes about two seconds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shoal.config.schema import DataSection, FilterSection, SplitSection
from shoal.data.loading.load import load_dataset

WIDTH, LAYERS, RATE, PENALTY, BATCH = 64, 2, 0.002, 1e-4, 4096


class Spread(torch.autograd.Function):
    """adjacency @ x for a symmetric adjacency."""

    @staticmethod
    def forward(ctx: Any, adjacency: Tensor, x: Tensor) -> Tensor:
        ctx.adjacency = adjacency
        return adjacency @ x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor]:
        return None, ctx.adjacency @ grads[0].contiguous()


class Data:
    """Pairs of each part, the graph of those that train, and who has seen what."""

    def __init__(self, folder: str, device: str):
        kept = FilterSection(values={"rating": "[3,inf)"})
        split = SplitSection(by="ratio", order="random")
        section = DataSection(name="ml-1m", path=folder, filter=kept, split=split)
        dataset = load_dataset(section, 2020)
        users, items = (
            torch.from_numpy(np.asarray(dataset.inter[field]).astype(np.int64)).to(device)
            for field in (dataset.user_field, dataset.item_field)
        )
        self.users, self.items = int(users.max()) + 1, int(items.max()) + 1
        rows = {part: torch.from_numpy(np.array(one)) for part, one in dataset.splits.items()}
        self.pairs = {part: (users[one], items[one]) for part, one in rows.items()}
        seen, taken = self.pairs["train"]
        size = self.users + self.items
        ends = torch.cat([seen, taken + self.users]), torch.cat([taken + self.users, seen])
        degrees = torch.bincount(ends[0], minlength=size).float()
        weights = (degrees[ends[0]] * degrees[ends[1]]).rsqrt()
        graph = torch.sparse_coo_tensor(torch.stack(ends), weights, (size, size))
        self.graph = graph.coalesce().to_sparse_csr()
        self.seen = self.table("train")

    def table(self, part: str) -> Tensor:
        """[users, items]: who took what."""
        users, items = self.pairs[part]
        found = torch.zeros(self.users, self.items, dtype=torch.bool, device=users.device)
        found[users, items] = True
        return found

    def negatives(self, users: Tensor) -> Tensor:
        """An item that a user has not taken, for each of users [b]."""
        drawn = torch.randint(1, self.items, users.shape, device=users.device)
        while (bad := self.seen[users, drawn]).any():
            drawn[bad] = torch.randint(1, self.items, (int(bad.sum()),), device=users.device)
        return drawn


class XSimGCL:
    def __init__(self, data: Data, args: argparse.Namespace):
        self.data, self.args = data, args
        begun = [torch.empty(n, WIDTH) for n in (data.users, data.items)]
        self.first = [torch.nn.init.xavier_uniform_(x).to(args.device) for x in begun]
        for one in self.first:
            one.requires_grad_()
        self.optimizer = torch.optim.Adam(self.first, lr=RATE)

    def spread(self, noisy: bool) -> tuple[list[Tensor], list[Tensor]]:
        """Means of the layers, and the first of them: of users, of items."""
        layers, x = [], torch.cat(self.first)
        for _ in range(LAYERS):
            x = Spread.apply(self.data.graph, x)
            if noisy:
                x = x + x.sign() * F.normalize(torch.rand_like(x), dim=1) * self.args.eps
            layers.append(x)
        sizes = [self.data.users, self.data.items]
        return list(torch.stack(layers).mean(0).split(sizes)), list(layers[0].split(sizes))

    def contrast(self, one: Tensor, other: Tensor) -> Tensor:
        logits = F.normalize(one, dim=1) @ F.normalize(other, dim=1).T / self.args.temperature
        return F.cross_entropy(logits, torch.arange(len(one), device=one.device))

    def step(self, users: Tensor, items: Tensor) -> None:
        drawn = self.data.negatives(users)
        final, layer = self.spread(noisy=True)
        scores = (final[0][users] * (final[1][items] - final[1][drawn])).sum(1)
        asked = (0, users), (1, items), (1, drawn)
        penalty = sum(self.first[side][ids].square().sum() for side, ids in asked) / 2 / len(users)
        terms = [
            self.contrast(final[side][ids], layer[side][ids])
            for side, ids in ((0, users.unique()), (1, items.unique()))
        ]
        loss = -F.logsigmoid(scores).mean() + PENALTY * penalty + self.args.weight * sum(terms)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    @torch.no_grad()
    def evaluate(self, part: str) -> tuple[float, float, float]:
        """Recall@10, MRR@10, NDCG@10."""
        (users, items), _ = self.spread(noisy=False)
        scores = users @ items.T
        scores[:, 0] = -torch.inf
        scores[self.data.seen] = -torch.inf
        if part == "test":
            scores[self.data.table("valid")] = -torch.inf
        wanted = self.data.table(part)
        scores, wanted = scores[wanted.any(1)], wanted[wanted.any(1)]
        hits = wanted.gather(1, scores.topk(10).indices).float()
        count = wanted.sum(1)
        first = torch.where(hits.any(1), 1 / (hits.argmax(1) + 1), 0.0)
        discount = 1 / torch.log2(torch.arange(10, device=hits.device) + 2.0)
        ideal = discount.cumsum(0)[count.clamp(max=10) - 1]
        means = hits.sum(1) / count, first, (hits * discount).sum(1) / ideal
        recall, mrr, ndcg = (float(one.mean()) for one in means)
        return recall, mrr, ndcg


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--temperature", type=float, default=0.2)
    parser.add_argument("--weight", type=float, default=0.1)
    parser.add_argument("--eps", type=float, default=0.2)
    parser.add_argument("--epochs", type=int, default=80)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    data = Data(args.data, args.device)
    for seed in args.seeds:
        torch.manual_seed(seed)
        model, found = XSimGCL(data, args), []
        users, items = data.pairs["train"]
        for epoch in range(args.epochs):
            for some in torch.randperm(len(users), device=users.device).split(BATCH):
                model.step(users[some], items[some])
            valid = model.evaluate("valid")
            found.append((valid[1], epoch, valid, model.evaluate("test")))
            print(f"seed {seed} epoch {epoch} valid MRR@10 {valid[1]:.4f}", flush=True)
        _, epoch, valid, test = max(found)
        told = (" / ".join(f"{x:.4f}" for x in one) for one in (valid, test))
        print(f"seed {seed} best epoch {epoch}: valid {next(told)}, test {next(told)}", flush=True)


if __name__ == "__main__":
    main()

"""LightGCN and SASRec on one GPU, beside plain PyTorch: seconds of an epoch.

    python benchmarks/models_gpu.py
    python benchmarks/models_gpu.py --models LightGCN --tf32

Data of Gowalla's size, generated: 29,858 users, 40,981 items, 810,128 pairs, popular items often.
LightGCN: 3 layers, width 64, batches of 2048 pairs with a negative each, Adam. SASRec: width 64, 2
layers, 2 heads, dropout 0.2, the last 50 items of every user in batches of 256, a softmax over all
items at every position, Adam. Plain PyTorch: nn.Embedding, torch.sparse.mm (the faster of both
formats counts), nn.TransformerEncoder, fused Adam; logits at real positions alone. Batches are made
before the clock starts, in pinned memory, and are copied to the GPU step by step on both sides.
Shoal is strategy single with graph: auto. An epoch is run whole, after one that warms up; of
`--rounds` epochs in turn the median counts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shoal.config.schema import OptimizerSection
from shoal.data.batch import Batch
from shoal.distributed.world import World
from shoal.models.base import Facts, Model
from shoal.models.general.lightgcn import LightGCN
from shoal.models.nn.dropout import begin_step
from shoal.models.sequential.sasrec import SASRec
from shoal.training.strategies.base import Single
from shoal.training.strategies.graphed import Graphed

WIDTH, LAYERS, LENGTH, DROPOUT, LR, PENALTY = 64, 3, 50, 0.2, 1e-3, 1e-5
Step = Callable[[Batch], Tensor]


def make_pairs(args: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Users and items of all interactions, ids from 1: [pairs] each, by user."""
    generator = torch.Generator().manual_seed(1)

    def popular(count: int) -> Tensor:
        u = torch.rand(args.pairs, generator=generator, dtype=torch.float64)
        return (count * u**1.6).long().clamp(max=count - 1) + 1  # Gowalla's most: 811 and 1,415

    users = popular(args.users).sort().values
    return users, popular(args.items)


def pinned(batch: Batch, device: str) -> Batch:
    if device == "cpu":
        return batch
    return replace(batch, ids={name: ids.pin_memory() for name, ids in batch.ids.items()})


# ---- LightGCN ------------------------------------------------------------------------------------


def pair_batches(args: argparse.Namespace) -> list[Batch]:
    users, items = make_pairs(args)
    order = torch.randperm(len(users), generator=torch.Generator().manual_seed(2))
    negatives = torch.randint(1, args.items + 1, (len(users), 1))
    made = []
    for some in order.split(2048):
        ids = {"user_id": users[some], "item_id": items[some], "neg_item": negatives[some]}
        made.append(pinned(Batch(len(some), ids), args.device))
    return made


def lightgcn(args: argparse.Namespace) -> Model:
    users, items = make_pairs(args)
    facts = Facts(args.users + 1, args.items + 1, train_users=users, train_items=items)
    return LightGCN(LightGCN.Options(WIDTH, LAYERS, PENALTY, require_pow=True), facts)


def plain_lightgcn(args: argparse.Namespace, layout: str) -> Step:
    users, items = (part.to(args.device) for part in make_pairs(args))
    first_item = args.users + 1
    nodes = first_item + args.items + 1
    forth = torch.stack([users, items + first_item])
    ends = torch.cat([forth, forth.flip(0)], 1).unique(dim=1)
    ones = torch.ones(ends.shape[1], device=args.device)
    graph = torch.sparse_coo_tensor(ends, ones, (nodes, nodes)).coalesce()
    degrees = torch.zeros(nodes, device=args.device).index_add_(
        0, graph.indices()[0], graph.values()
    )
    scale = degrees.clamp(min=1).rsqrt()
    weights = scale[graph.indices()[0]] * scale[graph.indices()[1]]
    graph = torch.sparse_coo_tensor(graph.indices(), weights, (nodes, nodes)).coalesce()
    graph = graph.to_sparse_csr() if layout == "csr" else graph
    table = nn.Embedding(nodes, WIDTH, device=args.device)
    nn.init.xavier_uniform_(table.weight)
    optimizer = torch.optim.Adam(table.parameters(), lr=LR, fused=True)

    def step(batch: Batch) -> Tensor:
        batch = batch.to(args.device)
        layer = total = table.weight
        for _ in range(LAYERS):
            layer = torch.sparse.mm(graph, layer)
            total = total + layer
        final = total / (LAYERS + 1)
        user, item = batch.ids["user_id"], batch.ids["item_id"] + first_item
        negative = batch.ids["neg_item"].squeeze(1) + first_item
        margin = (final[user] * (final[item] - final[negative])).sum(1)
        size = sum(table(one).square().sum() for one in (user, item, negative)) / 2
        loss = (PENALTY * size - F.logsigmoid(margin).sum()) / len(user)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


# ---- SASRec --------------------------------------------------------------------------------------


def history_batches(args: argparse.Namespace) -> list[Batch]:
    users, items = make_pairs(args)
    lists = items.split(torch.bincount(users, minlength=args.users + 1).tolist())
    lists = [one[-LENGTH - 1 :] for one in lists if len(one) > 1]
    order = torch.randperm(len(lists), generator=torch.Generator().manual_seed(2)).tolist()
    made = []
    for begin in range(0, len(order), 256):
        some = [lists[k] for k in order[begin : begin + 256]]
        whole = torch.zeros(len(some), LENGTH + 1, dtype=torch.int64)
        for row, one in zip(whole, some):
            row[: len(one)] = one
        history, target = whole[:, :-1].contiguous(), whole[:, 1:].contiguous()
        history = history * (target > 0)  # the last item is asked for alone
        made.append(pinned(Batch(len(some), {"history": history, "target": target}), args.device))
    return made


def sasrec(args: argparse.Namespace) -> Model:
    facts = Facts(args.users + 1, args.items + 1, max_len=LENGTH)
    options = SASRec.Options(
        hidden_size=WIDTH,
        inner_size=4 * WIDTH,
        hidden_dropout_prob=DROPOUT,
        attn_dropout_prob=DROPOUT,
    )
    return SASRec(options, facts)


class PlainSASRec(nn.Module):
    """Torch's own layers, item vectors tied."""

    def __init__(self, items: int):
        super().__init__()
        self.items = nn.Embedding(items + 1, WIDTH, padding_idx=0)
        nn.init.normal_(self.items.weight, std=0.02)
        self.positions = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 2, 4 * WIDTH, DROPOUT, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(WIDTH), False)
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        self.register_buffer("mask", mask)

    def forward(self, history: Tensor, target: Tensor) -> Tensor:
        x = F.dropout(self.items(history) + self.positions, DROPOUT)
        states = self.layers(x, self.mask, is_causal=True)
        real = target > 0
        return F.cross_entropy(states[real] @ self.items.weight.T, target[real])


def plain_sasrec(args: argparse.Namespace) -> Step:
    model = PlainSASRec(args.items).to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR, fused=True)

    def step(batch: Batch) -> Tensor:
        batch = batch.to(args.device)
        loss = model(batch.ids["history"], batch.ids["target"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


# ---- both ----------------------------------------------------------------------------------------


def own_step(model: Model, args: argparse.Namespace) -> Step:
    world = World(args.device)
    strategy = Graphed(world, auto=True) if args.device == "cuda" else Single(world)
    strategy.setup(model, OptimizerSection(name="adam", lr=LR), seed=1)
    strategy.model.train()
    count = iter(range(1 << 60))

    def step(batch: Batch) -> Tensor:
        begin_step(1, next(count), world.device)
        return strategy.train_step(strategy.receive(batch))

    return step


def epoch(step: Step, batches: list[Batch], device: str) -> tuple[float, float]:
    """Seconds, and the mean loss."""
    begin = time.perf_counter()
    losses = [step(batch) for batch in batches]
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin, float(torch.stack(losses).mean())


def profile(step: Step, batches: list[Batch]) -> None:
    """What the GPU's time goes to, in ms of a step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        for batch in batches[:20]:
            step(batch)
        torch.cuda.synchronize()
    found = sorted(seen.key_averages(), key=lambda one: -one.device_time_total)
    print(f"  of the GPU {sum(one.device_time_total for one in found) / 20e3:.3f} ms a step:")
    for one in found[:16]:
        print(f"    {one.device_time_total / 20e3:8.3f}  {one.count / 20:6.1f} x  {one.key[:80]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--models", nargs="+", default=["LightGCN", "SASRec"])
    parser.add_argument("--users", type=int, default=29_858)
    parser.add_argument("--items", type=int, default=40_981)
    parser.add_argument("--pairs", type=int, default=810_128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tf32", action="store_true", help="on all sides")
    parser.add_argument("--profile", action="store_true", help="kernels by time")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high" if args.tf32 else "highest")
    where = torch.cuda.get_device_name() if args.device == "cuda" else "CPU (to try the script)"
    print(f"{where}, torch {torch.__version__}{', TF32' if args.tf32 else ''}")
    print(f"{'an epoch':28}{'steps':>7}{'seconds':>10}{'x':>7}{'loss':>10}")
    for name in args.models:
        torch.manual_seed(1)
        if name == "LightGCN":
            batches = pair_batches(args)
            plain = [plain_lightgcn(args, layout) for layout in ("coo", "csr")]
            sides = {"shoal": own_step(lightgcn(args), args)}
            sides |= {"plain PyTorch, COO": plain[0], "plain PyTorch, CSR": plain[1]}
        else:
            batches = history_batches(args)
            sides = {"shoal": own_step(sasrec(args), args), "plain PyTorch": plain_sasrec(args)}
        for step in sides.values():
            epoch(step, batches[: max(1, len(batches) // 4)] * 2, args.device)
        taken: dict[str, list[float]] = {side: [] for side in sides}
        losses = {}
        for _ in range(args.rounds):
            for side, step in sides.items():
                seconds, losses[side] = epoch(step, batches, args.device)
                taken[side].append(seconds)
        own = statistics.median(taken["shoal"])
        for side, seconds in taken.items():
            middle = statistics.median(seconds)
            line = f"{middle:10.3f}{middle / own:7.2f}{losses[side]:10.4f}"
            print(f"{name + ', ' + side:28}{len(batches):7}{line}", flush=True)
        if args.profile:
            for side, step in sides.items():
                print(f"  {name}, {side}")
                profile(step, batches)


if __name__ == "__main__":
    main()

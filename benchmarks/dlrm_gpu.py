"""DLRM end to end on one GPU, beside plain PyTorch.

    python benchmarks/dlrm_gpu.py                  # rates, phases and AUC
    python benchmarks/dlrm_gpu.py --optimizers adam --skip-auc
    python benchmarks/dlrm_gpu.py --compile              # torch.compile makes the dense part, too

26 slots of width 64 in one table, 13 dense values, batch 65,536; batches lie in pinned host memory
and are copied to the GPU in every step. Plain PyTorch: the same layers, nn.Embedding(sparse=True),
torch.optim's sparse optimizer for it and a fused one for the rest, in float32 and with TF32; graph
is strategy.graph: auto. Shares of the phases are of the GPU's time by the names of kernels. AUC: of
batches that were not trained on, whose labels hang on weights of the ids, after as many steps on
every side.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from shoal.config.schema import OptimizerSection
from shoal.data.batch import Batch
from shoal.distributed.world import World
from shoal.models.base import Facts
from shoal.models.clicks.dlrm import DLRM
from shoal.training.strategies.base import Single
from shoal.training.strategies.graphed import Graphed

SLOTS, DENSE = 26, 13
SETS = 8  # of batches, in turn
PHASES = {
    "pairs": ("_dots",),
    "rows": ("_gather", "_locate", "_update", "_sum_pieces", "_list", "_count_seg", "_find",
             "_insert", "_admit", "_write_numbers", "embedding", "sparse", "coalesce", "unique"),
    "sorting": ("sort", "radix", "scan"),
    "products": ("gemm", "cutlass", "nvjet", "bmm", "sm90", "sm80"),
    "copies": ("memcpy", "memset", "copy"),
    "dense optimizer": ("adam", "multi_tensor", "adagrad", "foreach"),
}  # fmt: skip


def make_batches(args: argparse.Namespace, count: int, seed: int) -> list[Batch]:
    """Zipf ids and labels that hang on them; in pinned memory where there is a GPU."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    each = args.rows // SLOTS
    for _ in range(count):
        u = torch.rand(args.batch, SLOTS, generator=generator, dtype=torch.float64)
        rest = 1.0 - args.power
        rank = (1.0 + u * (each**rest - 1.0)) ** (1.0 / rest)
        ids = rank.long().clamp(max=each) - 1 + torch.arange(SLOTS) * each
        dense = torch.randn(args.batch, DENSE, generator=generator)
        weight = torch.sin(ids.double() * 12.9898).float()  # of each id, the same every time
        logit = weight.sum(1) * 0.5 + dense[:, 0] * 0.5
        noise = torch.rand(args.batch, generator=generator)
        labels = (noise < torch.sigmoid(logit)).float()
        if args.device == "cuda":
            ids, dense, labels = ids.pin_memory(), dense.pin_memory(), labels.pin_memory()
        made.append(Batch(args.batch, {"slots": ids}, {"dense": dense}, labels))
    return made


def make_model(args: argparse.Namespace) -> DLRM:
    torch.manual_seed(1)
    facts = Facts(num_slots=SLOTS, num_dense=DENSE, rows=args.rows)
    return DLRM(DLRM.Options(dim=args.dim), facts)


class Plain(nn.Module):
    """The same layers on an embedding of torch's."""

    def __init__(self, args: argparse.Namespace):
        super().__init__()
        own = make_model(args)
        self.bottom, self.top = as_plain(own.bottom), as_plain(own.top)
        lower = torch.tril_indices(SLOTS + 1, SLOTS + 1, -1)
        self.register_buffer("lower", lower[0] * (SLOTS + 1) + lower[1])
        self.table = nn.Embedding(args.rows, args.dim, sparse=True)
        nn.init.uniform_(self.table.weight, -0.01, 0.01)

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:
        vectors = self.table(ids)
        first = self.bottom(dense)
        both = torch.cat([first.unsqueeze(1), vectors], 1)
        dots = torch.bmm(both, both.transpose(1, 2)).flatten(1).index_select(1, self.lower)
        return self.top(torch.cat([first, dots], 1))


def as_plain(layers: nn.Module) -> nn.Sequential:
    """The same weights in torch's own layers."""
    made: list[nn.Module] = []
    for layer in layers.modules():
        if isinstance(layer, nn.Linear):
            made.append(nn.Linear(layer.in_features, layer.out_features))
            made[-1].load_state_dict(layer.state_dict())
        elif isinstance(layer, nn.ReLU):
            made.append(nn.ReLU())
    if isinstance(made[-1], nn.Linear):  # the number at the end of a tower
        made.append(nn.Flatten(0))
    return nn.Sequential(*made)


def plain_step(
    args: argparse.Namespace, optimizer: str, model: Plain | None = None
) -> Callable[[Batch], None]:
    model = model or Plain(args).to(args.device)
    rows = [model.table.weight]
    rest = [p for p in model.parameters() if p is not model.table.weight]
    if optimizer == "adam":
        optimizers = [torch.optim.SparseAdam(rows, lr=args.lr)]
        optimizers.append(torch.optim.Adam(rest, lr=args.lr, fused=True))
    else:
        optimizers = [torch.optim.Adagrad(rows, lr=args.lr), torch.optim.Adagrad(rest, lr=args.lr)]

    def step(batch: Batch) -> None:
        batch = batch.to(args.device)
        logits = model(batch.ids["slots"], batch.dense["dense"])
        binary_cross_entropy_with_logits(logits, batch.labels).backward()
        for one in optimizers:
            one.step()
            one.zero_grad(set_to_none=True)

    return step


def make_strategy(args: argparse.Namespace, optimizer: str, graph: bool, precision: str) -> Single:
    torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
    world = World(args.device)
    strategy = Graphed(world, auto=True) if graph else Single(world)
    section = OptimizerSection(name="sparse_adam" if optimizer == "adam" else optimizer, lr=args.lr)
    autocast = "bfloat16" if precision == "bfloat16" else "float32"
    strategy.setup(make_model(args), section, 1, precision=autocast, compiled=args.compile)
    assert not graph or strategy.recorder is not None
    return strategy


def own_step(strategy: Single) -> Callable[[Batch], None]:
    def step(batch: Batch) -> None:
        strategy.train_step(strategy.receive(batch))  # nobody asks for its loss, so nobody waits

    return step


def rate(step: Callable[[Batch], None], batches: list[Batch], args: argparse.Namespace) -> float:
    """Samples a second."""
    wait = torch.cuda.synchronize if args.device == "cuda" else lambda: None
    for k in range(args.warm):
        step(batches[k % SETS])
    wait()
    begin = time.perf_counter()
    for k in range(args.steps):
        step(batches[k % SETS])
    wait()
    return args.steps * args.batch / (time.perf_counter() - begin)


def phases(step: Callable[[Batch], None], batches: list[Batch], kernels: int = 0) -> str:
    """Milliseconds of the GPU in a step, and shares; and of the largest kernels."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        for batch in batches[:5]:
            step(batch)
        torch.cuda.synchronize()
    shares = dict.fromkeys([*PHASES, "other"], 0.0)
    events = [e for e in found.key_averages() if e.device_type == torch.autograd.DeviceType.CUDA]
    events.sort(key=lambda event: -event.self_device_time_total)
    for event in events[:kernels]:
        us = event.self_device_time_total / 5
        print(f"    {us:8.1f} us {event.count / 5:4.0f} x {event.key[:90]}")
    for event in events:
        name = event.key.lower()
        phase = next((p for p, words in PHASES.items() if any(w in name for w in words)), "other")
        shares[phase] += event.self_device_time_total
    total = sum(shares.values()) or 1.0
    each = ", ".join(f"{name} {share / total:.0%}" for name, share in shares.items())
    return f"{total / 5e3:.2f} ms of the GPU: {each}"


def auc(scores: Tensor, labels: Tensor) -> float:
    order = scores.argsort()
    ranks = torch.empty(len(scores), dtype=torch.float64, device=scores.device)
    ranks[order] = torch.arange(1, len(scores) + 1, dtype=torch.float64, device=scores.device)
    positive = labels.sum(dtype=torch.float64)
    total = ranks[labels > 0].sum() - positive * (positive + 1) / 2
    return float(total / (positive * (len(labels) - positive)))


def measure_auc(
    args: argparse.Namespace,
    optimizer: str,
    precision: str,
    side: str,
    trained: list[Batch],
    tested: list[Batch],
) -> float:
    """Of Shoal (side "graph" or "") or of plain PyTorch (side "plain")."""
    if side == "plain":
        torch.set_float32_matmul_precision("highest")
        plain = Plain(args).to(args.device)
        step = plain_step(args, optimizer, plain)
    else:
        strategy = make_strategy(args, optimizer, side == "graph", precision)
        step = own_step(strategy)
    for batch in trained:
        step(batch)
    half = precision == "bfloat16"
    with torch.no_grad(), torch.autocast(args.device, torch.bfloat16) if half else nullcontext():
        held = [batch.to(args.device) for batch in tested]
        if side == "plain":
            found = [plain(batch.ids["slots"], batch.dense["dense"]) for batch in held]
        else:
            strategy.synchronize()
            model = strategy.model.eval()
            found = [model.logits(batch).float() for batch in held]
    return auc(torch.cat(found), torch.cat([batch.labels for batch in held]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rows", type=int, default=10_000_016, help="of the table, all slots")
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--batch", type=int, default=65_536)
    parser.add_argument("--power", type=float, default=1.05)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--warm", type=int, default=10)
    parser.add_argument("--auc-steps", type=int, default=200)
    parser.add_argument("--optimizers", nargs="+", default=["adagrad", "adam"])
    parser.add_argument("--precisions", nargs="+", default=["float32", "tf32", "bfloat16"])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--skip-auc", action="store_true")
    parser.add_argument("--kernels", type=int, default=0, help="of the last side, so many largest")
    args = parser.parse_args()
    args.rows = args.rows // SLOTS * SLOTS
    on_gpu = args.device == "cuda"
    where = torch.cuda.get_device_name() if on_gpu else "CPU (only to try the script)"
    print(f"{where}, torch {torch.__version__}; {args.rows:,} x {args.dim}, batch {args.batch:,}")
    batches = make_batches(args, SETS, 0)
    print(f"{'':34}{'samples/s':>14}{'x plain':>9}")
    for optimizer in args.optimizers:
        plain = 0.0
        for precision in ("float32", "tf32"):
            torch.set_float32_matmul_precision("highest" if precision == "float32" else "high")
            found = rate(plain_step(args, optimizer), batches, args)
            plain = plain or found
            name = f"plain PyTorch, {optimizer}, {precision}"
            print(f"{name:34}{found:14,.0f}{found / plain:9.2f}", flush=True)
        for precision in args.precisions:
            for graph in (False, True) if on_gpu else (False,):
                strategy = make_strategy(args, optimizer, graph, precision)
                step = own_step(strategy)
                found = rate(step, batches, args)
                name = f"shoal, {optimizer}, {precision}{', graph' if graph else ''}"
                print(f"{name:34}{found:14,.0f}{found / plain:9.2f}", flush=True)
                if on_gpu:
                    shown = args.kernels if graph and precision == args.precisions[-1] else 0
                    print(f"    {phases(step, batches, shown)}", flush=True)
                del strategy, step
                if on_gpu:
                    torch.cuda.empty_cache()
    if not args.skip_auc:
        trained, tested = make_batches(args, args.auc_steps, 1000), make_batches(args, 8, 999)
        for optimizer in args.optimizers:
            print(f"\n{f'AUC after {args.auc_steps} steps, {optimizer}':34}{'':>14}{'less':>9}")
            first = None
            sides = [("float32", "plain"), ("float32", "")]
            sides += [(precision, "graph" if on_gpu else "") for precision in args.precisions]
            for precision, side in sides:
                found = measure_auc(args, optimizer, precision, side, trained, tested)
                first = first if first is not None or side == "plain" else found
                less = "" if first is None else f"{first - found:9.5f}"
                name = precision + (f", {side}" if side else "")
                print(f"{name:34}{found:14.5f}{less}", flush=True)


if __name__ == "__main__":
    main()

"""Rows of bags of ids, pulled and pushed: every engine against float64 autograd of the same sums.

An engine joins by its name in ENGINES. GPU ones run by Triton's interpreter where there is no GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from services import pair
from torch import Tensor, nn
from triton_there import DEVICE, ask_for_interpreter, import_kernels

from shoal.data.batch import Batch, Jagged
from shoal.embedding.engines.local import make_local
from shoal.embedding.engines.native import Native
from shoal.embedding.engines.reference import Reference
from shoal.embedding.engines.tiered import Tiered
from shoal.embedding.module import Embeddings
from shoal.embedding.rows.admission import Admission
from shoal.embedding.rows.bags import Bags, join_bags
from shoal.embedding.rows.table import Init, Table
from shoal.embedding.service import LocalRows
from shoal.optimizers.row_optimizer import DEFINITIONS, RowOptimizer

ROWS, DIM, STEPS = 30, 21, 3
LENGTHS = [3, 0, 7, 1, 40, 0, 2, 12]  # one is longer than a window of the GPU's kernels


def fixed(**more: Any) -> Table:
    return Table("t", DIM, ROWS, Init("uniform", 0.5), padding=0, **more)


def growing(**more: Any) -> Table:
    return Table("t", DIM, None, Init("uniform", 0.5), padding=0, **more)


def gpu(table: Table, optimizer: RowOptimizer) -> Any:
    engines = import_kernels("shoal.embedding.engines.gpu_engine")
    return engines.make_gpu_engines([table], optimizer, 3, DEVICE)[0]


def cached(table: Table, optimizer: RowOptimizer, slots: int = ROWS) -> Any:
    engines = import_kernels("shoal.embedding.engines.gpu_engine")
    tables = import_kernels("shoal.embedding.engines.gpu_cache")
    return engines.GpuEngine(tables.CachedGpuTables(table, optimizer, 3, DEVICE, slots), 0)


ENGINES: dict[str, Callable[[RowOptimizer], Any]] = {
    "native": lambda o: Native(fixed(), o, 3),
    "native, two threads": lambda o: Native(fixed(), o, 3, threads=2),
    "native, growing": lambda o: Native(growing(), o, 3),
    "native, bfloat16": lambda o: Native(fixed(dtype="bfloat16"), o, 3),
    "native, growing, bfloat16": lambda o: Native(growing(dtype="bfloat16"), o, 3),
    "native, counted": lambda o: Native(growing(), o, 3, Admission(threshold=0.0)),
    "reference": lambda o: Reference(fixed(), o, 3),
    "reference, growing": lambda o: Reference(growing(), o, 3),
    "reference, counted": lambda o: Reference(growing(), o, 3, Admission(threshold=0.0)),
    "device": lambda o: make_local(fixed(), o, 3, backend="device"),
    "tiered": lambda o: Tiered(fixed(), o, 3, ROWS, None),
    "tiered, few slots": lambda o: Tiered(fixed(), o, 3, 27, None),
    "tiered, growing": lambda o: Tiered(growing(), o, 3, 29, None),
    "gpu": lambda o: gpu(fixed(), o),
    "gpu, growing": lambda o: gpu(growing(), o),
    "gpu, bfloat16": lambda o: gpu(fixed(dtype="bfloat16"), o),
    "gpu, cached": lambda o: cached(fixed(), o),
}
POOLINGS = ["sum", "mean", "weighted", "weighted mean"]
CASES = [
    pytest.param(name, how, marks=pytest.mark.slow if "gpu, " in name else ())
    for name in ENGINES
    for how in (POOLINGS if "gpu" not in name else ["weighted mean"])
]


@pytest.fixture(autouse=True)
def interpret(monkeypatch: pytest.MonkeyPatch) -> None:
    ask_for_interpreter(monkeypatch)


def draw(step: int, weighted: bool) -> Jagged:
    """Lists with repeated ids, padding, and empty ones."""
    random = torch.Generator().manual_seed(step)
    offsets = torch.tensor([0, *LENGTHS]).cumsum(0)
    ids = (torch.rand(int(offsets[-1]), generator=random) ** 2 * ROWS).long()
    ids[5] = ids[4]
    weights = torch.randn(len(ids), generator=random) if weighted else None
    return Jagged(ids, offsets, weights)


def by_torch(rows: Tensor, lists: Jagged, how: str) -> Tensor:
    """The definition: float64, list by list."""
    out = []
    for k in range(len(lists)):
        some = slice(int(lists.offsets[k]), int(lists.offsets[k + 1]))
        ids = lists.values[some]
        picked = rows[ids]
        if lists.weights is not None:
            picked = picked * lists.weights[some, None].double()
        total = picked.sum(0)
        out.append(total / max(int((ids != 0).sum()), 1) if how.endswith("mean") else total)
    return torch.stack(out)


def whole(engine: Any) -> Tensor:
    return engine.pull(torch.arange(ROWS).to(engine.device)).double().cpu()


def train(engine: Any, how: str) -> Tensor:
    """Steps of a module whose rows are an engine's; each is compared with autograd in float64."""
    embed = Embeddings(tags=engine.table)
    service = LocalRows({"t": engine}, device=engine.device)
    embed.attach(service)
    half = engine.table.half
    for step in range(STEPS):
        lists = draw(step, how.startswith("weighted"))
        rows = whole(engine).requires_grad_()
        want = by_torch(rows, lists, how)
        batch = Batch(len(lists), {"tags": lists}).to(engine.device)
        got = embed.pooled("tags", batch, "mean" if how.endswith("mean") else "sum")
        torch.testing.assert_close(got.detach().double().cpu(), want.detach(), rtol=1e-5, atol=1e-5)
        torch.sin(want).sum().backward()
        torch.sin(got).sum().backward()
        collected = service.collect().rows
        assert collected["t"].grads.shape == (len(lists), DIM)  # never [ids, dim]
        assert rows.grad is not None
        rows.grad[0] = 0.0  # padding
        touched = lists.values.unique()
        touched = touched[touched != 0]
        plain = Reference(fixed(), engine.optimizer, 3)  # one step by sums that float64 made
        plain.values = rows.detach().float()
        plain.step = engine.step
        plain.state = {key: part.clone() for key, part in train.state.items()}  # type: ignore
        plain.push(touched, rows.grad[touched].float(), 0.1)
        service.apply(collected, 0.1)
        bound = {"rtol": 2e-2, "atol": 2e-3} if half else {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(whole(engine), plain.values.double(), **bound)
        train.state = plain.state  # type: ignore[attr-defined]
    return whole(engine)


def begin(optimizer: RowOptimizer) -> None:
    train.state = Reference(fixed(), optimizer, 3).state  # type: ignore[attr-defined]


@pytest.mark.parametrize(("name", "how"), CASES)
def test_every_engine_pools_and_learns(name: str, how: str) -> None:
    optimizer = RowOptimizer("rowwise_adagrad")
    begin(optimizer)
    first = train(ENGINES[name](optimizer), how)
    begin(optimizer)
    assert torch.equal(first, train(ENGINES[name](optimizer), how))  # the same bits twice


@pytest.mark.parametrize("optimizer", DEFINITIONS)
@pytest.mark.parametrize(
    "name", ["native", "reference", pytest.param("gpu", marks=pytest.mark.slow)]
)
def test_every_optimizer(name: str, optimizer: str) -> None:
    chosen = RowOptimizer(optimizer)
    begin(chosen)
    train(ENGINES[name](chosen), "weighted")


@pytest.mark.parametrize("dim", [1, 3, 16, 64, 72, 200])
@pytest.mark.parametrize("weighted", [False, True])
def test_widths_of_the_core(dim: int, weighted: bool) -> None:
    """Sums of the core have the bits of sums in order of the ids, whatever fits into a register."""
    optimizer, lists = RowOptimizer("sgd"), draw(7, weighted)
    table = Table("t", dim, ROWS, Init("uniform", 0.5))
    bags = Bags(lists.offsets, lists.weights)
    grads = torch.randn(len(lists), dim)
    for threads in (1, 2):
        for grown in (False, True):
            made = table.grown if grown else table
            engine = Native(made, optimizer, 3, threads=threads)
            rows = engine.pull(torch.arange(ROWS))
            out, want = torch.zeros(len(lists), dim), rows.clone()
            sums = torch.zeros(ROWS, dim)
            for k, bag in enumerate(bags.bag_of(len(lists.values)).tolist()):
                weight = 1.0 if lists.weights is None else lists.weights[k]
                out[bag] += weight * rows[lists.values[k]]
                sums[lists.values[k]] += weight * grads[bag]
            assert torch.equal(engine.pull_bags(lists.values, bags), out)
            engine.push_bags(lists.values, grads, bags, 0.1)
            want -= sums * 0.1
            assert torch.equal(engine.pull(torch.arange(ROWS)), want)


def test_the_core_counts_ids_of_bags() -> None:
    """Shows and clicks are those of ids, not of bags, and ids below the threshold have no row."""
    lists = draw(1, False)
    counts = torch.stack([torch.ones(len(lists.values)), torch.arange(len(lists.values)) % 2], 1)
    grads = torch.randn(len(lists), DIM)
    exported = []
    for kind in (Native, Reference):
        engine = kind(growing(), RowOptimizer("sgd"), 3, Admission(threshold=4.0))
        engine.push_bags(lists.values, grads, Bags(lists.offsets), 0.1, counts)
        (rows,), (pending,) = engine.export(), engine.export_pending()
        exported.append((rows, pending))
    (rows, pending), (wanted, waiting) = exported
    assert torch.equal(rows.ids, wanted.ids) and torch.equal(pending.ids, waiting.ids)
    assert len(rows.ids) and len(pending.ids)
    for key in ("show", "click"):
        assert torch.equal(rows.state[key], wanted.state[key])
        assert torch.equal(getattr(pending, key), getattr(waiting, key))
    torch.testing.assert_close(rows.values, wanted.values)


def test_a_table_of_several_fields() -> None:
    """Lists, single ids and lists with weights of one table are one push."""
    table, optimizer = fixed(), RowOptimizer("adagrad")
    embed = Embeddings(a=table, b=table, c=table)
    service = LocalRows({"t": Native(table, optimizer, 3)})
    embed.attach(service)
    a, c = draw(1, False), draw(2, True)
    b = torch.tensor([3, 0, 3, 5, 9, 1, 1, 2])
    before = whole(service.engines["t"]).requires_grad_()
    made = embed.each_pooled(
        Batch(8, {"a": a, "b": b, "c": c}), {"a": "mean", "b": "sum", "c": "sum"}
    )
    total = sum(torch.sin(one).sum() for one in made.values())
    wanted = [by_torch(before, a, "mean"), before[b], by_torch(before, c, "sum")]
    sum(torch.sin(one).sum() for one in wanted).backward()  # type: ignore[union-attr]
    total.backward()
    collected = service.collect().rows
    assert len(collected["t"].grads) == 24
    ids, grads = pair(collected["t"].summed(ROWS))
    assert before.grad is not None
    before.grad[0] = 0.0  # padding
    torch.testing.assert_close(grads.double(), before.grad[ids], rtol=1e-5, atol=1e-6)


def test_a_group_of_gpu_tables() -> None:
    """Lists and single ids of tables of one width are one launch, sorted while rows are read."""
    engines = import_kernels("shoal.embedding.engines.gpu_engine")
    tables = [Table(f"t{k}", 6, ROWS + k, Init("uniform", 0.5), padding=0) for k in range(3)]
    optimizer, how = RowOptimizer("adagrad"), {"a": "mean", "b": "sum", "c": "sum"}
    gpus = engines.make_gpu_engines(tables, optimizer, 3, DEVICE)
    hosts = [Native(table, optimizer, 3) for table in tables]
    assert len({engine.group for engine in gpus}) == 1
    for kind, device in ((gpus, DEVICE), (hosts, "cpu")):
        embed = Embeddings(dict(zip("abc", tables)))
        service = LocalRows({one.table.name: one for one in kind}, device=device)
        embed.attach(service)
        for step in range(3):
            ids = draw(step, False), torch.arange(8) % 5 + step, draw(step + 9, True)
            batch = Batch(8, dict(zip("abc", ids))).to(device)
            found = embed.each_pooled(batch, how)  # type: ignore[arg-type]
            torch.stack([torch.sin(one).sum() for one in found.values()]).sum().backward()
            gradients = service.collect().rows
            assert all(one.pulled == (step > 0) for one in gradients.values())
            service.apply(gradients, 0.1)
    for ours, theirs in zip(gpus, hosts, strict=True):
        for mine, other in zip(ours.export(), theirs.export(), strict=True):
            torch.testing.assert_close(mine.values, other.values)
            torch.testing.assert_close(mine.state, other.state)


def test_bags_are_joined_and_cut() -> None:
    bags = Bags(torch.tensor([0, 2, 2, 3]), torch.tensor([1.0, 2.0, 3.0]))
    joined = join_bags([(3, bags), (2, None), (1, Bags(torch.tensor([0, 1])))])
    assert joined is not None and joined.weights is not None
    assert joined.offsets.tolist() == [0, 2, 2, 3, 4, 5, 6]
    assert joined.weights.tolist() == [1.0, 2.0, 3.0, 1.0, 1.0, 1.0]
    assert joined.bag_of(6).tolist() == [0, 0, 2, 3, 4, 5]
    kept = joined.keep_ids(torch.tensor([True, False, False, True, True, False]))
    assert kept.offsets.tolist() == [0, 1, 1, 1, 2, 3, 3]
    assert kept.weights is not None and kept.weights.tolist() == [1.0, 1.0, 1.0]
    assert join_bags([(3, None), (2, None)]) is None


@pytest.mark.parametrize("name", ["native", "reference", "gpu"])
def test_what_is_no_bags_is_refused(name: str) -> None:
    engine = ENGINES[name](RowOptimizer("sgd"))
    ids = torch.tensor([1, 2, 3], device=engine.device)
    with pytest.raises(ValueError, match=r"offsets of lists are torch.int32 \[2\]"):
        engine.pull_bags(ids, Bags(torch.tensor([0, 3], dtype=torch.int32)))
    with pytest.raises(ValueError, match=r"for 3 ids they must be torch.float32 \[3\]"):
        engine.pull_bags(ids, Bags(torch.tensor([0, 3]), torch.ones(2)))
    with pytest.raises(ValueError, match=r"for 1 of them they must be"):
        engine.push_bags(ids, torch.ones(3, DIM), Bags(torch.tensor([0, 3])), 0.1)
    if name == "native":
        for offsets in ([0, 2], [1, 3], [0, 4], [0, 3, 2, 3]):
            with pytest.raises(ValueError, match="bags: they ascend from 0"):
                engine.pull_bags(ids, Bags(torch.tensor(offsets)))
        with pytest.raises(ValueError, match="has no row 30"):
            engine.pull_bags(ids * 10, Bags(torch.tensor([0, 3])))


def test_equals_embedding_bag() -> None:
    lists = draw(3, False)
    engine = Native(fixed(), RowOptimizer("sgd"), 3)
    module = nn.EmbeddingBag.from_pretrained(whole(engine).float(), mode="sum")
    got = engine.pull_bags(lists.values, Bags(lists.offsets))
    torch.testing.assert_close(got, module(lists.values, lists.offsets[:-1]))

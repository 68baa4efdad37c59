"""graphed: single on one GPU, its steps recorded as CUDA graphs.

A step of a small model is hundreds of kernels, each shorter than the time Python takes to start it.
A shape of batch that comes a second time is recorded, and replayed from then on: one call a step.

Shapes must repeat, so lists whose length varies are padded up to a few lengths. Such a list names
places of a field `target` (a bidirectional model's `masked`); pads name a place whose target is 0,
which counts for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from shoal.config.schema import OptimizerSection
from shoal.data.batch import Batch, Jagged
from shoal.embedding.leaves.leaf import Leaf
from shoal.embedding.leaves.local import begin_all
from shoal.embedding.service import RowService
from shoal.embedding.table import Table
from shoal.models.base import Model
from shoal.training.strategy.single import Single
from shoal.world.world import World

OPTIMIZERS = ("adam", "adamw", "sparse_adam")
AHEAD = 8  # batches that may wait on their way to the GPU
ALIGN = 16  # bytes


class Graphed(Single):
    """What Single does, without Python between the kernels; the numbers are the same."""

    def __init__(self, world: World | None = None):
        super().__init__(world, fused=True)

    def setup(
        self,
        model: Model,
        optimizer: OptimizerSection,
        seed: int,
        clip_grad_norm: float | None = None,
        **how: Any,
    ) -> None:
        if optimizer.name not in OPTIMIZERS or clip_grad_norm is not None:
            raise ValueError(
                f"strategy.graph records steps of {', '.join(OPTIMIZERS)} without clipping; "
                f"train.optimizer.name is {optimizer.name!r}, train.clip_grad_norm is "
                f"{clip_grad_norm}: change them, or set strategy.graph=false"
            )
        super().setup(model, optimizer, seed, clip_grad_norm, **how)
        device = self.world.device
        self._lr = torch.zeros((), device=device)
        self._loss = torch.zeros((), device=device)
        self._known_lr: float | None = None
        self._recorded: dict[tuple, Recorded] = {}
        self._seen: set[tuple] = set()
        self._moment: Tensor | None = None
        self._pool = torch.cuda.graph_pool_handle()
        if self.dense_optimizer is not None:
            for group in self.dense_optimizer.param_groups:
                group["lr"], group["capturable"] = self._lr, True

    def make_rows(self, tables: dict[str, Table]) -> RowService:
        rows = super().make_rows(tables)
        self._leaves: list[Leaf] = []
        for name in tables:
            leaf = rows.leaf(name)
            if leaf is None or not leaf.recordable:
                raise ValueError(
                    f"strategy.graph needs Triton and tables of fixed size in the GPU's memory; "
                    f"{name!r} is not: set strategy.graph=false"
                )
            self._leaves.append(leaf)
        return rows

    def receive(self, batch: Batch) -> Batch:
        """As it is: it goes to the GPU when its step does."""
        return batch

    def train_parts(self, parts: Sequence[Batch], lr: float | None = None) -> Tensor:
        if len(parts) > 1:
            raise ValueError("strategy.graph records whole steps; set train.accumulate=1")
        lr, batch = self.lr(lr), pad(parts[0])
        if lr != self._known_lr:
            self._lr.fill_(lr)
            self._known_lr = lr
        self._check_memory()
        shape = tuple((key, tuple(x.shape), x.dtype) for key, x in tensors(batch).items())
        found = self._recorded.get(shape)
        if found is None and shape not in self._seen:
            self._seen.add(shape)
            return super().train_parts([batch.to(self.world.device)], lr)
        if found is None:
            found = self._recorded[shape] = Recorded(batch, self.world.device)
            found.feed(batch)
            with torch.cuda.graph(found.graph, pool=self._pool):
                self._loss.copy_(super().train_parts([found.batch], lr))
        else:
            found.feed(batch)
        begin_all(self._leaves, lr)
        found.graph.replay()
        return self._loss.clone()

    def _check_memory(self) -> None:
        """Forget what was recorded before a checkpoint brought other tensors."""
        if self.dense_optimizer is not None:
            now = self.dense_optimizer.state[self.dense[0]].get("exp_avg")
            if now is not self._moment:
                self._moment = now
                self._recorded.clear()
                self._seen.clear()

    def step_dense(self, lr: float) -> None:
        if self.dense_optimizer is not None:
            self.dense_optimizer.step()  # by the learning rate on the device
            self.dense_optimizer.zero_grad(set_to_none=True)


class Recorded:
    """A graph, and the memory from which it reads its batch."""

    def __init__(self, batch: Batch, device: torch.device):
        self.graph = torch.cuda.CUDAGraph()
        self.places: dict[str, tuple[int, int]] = {}
        size = 0
        for key, x in tensors(batch).items():
            self.places[key] = size, x.numel() * x.element_size()
            size += -(-self.places[key][1] // ALIGN) * ALIGN
        self.memory = torch.empty(size, dtype=torch.uint8, device=device)
        self._there = self._views(self.memory, batch)
        self.batch = with_tensors(batch, self._there)
        self._waiting = []
        for _ in range(AHEAD):
            host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            self._waiting.append((host, self._views(host, batch), torch.cuda.Event()))
        self._turn = 0

    def _views(self, memory: Tensor, like: Batch) -> dict[str, Tensor]:
        views = {}
        for key, x in tensors(like).items():
            start, length = self.places[key]
            views[key] = memory[start : start + length].view(x.dtype).view(x.shape)
        return views

    def feed(self, batch: Batch) -> None:
        """Copies to the device which nobody waits for: one, or of pinned tensors as they are."""
        if all(x.is_pinned() for x in tensors(batch).values()):
            for key, x in tensors(batch).items():
                self._there[key].copy_(x, non_blocking=True)
            return
        host, views, gone = self._waiting[self._turn]
        self._turn = (self._turn + 1) % AHEAD
        gone.synchronize()  # its last copy left long ago, unless the GPU is far behind
        for key, x in tensors(batch).items():
            views[key].copy_(x)
        self.memory.copy_(host, non_blocking=True)
        gone.record()


def pad(batch: Batch) -> Batch:
    """The list of places `masked`, where there is one, padded to a length that comes often."""
    masked = batch.ids.get("masked")
    if not isinstance(masked, Jagged):
        return batch
    targets = batch.tensor("target").reshape(-1)
    count = len(masked.values)
    wanted = min(padded_length(count), len(targets))
    if wanted == count:
        return batch
    # With fewer places than positions some position has no target.
    free = int((targets == 0).to(torch.uint8).argmax())
    values = torch.nn.functional.pad(masked.values, (0, wanted - count), value=free)
    return replace(batch, ids={**batch.ids, "masked": replace(masked, values=values)})


def padded_length(count: int) -> int:
    """The next multiple of 32, or of 128 where there are many."""
    step = 32 if count <= 256 else 128
    return max(step, -(-count // step) * step)


def tensors(batch: Batch) -> dict[str, Tensor]:
    """Every tensor of a batch, by a name."""
    found: dict[str, Tensor | None] = {"labels": batch.labels, "weights": batch.weights}
    found |= {f"dense.{name}": x for name, x in batch.dense.items()}
    for name, ids in batch.ids.items():
        if isinstance(ids, Jagged):
            found[f"ids.{name}.values"], found[f"ids.{name}.offsets"] = ids.values, ids.offsets
            found[f"ids.{name}.weights"] = ids.weights
        else:
            found[f"ids.{name}"] = ids
    return {key: x for key, x in found.items() if x is not None}


def with_tensors(batch: Batch, given: dict[str, Tensor]) -> Batch:
    """The same batch made of other tensors, as `tensors` names them."""
    ids: dict[str, Tensor | Jagged] = {}
    for name, old in batch.ids.items():
        if isinstance(old, Jagged):
            key = f"ids.{name}"
            weights = given.get(f"{key}.weights")
            ids[name] = Jagged(given[f"{key}.values"], given[f"{key}.offsets"], weights)
        else:
            ids[name] = given[f"ids.{name}"]
    dense = {name: given[f"dense.{name}"] for name in batch.dense}
    labels, weights = given.get("labels"), given.get("weights")
    return Batch(batch.size, ids, dense, labels, batch.first, weights)

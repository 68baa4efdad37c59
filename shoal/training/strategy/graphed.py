"""graphed: single on one GPU, its steps recorded as CUDA graphs.

A step of a small model is hundreds of kernels, each shorter than the time Python takes to start it.
A shape of batch that comes a second time is recorded, and replayed from then on: one call a step.

Shapes must repeat, so lists whose length varies are padded up to a few lengths. Such a list,
`masked`, names places of a field `target`: of a bidirectional model those of hidden items, of
another sequential one all that have a target. Pads name a place whose target is 0, which counts for
nothing. Other lists vary too much: such steps are not recorded.

`strategy.graph: true` refuses what cannot be recorded; with `auto` such a run is as under Single.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from shoal.config.schema import OptimizerSection
from shoal.data.batch import Batch, Jagged
from shoal.embedding.engines.local import begin_all
from shoal.embedding.store import Every, Ids
from shoal.models.base import Model
from shoal.training.strategy.single import Single
from shoal.world.world import World

AHEAD = 8  # batches that may wait on their way to the GPU
STAGED = 2  # of them in its memory
ALIGN = 16  # bytes
SHAPES = 64  # shapes of batches that are recorded; later ones run plainly

log = logging.getLogger("shoal")
Step = Callable[[Sequence[Batch], float | None], Tensor]


class Graphed(Single):
    """What Single does, without Python between the kernels; the numbers are the same."""

    def __init__(self, world: World | None = None, fused: bool = True, auto: bool = False):
        super().__init__(world, fused)
        self.auto = auto
        self.recorder: Recorder | None = None  # None: steps are not recorded

    def setup(
        self,
        model: Model,
        optimizer: OptimizerSection,
        seed: int,
        clip_grad_norm: float | None = None,
        **how: Any,
    ) -> None:
        super().setup(model, optimizer, seed, clip_grad_norm, **how)
        why = self._why_not()
        if why is None:
            self.recorder = Recorder(self)
        elif self.auto:
            log.debug("steps are not recorded: %s", why)
        else:
            raise ValueError(f"strategy.graph: {why}, or set strategy.graph=false")

    def _why_not(self) -> str | None:
        """Why steps cannot be recorded, with the remedy; None: they can."""
        if self.clip_grad_norm is not None:
            return (
                "gradients are clipped by their norm, which the host reads: set "
                "train.clip_grad_norm=null"
            )
        kind = type(self.model)
        own = kind.__module__.startswith("shoal.models.") or "cuda_graph_safe" in vars(kind)
        if self.auto and not (own and self.model.cuda_graph_safe):
            return f"{type(self.model).__name__} does not say that all its steps do the same work"
        for name, engine in self.engines.items():
            if not engine.recordable:
                return (
                    f"steps are recorded of tables of fixed size in the GPU's memory, with Triton; "
                    f"{name!r} is not such a one: give it a number of rows"
                )
        return None

    def receive(self, batch: Batch) -> Batch:
        """As it is where steps are recorded: it goes to the GPU when its step does, or before."""
        return batch if self.recorder is not None else super().receive(batch)

    def prefetch(self, batch: Batch) -> None:
        super().prefetch(batch if self.recorder is None else self.recorder.send_ahead(batch))

    def step(self, parts: Sequence[Batch], lr: float | None = None) -> Tensor:
        if self.recorder is None:
            return super().step(parts, lr)
        return self.recorder.step(super().step, parts, self.lr(lr))


class Recorder:
    """Runs a strategy's steps, and replays those whose shape of batch came before."""

    def __init__(self, strategy: Graphed):
        self.strategy, self.device = strategy, strategy.world.device
        self.engines = list(strategy.engines.values())
        self.offloaded = {one.table.name: one for one in self.engines if one.offloaded}
        self._lr = torch.zeros((), device=self.device)
        self._loss = torch.zeros((), device=self.device)
        self._known_lr: float | None = None
        self._recorded: dict[tuple, Recorded] = {}
        self._seen: set[tuple] = set()
        self._memory: Tensor | None = None
        self._pool = torch.cuda.graph_pool_handle()
        self._copies = torch.cuda.Stream(self.device)
        if strategy.dense_optimizer is not None:
            strategy.dense_optimizer.recorded_lr = self._lr

    def send_ahead(self, batch: Batch) -> Batch:
        """Where rows come ahead the batch does, too, and its ids are looked up there."""
        if self.offloaded and not self._asks and pad(batch) is batch:
            found = self._recorded.get(shape_of(batch))
            if found is not None:
                batch = found.send(batch)
                torch.cuda.current_stream().wait_stream(self._copies)
        return batch

    def step(self, plain: Step, parts: Sequence[Batch], lr: float) -> Tensor:
        """The step `plain` of these parts, recorded where its shape came before."""
        if lr != self._known_lr:
            self._lr.fill_(lr)
            self._known_lr = lr
        self._check_memory()
        if len(parts) > 1 or self._needs_host(parts[0]):
            return plain([part.to(self.device) for part in parts], lr)
        batch = pad(ask(parts[0]) if self._asks else parts[0])
        if any(isinstance(ids, Every) for ids in self._offloaded_ids(batch)):  # too many to stage
            return plain([batch.to(self.device)], lr)
        shape = shape_of(batch)
        found = self._recorded.get(shape)
        if found is None and (shape not in self._seen or len(self._recorded) == SHAPES):
            self._seen.add(shape)
            return plain([batch.to(self.device)], lr)
        if found is None:
            found = self._recorded[shape] = Recorded(batch, self.device, self._copies)
            found.take(batch)
            # A thread that makes the next batches may pin their memory meanwhile.
            with torch.cuda.graph(found.graph, self._pool, capture_error_mode="thread_local"):
                self._loss.copy_(plain([found.batch], lr))
        else:
            found.take(batch)
        begin_all(self.engines, lr)
        for name, engine in self.offloaded.items():
            ids = self._offloaded_ids(found.batch, name)
            engine.stage([one for one in ids if isinstance(one, Tensor)])
        found.release()
        found.graph.replay()
        return self._loss.clone()

    def _needs_host(self, batch: Batch) -> bool:
        """Whether the host takes part in a step: it reads what each step of a click model predicts
        (train.print_every), or lists whose lengths vary."""
        return bool(self.strategy.model._forward_hooks) or has_lists(batch)

    @property
    def _asks(self) -> bool:
        """Whether a batch gets a list of the places that are asked for."""
        model = self.strategy.model
        return model.kind == "sequential" and model.cuda_graph_safe

    def _offloaded_ids(self, batch: Batch, name: str | None = None) -> list[Ids]:
        """Ids of a table whose rows may be in host memory, or of all those tables."""
        names = self.offloaded if name is None else {name}
        if not names:
            return []
        return [one.ids for one in self.strategy.lookups(batch) if one.table in names]

    def _check_memory(self) -> None:
        """Forget what was recorded before a checkpoint brought other tensors."""
        strategy = self.strategy
        if strategy.dense_optimizer is not None:
            state = strategy.dense_optimizer.state.get(strategy.dense[0], {})
            now = next((x for key, x in state.items() if key != "step"), None)
            if now is not self._memory:
                self._memory = now
                if self._recorded:
                    torch.cuda.synchronize(self.device)  # a batch may be on its way to one
                self._recorded.clear()
                self._seen.clear()


class Recorded:
    """A graph, and the memory from which it reads its batch.

    A batch goes to the GPU on a stream of copies, while the step before it is still computed, and
    from there into the graph's memory when that step has ended:

        copies     (wait: taken)  host -> staged
        computing                 (wait: copies)  staged -> memory  (record: taken)  replay
    """

    def __init__(self, batch: Batch, device: torch.device, copies: torch.cuda.Stream):
        self.graph, self.copies = torch.cuda.CUDAGraph(), copies
        self.places: dict[str, tuple[int, int]] = {}
        size = 0
        for key, x in tensors(batch).items():
            self.places[key] = size, x.numel() * x.element_size()
            size += -(-self.places[key][1] // ALIGN) * ALIGN
        self.memory = torch.empty(size, dtype=torch.uint8, device=device)
        self.batch = with_tensors(batch, self._views(self.memory, batch))
        self._waiting, self._staged = [], []
        for _ in range(AHEAD):
            host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            self._waiting.append((host, self._views(host, batch), torch.cuda.Event()))
        for _ in range(STAGED):
            there = torch.empty(size, dtype=torch.uint8, device=device)
            self._staged.append((there, self._views(there, batch), torch.cuda.Event()))
        # Memory comes from those who had it before on this stream, and they may still be at work.
        copies.wait_stream(torch.cuda.current_stream(device))
        self._turn, self._now = 0, 0
        self._held: list[Batch | None] = [None] * STAGED  # which batch is there, or comes

    def _views(self, memory: Tensor, like: Batch) -> dict[str, Tensor]:
        views = {}
        for key, x in tensors(like).items():
            start, length = self.places[key]
            views[key] = memory[start : start + length].view(x.dtype).view(x.shape)
        return views

    def send(self, batch: Batch) -> Batch:
        """Let it go to the device, by copies which nobody waits for: one, or of pinned tensors as
        they are. The batch there, until it is released; whoever reads it waits for the copies.
        """
        free = (k for k, one in enumerate(self._held) if one is None)
        place = next(free, self._turn % STAGED)
        staged, views, taken = self._staged[place]
        parts = tensors(batch)
        if self._held[place] is not None:  # sent, and never trained on: somebody may read its ids
            torch.cuda.synchronize(staged.device)
        with torch.cuda.stream(self.copies):
            taken.wait()  # the batch that was there before
            if all(x.is_pinned() for x in parts.values()):
                for key, x in parts.items():
                    views[key].copy_(x, non_blocking=True)
            else:
                host, on_host, gone = self._waiting[self._turn % AHEAD]
                gone.synchronize()  # its last copy left long ago, unless the GPU is far behind
                for key, x in parts.items():
                    on_host[key].copy_(x)
                staged.copy_(host, non_blocking=True)
                gone.record()
        self._held[place] = batch
        self._turn += 1
        return with_tensors(batch, views)

    def take(self, batch: Batch) -> None:
        """Into the graph's memory; it is sent unless it was."""
        if not any(one is batch for one in self._held):
            self.send(batch)
        self._now = next(k for k, one in enumerate(self._held) if one is batch)
        torch.cuda.current_stream().wait_stream(self.copies)
        self.memory.copy_(self._staged[self._now][0])

    def release(self) -> None:
        """The source buffers are free from here on."""
        self._staged[self._now][2].record()
        self._held[self._now] = None


def shape_of(batch: Batch) -> tuple:
    """What batches that one graph computes have in common."""
    return tuple((key, tuple(x.shape), x.dtype) for key, x in tensors(batch).items())


def has_lists(batch: Batch) -> bool:
    """Whether ids come in lists whose lengths vary as they like."""
    return any(isinstance(ids, Jagged) and name != "masked" for name, ids in batch.ids.items())


def ask(batch: Batch) -> Batch:
    """The batch with the places `masked` of all targets, where it has none."""
    if "masked" in batch.ids:
        return batch
    real = batch.tensor("target") > 0
    offsets = torch.nn.functional.pad(real.sum(1).cumsum(0), (1, 0))
    masked = Jagged(real.view(-1).nonzero().view(-1), offsets)
    return replace(batch, ids={**batch.ids, "masked": masked})


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
    """The next multiple of 32, or of 128 where there are many; of 16ths where there are more."""
    step = 32 if count <= 256 else max(128, 1 << (count.bit_length() - 5))
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

"""graphed: single on one GPU, its steps recorded as CUDA graphs.

A step of a small model is hundreds of kernels, each shorter than the time Python takes to start it.
A shape of batch that comes a second time is recorded, and replayed from then on: one call a step.

Shapes must repeat, so lists whose length varies are padded up to a few lengths. Such a list,
`masked`, names places of a field `target`: of a bidirectional model those of hidden items, of
another sequential one all that have a target. Pads name a place whose target is 0, which counts for
nothing. Another, `tokens`, names places of a field `history` that have an item, in large batches
where a quarter of them or more have none: layers compute nothing for those.

Lists of ids that a model reads pooled (features of kind `ids`) have room for as many ids as were
seen (ListRoom). Pads are the padding id, which adds nothing, at the end of the last list. Steps
with lists that are read otherwise are not recorded, nor are those of tables without a padding id
whose lists vary (the slots of a click log, unless data.features describes them).

`strategy.graph: true` refuses what cannot be recorded; with `auto` such a run is as under Single.
"""

import copy
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from shoal.config.schema import OptimizerSection
from shoal.data.batch import Batch, Jagged
from shoal.distributed.world import World
from shoal.embedding.module import Embeddings
from shoal.embedding.rows.store import Every
from shoal.models.base import Model
from shoal.training.strategies.base import Single

log = logging.getLogger("shoal")
Step = Callable[[Sequence[Batch], float | None], Tensor]


class Graphed(Single):
    """Single without Python between the kernels; the numbers are the same."""

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
        **options: Any,
    ) -> None:
        super().setup(model, optimizer, seed, clip_grad_norm, **options)
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
        is_safe = kind.__module__.startswith("shoal.models.") or "cuda_graph_safe" in vars(kind)
        if self.auto and not (is_safe and self.model.cuda_graph_safe):
            return f"{type(self.model).__name__} does not say that all its steps do the same work"
        name = self.local_rows.find_unrecordable()
        if name is not None:
            return (
                f"steps are recorded of tables of fixed size in the GPU's memory, with Triton; "
                f"{name!r} is not such a one: give it a number of rows"
            )
        return None

    def receive(self, batch: Batch) -> Batch:
        return super().receive(batch) if self.recorder is None else self.recorder.receive(batch)

    def prefetch(self, batch: Batch) -> None:
        if self.recorder is not None and self.prefetches:
            self.recorder.wait_for_copies()
        super().prefetch(batch)

    def step(self, parts: Sequence[Batch], lr: float | None = None) -> Tensor:
        if self.recorder is None:
            return super().step(parts, lr)
        return self.recorder.step(super().step, parts, self.lr(lr))


class Recorder:
    """Runs a strategy's steps, and replays those whose shape of batch came before."""

    def __init__(self, strategy: Graphed):
        self.strategy, self.device = strategy, strategy.world.device
        self.offloaded = strategy.local_rows.offloaded_tables
        self._lr = torch.zeros((), device=self.device)
        self._loss = torch.zeros((), device=self.device)
        self._known_lr: float | None = None
        self._recorded: dict[tuple, tuple[torch.cuda.CUDAGraph, Batch]] = {}  # and what it reads
        self._seen: set[tuple] = set()
        self._room = ListRoom(strategy.embeddings)
        self._memory: Tensor | None = None
        self._pool = torch.cuda.graph_pool_handle()
        self._copies = torch.cuda.Stream(self.device)
        self._done: deque[torch.cuda.Event] = deque()  # of steps that the GPU may still compute
        if strategy.dense_optimizer is not None:
            strategy.dense_optimizer.recorded_lr = self._lr

    def receive(self, batch: Batch) -> Batch:
        """The batch in the GPU's memory, by copies that steps before it do not wait for."""
        if has_lists(batch):
            batch = self._room.fit(batch)
        else:
            batch = count_tokens(pad(ask(batch) if self._asks else batch))
        while len(self._done) > 8:  # batches of later steps wait in the GPU's memory
            self._done.popleft().synchronize()
        with torch.cuda.stream(self._copies):
            batch = batch.to(self.device)
        for x in tensors(batch).values():
            x.record_stream(torch.cuda.current_stream())
        return batch

    def wait_for_copies(self) -> None:
        """Make computation from now on wait for batches that were received."""
        torch.cuda.current_stream().wait_stream(self._copies)

    def step(self, plain: Step, parts: Sequence[Batch], lr: float) -> Tensor:
        """The step `plain` of these parts, recorded where its shape came before."""
        if lr != self._known_lr:
            self._lr.fill_(lr)
            self._known_lr = lr
        self._check_memory()
        parts = [self.receive(part) for part in parts]  # as they are, where they were received
        self.wait_for_copies()
        loss = self._replayed(plain, parts, lr)
        self._done.append(torch.cuda.Event())
        self._done[-1].record()
        return loss

    def _replayed(self, plain: Step, parts: Sequence[Batch], lr: float) -> Tensor:
        batch = parts[0]
        if len(parts) > 1 or self._needs_host(batch):
            return plain(parts, lr)
        if self._reads_every_offloaded(batch):  # too many to stage
            return plain(parts, lr)
        shape = shape_of(batch)
        recording = self._recorded.get(shape)
        if recording is None and (shape not in self._seen or len(self._recorded) == 64):
            self._seen.add(shape)
            return plain(parts, lr)
        if recording is None:
            graph, batch = recording = torch.cuda.CUDAGraph(), copy.deepcopy(batch)
            self._recorded[shape] = recording
            # A thread that makes the next batches may pin their memory meanwhile.
            with torch.cuda.graph(graph, self._pool, capture_error_mode="thread_local"):
                self._loss.copy_(plain([batch], lr))
        else:
            graph, memory = recording
            for recorded, value in zip(tensors(memory).values(), tensors(batch).values()):
                recorded.copy_(value)
            batch = memory
        staged_ids = {name: self._offloaded_ids(batch, name) for name in self.offloaded}
        self.strategy.local_rows.begin_replay(lr, staged_ids)
        graph.replay()
        return self._loss.clone()

    def _needs_host(self, batch: Batch) -> bool:
        """Whether the host takes part in a step: it reads what each step of a click model predicts
        (train.print_every), or lists without recorded room."""
        if has_lists(batch) and (self.offloaded or not self._room.fits(batch)):
            return True
        return bool(self.strategy.model._forward_hooks)

    @property
    def _asks(self) -> bool:
        """Whether a batch gets a list of the places that the model predicts."""
        model = self.strategy.model
        return model.samples == "windows" and model.cuda_graph_safe

    def _offloaded_ids(self, batch: Batch, name: str) -> list[Tensor]:
        """The ids of a table whose rows may be in host memory."""
        lookups = self.strategy.lookups(batch)
        return [
            lookup.ids
            for lookup in lookups
            if lookup.table == name and isinstance(lookup.ids, Tensor)
        ]

    def _reads_every_offloaded(self, batch: Batch) -> bool:
        """Whether a step reads every row of a table whose rows may be in host memory."""
        return bool(self.offloaded) and any(
            isinstance(lookup.ids, Every)
            for lookup in self.strategy.lookups(batch)
            if lookup.table in self.offloaded
        )

    def _check_memory(self) -> None:
        """Forget what was recorded before a checkpoint brought other tensors."""
        strategy = self.strategy
        if strategy.dense_optimizer is not None:
            state = strategy.dense_optimizer.state.get(strategy.dense[0], {})
            now = next((x for key, x in state.items() if key != "step"), None)
            if now is not self._memory:
                self._memory = now
                self._recorded.clear()
                self._seen.clear()


def shape_of(batch: Batch) -> tuple:
    """The shape that all batches of one recorded graph have in common."""
    return tuple((key, tuple(x.shape), x.dtype) for key, x in tensors(batch).items())


class ListRoom:
    """Room for the ids of each field's lists, from the batches that came so far.

    At first it is the length of the first batch, which suffices for bags of one size. A batch with
    more ids gets more room than it needs (padded_length). Batches of another size have their own.
    """

    def __init__(self, modules: Sequence[Embeddings]):
        self.modules = modules
        self.most: dict[tuple[str, int], int] = {}

    def fit(self, batch: Batch) -> Batch:
        """The batch with pads where there is room left; the same one where nothing is padded."""
        ids = dict(batch.ids)
        for name, jagged in lists_of(batch).items():
            count, room = len(jagged.values), self.most.get((name, len(jagged.offsets)))
            if room is None or count > room:
                room = count if room is None else padded_length(count)
                self.most[name, len(jagged.offsets)] = room
            pad_id = self._pad_of(name)
            if pad_id is not None and count < room and len(jagged.offsets) > 1:
                ids[name] = _filled(jagged, room, pad_id)
        changed = any(ids[name] is not jagged for name, jagged in batch.ids.items())
        return replace(batch, ids=ids) if changed else batch

    def fits(self, batch: Batch) -> bool:
        """Whether all lists fill their room, and are read pooled alone, as the steps before did."""
        return all(
            self._is_pooled(name)
            and self.most.get((name, len(jagged.offsets))) == len(jagged.values)
            for name, jagged in lists_of(batch).items()
        )

    def _is_pooled(self, name: str) -> bool:
        pooled = any(name in module.read_pooled for module in self.modules)
        return pooled and not any(name in module.read_singly for module in self.modules)

    def _pad_of(self, name: str) -> int | None:
        """The padding id of all tables that a field's lists are read from; None: there is none."""
        if not self._is_pooled(name):
            return None
        pad_ids = {m.fields[name].padding for m in self.modules if name in m.fields}
        return pad_ids.pop() if len(pad_ids) == 1 else None


def _filled(lists: Jagged, length: int, pad_id: int) -> Jagged:
    """The lists with pads at the end of the last one, so that they have `length` ids."""
    padding = (0, length - len(lists.values))
    values = torch.nn.functional.pad(lists.values, padding, value=pad_id)
    end = torch.full_like(lists.offsets[:1], length)
    weights = None if lists.weights is None else torch.nn.functional.pad(lists.weights, padding)
    return Jagged(values, torch.cat([lists.offsets[:-1], end]), weights)


def lists_of(batch: Batch) -> dict[str, Jagged]:
    """Fields whose ids come in lists of any length."""
    return {
        name: ids
        for name, ids in batch.ids.items()
        if isinstance(ids, Jagged) and name not in ("masked", "tokens")
    }


def has_lists(batch: Batch) -> bool:
    """Whether ids come in lists whose lengths vary as they like."""
    return bool(lists_of(batch))


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
    length = min(padded_length(count), len(targets))
    if length == count:
        return batch
    # With fewer places than positions some position has no target.
    free = int((targets == 0).to(torch.uint8).argmax())
    values = torch.nn.functional.pad(masked.values, (0, length - count), value=free)
    return replace(batch, ids={**batch.ids, "masked": replace(masked, values=values)})


MANY_PLACES = 1 << 15  # with fewer, steps are as long as their kernels take to begin


def count_tokens(batch: Batch) -> Batch:
    """The batch with the places `tokens` of all items of `history`, where many have none.

    Their number is one of a few; what is spare, at least one, names the last place.
    """
    history = batch.ids.get("history")
    if "masked" not in batch.ids or not isinstance(history, Tensor) or history.is_cuda:
        return batch  # one on the GPU was received before
    if history.numel() < MANY_PLACES:
        return batch
    tokens = (history.reshape(-1) > 0).nonzero().view(-1)
    step = max(128, 1 << (len(tokens).bit_length() - 4))
    length = (len(tokens) // step + 1) * step
    if 4 * length > 3 * history.numel():
        return batch
    padding = torch.full((length - len(tokens),), history.numel() - 1)
    offsets = torch.tensor([0, length])
    return replace(
        batch, ids={**batch.ids, "tokens": Jagged(torch.cat([tokens, padding]), offsets)}
    )


def padded_length(count: int) -> int:
    """The next multiple of 32, or of 128 where there are many; of 16ths where there are more."""
    step = 32 if count <= 256 else max(128, 1 << (count.bit_length() - 5))
    return max(step, -(-count // step) * step)


def tensors(batch: Batch) -> dict[str, Tensor]:
    """Every tensor of a batch, by a name."""
    tensors_by_name: dict[str, Tensor | None] = {"labels": batch.labels, "weights": batch.weights}
    tensors_by_name |= {f"dense.{name}": x for name, x in batch.dense.items()}
    for name, ids in batch.ids.items():
        if isinstance(ids, Jagged):
            tensors_by_name[f"ids.{name}.values"], tensors_by_name[f"ids.{name}.offsets"] = (
                ids.values,
                ids.offsets,
            )
            tensors_by_name[f"ids.{name}.weights"] = ids.weights
        else:
            tensors_by_name[f"ids.{name}"] = ids
    return {key: x for key, x in tensors_by_name.items() if x is not None}

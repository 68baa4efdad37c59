"""Assembly: the modules that a model_fn made, set up, trained and saved as one model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from shoal.compat.estimator.specs import TrainOp
from shoal.config.schema import OptimizerSection
from shoal.runs.collective.loop import Loop
from shoal.runs.collective.slices import size_of
from shoal.training.checkpoint.writing import Checkpoints, Snapshot

M = TypeVar("M", bound=nn.Module)


class Kept(nn.Module):
    """Modules under names of any kind (an nn.ModuleDict has methods that are called `items`)."""

    def put(self, name: str, module: nn.Module) -> None:
        """Keep a module."""
        if "." in name:
            raise ValueError(f"the name of module {name!r} has a dot, which would mean one within")
        self._modules[name] = module

    def __getitem__(self, name: str) -> nn.Module:
        module = self._modules[name]
        assert module is not None
        return module

    def __contains__(self, name: str) -> bool:
        return name in self._modules


class Assembly:
    """Modules by name, under a loop."""

    def __init__(self, loop: Loop):
        self.loop, self.world = loop, loop.world
        self.modules = Kept()
        self.slice_size = 0  # samples of this process in the batch of now
        self._optimizer: Any = None
        self._newest: Snapshot | None = None

    def module(self, name: str, make: Callable[[], M]) -> M:
        """The module of that name; made where there is none."""
        if name not in self.modules:
            if not self.loop.previewing:
                raise RuntimeError(
                    f"module {name!r} was not there when the model was built: a model_fn asks for "
                    "the same modules in every mode"
                )
            self.modules.put(name, make().to(self.world.device))
        return self.modules[name]  # type: ignore[return-value]

    def slice(self, batch: Any) -> Any:
        """This process's slice of a batch."""
        mine = self.loop.slice(batch)
        self.slice_size = size_of(mine)
        return mine

    # ---- building -------------------------------------------------------------------------------

    @contextmanager
    def building(self) -> Iterator[None]:
        """A model_fn is tried out, and makes its modules."""
        self.loop.previewing = True
        try:
            with self.loop.scope(), torch.no_grad():
                yield
            self.loop.take_over_built()  # also where the scope stands within another
        finally:
            self.loop.previewing = False

    def entered(self) -> AbstractContextManager[None]:
        """A model_fn is called."""
        return self.loop.entered()

    def set_up(self, op: TrainOp) -> None:
        """Give rows and dense parameters their optimizer."""
        dense = None
        if op.dense is not None:
            dense = op.dense([p for p in self.modules.parameters() if p.requires_grad])
        elif any(p.requires_grad and p.numel() for p in self.modules.parameters()):
            raise ValueError(
                "the model has dense parameters, and strategy.minimize names an optimizer of rows "
                "alone; add dense=functools.partial(torch.optim.Adagrad, lr=0.1), say"
            )
        self._optimizer = self.loop.optimizer(dense, op.rows, op.lr, **op.options)

    def set_up_as(self, optimizer: dict[str, Any]) -> None:
        """The same for a model that is only used, from what a checkpoint says."""
        self.loop.set_up(OptimizerSection.model_validate(optimizer))

    # ---- training and using ---------------------------------------------------------------------

    def train(self, loss: Tensor) -> float:
        """One step; the loss of the global batch."""
        if self._optimizer is None:
            raise RuntimeError("the model was opened for use alone; train with a new strategy")
        self.modules.train()
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return self.loop.mean(loss)

    @contextmanager
    def resting(self) -> Iterator[None]:
        """The model is used: nothing learns."""
        self.modules.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.modules.train()

    def any(self, ended: Iterable[bool | None]) -> bool:
        """Whether some process wants it."""
        vote = torch.tensor([float(any(ended))], device=self.world.device)
        return float(self.world.all_reduce(vote)) > 0

    # ---- checkpoints ----------------------------------------------------------------------------

    def save(self, folder: Path, state: dict[str, Any], keep: int) -> None:
        """Commit a checkpoint."""
        self.loop.save(folder, self.modules, keep=keep, **state)

    def state_of(self, folder: Path) -> dict[str, Any] | None:
        """What the newest checkpoint says; None where there is none."""
        self._newest = Checkpoints(folder.absolute(), self.world).load_newest()
        return None if self._newest is None else self._newest.state

    def go_back(self) -> None:
        """Take over that checkpoint."""
        assert self._newest is not None
        self.loop.go_back(self._newest, self.modules)
        self._newest = None

"""CollectiveStrategy: many processes under a custom training loop, or under an Estimator.

strategy = shoal.CollectiveStrategy()
with strategy.scope():
    with strategy.embedding_scope():            # rows of what is built here are spread
        model = MyModel()
optimizer = strategy.optimizer(torch.optim.Adagrad(model.parameters(), lr=0.1))
for ids, labels in strategy.split(batches):     # this process's slice of every global batch
    optimizer.zero_grad()
    loss = loss_function(model(ids), labels)
    loss.backward()
    optimizer.step()                            # dense gradients agree, rows are updated
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from shoal.compat.estimator.estimator import Estimator, Kept, ModelFn
from shoal.compat.estimator.specs import RunConfig, TrainOp
from shoal.loop.loop import Loop
from shoal.loop.slices import tensors
from shoal.serving.artifact.tables import Kind

M = TypeVar("M", bound=nn.Module)


class CollectiveStrategy(Loop):
    """Processes that train one model together; alone, the same loop on one.

    backend: native, the one there is; None: what the variable COLLECTIVE_STRATEGY says.
    reduction: of your loss over a batch, `mean` or `sum`.
    device: auto, cpu or cuda. seed: of the first values of rows. `sections` are keys of a
    config's section strategy, such as place="row".

    >>> import torch, shoal
    >>> strategy = shoal.CollectiveStrategy(device="cpu")
    >>> strategy.world_size(), strategy.rank
    (1, 0)
    >>> with strategy.scope(), strategy.embedding_scope():
    ...     items = shoal.Embedding("item", dim=16)  # rows=None: it grows
    >>> optimizer = strategy.optimizer(rows="adagrad", lr=0.1)
    >>> items(torch.tensor([[7, 10**15]])).shape
    torch.Size([1, 2, 16])
    """

    def __init__(self, backend: str | None = None, **options: Any):
        super().__init__(backend, **options)
        self._kept = Kept()  # the modules of model_fns

    def export_saved_model(
        self,
        folder: str | Path,
        model: nn.Module,
        example: Any,
        rows: Kind = "float32",
    ) -> Path:
        """Export a trained model into a new folder, named by the time, inside `folder`; its path.

        example: inputs that model(example) takes, a tensor or a dict of tensors, each beginning
        with a dimension of samples. All processes call it, with the same. `shoal.load(path)
        .answer(inputs)` then needs neither the program nor the processes.
        """
        from shoal.compat.estimator.export import export_module, named

        features, had_names = named(tensors(example, self.world.device))

        def answer(given: dict[str, Tensor]) -> Tensor:
            return model(given if had_names else given["input"])

        return export_module(self, folder, model, answer, features, rows)

    # ---- of an Estimator's model_fn -------------------------------------------------------------

    def module(self, name: str, make: Callable[[], M]) -> M:
        """The module of that name, made when it is first asked for: a model_fn is called often."""
        found = self._kept.get(name)
        if found is None:
            if not self.previewing:
                raise RuntimeError(
                    f"module {name!r} is new: a model_fn asks for the same modules in every mode"
                )
            found = make().to(self.world.device)
            self._kept.put(name, found)
        return cast(M, found)

    def minimize(
        self,
        loss: Tensor,
        dense: Callable[[list[Any]], torch.optim.Optimizer] | None = None,
        rows: str | None = None,
        lr: float | None = None,
        **options: Any,
    ) -> TrainOp:
        """The train_op of an EstimatorSpec: a step that lowers the loss.

        dense: makes torch's optimizer of parameters, functools.partial(torch.optim.Adagrad,
        lr=0.1); the others as in `optimizer`.
        """
        return TrainOp(loss, dense, rows, lr, options)

    def estimator(
        self,
        model_fn: ModelFn,
        model_dir: str | Path,
        config: RunConfig | Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> Estimator:
        """An Estimator that trains what model_fn makes, and keeps its checkpoints in model_dir."""
        return Estimator(self, self._kept, model_fn, model_dir, config, params)

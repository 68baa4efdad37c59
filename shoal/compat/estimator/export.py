"""Export of a custom model: its graph, its rows, and the proof that they answer as it does.

The artifact is that of `shoal export` (shoal/runs/artifact), of kind `module`: inputs by name, and
one tensor as the answer. `shoal.load(folder).answer(features)` uses it.

FOLDER/1794710453/    a folder named by the time, in seconds, as TensorFlow's export_saved_model has
                      it; `shoal serve FOLDER` serves the newest of them
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import shoal
from shoal.data.batch import Batch
from shoal.files.durable import write_durably
from shoal.loop.loop import Loop
from shoal.serving.artifact import export as artifacts
from shoal.serving.artifact import files
from shoal.serving.artifact.tables import CHUNK_ROWS, Kind, write_table
from shoal.serving.artifact.trace import Traced, trace
from shoal.serving.artifact.writer import fields_of, write_graph

log = logging.getLogger("shoal")
Features = dict[str, Tensor]
Answer = Callable[[Features], Tensor]


def export_module(
    loop: Loop,
    folder: str | Path,
    model: nn.Module,
    answer: Answer,
    features: Features,
    rows: Kind = "float32",
    step: int | None = None,
) -> Path:
    """Write answer(features), for batches of any size, as a new artifact inside `folder`; its path.

    All processes call it, with the same features; the first one writes.
    """
    loop.synchronize()
    example = _asked(features, _answer_in_evaluation(model, answer, features))
    tables: dict[str, Any] = {}
    draft: _Draft | None = None  # of the first process alone

    def begin() -> list[str]:
        nonlocal draft
        draft = _Draft.begin(Path(folder), model, answer, features, stack)
        return draft.traced[0]["tables"]

    def finish() -> str:
        assert draft is not None
        return draft.finish(example, rows, step, tables)

    with ExitStack() as stack:
        for table in _agreed(loop, begin):
            store = loop.stores[table]
            chunks = store.export(CHUNK_ROWS)
            if loop.world.is_main:
                assert draft is not None
                tables[table] = write_table(draft.hidden, store.table, chunks, rows, loop.seed)
            else:
                for _ in chunks:  # all that hold rows take part
                    pass
        return Path(_agreed(loop, finish))


@dataclass(frozen=True)
class _Draft:
    """An artifact that is being written."""

    path: Path  # where it will be
    hidden: Path  # where it is until it is whole
    name: str  # of the model
    traced: Traced

    @classmethod
    def begin(
        cls, folder: Path, model: nn.Module, answer: Answer, features: Features, stack: ExitStack
    ) -> _Draft:
        """A new folder inside `folder`, hidden until `stack` closes, and the traced model."""

        def answer_batch(batch: Batch) -> Tensor:
            return answer({**{key: batch.tensor(key) for key in batch.ids}, **batch.dense})

        # Services take the highest name: a clock that was set back must not name it lower.
        earlier = [int(entry.name) for entry in folder.glob("*") if entry.name.isdecimal()]
        path = folder / str(max([int(time.time()), *(second + 1 for second in earlier)]))
        hidden = stack.enter_context(files.new_folder(path))
        traced = trace(model, _batch(features), answer_batch, alone=False)
        return cls(path, hidden, type(model).__name__, traced)

    def finish(
        self, example: dict[str, Tensor], rows: Kind, step: int | None, tables: dict[str, Any]
    ) -> str:
        """Write graph and signature, compare answers in a fresh process; the path."""
        write_graph(self.hidden, self.traced)
        signature = {
            "shoal": shoal.__version__,
            "model": self.name,
            "kind": "module",
            "step": step,
            "graph": "graph.json",
            "query": None,
            "rows": rows,
            "base": None,
            "tables": tables,
        }
        write_durably(self.hidden / files.SIGNATURE, json.dumps(signature, indent=1).encode())
        card = partial(_card, self.name, self.traced[0])
        comparison = artifacts.finish(self.hidden, self.path, example, card)
        worst = comparison["largest_difference"]
        log.info(
            "exported to %s: a fresh process's answers differ by at most %.3g", self.path, worst
        )
        return str(self.path)


def _answer_in_evaluation(model: nn.Module, answer: Answer, features: Features) -> Tensor:
    """answer(features) without dropout and gradients; the model's mode stays as it was."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            return answer(features)
    finally:
        model.train(was_training)


def _agreed(loop: Loop, do: Callable[[], Any]) -> Any:
    """What the first process did (JSON), on all of them; its error, where it failed."""
    answer: dict[str, Any] = {}
    if loop.world.is_main:
        try:
            answer = {"done": do()}
        except (ValueError, OSError) as error:
            answer = {"error": str(error)}
    answer = json.loads(loop.world.broadcast_bytes(json.dumps(answer).encode() if answer else None))
    if "error" in answer:
        raise ValueError(answer["error"])
    return answer["done"]


def _card(name: str, document: dict[str, Any], comparison: dict[str, Any]) -> list[str]:
    inputs = [one for one in document["inputs"] if one["used"]]
    shapes = [", ".join("b" if n is None else str(n) for n in one["shape"]) for one in inputs]
    signature = ", ".join(
        f'"{spec["name"]}": {spec["dtype"]} [{shape}]' for spec, shape in zip(inputs, shapes)
    )
    return [
        f"# {name}",
        "",
        "Exported from a loop under `shoal.CollectiveStrategy`. It needs neither the program nor "
        "its data: `shoal.load(FOLDER).answer(features)`, with features",
        "",
        f"    {{{signature}}}",
        "",
        *artifacts.checked(comparison),
    ]


def _asked(features: Features, answer: Tensor) -> dict[str, Tensor]:
    """What a check asks and expects, as shoal.serving.artifact.check reads it."""
    if not isinstance(answer, Tensor):
        raise ValueError(f"the model answers {type(answer).__name__}; what is exported is a tensor")
    logits = {"0.logits": answer.detach().float().cpu().contiguous().clone()}
    return fields_of(_batch(features), "0.") | logits


def _batch(features: Features) -> Batch:
    ids = {name: one for name, one in features.items() if not one.is_floating_point()}
    dense = {name: one for name, one in features.items() if one.is_floating_point()}
    return Batch(len(next(iter(features.values()))), dict(ids), dense)


def named(features: Any) -> tuple[Features, bool]:
    """Features by name; whether they had names. A tensor by itself is `input`."""
    if isinstance(features, Mapping):
        by_name, had = {str(name): one for name, one in features.items()}, True
    else:
        by_name, had = {"input": features}, False
    for name, tensor in by_name.items():
        if not isinstance(tensor, Tensor) or tensor.dim() == 0:
            raise ValueError(
                f"input {name!r} is {type(tensor).__name__}; inputs are tensors [samples, ...]"
            )
    return by_name, had

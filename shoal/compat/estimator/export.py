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
    path = hidden = Path(folder)
    loop.synchronize()
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            asked = _asked(features, answer(features))
    finally:
        model.train(was_training)
    traced: Traced | None = None
    tables: dict[str, Any] = {}
    name = type(model).__name__

    def answer_batch(given: Batch) -> Tensor:
        return answer({**{key: given.tensor(key) for key in given.ids}, **given.dense})

    def begin() -> list[str]:
        nonlocal path, hidden, traced
        second = int(time.time())
        while (Path(folder) / str(second)).exists():  # the next one that is free
            second += 1
        path = Path(folder) / str(second)
        hidden = stack.enter_context(files.new_folder(path))
        traced = trace(model, _batch(features), answer_batch, alone=False)
        return traced[0]["tables"]

    def finish() -> str:
        assert traced is not None
        write_graph(hidden, traced)
        signature = {
            **{"shoal": shoal.__version__, "model": name, "kind": "module", "step": step},
            **{"graph": "graph.json", "query": None, "rows": rows, "base": None, "tables": tables},
        }
        write_durably(hidden / files.SIGNATURE, json.dumps(signature, indent=1).encode())
        found = artifacts.finish(hidden, path, asked, partial(_card, name, traced[0]))
        worst = found["largest_difference"]
        log.info("exported to %s: a fresh process's answers differ by at most %.3g", path, worst)
        return str(path)

    with ExitStack() as stack:
        for table in _agreed(loop, begin):
            store = loop.stores[table]
            chunks = store.export(CHUNK_ROWS)
            if loop.world.is_main:
                tables[table] = write_table(hidden, store.table, chunks, rows, loop.seed)
            else:
                for _ in chunks:  # all that hold rows take part
                    pass
        return Path(_agreed(loop, finish))


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


def _card(name: str, document: dict[str, Any], found: dict[str, Any]) -> list[str]:
    inputs = [one for one in document["inputs"] if one["used"]]
    shapes = [", ".join("b" if n is None else str(n) for n in one["shape"]) for one in inputs]
    given = ", ".join(
        f'"{one["name"]}": {one["dtype"]} [{shape}]' for one, shape in zip(inputs, shapes)
    )
    return [
        f"# {name}",
        "",
        "Exported from a loop under `shoal.CollectiveStrategy`. It needs neither the program nor "
        "its data: `shoal.load(FOLDER).answer(features)`, with features",
        "",
        f"    {{{given}}}",
        "",
        *artifacts.checked(found),
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
        found, had = {str(name): one for name, one in features.items()}, True
    else:
        found, had = {"input": features}, False
    for name, one in found.items():
        if not isinstance(one, Tensor) or one.dim() == 0:
            raise ValueError(
                f"input {name!r} is {type(one).__name__}; inputs are tensors [samples, ...]"
            )
    return found, had

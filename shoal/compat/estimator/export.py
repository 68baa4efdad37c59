"""Export of a custom model: its graph, its rows, and the proof that they answer as it does.

The artifact is that of `shoal export` (shoal/runs/artifact), of kind `module`: inputs by name, and
one tensor as the answer. `shoal.load(folder).answer(features)` uses it.

FOLDER/1794710453/    a folder named by the time, in seconds, as TensorFlow's export_saved_model has
                      it; `shoal serve FOLDER` serves the newest of them
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import shoal
from shoal.data.batch import Batch
from shoal.runs.artifact import export as artifacts
from shoal.runs.artifact import files
from shoal.runs.artifact.tables import CHUNK_ROWS, Kind, write_table
from shoal.runs.artifact.trace import Traced, trace
from shoal.runs.collective.loop import Loop
from shoal.world.durable import write_durably

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
    main = loop.world.is_main
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

    def begin() -> list[str]:
        nonlocal path, hidden, traced
        path = named_by_time(Path(folder))
        hidden = files.begin(path)
        traced = trace(model, _batch(features), lambda given: answer(_features(given)), alone=False)
        return traced[0]["tables"]

    def finish() -> str:
        assert traced is not None
        found = _finish(path, hidden, type(model).__name__, traced, tables, asked, rows, step)
        worst = found["largest_difference"]
        log.info("exported to %s: a fresh process's answers differ by at most %.3g", path, worst)
        return str(path)

    try:
        tables: dict[str, Any] = {}
        for name in _agreed(loop, begin):
            store = loop.stores[name]
            chunks = store.export(CHUNK_ROWS)
            if main:
                tables[name] = write_table(hidden, store.table, chunks, rows, loop.seed)
            else:
                for _ in chunks:  # all that hold rows take part
                    pass
        return Path(_agreed(loop, finish))
    except BaseException:
        if hidden != path:
            shutil.rmtree(hidden, ignore_errors=True)
        raise


def named_by_time(folder: Path) -> Path:
    """A new folder in this one, named by the second; by the next free one where it is taken."""
    second = int(time.time())
    while (folder / str(second)).exists():
        second += 1
    return folder / str(second)


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


def _finish(
    path: Path,
    hidden: Path,
    name: str,
    traced: Traced,
    tables: dict[str, Any],
    asked: dict[str, Tensor],
    rows: Kind,
    step: int | None,
) -> dict[str, Any]:
    document, dense = traced
    save_file(
        {key: one.contiguous().cpu().clone() for key, one in dense.items()},
        hidden / "dense.safetensors",
    )
    write_durably(hidden / "graph.json", json.dumps(document, indent=1).encode())
    signature = {
        **{"shoal": shoal.__version__, "model": name, "kind": "module", "step": step},
        **{"graph": "graph.json", "query": None, "rows": rows, "base": None, "tables": tables},
    }
    write_durably(hidden / files.SIGNATURE, json.dumps(signature, indent=1).encode())
    save_file(asked, hidden / artifacts.CHECK)
    found = artifacts.check_apart(hidden, rows, None)
    (hidden / artifacts.CHECK).unlink()
    write_durably(hidden / "README.md", _card(name, document, found).encode())
    files.write_manifest(hidden)
    files.commit(hidden, path)
    return found


def _card(name: str, document: dict[str, Any], found: dict[str, Any]) -> str:
    inputs = [one for one in document["inputs"] if one["used"]]
    given = ", ".join(f'"{one["name"]}": {one["dtype"]} {_shape(one["shape"])}' for one in inputs)
    facts = [f"| {key.replace('_', ' ')} | {value} |" for key, value in found.items()]
    return "\n".join(
        [
            f"# {name}",
            "",
            "Exported from a loop under `shoal.CollectiveStrategy`. It needs neither the program "
            "nor its data: `shoal.load(FOLDER).answer(features)`, with features",
            "",
            f"    {{{given}}}",
            "",
            "A fresh process loaded it and answered as the trained model did.",
            "",
            "| | |",
            "| --- | --- |",
            *facts,
            "",
        ]
    )


def _shape(shape: list[int | None]) -> str:
    return "[" + ", ".join("b" if size is None else str(size) for size in shape) + "]"


def _asked(features: Features, answer: Tensor) -> dict[str, Tensor]:
    """What a check asks and expects, as shoal.runs.artifact.check reads it."""
    if not isinstance(answer, Tensor):
        raise ValueError(f"the model answers {type(answer).__name__}; what is exported is a tensor")
    batch = _batch(features)
    found = {f"0.ids.{name}": batch.tensor(name).cpu().clone() for name in batch.ids}
    found |= {f"0.dense.{name}": one.cpu().clone() for name, one in batch.dense.items()}
    return found | {"0.logits": answer.detach().float().cpu().contiguous().clone()}


def _batch(features: Features) -> Batch:
    ids = {name: one for name, one in features.items() if not one.is_floating_point()}
    dense = {name: one for name, one in features.items() if one.is_floating_point()}
    return Batch(len(next(iter(features.values()))), dict(ids), dense)


def _features(batch: Batch) -> Features:
    return {**{name: batch.tensor(name) for name in batch.ids}, **batch.dense}


def named(features: Any) -> tuple[Features, bool]:
    """Features by name; whether they had names. A tensor by itself is `input`."""
    if isinstance(features, Mapping):
        found, had = {str(name): one for name, one in features.items()}, True
    else:
        found, had = {"input": features}, False
    for name, one in found.items():
        if not isinstance(one, Tensor) or one.dim() == 0:
            raise ValueError(
                f"input {name!r} is {type(one).__name__}; what is exported takes tensors that "
                "begin with a dimension of samples, by name"
            )
    return found, had

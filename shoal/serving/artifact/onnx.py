"""ONNX: an artifact's graph with its tables as one file for other runtimes (`shoal export --onnx`).

    models with a catalogue   user or history -> scores of all items [b, num_items], by number
    models that score pairs   the same and items [n] -> scores [b, n]
    click models              a sample's fields -> log odds [b] or [b, labels]

onnxruntime answers what the artifact was asked; where the answers differ nothing is left behind.
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from shoal import how_to_install
from shoal.data.batch import Jagged
from shoal.serving.artifact.artifact import Artifact

FILE = "model.onnx"


class _Whole(nn.Module):
    """The graph with its tables: fields by name -> the answer."""

    def __init__(self, artifact: Artifact, names: list[str]):
        super().__init__()
        self.artifact = artifact
        self.names = names
        for name in names:
            self.register_buffer(f"table_{name}", artifact.tables[name].whole().clone())

    def forward(self, fields: dict[str, Tensor]) -> Tensor:
        artifact = self.artifact
        if artifact.graph is None:
            queries = self._rows("query_vectors", fields[artifact.user_field])
        else:
            queries = artifact.graph(fields, self._rows, checked=False)
        if artifact.kind != "retrieval":
            return queries
        return queries @ self.get_buffer("table_item_vectors").T

    def _rows(self, table: str, ids: Tensor | Jagged, pooling: str = "sum") -> Tensor:
        assert isinstance(ids, Tensor)
        return nn.functional.embedding(ids, self.get_buffer(f"table_{table}"))


def write_onnx(folder: Path, artifact: Artifact, reference: dict[str, Tensor]) -> dict[str, float]:
    """Write model.onnx into an artifact's folder; how far its answers differ from the artifact's.

    asked: what the check of the artifact asks, by name.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 (torch.onnx needs it)
    except ImportError as error:
        raise ValueError(f"--onnx: {error}: {how_to_install('onnx')}") from error
    names = _tables(artifact)
    fields = _fields(artifact, reference)
    module, path = _Whole(artifact, names).eval(), folder / FILE
    # A file holds up to 1 GiB of tables itself; larger ones go to a second file.
    total = sum(one.numel() * one.element_size() for one in module.buffers())
    _convert(module, fields, path, total > 1 << 30, artifact.model)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    taken = {one.name for one in session.get_inputs()}
    (answers,) = session.run(None, {k: v.numpy() for k, v in fields.items() if k in taken})
    with torch.inference_mode():
        expected = module(fields)
    worst = float((expected.double() - torch.from_numpy(answers).double()).abs().max())
    # Another runtime adds up in another order.
    allowed = 1e-4 * max(1e-6, float(expected.abs().max()))
    if not worst <= allowed:
        raise ValueError(
            f"--onnx: onnxruntime's answers differ by up to {worst:.3g}; {allowed:.3g} is allowed"
        )
    return {"onnx_largest_difference": worst}


def _tables(artifact: Artifact) -> list[str]:
    """The tables that the file holds; refuses what ONNX cannot."""
    why = None
    if artifact.signature["rows"] != "float32" or artifact.signature["base"] is not None:
        why = "it is made of float32 rows that are all there; leave out --rows and --delta"
    elif artifact.graph is None and artifact.signature["query"] == "constant":
        why = f"{artifact.model} has one list of scores for everybody, and no graph"
    elif artifact.graph is not None:
        lists = [name for name, facts in artifact.graph.inputs.items() if facts.get("list")]
        grows = [n for n in artifact.graph.tables if artifact.tables[n].table.rows is None]
        if lists:
            why = f"{lists[0]!r} holds a list for each sample, which an input of a graph cannot"
        elif grows:
            why = f"table {grows[0]!r} grows: any id may come (data.clicks.rows bounds them)"
    if why is not None:
        raise ValueError(f"--onnx: {why}")
    names = [] if artifact.graph is None else list(artifact.graph.tables)
    if artifact.kind == "retrieval":
        names += ["item_vectors", *(["query_vectors"] if artifact.graph is None else [])]
    return list(dict.fromkeys(names))


def _fields(artifact: Artifact, reference: dict[str, Tensor]) -> dict[str, Tensor]:
    """Inputs to ask with, of the shapes that the graph takes."""
    if artifact.graph is None:
        return {artifact.user_field: reference[f"ids.{artifact.user_field}"].clone()}
    fields: dict[str, Tensor] = {}
    for name, facts in artifact.graph.inputs.items():
        keys = (
            ("items",) if name == "items" else (f"ids.{name}", f"0.ids.{name}", f"0.dense.{name}")
        )
        if not facts["used"]:
            continue
        tensor = next((reference[key] for key in keys if key in reference), None)
        if tensor is None:  # samples with lists of ids: one each, as the file takes them
            size = next(iter(fields.values())).shape[0] if fields else 8
            tensor = torch.ones([size, *facts["shape"][1:]], dtype=torch.int64)
        fields[name] = tensor[:64].clone()
    size = min(len(one) for name, one in fields.items() if name != "items")
    return {name: one if name == "items" else one[:size] for name, one in fields.items()}


def _convert(
    module: nn.Module, fields: dict[str, Tensor], path: Path, apart: bool, model: str
) -> None:
    shapes: Any = ({name: {0: torch.export.Dim.DYNAMIC} for name in fields},)
    quiet = logging.getLogger("torch.onnx")
    level = quiet.level
    quiet.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.export(module, (fields,), dynamic_shapes=shapes, strict=False)
            torch.onnx.export(
                program,
                f=str(path),
                dynamo=True,
                input_names=list(fields),
                output_names=["answer"],
                external_data=apart,
                verbose=False,
            )
    except Exception as error:  # of many kinds, by torch and onnxscript
        text = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise ValueError(f"--onnx: ONNX cannot hold the graph of {model}: {text[0]}") from error
    finally:
        quiet.setLevel(level)

"""Predict: the clicks of samples in a file, some thousand at a time.

The file has the format of the data that the model was trained on; labels are not needed.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from torch import Tensor

from shoal.data.batch import Batch, Jagged
from shoal.data.clicks import ClickLog, Layout
from shoal.data.clicks.per_feature import slot
from shoal.data.packed import open_text
from shoal.runs.artifact.bulk import SUFFIXES, join_parts, write_part
from shoal.runs.artifact.loaded import Artifact

CHUNK = 1 << 16
BETWEEN = {"slots": " ", "criteo": "\t"}


def predict_file(folder: str | Path, source: str | Path, output: str | Path) -> int:
    """Write a probability for each sample of a file, in order; how many there were."""
    artifact, path = Artifact(folder), Path(output)
    if artifact.kind != "clicks":
        raise ValueError(f"{artifact.model} ranks items: it predicts no clicks; use recommend")
    layout_of(artifact)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"--output {path} must end in {', '.join(SUFFIXES)}")
    if not Path(source).is_file():
        raise ValueError(f"--input: there is no file {source}")
    parts = path.with_name(f".{path.name}.parts")
    shutil.rmtree(parts, ignore_errors=True)
    parts.mkdir()
    try:
        with tempfile.TemporaryDirectory(prefix="shoal-predict-") as scratch:
            count = 0
            for number, chances in enumerate(_chances(artifact, Path(source), Path(scratch))):
                write_part({"click": chances}, parts / f"{number:08d}{path.suffix}")
                count += len(chances)
        if not count:
            raise ValueError(f"--input: {source} has no samples")
        join_parts(parts, path)
    finally:
        shutil.rmtree(parts, ignore_errors=True)
    return count


def layout_of(artifact: Artifact) -> Layout:
    """The columns of the click log that a model was trained on."""
    facts = artifact.signature["layout"]
    if facts is None:
        raise ValueError(
            f"{artifact.model} was trained on interactions with features, and their words are not "
            "part of the artifact; give encoded fields to shoal.load(...).predict"
        )
    return Layout(
        *(tuple(facts["slots"]), tuple(facts["dense"]), facts["label"]),
        *(facts["rows"], facts["others"]),
    )


def apart(artifact: Artifact, layout: Layout, batch: Batch) -> dict[str, Tensor | Jagged]:
    """The fields of a batch as the model reads them: all slots, or a field for each feature."""
    fields: dict[str, Tensor | Jagged] = {**batch.ids, **batch.dense}
    for name, column in artifact.signature["apart"].items():
        if column in layout.slots:
            fields[name] = slot(batch.ids["slots"], layout.slots.index(column), batch)
        else:
            places = [k for k, one in enumerate(layout.dense) if one == column]
            dense = batch.dense["dense"][:, places]
            fields[name] = dense[:, 0] if len(places) == 1 else dense
    return fields


def _chances(artifact: Artifact, source: Path, scratch: Path) -> Iterator[np.ndarray]:
    layout = layout_of(artifact)
    form, separator = artifact.signature["format"], artifact.signature["separator"]
    if form == "planted_clicks":  # generated clicks are written as lines of slots
        form = "slots"
    file = _with_labels(source, form, layout.label, separator, scratch)
    for block in ClickLog([file], form, layout, None, separator).blocks(file):
        for first in range(0, len(block), CHUNK):
            batch = block.samples(first, min(first + CHUNK, len(block))).batch()
            yield artifact.predict(apart(artifact, layout, batch)).numpy()


def _with_labels(source: Path, form: str, label: str, separator: str, scratch: Path) -> Path:
    """A file whose samples have labels: the given one, or a copy of it with zeros."""
    copy = scratch / source.name
    if form == "parquet":
        import polars as pl

        if label in pl.read_parquet_schema(source):
            return source
        pl.scan_parquet(source).with_columns(pl.lit(0).alias(label)).sink_parquet(copy)
        return copy
    copy = copy.with_suffix(".csv" if form == "csv" else ".txt")
    with open_text(source) as lines:
        first = lines.readline().rstrip(b"\r\n")
        if form == "csv":
            between = separator.encode() if separator.encode() in first else b","
            if label.encode() in first.split(between):
                return source
            head = label.encode() + between + first
        elif form == "slots":
            if first.startswith(f"{label}:".encode()) or f" {label}:".encode() in first:
                return source
            between, head = b"", f"{label}:0 ".encode() + first
        else:
            if first.count(b"\t") != 38:
                return source
            between, head = b"", b"0\t" + first
        start = {"csv": b"0" + between, "slots": f"{label}:0 ".encode()}.get(form, b"0\t")
        with open(copy, "wb") as out:
            out.write(head + b"\n")
            for line in lines:
                if line.strip(b"\r\n"):
                    out.write(start + line.rstrip(b"\r\n") + b"\n")
    return copy

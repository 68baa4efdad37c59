"""Predict: the clicks of samples in a file, some thousand at a time.

The file has the format of the data that the model was trained on; labels are not needed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np

from shoal.config.schema import DataSection
from shoal.data.clicks import ClickLog
from shoal.data.clicks.per_feature import per_feature
from shoal.data.encoder import LogEncoder
from shoal.data.packed import open_text, plain_name
from shoal.data.prepared.inputs import form_of
from shoal.data.sources.table import read_frame
from shoal.runs.artifact.bulk import parts_of
from shoal.runs.artifact.loaded import Artifact

CHUNK = 1 << 16


def predict_file(folder: str | Path, source: str | Path, output: str | Path) -> int:
    """Write a probability for each sample of a file, in order; how many there were."""
    artifact = Artifact(folder)
    artifact.needs_clicks()
    if not Path(source).is_file():
        raise ValueError(f"--input: there is no file {source}")
    names = [name for name, _ in artifact.labels]
    names = ["click"] if len(names) == 1 else names
    count = 0
    with tempfile.TemporaryDirectory(prefix="shoal-predict-") as scratch, parts_of(output) as write:
        for chances in _chances(artifact, Path(source), Path(scratch)):
            write(dict(zip(names, chances.reshape(len(chances), -1).T)))
            count += len(chances)
        if not count:
            raise ValueError(f"--input: {source} has no samples")
    return count


def _chances(artifact: Artifact, source: Path, scratch: Path) -> Iterator[np.ndarray]:
    encoder = artifact.encoder
    if not isinstance(encoder, LogEncoder) or encoder.form in ("csv", "parquet"):
        if isinstance(encoder, LogEncoder):
            spelling = DataSection(separator=artifact.signature["separator"], quote=None)
        else:
            spelling = encoder.config
        frame = read_frame(source, spelling, form_of(source, spelling))
        for first in range(0, len(frame), CHUNK):
            yield artifact.predictor.predict(frame[first : first + CHUNK])
        return
    layout = encoder.layout
    form = "criteo" if encoder.form == "criteo" else "slots"  # (as generated clicks are written)
    file = _with_labels(source, form, layout.label, scratch)
    for block in ClickLog([file], form, layout).blocks(file):
        for first in range(0, len(block), CHUNK):
            batch = block.samples(first, min(first + CHUNK, len(block))).batch()
            yield artifact.predictor.of(per_feature(batch, layout, encoder.features)).numpy()


def _with_labels(source: Path, form: str, label: str, scratch: Path) -> Path:
    """A file of lines that have labels: the given one, or a copy of it with zeros."""
    copy = scratch / f"{plain_name(source).stem}.txt"
    with open_text(source) as lines:
        first = lines.readline()
        if form == "slots":
            has, zero = f" {label}:".encode() in b" " + first, f"{label}:0 ".encode()
        else:
            has, zero = first.count(b"\t") != 38, b"0\t"
        if has:
            return source
        with open(copy, "wb") as out:
            for line in chain([first], lines):
                if line.strip(b"\r\n"):
                    out.write(zero + line.rstrip(b"\r\n") + b"\n")
    return copy

"""Click logs in prepared folders: parsed once, mapped by all processes of a host.

    manifest.json   the layout, counts, checksums, options, inputs, the command
    labels.bin      float32 [n]
    dense.bin       float32 [n, num_dense]
    ids.bin         int64 [n, num_slots]; where slots hold lists, one after the other, and
    offsets.bin     int64 [n * num_slots + 1]: where each list begins

They hold what the files give in their order, so batches and losses are those of the files.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from shoal.clicks.formats import looks_like
from shoal.clicks.layout import Layout
from shoal.clicks.lines import Block
from shoal.clicks.log import ClickLog, read_layout
from shoal.clicks.samples import Samples
from shoal.data.column_store import (
    Appender,
    DamagedFolder,
    Stored,
    all_stored,
    check_arrays,
    map_array,
)
from shoal.data.prefetch import ahead
from shoal.data.prepared.dataset import manifest_of
from shoal.data.prepared.folder import Document, PrepareJob, PrepareSteps, carry_out
from shoal.data.sources.files import input_files

logger = logging.getLogger(__name__)

TYPES = {"labels": "<f4", "dense": "<f4", "ids": "<i8", "offsets": "<i8"}
DECIDED = ("slots", "dense", "label", "rows", "pipe_command")


def prepare_log(job: PrepareJob) -> Document:
    """Prepare a folder of a click log, or add to it; its manifest."""
    return carry_out(job, LogSteps())


class LogSteps(PrepareSteps):
    """The steps for a click log."""

    def paths(self, job: PrepareJob) -> list[Path]:
        """The raw files."""
        if job.engine.width > 1:
            raise ValueError("--engine ray reads interactions; leave it out for a click log")
        return input_files(job.inputs)

    def options(self, job: PrepareJob) -> dict[str, Any]:
        """What decides the layout."""
        settings = job.config.clicks.model_dump()
        return {
            "clicks": {key: settings[key] for key in DECIDED},
            "format": _form(job),
            "separator": job.config.separator,
            "cells": job.config.cells,
        }

    def add(
        self, job: PrepareJob, paths: list[Path], folder: Path, manifest: Document, work: Path
    ) -> Document:
        """Write the samples of files behind those in `folder`."""
        config, form = job.config, _form(job)
        layout = read_layout(config, form, paths)
        if "layout" in manifest:  # what is added is read as what is there
            layout = replace(layout, cells=Layout.from_entry(manifest["layout"]).cells)
        log = ClickLog(paths, form, layout, config.clicks.pipe_command, config.separator)
        manifest = {"arrays": {}, "bad_rows": 0, "files": [], **manifest}
        writer = _Writer(folder, manifest["arrays"])
        skipped: Counter[str] = Counter()

        def parse(block: Block) -> tuple[Samples, int, int]:
            size = block.num_bytes(slice(None))
            if config.bad_rows != "skip":
                return block.samples(slice(None)), 0, size
            samples, bad = block.sound()
            skipped[block.name] += bad
            return samples or Samples.none(layout), bad, size

        bad_rows = 0
        blocks = (block for file in log.files for block in log.blocks(file))
        for samples, bad, size in ahead(parse, blocks, config.clicks.threads):
            writer.write(samples)
            bad_rows += bad
            job.progress(size)
        for name, count in (+skipped).items():
            logger.warning("%s: %d bad rows are left out (data.bad_rows: skip)", name, count)
        if not writer.rows:
            raise ValueError(f"{paths[0]} holds no samples; name files with samples")
        return {
            **manifest,
            "rows": manifest["rows"] + writer.rows,
            "layout": {k: [*v] if isinstance(v, tuple) else v for k, v in asdict(layout).items()},
            "arrays": writer.close(),
            "bad_rows": manifest["bad_rows"] + bad_rows,
            "files": [*manifest["files"], *log.fingerprint()],
        }


def _form(job: PrepareJob) -> str:
    config = job.config
    if config.format != "auto":
        return config.format
    if config.clicks.pipe_command is not None:
        return "slots"
    return looks_like(input_files(job.inputs)[0])


class _Writer:
    """Appends samples; offsets are there as soon as one slot holds a list."""

    def __init__(self, folder: Path, entries: dict[str, Any]):
        self.folder, self.rows = folder, 0
        names = [name for name in TYPES if name != "offsets" or name in entries]
        self.files = {
            name: Appender(
                folder,
                Stored.from_entry(entries[name])
                if name in entries
                else Stored(f"{name}.bin", TYPES[name]),
            )
            for name in names
        }
        self.ids = len(self.files["ids"].stored)

    def write(self, samples: Samples) -> None:
        """Append samples."""
        if samples.offsets is not None and "offsets" not in self.files:
            self.files["offsets"] = Appender(self.folder, Stored("offsets.bin", TYPES["offsets"]))
            self.files["offsets"].write(np.arange(self.ids + 1))  # until here one id each
        ids = samples.ids.reshape(-1)
        self.files["labels"].write(samples.labels)
        self.files["dense"].write(samples.dense.reshape(-1))
        self.files["ids"].write(ids)
        if "offsets" in self.files:
            ends = np.arange(len(ids) + 1) if samples.offsets is None else samples.offsets
            self.files["offsets"].write(self.ids + ends[1:])
        self.ids += len(ids)
        self.rows += len(samples)

    def close(self) -> dict[str, Any]:
        """The entries of all arrays."""
        for file in self.files.values():
            file.close()
        return {name: file.stored.entry() for name, file in self.files.items()}


def open_log(folder: Path) -> tuple[Samples, Layout, list[list[Any]]]:
    """The mapped samples of a prepared folder, their layout, and the fingerprint of its files."""
    with manifest_of(folder) as manifest:
        if "layout" not in manifest:
            raise ValueError(
                f"{folder} holds interactions, not a click log; read it with "
                f"data.path={folder.parent} and data.name={folder.name}"
            )
        compared = check_arrays(folder, all_stored(manifest))
        layout = Layout.from_entry(manifest["layout"])
        arrays = {n: map_array(folder, Stored.from_entry(e)) for n, e in manifest["arrays"].items()}
        samples = _samples(layout, arrays, manifest["rows"], compared)
        return samples, layout, manifest["files"]


def _samples(layout: Layout, arrays: dict[str, np.ndarray], rows: int, whole: bool) -> Samples:
    """Refuse arrays that do not belong together: a checksum is right wherever its author wanted."""
    slots, width = len(layout.slots), len(layout.dense)
    ids, offsets = arrays["ids"], arrays.get("offsets")
    expected_lengths = {"labels": rows, "dense": rows * width}
    expected_lengths |= {"ids": rows * slots} if offsets is None else {"offsets": rows * slots + 1}
    for name, length in expected_lengths.items():
        if len(arrays[name]) != length or arrays[name].dtype != np.dtype(TYPES[name]):
            raise DamagedFolder(f"{name} has {len(arrays[name])} values, not {length}")
    if ids.dtype != np.dtype(TYPES["ids"]):
        raise DamagedFolder("ids are not of 64 bits")
    if offsets is not None:
        ends = offsets[0] == 0 and offsets[-1] == len(ids)
        if not ends or (whole and (np.diff(offsets) < 1).any()):
            raise DamagedFolder("the lists of slots do not lie within their ids")
    if whole and layout.rows and len(ids) and not (ids.min() >= 0 and ids.max() < layout.rows):
        raise DamagedFolder(f"ids are not all below {layout.rows}")
    dense = arrays["dense"].reshape(rows, width)
    return Samples(
        slots,
        arrays["labels"],
        dense,
        ids.reshape(rows, slots) if offsets is None else ids,
        offsets,
    )

"""Raw files of interactions -> a prepared folder, in memory of a stated size.

The files are read in pieces of bounded size, which become columns as everywhere (data/columns.py);
then the rows are split and brought together by user (views.py).
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from shoal.config.schema import DataSection
from shoal.config.yaml_io import inline
from shoal.data.column_store import all_stored, chunks, map_array
from shoal.data.columns import SourceRows, add_rows
from shoal.data.dataset import FieldType
from shoal.data.filters import looks_at_all
from shoal.data.manifest import Manifest
from shoal.data.prepared import views
from shoal.data.prepared.dataset import DECIDED, refuse_absent, view_of
from shoal.data.prepared.folder import Document, PrepareJob, PrepareSteps, carry_out
from shoal.data.prepared.inputs import (
    Input,
    expand,
    open_inputs,
    read_in_order,
    read_sides,
    side_files,
    sort_out,
)
from shoal.data.raw_columns import RawColumn
from shoal.data.reading import cells_of
from shoal.data.sources.text import is_by_line

logger = logging.getLogger(__name__)


def prepare(job: PrepareJob) -> Document:
    """Prepare a folder of interactions, or add to it; its manifest."""
    return carry_out(job, InteractionSteps())


class InteractionSteps(PrepareSteps):
    """The steps for interactions, with what is known of users and items."""

    def paths(self, job: PrepareJob) -> list[Path]:
        """The raw files: inputs, and the side files that the config names."""
        refuse_unsupported(job.config)
        paths = list(expand(job.inputs))
        for side_paths in side_files(job.config).values():
            paths += side_paths
        if not sort_out(paths, job.config)[0]:
            raise ValueError(
                f"{', '.join(job.inputs)}: side files alone; name files of interactions too"
            )
        return paths

    def options(self, job: PrepareJob) -> dict[str, Any]:
        """What preparation decides."""
        return {key: job.config.model_dump()[key] for key in DECIDED}

    def check(self, job: PrepareJob, manifest: Document, new: list[Path]) -> None:
        """Refuse columns that the folder does not have, and an append that cannot be exact."""
        inter, sides = sort_out(new or self.paths(job), job.config)
        for path in inter[:1]:
            columns_there = Manifest.from_document(manifest)
            inputs = open_inputs([path], job.config, job.memory, columns_there)
            _same_columns(inputs[0], columns_there)
        if not new or not job.append:
            return
        if needed := looks_at_all(job.config):
            raise ValueError(
                f"--append: {job.to} was prepared with {', '.join(needed)}, which looks at all "
                "rows, and those that were left out are not kept; prepare all files again, into "
                "another folder"
            )
        if not inter:
            raise ValueError(f"--append: {new[0]} is a side file; name files of interactions too")
        for suffix, paths in sides.items():
            if suffix not in manifest.get("sides", {}):
                raise ValueError(
                    f"--append: {job.to} was prepared without {suffix} files, so {paths[0]} cannot "
                    "be added; prepare all files again, into another folder"
                )

    def add(
        self, job: PrepareJob, paths: list[Path], folder: Path, manifest: Document, work: Path
    ) -> Document:
        """Append the rows of files to the columns in `folder`; the manifest that will name them."""
        config, (files, side_paths) = job.config, sort_out(paths, job.config)
        columns_there = Manifest.from_document(manifest)
        inputs = open_inputs(files, config, job.memory, columns_there)
        skipped: Counter[Path] = Counter()

        def pieces() -> Iterator[dict[str, RawColumn]]:
            for (columns, _, bad), part in read_in_order(inputs, job.memory, job.engine):
                yield columns
                skipped[part.path] += bad
                job.progress(part.size)
            for path, count in (+skipped).items():
                logger.warning("%s: %d bad rows are left out (data.bad_rows: skip)", path, count)

        scratch = work / "scratch"
        scratch.mkdir()
        cells, sides = cells_of(inputs[0].readings), read_sides(side_paths, config)
        rows = SourceRows(_kinds(inputs), pieces(), sides, job.inputs[0], cells)
        new_manifest, _ = add_rows(
            rows, config, folder, columns_there, "<i4", scratch=scratch, memory=job.memory
        )
        shutil.rmtree(scratch)
        new_manifest.bad_rows += skipped.total()
        interactions = _digest(folder, new_manifest)
        return {**manifest, **new_manifest.document(), "interactions": interactions}

    def finish(self, job: PrepareJob, manifest: Document, folder: Path) -> None:
        """The split that the config asks for, where it is not there."""
        view_of(
            folder,
            manifest,
            job.config.split,
            job.seed,
            memory=job.memory,
            engine=job.engine,
            final_folder=job.to,
        )

    def outdated(self, job: PrepareJob, manifest: Document, new_manifest: Document) -> list[Path]:
        """The view of the rows before, and columns of side tables that were written anew."""
        key = views.view_key(manifest["interactions"], job.config.split, job.seed)
        view = job.to / "views" / key
        stays = {one.file for one in all_stored(new_manifest)}
        old = {one.file for one in all_stored(manifest)} - stays
        return [*([view] if view.is_dir() else []), *(job.to / name for name in sorted(old))]


def refuse_unsupported(config: DataSection) -> None:
    """Options that a prepared folder cannot honour."""
    refuse_absent(config)
    if not is_by_line(config.encoding):
        raise ValueError(
            f"data.encoding is {config.encoding}, which cannot be read some lines at a time: "
            "convert the files (iconv), or train from them without preparation"
        )
    for key in ("load", "unload"):
        unsupported = [s for s in getattr(config, key) or {} if s not in ("inter", "user", "item")]
        if unsupported:
            raise ValueError(
                f"data.{key} names {', '.join(unsupported)}; a prepared folder holds interactions, "
                "users and items"
            )


def _same_columns(file: Input, manifest: Manifest) -> None:
    """Refuse an input whose columns are not those of the folder."""
    folder_types: dict[str, FieldType] = {n: one.type for n, one in manifest.columns.items()}
    options = manifest.options
    kinds = {n: k for n, k in file.types.items() if n not in (options["threshold"] or {})}
    if options["threshold"]:
        folder_types.pop(options["fields"]["label"], None)
        kinds.pop(options["fields"]["label"], None)
    if folder_types != kinds:
        raise ValueError(
            f"{file.path} has the fields {inline(dict(kinds))}, and the prepared folder has "
            f"{inline(folder_types)}; give it files and options of the same fields, or name "
            "another folder with --to"
        )


def _kinds(inputs: list[Input]) -> dict[str, FieldType]:
    """Field -> type, the same in all inputs."""
    kinds = inputs[0].types
    for file in inputs[1:]:
        if file.types != kinds:
            raise ValueError(
                f"{file.path} has the fields {inline(dict(file.types))}, and {inputs[0].path} has "
                f"{inline(dict(kinds))}; choose those that all have with data.load.inter, or say "
                "what they are with data.features"
            )
    return dict(kinds)


def _digest(folder: Path, manifest: Manifest) -> str:
    """The digest of users, items and their words; the same data read directly has the same."""
    digest = hashlib.sha256()
    for name in (manifest.fields["user"], manifest.fields["item"]):
        ids = map_array(folder, manifest.columns[name].values)
        for part in chunks(len(ids)):
            digest.update(ids[part].astype(np.int64).data)
        digest.update("\n".join(manifest.words[name].map(folder)).encode())
    return digest.hexdigest()

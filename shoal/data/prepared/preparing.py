"""Raw files of interactions -> a prepared folder, in memory of a stated size.

1. The files are read in pieces; users, items and other words become codes by first appearance, and
   columns of codes and numbers are written as they come.
2. Filters choose rows, pass by pass.
3. What stays is numbered by first appearance and appended to the folder's columns.
4. Side tables are numbered after that and aligned with the ids (sides.py).
5. The rows are split and brought together by user (views.py).
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from shoal.config.schema import DataSection
from shoal.config.yaml_io import inline
from shoal.data.dataset import Column, FieldType, Ragged
from shoal.data.prepared import views
from shoal.data.prepared.dataset import DECIDED, all_stored, for_view, map_columns
from shoal.data.prepared.files import Appender, Stored, map_array
from shoal.data.prepared.folder import Job, Manifest, carry_out
from shoal.data.prepared.inputs import Input, expand, open_input, read_in_order
from shoal.data.prepared.keeping import kept_rows, looks_at_all
from shoal.data.prepared.numbering import (
    append_words,
    code_words,
    known_words,
    number_codes,
    stored_words,
)
from shoal.data.prepared.partition import chunks, kept_values
from shoal.data.prepared.sides import (
    number_sides,
    read_sides,
    rows_of_words,
    side_files,
    sort_out,
    without_uncounted,
    write_side,
)

logger = logging.getLogger(__name__)


def prepare(job: Job) -> Manifest:
    """Prepare a folder of interactions, or add to it; its manifest."""
    return carry_out(job, Interactions())


class Interactions:
    """The steps for interactions, with what is known of users and items."""

    def paths(self, job: Job) -> list[Path]:
        """The raw files: inputs, and the side files that the config names."""
        refuse_unsupported(job.config)
        paths = [
            *expand(job.inputs),
            *(p for some in side_files(job.config).values() for p in some),
        ]
        if not sort_out(paths, job.config)[0]:
            raise ValueError(
                f"{', '.join(job.inputs)}: side files alone; name files of interactions too"
            )
        return paths

    def options(self, job: Job) -> dict[str, Any]:
        """What preparation decides."""
        return {key: job.config.model_dump()[key] for key in DECIDED}

    def check(self, job: Job, manifest: Manifest, new: list[Path]) -> None:
        """Refuse columns that the folder does not have, and an append that cannot be exact."""
        inter, sides = sort_out(new or self.paths(job), job.config)
        for path in inter[:1]:
            _same_columns(open_input(path, job.config, _types(manifest)), manifest)
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
        self, job: Job, paths: list[Path], folder: Path, manifest: Manifest, work: Path
    ) -> Manifest:
        """Append the rows of files to the columns in `folder`; the manifest that will name them."""
        config, (files, found) = job.config, sort_out(paths, job.config)
        empty: Manifest = {"columns": {}, "words": {}, "sides": {}, "bad_rows": 0, "left_out": {}}
        manifest = {**empty, **manifest}
        scratch = work / "scratch"
        scratch.mkdir()
        inputs = [open_input(path, config, _types(manifest)) for path in files]
        tables = read_sides(found, config)
        kinds = _kinds(inputs)
        words = {n: known_words(folder, manifest, n) for n, k in kinds.items() if _is_token(k)}
        held = {name: len(index) for name, index in words.items()}
        raw, skipped = _read(job, inputs, kinds, words, scratch)
        rows_of = rows_of_words(folder, manifest["sides"], tables, config, words)
        flat = {name: column for name, column in raw.items() if isinstance(column, np.ndarray)}
        sizes = {name: len(index) for name, index in words.items()}
        of_sides = {name for table in tables.values() for name in table.types}
        of_sides |= {name for entry in manifest["sides"].values() for name in entry["columns"]}
        keep, left_out = kept_rows(flat, sizes, config, job.memory, scratch, of_sides, rows_of)
        numbers, ids = {}, {}
        for name, index in words.items():
            numbers[name], ids[name] = number_codes(raw[name], keep, held[name], index)
        for suffix in tables:
            field = getattr(config.fields, suffix)
            tables[suffix] = without_uncounted(tables[suffix], suffix, config, ids[field])
        columns = _append_columns(folder, manifest, config, kinds, raw, keep, numbers)
        for name in manifest["words"]:  # of side tables alone
            ids.setdefault(name, known_words(folder, manifest, name))
        side_ids = number_sides(tables, config, ids)
        entries = manifest["words"]
        new_words = {
            name: append_words(folder, entries.get(name), place, index)
            for place, (name, index) in enumerate(ids.items())
        }
        sides = {
            suffix: write_side(
                *(folder, f"side-{suffix}-{len(manifest['commands'])}"),
                *(manifest["sides"].get(suffix), tables.get(suffix)),
                {name: one for (whose, name), one in side_ids.items() if whose == suffix},
                getattr(config.fields, suffix),
                len(ids[getattr(config.fields, suffix)]),
            )
            for suffix in {**manifest["sides"], **tables}
        }
        del raw, flat
        shutil.rmtree(scratch)
        made = {
            **manifest,
            "rows": len(Stored.of(columns[config.fields.user]["values"])),
            "columns": columns,
            "words": new_words,
            "sides": sides,
            "bad_rows": manifest["bad_rows"] + skipped,
            "left_out": dict(Counter(manifest["left_out"]) + Counter(left_out)),
        }
        made["interactions"] = _digest(folder, made)
        return made

    def finish(self, job: Job, manifest: Manifest, folder: Path) -> None:
        """The split that the config asks for, where it is not there."""
        split = job.config.split
        place = folder / "views" / views.view_key(manifest["interactions"], split, job.seed)
        fields, columns = manifest["options"]["fields"], map_columns(folder, manifest)
        words = (manifest["words"][fields[side]]["ends"] for side in ("user", "item"))
        users, items = (len(Stored.of(entry)) for entry in words)
        if views.open_view(place, manifest["rows"], (users, items)) is not None:
            return
        chosen = for_view(manifest, columns, split.order)
        how = (split, job.seed, job.memory, job.engine)
        views.make_view(place, chosen, fields["user"], (users, items), *how)

    def outdated(self, job: Job, manifest: Manifest, made: Manifest) -> list[Path]:
        """The view of the rows before, and columns of side tables that were written anew."""
        key = views.view_key(manifest["interactions"], job.config.split, job.seed)
        view = job.to / "views" / key
        stays = {one.file for one in all_stored(made)}
        old = {one.file for one in all_stored(manifest)} - stays
        return [*([view] if view.is_dir() else []), *(job.to / name for name in sorted(old))]


def refuse_unsupported(config: DataSection) -> None:
    """Options that a prepared folder cannot honour."""
    unsaid = DataSection()
    for key in ("normalize", "presplit", "extra_suffixes"):
        if getattr(config, key) != getattr(unsaid, key):
            raise ValueError(
                f"data.{key} is {inline(getattr(config, key))}; a prepared folder holds "
                "interactions, split by data.split, and features as they are: leave it out"
            )
    if config.encoding.replace("-", "").lower() not in ("utf8", "ascii"):
        raise ValueError(
            f"data.encoding is {config.encoding}; interactions are prepared of UTF-8: convert the "
            "files (iconv), or train from them without preparation"
        )
    for key in ("load", "unload"):
        others = [s for s in getattr(config, key) or {} if s not in ("inter", "user", "item")]
        if others:
            raise ValueError(
                f"data.{key} names {', '.join(others)}; a prepared folder holds interactions, "
                "users and items"
            )


def _is_token(kind: FieldType) -> bool:
    return kind.startswith("token")


def _types(manifest: Manifest) -> dict[str, FieldType]:
    return {name: column["type"] for name, column in manifest.get("columns", {}).items()}


def _same_columns(one: Input, manifest: Manifest) -> None:
    """Refuse an input whose columns are not those of the folder."""
    there, options = _types(manifest), manifest["options"]
    kinds = {n: k for n, k in one.types.items() if n not in (options["threshold"] or {})}
    if options["threshold"]:
        there.pop(options["fields"]["label"], None)
        kinds.pop(options["fields"]["label"], None)
    if there != kinds:
        raise ValueError(
            f"{one.path} has the fields {inline(dict(kinds))}, and the prepared folder has "
            f"{inline(there)}; give it files and options of the same fields, or name another "
            "folder with --to"
        )


def _kinds(inputs: list[Input]) -> dict[str, FieldType]:
    """Field -> type, the same in all inputs."""
    kinds = inputs[0].types
    for one in inputs[1:]:
        if one.types != kinds:
            raise ValueError(
                f"{one.path} has the fields {inline(dict(one.types))}, and {inputs[0].path} has "
                f"{inline(dict(kinds))}; choose those that all have with data.load.inter, or say "
                "what they are with data.features"
            )
    return dict(kinds)


def _read(
    job: Job,
    inputs: list[Input],
    kinds: dict[str, FieldType],
    words: dict[str, dict[str, int]],
    scratch: Path,
) -> tuple[dict[str, Column], int]:
    """Columns of codes and numbers of all inputs, mapped, and bad rows that were left out.

    `words` learns the new ones.
    """
    writers = {
        name: _Writer(
            scratch,
            Stored(f"raw-{place}", "<i4" if _is_token(kind) else "<f8"),
            Stored(f"raw-{place}-ends", "<i8") if kind.endswith("_seq") else None,
        )
        for place, (name, kind) in enumerate(kinds.items())
    }
    skipped: Counter[Path] = Counter()
    for piece, part in read_in_order(inputs, job.memory, job.engine):
        for name, column in piece.columns.items():
            values = column.values
            if column.words is not None:
                values = code_words(words[name], column.words.tolist(), name)[values]
            lengths = None if column.offsets is None else np.diff(column.offsets)
            writers[name].write(values, lengths)
        skipped[part.input.path] += piece.skipped
        job.progress(part.size)
    for writer in writers.values():
        writer.close()
    for path, count in (+skipped).items():
        logger.warning("%s: %d bad rows are left out (data.bad_rows: skip)", path, count)
    found = {name: writer.map() for name, writer in writers.items()}
    if not len(next(iter(found.values()))):
        raise ValueError(f"{job.inputs[0]} holds no rows after its header; name files with rows")
    return found, skipped.total()


class _Writer:
    """Appends to a column: its values, and of lists where each ends (from 0 on)."""

    def __init__(self, folder: Path, values: Stored, ends: Stored | None):
        self.folder, self.at = folder, len(values)
        self.values = Appender(folder, values)
        self.ends = None if ends is None else Appender(folder, ends)
        if self.ends is not None and not len(self.ends.stored):
            self.ends.write(np.zeros(1, np.int64))

    def write(self, values: np.ndarray, lengths: np.ndarray | None) -> None:
        """Some rows more."""
        self.values.write(values)
        if self.ends is not None:
            assert lengths is not None
            self.ends.write(self.at + np.cumsum(lengths))
            self.at += len(values)

    def close(self) -> None:
        """The disk has them."""
        for one in (self.values, self.ends):
            if one is not None:
                one.close()

    def map(self) -> Column:
        """The column, mapped."""
        values = map_array(self.folder, self.values.stored)
        if self.ends is None:
            return values
        return Ragged(values, map_array(self.folder, self.ends.stored))


def _append_columns(
    folder: Path,
    manifest: Manifest,
    config: DataSection,
    kinds: dict[str, FieldType],
    raw: dict[str, Column],
    keep: np.ndarray | None,
    numbers: dict[str, np.ndarray],
) -> dict[str, Any]:
    """Write the rows that stay behind those of the folder's columns; the entries of all."""
    columns, fields, threshold = dict(manifest["columns"]), config.fields, config.threshold or {}
    for place, (name, kind) in enumerate(kinds.items()):
        target = fields.label if name in threshold else name
        entry = columns.get(target)
        dtype = "<i4" if _is_token(kind) else "<f8" if name == fields.time else "<f4"
        ends = Stored(f"column-{place}-ends.bin", "<i8") if kind.endswith("_seq") else None
        if entry is None:
            stored = Stored(f"column-{place}.bin", dtype)
        else:
            stored = Stored.of(entry["values"])
            ends = Stored.of(entry["offsets"]) if ends is not None else None
        writer, missing = _Writer(folder, stored, ends), (entry or {}).get("missing", 0)
        for values, lengths in kept_values(raw[name], keep):
            if lengths is not None:
                missing += int((lengths == 0).sum())
            if _is_token(kind):
                values = numbers[name][values]
                missing += int((values == 0).sum()) if lengths is None else 0
            elif name in threshold:
                values = values >= threshold[name]
            writer.write(values, lengths)
        writer.close()
        columns[target] = {"type": kind, "values": stored.entry(), "missing": missing}
        if ends is not None:
            columns[target]["offsets"] = ends.entry()
    return columns


def _digest(folder: Path, manifest: dict[str, Any]) -> str:
    """Of users and items and their words: that of the same data read without preparation."""
    digest = hashlib.sha256()
    fields = manifest["options"]["fields"]
    for name in (fields["user"], fields["item"]):
        ids = map_array(folder, Stored.of(manifest["columns"][name]["values"]))
        for part in chunks(len(ids)):
            digest.update(ids[part].astype(np.int64).data)
        digest.update("\n".join(stored_words(folder, manifest["words"][name])).encode())
    return digest.hexdigest()

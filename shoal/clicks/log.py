"""ClickLog: the files of one split of a click log, as blocks of samples in order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.clicks import pipe
from shoal.clicks.criteo import Criteo
from shoal.clicks.delimited import CsvClicks
from shoal.clicks.formats import FORMATS, looks_like, register
from shoal.clicks.layout import Layout
from shoal.clicks.libfm import LibFm
from shoal.clicks.lines import Block
from shoal.clicks.mind import Mind
from shoal.clicks.multi_hot import MultiHot
from shoal.clicks.parquet import ParquetClicks
from shoal.clicks.samples import HeldSamples
from shoal.clicks.slots import SLOTS
from shoal.config.errors import did_you_mean
from shoal.config.schema import ClicksSection, DataSection
from shoal.data.dataset import FieldType
from shoal.data.reading import cells_of, find_reading
from shoal.data.sources.files import find_files

for _form in (ParquetClicks(), MultiHot(), Criteo(), SLOTS, Mind(), LibFm(), CsvClicks()):
    register(_form)  # they are tried in this order


class ClickLog:
    """Files of one format. `command`: a program that each file goes through."""

    def __init__(
        self,
        files: list[Path],
        form: str,
        layout: Layout,
        command: str | None = None,
        separator: str = "\t",
    ):
        self.files = files
        self.form = form
        self.layout = layout
        self.separator = separator
        self.command = command

    def part(self, worker: int, workers: int) -> ClickLog:
        """The block of files that one worker reads; the remainder goes to the first ones."""
        share, remainder = divmod(len(self.files), workers)
        first = worker * share + min(worker, remainder)
        files = self.files[first : first + share + (worker < remainder)]
        return ClickLog(files, self.form, self.layout, self.command, self.separator)

    def mapped(self) -> HeldSamples | None:
        """All samples, left in their files; None: this format must be parsed."""
        return None if self.command else FORMATS[self.form].mapped(self.files, self.layout)

    def count(self, file: Path) -> int | None:
        """Samples of one file; None where a program decides."""
        return None if self.command is not None else FORMATS[self.form].count(file)

    def blocks(self, file: Path) -> Iterator[Block]:
        """The samples of one file, in order."""
        if self.command is None:
            yield from FORMATS[self.form].blocks(file, self.layout, self.separator)
        else:
            lines = pipe.piped(self.command, file)
            yield from SLOTS.text(lines, self.layout, self.separator, f"{file}, piped")

    def fingerprint(self) -> list[list[Any]]:
        """Name, size and a digest of the beginning of every file."""
        result: list[list[Any]] = []
        for file in self.files:
            with open(file, "rb") as source:
                digest = hashlib.sha256(source.read(1 << 16)).hexdigest()
            result.append([file.name, file.stat().st_size, digest])
        return result


def pick_format(data: DataSection) -> str:
    """data.format; where it is auto, what the first file looks like."""
    if data.format in FORMATS:
        return data.format
    if data.format != "auto":
        raise ValueError(
            f"data.format is {data.format}, which has no clicks; click models read "
            f"{', '.join(FORMATS)} and synthetic_clicks"
        )
    assert data.clicks.train is not None, "named_data sees to it"
    if data.clicks.pipe_command is not None or data.clicks.reader == "custom":
        return SLOTS.name
    return looks_like(find_files(data.clicks.train, data.path, "data.clicks.train")[0])


def make_layout(section: ClicksSection, form: str) -> Layout:
    """Which columns there are, by the config and the format."""
    return (SLOTS if _is_code(section) else FORMATS[form]).layout(section)


def _is_code(section: ClicksSection) -> bool:
    """Whether a program or a reader of the user's own gives the samples."""
    return section.pipe_command is not None or section.reader == "custom"


def read_layout(data: DataSection, form: str, files: list[Path]) -> Layout:
    """Which columns there are, and how their cells are read.

    files: those to train on; a sample of the first one shows how.
    """
    layout = make_layout(data.clicks, form)
    if _is_code(data.clicks):
        return layout
    names = [*layout.slots, *dict.fromkeys(layout.dense)]
    for name in data.cells or {}:
        if name not in names:
            raise ValueError(
                f"data.cells names {name!r}, which is no column of the log; its columns are "
                f"{', '.join(names[:100])}{did_you_mean(name, names)}"
            )
    sample = FORMATS[form].sample(files[0], layout, data.separator)
    if sample is None:
        return layout
    readings = {}
    for name in names:
        if name in sample.columns:
            kind: FieldType | None = "float" if name in layout.dense else None
            options = (data.cells or {}).get(name, {})
            reading = find_reading(sample[name], kind, False, options, data.seq_separator)
            if name in layout.dense or reading.kind == "token_seq":
                readings[name] = reading
    return replace(layout, cells=cells_of(readings))

"""ClickLog: the files of one phase of a click log, as blocks of samples in order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shoal.config.schema import ClicksSection, DataSection
from shoal.data.clicks import pipe
from shoal.data.clicks.criteo import Criteo
from shoal.data.clicks.delimited import CsvClicks
from shoal.data.clicks.formats import FORMATS, Mapped, looks_like, register
from shoal.data.clicks.lines import Block
from shoal.data.clicks.multi_hot import MultiHot
from shoal.data.clicks.parquet import ParquetClicks
from shoal.data.clicks.samples import Layout
from shoal.data.clicks.slots import SLOTS
from shoal.data.sources.files import find_files

for _form in (ParquetClicks(), MultiHot(), Criteo(), SLOTS, CsvClicks()):
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
        self.files, self.form, self.layout, self.separator = files, form, layout, separator
        self.command = command

    def part(self, worker: int, workers: int) -> ClickLog:
        """The block of files that one worker reads; the remainder goes to the first ones."""
        each, more = divmod(len(self.files), workers)
        first = worker * each + min(worker, more)
        files = self.files[first : first + each + (worker < more)]
        return ClickLog(files, self.form, self.layout, self.command, self.separator)

    def mapped(self) -> Mapped | None:
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
            f"{', '.join(FORMATS)} and planted_clicks"
        )
    assert data.clicks.train is not None, "named_data sees to it"
    if data.clicks.pipe_command is not None or data.clicks.reader == "custom":
        return SLOTS.name
    return looks_like(find_files(data.clicks.train, data.path, "data.clicks.train")[0])


def make_layout(section: ClicksSection, form: str) -> Layout:
    """Which columns there are, by the config and the format."""
    piped = section.pipe_command is not None or section.reader == "custom"
    return (SLOTS if piped else FORMATS[form]).layout(section)

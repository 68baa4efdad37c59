"""csv with a header, any separator, quotes and encoding."""

from __future__ import annotations

from pathlib import Path

from shoal.config.schema import DataSection
from shoal.data.bounds import check_columns
from shoal.data.sources.quotes import CellFormat
from shoal.data.sources.table import TableHeader
from shoal.data.sources.text import TextFormat, first_line

SEPARATORS = (",", "\t", ";", "|")


class Csv(TextFormat):
    """Cells are separated by data.separator if the header has it, else by the most frequent."""

    name = "csv"
    endings = (".csv", ".tsv", ".txt")

    def header(self, path: Path, config: DataSection) -> TableHeader:
        head, preferred = first_line(path, config.encoding), config.separator
        separator = preferred if preferred in head else max(SEPARATORS, key=head.count)
        cells = CellFormat(separator, config.quote, config.escape)
        names = cells.header(head, path)
        check_columns(path, len(names))
        return TableHeader(names, cells=cells)

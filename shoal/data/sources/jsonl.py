"""JSON lines: an object for each row."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shoal.config.schema import DataSection
from shoal.data.packed import open_text
from shoal.data.sources.table import TableHeader
from shoal.data.sources.text import SAMPLE_BYTES, Lines, TextFormat

if TYPE_CHECKING:
    import polars as pl


class JsonLines(TextFormat):
    """Columns are the keys of the first objects, and others that come later."""

    name = "jsonl"
    endings = (".jsonl", ".ndjson", ".json")
    first_row = 1
    has_header = False

    def header(self, path: Path, config: DataSection) -> TableHeader:
        with open_text(path) as source:
            lines = source.read(SAMPLE_BYTES).split(b"\n")
        if not lines[0].strip():
            raise ValueError(f'{path} is empty; every line is an object, as in {{"user_id": 1}}')
        names: dict[str, None] = {}
        for line in lines[: -1 if len(lines) > 1 else None]:
            with suppress(ValueError):
                found = json.loads(line)
                names |= dict.fromkeys(found if isinstance(found, dict) else ())
        return TableHeader(list(names))

    def rows(
        self, body: bytes, header: TableHeader, wanted: list[str], how: Lines
    ) -> tuple[pl.DataFrame, np.ndarray | None, int]:
        import polars as pl

        failures = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
        with suppress(*failures):  # else below, line by line
            frame = pl.read_ndjson(io.BytesIO(body), infer_schema_length=None)
            if len(frame) == body.count(b"\n") + 1:
                return _whole(frame, header), None, 0
        kept, numbers, skipped = [], [], 0
        for number, line in enumerate(body.split(b"\n"), start=how.first):
            if not line.strip():
                continue
            try:
                if not isinstance(json.loads(line), dict):
                    raise ValueError("no object")
            except ValueError as error:
                if how.skip:
                    skipped += 1
                    continue
                raise ValueError(
                    f"{how.name}, line {number}: not an object of JSON ({error}): {line[:80]!r}; "
                    "correct it, or set data.bad_rows=skip to leave such lines out"
                ) from None
            kept.append(line)
            numbers.append(number)
        if not kept:
            raise ValueError(f"{how.name} holds no rows; every line is an object of JSON")
        try:
            frame = pl.read_ndjson(io.BytesIO(b"\n".join(kept)), infer_schema_length=None)
            return _whole(frame, header), np.array(numbers, np.int64), skipped
        except failures as error:
            raise ValueError(
                f"{how.name}: its lines have no common columns, or mixed types: {error}"
            ) from None


def _whole(frame: pl.DataFrame, header: TableHeader) -> pl.DataFrame:
    """With the columns that no object of this part has."""
    import polars as pl

    missing = [name for name in header.names if name not in frame.columns]
    return frame.with_columns(pl.lit(None).alias(name) for name in missing)

"""How the values of each table are kept, as the section `rows` chooses: float32 or bfloat16."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from shoal.config.row_rules import RowsSection
from shoal.embedding.table import Table

log = logging.getLogger("shoal")


def choose_dtypes(tables: Mapping[str, Table], rows: RowsSection) -> dict[str, Table]:
    """The tables, each with the type of its values. Those that a softmax reads whole are float32.

    Such rows are updated in a pass over all of them, by kernels that know float32 alone.
    """
    chosen = {}
    for name, table in tables.items():
        asked = rows.tables.get(name, {}).get("dtype")
        dtype = asked or rows.dtype
        if dtype == "bfloat16" and table.whole:
            if asked:
                raise ValueError(
                    f"rows.tables.{name}.dtype: given bfloat16, and a softmax reads table {name!r} "
                    "whole: such rows are float32; leave it out"
                )
            log.info("table %r stays float32: a softmax reads it whole", name)
            dtype = "float32"
        chosen[name] = table if dtype == table.dtype else replace(table, dtype=dtype)
    return chosen

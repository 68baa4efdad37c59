"""The tables of a model as the section `rows` wants them: initial values, float32 or bfloat16."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from shoal.config.row_rules import Dtype, InitOptions, RowsSection
from shoal.embedding.rows.table import Init, Table

log = logging.getLogger("shoal")


def as_configured(tables: Mapping[str, Table], rows: RowsSection) -> dict[str, Table]:
    """The tables, each with its initial values and the type of its values."""
    return {
        name: replace(table, init=_init(name, table, rows), dtype=_dtype(name, table, rows))
        for name, table in tables.items()
    }


def _init(name: str, table: Table, rows: RowsSection) -> Init:
    """The model's own initial values, unless the config has others.

    Biases and other tables of width 1 keep theirs unless they are named.
    """
    own: InitOptions | None = rows.tables.get(name, {}).get("init")
    chosen = own or (rows.init if table.dim > 1 else None)
    if chosen is None:
        return table.init
    if chosen["kind"].startswith("xavier") and table.rows is None:
        raise ValueError(
            f"rows.init: given {chosen['kind']}, whose scale depends on the number of rows, and "
            f"table {name!r} grows; choose normal or uniform with a scale"
        )
    return Init(chosen["kind"], chosen.get("scale", Init.scale))


def _dtype(name: str, table: Table, rows: RowsSection) -> Dtype:
    """The type of a table's values. Tables that a softmax reads whole are float32.

    Such rows are updated in a pass over all of them, by kernels that know float32 alone.
    """
    table_dtype = rows.tables.get(name, {}).get("dtype")
    if (table_dtype or rows.dtype) != "bfloat16" or not table.whole:
        return table_dtype or rows.dtype
    if table_dtype:
        raise ValueError(
            f"rows.tables.{name}.dtype: given bfloat16, and a softmax reads table {name!r} "
            "whole: such rows are float32; leave it out"
        )
    log.info("table %r stays float32: a softmax reads it whole", name)
    return "float32"

"""Which row optimizer a config chooses for a table: train.optimizer, its `rows` and its `tables`.

A table takes what train.optimizer.tables says of it; what that leaves out is as in
train.optimizer.rows, and what is left out there as in train.optimizer: the name and lr always,
hyper-parameters as long as the name stays the same (another optimizer begins with its own).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shoal.config.errors import did_you_mean
from shoal.config.schema import OptimizerSection
from shoal.optimizers.row_optimizer import RowOptimizer


def row_optimizer_of(section: OptimizerSection, table: str | None = None) -> RowOptimizer:
    """The row optimizer of a table; None: of tables that are not named in train.optimizer.tables.

    Its lr_factor is what the learning rate of every step is multiplied by for these rows.
    """
    settings, place = _merged(section, table)
    lr = settings.pop("lr")
    try:
        return RowOptimizer(**settings, lr_factor=lr / section.lr)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def problems(section: OptimizerSection) -> list[tuple[str, str]]:
    """Options that an optimizer does not support: (key at fault, what is wrong)."""
    messages = []
    for table in (None, *section.tables):
        try:
            row_optimizer_of(section, table)
        except ValueError as error:
            if table is None:  # which single tables would only repeat
                return [("train.optimizer.rows", str(error))]
            messages.append(("train.optimizer.tables", str(error)))
    return messages


def check_tables(section: OptimizerSection, tables: Iterable[str]) -> None:
    """Refuse the name of a table that the model does not have."""
    table_names = list(tables)
    for name in section.tables:
        if name not in table_names:
            raise ValueError(
                f"train.optimizer.tables names a table {name!r} that the model does not have"
                f"{did_you_mean(name, table_names)}; its tables are: "
                f"{', '.join(table_names) or 'none'}"
            )


def row_optimizer_names_of(section: OptimizerSection) -> dict[str, Any] | None:
    """Names of row optimizers where they differ from train.optimizer.name; None: nowhere."""
    rows = _merged(section, None)[0]["name"]
    tables = {name: _merged(section, name)[0]["name"] for name in sorted(section.tables)}
    names: dict[str, Any] = {}
    if rows != section.name:
        names["rows"] = rows
    if others := {name: chosen for name, chosen in tables.items() if chosen != rows}:
        names["tables"] = others
    return names or None


def _merged(section: OptimizerSection, table: str | None) -> tuple[dict[str, Any], str]:
    """Name, lr and hyper-parameters of a table, and the key that set them last."""
    settings: dict[str, Any] = section.model_dump(include={"name", "lr", "weight_decay"})
    place = "train.optimizer"
    layers: list[tuple[str, Any]] = [("rows", section.rows)]
    if table is not None and table in section.tables:
        layers.append((f"tables.{table}", section.tables[table]))
    for key, layer in layers:
        if layer.get("name", settings["name"]) != settings["name"]:
            settings = {"lr": settings["lr"]}
        if layer:
            settings, place = {**settings, **layer}, f"train.optimizer.{key}"
    return settings, place

"""What a config's data holds: figures, the features its columns suggest, a page with plots."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from shoal.clicks import ClickData, open_clicks
from shoal.config.schema import Config
from shoal.config.yaml_io import inline
from shoal.data.dataset import Dataset
from shoal.data.encode import encode
from shoal.data.features import Feature, features_of, options
from shoal.data.loading.load import load_dataset, with_side_files
from shoal.data.loading.location import named_data
from shoal.data.protocol import decide, protocol_of
from shoal.data.statistics import (
    describe,
    find_data_warnings,
    leakage,
    per_item,
    per_user,
    spread,
    time_span,
)
from shoal.distributed.world import World
from shoal.embedding.placements.table_plan import in_columns
from shoal.models import find
from shoal.planning.data_page import page
from shoal.runs.data_size import decide_without_size


class Description(NamedTuple):
    """Text for a terminal, yaml to edit, and what makes the page (None: there is none)."""

    text: str
    yaml: str
    page: Callable[[], str] | None


def describe_run(config: Config) -> Description:
    """Describe the data of a config, as a model that reads features would see it."""
    clicks = find(config.model.name).kind == "clicks"
    if named_data(config.data, clicks).kind == "clicks":
        data = open_clicks(decide_without_size(config), World(), 1024)
        features = data.layout.features()
        lines = [data.describe(), *_warnings(data), "", features_text(features)]
        return Description("\n".join(lines), features_yaml(features), None)
    section = with_side_files(config.data)
    dataset = load_dataset(section, config.run.seed)
    features = encode(dataset, features_of(dataset, section)).features
    config = decide(config, dataset)
    repeatable = config.eval.repeatable is True
    lines = [describe(dataset), f"Protocol: {protocol_of(config.data, config.eval)}", ""]
    if (span := time_span(dataset)) is not None:
        lines.append(f"Times: from {span[0]} to {span[1]}")
    for side, counts in (("a user", per_user(dataset)), ("an item", per_item(dataset))):
        figures = ", ".join(f"{name} {value:.5g}" for name, value in spread(counts).items())
        lines.append(f"Interactions of {side}: {figures}")
    leaks = leakage(dataset)
    lines += [
        f"Of {leaks.rows} interactions to test on: {leaks.repeated} pairs are trained on too, "
        f"{leaks.earlier} came before one that is trained on, {leaks.new_users} are of new users, "
        f"{leaks.new_items} of new items",
        *_warnings(dataset, repeatable, clicks),
        "",
        features_text(features, dataset.missing),
    ]
    warnings = find_data_warnings(dataset, repeatable=repeatable or clicks, is_ranked=not clicks)
    return Description(
        "\n".join(lines),
        features_yaml(features),
        lambda: page(dataset, features, leaks, warnings),
    )


def _warnings(
    data: Dataset | ClickData, repeatable: bool = False, clicks: bool = True
) -> list[str]:
    """Warnings about the data; clicks: a model predicts clicks, and nothing is ranked."""
    warnings = find_data_warnings(data, repeatable=repeatable or clicks, is_ranked=not clicks)
    return [f"warning: {warning}" for warning in warnings]


def features_text(
    features: tuple[Feature, ...], missing: dict[str, dict[str, int]] | None = None
) -> str:
    """The features as a table."""
    rows = [("feature", "kind", "side", "table", "rows", "missing")]
    for f in features:
        of_side = (missing or {}).get(f.side if f.side != "context" else "inter", {})
        rows.append(
            (
                f.name,
                f.kind,
                f.side,
                f.table if f.is_sparse else "-",
                "-" if not f.is_sparse else "grows" if f.rows is None else str(f.rows),
                str(of_side.get(f.column, 0)),
            )
        )
    return in_columns(rows, left=range(6))


def features_yaml(features: tuple[Feature, ...]) -> str:
    """The section data.features, a line for each."""
    lines = [f"    {inline(f.name)}: {inline(options(f))}" for f in features]
    return "data:\n  features:\n" + "\n".join(lines) + "\n"

"""docs/reference/metrics.md says of every metric what its class says."""

import re
from pathlib import Path

import pytest

from shoal.training.metrics.registry import METRICS

PAGE = Path(__file__).parents[2] / "docs/reference/metrics.md"


def definition_rows() -> dict[str, tuple[str, dict[str, str]]]:
    """Metric -> the heading that its definition stands under, and its cells by column."""
    rows: dict[str, tuple[str, dict[str, str]]] = {}
    for section in PAGE.read_text().split("\n## "):
        heading, _, text = section.partition("\n")
        lines = [line for line in text.splitlines() if line.startswith("|")]
        if not lines or not lines[0].endswith(" better |"):
            continue
        columns = split_row(lines[0])
        for line in lines[2:]:
            cells = dict(zip(columns, split_row(line), strict=True))
            name = cells["metric"].strip("`")
            assert name not in rows, f"{name} is defined twice"
            rows[name] = heading, cells
    return rows


def split_row(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


ROWS = definition_rows()


def test_the_page_defines_the_metrics_of_the_package() -> None:
    package = {
        name
        for name, metric in METRICS.items()
        if metric.__module__.startswith("shoal.training.metrics.")
    }
    assert set(ROWS) == package and len(package) >= 27


@pytest.mark.parametrize("name", sorted(ROWS))
def test_the_page_says_what_the_class_says(name: str) -> None:
    (heading, cells), metric = ROWS[name], METRICS[name]
    assert metric.has_topk == (heading != "Metrics without a cut-off")
    assert metric.reads_groups == cells.get("reads")
    assert (metric.reads_groups is not None) == (heading == "Metrics of groups")
    if metric.best_at is None:
        assert cells["better"] == ("higher" if metric.higher_is_better else "lower")
    else:
        assert cells["better"] == f"near {metric.best_at:g}"
    assert metric.__doc__ and metric.needs in ("ranked", "valued", "either")

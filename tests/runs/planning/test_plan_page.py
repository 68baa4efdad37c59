"""A plan as a page: its parts, and that nothing in it asks another place or runs."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from shoal.pages.look import escape
from shoal.runs.planning.failures import LongJob, simulate_failures
from shoal.runs.planning.page import PlanPage, roofline_points
from shoal.runs.planning.prediction import Layout
from shoal.runs.planning.presets import CLUSTERS
from shoal.runs.planning.timing import predict
from shoal.runs.planning.work import dlrm_dcnv2

CLUSTER = CLUSTERS["DGX-H100"].of_size(2)
WORK = dlrm_dcnv2(65536)


@pytest.fixture(scope="module")
def shown() -> PlanPage:
    found = [
        predict(WORK, CLUSTER, layout)
        for layout in (Layout("sharded", 16, 2, place="row"), Layout("ddp", 16, 2))
    ]
    job = LongJob(86400.0, 2, 500.0, pause=5.0, write=30.0, recovery=60.0)
    return PlanPage(
        work=WORK,
        cluster=CLUSTER,
        ranking=found,
        best=found[0],
        keys={"strategy.name": "sharded", "strategy.place": "row"},
        advice="a faster network",
        changes=[("batch doubled", 4.5, 1.25)],
        scaling={"The same global batch": {"sharded by row": [(1, 1e7), (2, 1.5e7), (4, 2e7)]}},
        failures=(job, simulate_failures(job, 600.0, runs=20)),
    )


def test_the_parts_of_a_page(shown):
    text = shown.text()
    assert re.findall("<h2>(.*?)</h2>", text) == [
        *("Ranking", "One step", "Roofline", "Scaling", "The same global batch", "What if"),
        *("Failures", "The plan as keys", "Tables", "Assumptions"),
    ]
    assert text.count("<svg") == 4
    assert "--strategy.place=row" in text and "ddp × 16 (does not fit)" in text
    assert "1.25 ×" in text and "a faster network" in text
    for part, ms in shown.best.parts.items():
        if ms > 0:
            assert part.replace("_", " ") in text
    for one in shown.best.assumptions:
        assert escape(one.source) in text


def test_it_asks_nothing_and_runs_nothing(shown):
    bad = "<script>alert(1)</script>"
    text = replace(shown, work=replace(WORK, name=bad), advice=bad, keys={bad: bad}).text()
    assert "<script" not in text and "alert(1)" in text
    places = re.findall(r'(?:href|src)="([^"#]+)', text)
    assert not [one for one in places if not one.startswith("data:")]


def test_one_host_has_no_scaling(shown):
    text = replace(shown, scaling={}, failures=None).text()
    assert "no link between hosts" in text and "<h2>Failures</h2>" not in text


def test_points_lie_under_the_roof(shown):
    """Nothing computes more than the peak, or more than the memory's bytes allow."""
    device = CLUSTER.host.device
    points = roofline_points(WORK, CLUSTER, shown.best)
    assert set(points) == {"dense", "rows", "the whole step"}
    for intensity, speed in points.values():
        assert speed <= 1.01 * min(device.flops["bfloat16"], intensity * device.bandwidth)
    # Dense operations of the step: those of its samples on one of 16 devices.
    per_sample = WORK.forward.products + WORK.backward.products
    seconds = 1e-3 * (shown.best.parts["dense_forward"] + shown.best.parts["dense_backward"])
    assert points["dense"][1] == pytest.approx(65536 / 16 * per_sample / seconds)

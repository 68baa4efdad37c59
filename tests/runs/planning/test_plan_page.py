"""A plan as a page: its parts, and that nothing in it asks another place or runs."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from shoal.pages.look import escape
from shoal.runs.planning.page import PlanPage, roofline_points
from shoal.runs.planning.prediction import RunLayout
from shoal.runs.planning.presets import CLUSTERS
from shoal.runs.planning.scaling import scaling
from shoal.runs.planning.showing import TimePlan
from shoal.runs.planning.simulated import Simulated
from shoal.runs.planning.timing import predict
from shoal.runs.planning.work import dlrm_dcnv2

CLUSTER = CLUSTERS["DGX-H100"].of_size(2)
WORK = replace(dlrm_dcnv2(65536), tables=dlrm_dcnv2(1).tables[:10])


@pytest.fixture(scope="module")
def shown() -> PlanPage:
    plan = TimePlan.of(WORK, CLUSTER)
    return PlanPage(plan, scaling(WORK, CLUSTER), Simulated.of(plan, epochs=5000))


def test_the_parts_of_a_page(shown):
    text = shown.text()
    assert re.findall("<h2>(.*?)</h2>", text) == [
        *("Ranking", "One step", "Roofline", "Scaling", "The same global batch"),
        *("The same batch on each device", "What if", "Simulated", "The plan as keys", "Tables"),
        "Assumptions",
    ]
    assert text.count("<svg") == 5
    assert "--strategy.place=" in text and "--checkpoint.every_steps=" in text
    assert "ddp × 16 (does not fit)" in text and "4,096" in text and "batch doubled" in text
    for one in shown.best.assumptions:
        assert escape(one.source) in text


def test_it_asks_nothing_and_runs_nothing(shown):
    bad = "<script>alert(1)</script>"
    tables = (replace(WORK.tables[0], name=bad), *WORK.tables[1:])
    work = replace(WORK, name=bad, tables=tables, sources=(bad,))
    text = replace(shown, plan=replace(shown.plan, work=work), scaling={}, simulated=None).text()
    assert "<script" not in text and text.count("alert(1)") >= 4
    places = re.findall(r'(?:href|src)="([^"#]+)', text)
    assert not [one for one in places if not one.startswith("data:")]
    assert "no link between hosts" in text and "<h2>Simulated</h2>" not in text


@pytest.mark.parametrize(
    "cluster, layout",
    [
        (CLUSTER, RunLayout("sharded", 16, 2, place="row")),
        (CLUSTERS["x86-16"], RunLayout("single", threads=16)),
        (CLUSTERS["x86-16"], RunLayout("ps", 8, threads=1, servers=2)),
    ],
)
def test_points_lie_under_the_roof(cluster, layout):
    """Nothing computes more than the peak, or more than the memory's bytes allow."""
    best, host = predict(WORK, cluster, layout), cluster.host
    points = roofline_points(WORK, cluster, best)
    assert set(points) == {"dense", "rows", "the whole step"}
    cores = 1 if host.on_gpu else layout.threads
    bandwidth = cores * host.device.bandwidth
    bandwidth = bandwidth if host.on_gpu else min(bandwidth, host.bandwidth)
    for intensity, speed in points.values():
        roof = min(cores * host.device.flops["bfloat16"], intensity * bandwidth)
        assert speed <= 1.01 * roof
    # Dense operations of the step: those of the samples of one process.
    per_sample = WORK.forward.products + WORK.backward.products
    seconds = 1e-3 * (best.parts["dense_forward"] + best.parts["dense_backward"])
    made = 65536 / layout.processes * per_sample / seconds
    assert points["dense"][1] == pytest.approx(made)


def test_scaling_grows_and_ends():
    curves = scaling(WORK, CLUSTER)
    same, grown = curves.values()
    for points in grown.values():
        assert [hosts for hosts, _ in points] == sorted(hosts for hosts, _ in points)
    speeds = [speed for _, speed in grown["sharded by row"]]
    assert speeds == sorted(speeds) and len(speeds) > 10
    # A batch that stays cannot be cut for ever: the last doubling of hosts gains little or loses.
    first, *_, before, last = same["sharded by row"]
    assert last[1] < 1.2 * before[1] and last[0] == 4096 and first[0] == 1
    alone = replace(CLUSTERS["laptop"], between=None)
    assert all(len(points) <= 1 for one in scaling(WORK, alone).values() for points in one.values())

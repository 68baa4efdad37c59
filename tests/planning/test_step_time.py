"""Times of a step: by hand for a tiny case, and what must hold for any."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from published_models import dlrm_dcnv2, hstu

from shoal.planning.cluster import (
    Cluster,
    ComputeDevice,
    Efficiency,
    Estimate,
    Host,
    NetworkLink,
)
from shoal.planning.links import LAST_CORE
from shoal.planning.prediction import PARTS, RunLayout
from shoal.planning.presets import CLUSTERS
from shoal.planning.step_time import predict, step_of
from shoal.planning.step_work import Operations, Popularity, TableWork, Work

ONE, NONE = Estimate(1.0, 1.0, 1.0), Estimate(0.0, 0.0, 0.0)
PERFECT = Efficiency(
    *(ONE, ONE, ONE, ONE),  # gemm, attention, stream, gather
    *(NONE, NONE, NONE),  # row, kernel, launch
    *(ONE, ONE, ONE, ONE, ONE, NONE),  # links, jitter
)
GPU = ComputeDevice("tiny", "gpu", 1e6, 1000.0, {"float32": 100.0})  # bytes and operations a second
HOST = Host("tiny", GPU, 2, NetworkLink("nvlink", 50.0, 0.25), 1e9, 1e9)
CLUSTER = Cluster("tiny", HOST, 1, NetworkLink("infiniband", 20.0, 0.5), PERFECT)
TABLE = TableWork("t", 10**9, 4, 1.0, 1.0, Popularity.uniform(10**9), 16, 16)
WORK = Work(
    name="tiny",
    batch=10,
    samples=100,
    tables=(TABLE,),
    forward=Operations(products=30.0, attention=20.0, elementwise=40.0),
    backward=Operations(products=60.0, attention=40.0, elementwise=80.0),
    forward_step=Operations(products=100.0),
    parameters=5,
    optimizer_bytes=20.0,
    pooled=False,
)


def seconds(layout: RunLayout, work: Work = WORK, cluster: Cluster = CLUSTER) -> dict[str, float]:
    return step_of(work, cluster, layout).seconds


def test_single_by_hand():
    found = seconds(RunLayout("single"))
    # 10 samples: (300 + 100 + 200) operations at 100 a second, 400 bytes at 1000.
    assert found["dense_forward"] == pytest.approx(6.0 + 0.4)
    assert found["dense_backward"] == pytest.approx(10.0 + 0.8)
    # An id of 8 bytes and a row of 16 are read, 16 written: 40 bytes each.
    assert found["rows_read"] == pytest.approx(10 * 40 / 1000)
    # A gradient of 16, row and state of 32 read and written: 80 bytes each.
    assert found["rows_updated"] == pytest.approx(10 * 80 / 1000, rel=1e-3)
    assert found["optimizer"] == pytest.approx(5 * 20 / 1000)
    assert found["exchange_inside"] == found["all_reduce"] == found["idle"] == 0


def test_sharded_by_hand():
    found = seconds(RunLayout("sharded", 2, 1, place="column"))
    # Each has 5 samples, so 5 rows of 16 bytes; half of them are the other's. There and back.
    assert found["exchange_inside"] == pytest.approx(2 * (40 / 50 + 0.25), rel=1e-3)
    # 20 bytes of gradients, of which a ring sends 2 x 1/2, in 2 messages.
    assert found["all_reduce"] == pytest.approx(20 / 50 + 2 * 0.25)
    assert found["dense_forward"] == pytest.approx(1.5 + 1.0 + 1.0 + 0.2)


def test_between_hosts_by_hand():
    found = seconds(RunLayout("sharded", 4, 2, place="column"), cluster=CLUSTER.of_size(2))
    rows = 2.5 * 16  # bytes of a rank's rows
    assert found["exchange_inside"] == pytest.approx(2 * (rows / 2 / 50 + 0.25), rel=1e-3)
    assert found["exchange_between"] == pytest.approx(2 * (rows / 2 / 20 + 1.125 * 0.5), rel=1e-3)


def test_ddp_by_hand():
    found = seconds(RunLayout("ddp", 2, 1))
    # 5 distinct rows of the other come: ids of 8 bytes, gradients of 16.
    assert found["exchange_inside"] == pytest.approx(5 * 24 / 50 + 0.25, rel=1e-3)


def test_launches_are_idle_time_unless_recorded():
    slow = replace(CLUSTER, efficiency=replace(PERFECT, launch=Estimate(1.0, 1.0, 1.0)))
    work = replace(WORK, forward_step=Operations(products=100.0, kernels=10))
    assert seconds(RunLayout("single"), work, slow)["idle"] == pytest.approx(10 - 6.4)
    assert seconds(RunLayout("single"), replace(work, recorded=True), slow)["idle"] == 0


CORE = ComputeDevice("core", "core", 0.0, 1000.0, {"float32": 100.0})
CORES = replace(CLUSTER, host=replace(HOST, device=CORE, devices=4, cores=4, bandwidth=2000.0))


def with_rates(cluster: Cluster, **values: float) -> Cluster:
    rates = {name: Estimate(x, x, x) for name, x in values.items()}
    return replace(cluster, efficiency=replace(cluster.efficiency, **rates))


def test_cores_of_a_process_share_the_hosts_memory():
    one, three, four = (seconds(RunLayout("single", threads=n), cluster=CORES) for n in (1, 3, 4))
    assert three["rows_read"] == pytest.approx(one["rows_read"] / 2)  # 2000 for all cores
    # 600 operations: 6 s on one core; 400 bytes: 0.4 s at 1000 a second.
    assert one["dense_forward"] == pytest.approx(6.4)
    assert three["dense_forward"] == pytest.approx(6.0 / 3 + 0.2)
    assert four["dense_forward"] == pytest.approx(6.0 / (4 * LAST_CORE) + 0.2)


def test_busy_cores_slow_each_other_down():
    """With half of a core for each after the first, three are 2, and four are 2.5."""
    cluster = with_rates(CORES, threads=0.5)
    threads = seconds(RunLayout("single", threads=3), cluster=cluster)
    assert threads["dense_forward"] == pytest.approx(6.0 / 2 + 0.2)
    fixed = 100 / 25 / 2.5  # operations of a step as such: each process does them all
    processes = seconds(RunLayout("ddp", 4, 1), cluster=cluster)
    assert processes["dense_forward"] == pytest.approx(5.0 / 2.5 + 0.2 + fixed)


def test_what_runs_beside_a_step_needs_a_core():
    work = replace(WORK, input_seconds=0.01)
    spare, full = (seconds(RunLayout("single", threads=n), work, CORES) for n in (3, 4))
    assert spare["input"] == 0 and full["input"] == pytest.approx(0.1)


def test_a_step_of_nothing_takes_its_time():
    """On a core before the step; where a GPU computes for longer, nobody sees it."""
    assert seconds(RunLayout("single"), WORK, with_rates(CORES, step=0.3))["idle"] == 0.3
    on_gpu = sum(seconds(RunLayout("single")).values())
    short, long = (
        seconds(RunLayout("single"), WORK, with_rates(CLUSTER, step=x)) for x in (0.3, on_gpu + 2)
    )
    assert short["idle"] == 0 and long["idle"] == pytest.approx(2)


def test_rows_of_a_disk_take_a_core_besides():
    layout = RunLayout("tiers", in_memory=0.0, over="ssd")
    quick, slow = (seconds(layout, WORK, with_rates(CORES, cold=x)) for x in (0.0, 0.5))
    assert slow["rows_read"] - quick["rows_read"] == pytest.approx(10 * 0.5)  # ten rows, all there


def test_states_travel_to_an_output_layer():
    """Two processes with 5 samples of 3 states of 16 bytes each: those of the other, and back."""
    table = replace(TABLE, rows=100, ids=0.0, vectors=3.0, whole=True)
    work = replace(WORK, tables=(table,))
    found = seconds(RunLayout("sharded", 2, 1, place="row"), work)
    rows = 2 * 0.25  # none, but two messages
    assert found["exchange_inside"] == pytest.approx(2 * (5 * 3 * 16 / 50 + 0.25) + rows)


def test_distinct_rows():
    assert Popularity.uniform(1000).distinct(10) == pytest.approx(10, rel=0.01)
    few = 1000 * (1 - (1 - 1 / 1000) ** 2000)
    assert Popularity.uniform(1000).distinct(2000) == pytest.approx(few, rel=0.02)
    skewed = Popularity.zipf(1000, 1.2)
    assert skewed.distinct(2000) < few and skewed.top > 0.1
    assert skewed.distinct(0) == 0 and skewed.distinct(1) == 1
    # The generated batches of benchmarks/dlrm_dcnv2_gpu.py: 11.8M ids of 2.3M distinct rows.
    work = dlrm_dcnv2(55_296)
    every = sum(t.popularity.distinct(t.ids * work.batch) for t in work.tables)
    assert every == pytest.approx(2.3e6, rel=0.05)


def test_rows_that_a_tier_lacks():
    """DLRM of RESULTS.md, 26 slots: a batch has 525,000 distinct rows, two 894,000; of 899,000 in
    memory 311,000 are fetched anew."""
    popularity, ids = Popularity.zipf(384_616, 1.05), 65_536.0
    first = popularity.distinct(ids)
    assert 26 * first == pytest.approx(525_000, rel=0.05)
    assert 26 * popularity.distinct(2 * ids) == pytest.approx(894_000, rel=0.05)
    assert 26 * popularity.missed(ids, 899_000 / 26) == pytest.approx(311_000, rel=0.1)
    assert popularity.missed(ids, 0) == first
    assert popularity.missed(ids, 10**9) == 0
    falling = [popularity.missed(ids, slots) for slots in (10, 10**3, 10**4, 10**5, 10**6)]
    assert falling == sorted(falling, reverse=True)


LAYOUTS = [
    RunLayout("single"),
    RunLayout("ddp", 16, 2),
    *(
        RunLayout("sharded", 16, 2, place=place)
        for place in ("row", "column", "table", "replicate")
    ),
    RunLayout("sharded", 16, 2, place="row", groups=2),
    RunLayout("ps", 16, 2, servers=2),
    RunLayout("ps", 16, 2, servers=2, mode="async"),
    RunLayout("tiers", 16, 2, place="row", in_memory=0.1),
    RunLayout("tiers", 16, 2, place="row", in_memory=0.1, over="ssd"),
]
WORKS = [dlrm_dcnv2(55_296), hstu(512)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda one: one.title)
@pytest.mark.parametrize("work", WORKS, ids=lambda one: one.name)
def test_every_layout(work: Work, layout: RunLayout):
    cluster = CLUSTERS["DGX-H100"].of_size(2)
    made = predict(work, cluster, layout)
    assert tuple(made.parts) == PARTS
    assert sum(made.parts.values()) == pytest.approx(made.step.value)
    assert made.step.low <= made.step.value <= made.step.high
    assert all(ms >= 0 and math.isfinite(ms) for ms in made.parts.values())
    assert made.device_bytes > 0 and made.epoch_cost > 0

    def faster(**changed: object) -> float:
        device = replace(cluster.host.device, **changed.pop("device", {}))  # type: ignore[arg-type]
        host = replace(cluster.host, device=device, **changed.pop("host", {}))  # type: ignore[arg-type]
        there = replace(cluster, host=host, **changed)  # type: ignore[arg-type]
        return sum(step_of(work, there, layout).seconds.values())

    now = faster() * (1 + 1e-9)  # where something longer hides it, nothing changes
    device, host = cluster.host.device, cluster.host
    twice = {key: 2 * value for key, value in device.flops.items()}
    assert cluster.between is not None
    wider = replace(cluster.between, bandwidth=2 * cluster.between.bandwidth)
    assert faster(device={"bandwidth": 2 * device.bandwidth}) < now
    assert faster(device={"flops": twice}) < now
    assert faster(between=wider) <= now
    inside = replace(host.inside, bandwidth=2 * host.inside.bandwidth)
    assert faster(host={"inside": inside}) <= now
    assert faster(host={"to_device": 2 * host.to_device}) <= now
    more = predict(work.of_batch(2 * work.batch), cluster, layout)
    assert more.step.value > made.step.value


def test_memory_of_a_device():
    cluster, tables = CLUSTERS["DGX-H100"].of_size(2), WORKS[0].table_bytes
    held = {
        layout.title: predict(WORKS[0], cluster, layout).device_bytes
        for layout in LAYOUTS
        if layout.strategy != "ps"
    }
    assert held["ddp"] > tables and held["sharded by replicate"] > tables
    assert tables / 16 < held["sharded by row"] < tables / 16 + 2e9
    assert tables / 8 < held["sharded by row, 2 groups"] < tables / 8 + 2e9
    assert held["tiers, 10% in memory"] < tables / 160 + 2e9


def test_published_machines():
    """The eight rows of MLPerf that constants were fitted to, within 10 %."""
    for cluster, gpus, hosts, batch, ms in (
        ("DGX-H100", 4, 1, 28_000, 3.70),
        ("DGX-A100", 8, 1, 55_296, 7.15),
        ("DGX-H100", 8, 1, 55_296, 3.53),
        ("DGX-H200", 8, 1, 55_296, 3.25),
        ("8xH100-PCIe", 8, 1, 55_296, 10.35),
        ("8xL40S", 8, 1, 55_296, 20.29),
        ("DGX-H100", 64, 8, 135_168, 2.35),
        ("DGX-B200", 8, 1, 55_296, 2.15),
    ):
        there, layout = CLUSTERS[cluster].of_size(hosts), RunLayout("sharded", gpus, hosts)
        made = predict(dlrm_dcnv2(batch), there, layout)
        assert made.step.value == pytest.approx(ms, rel=0.1), cluster
        assert made.fits


def test_hstu_on_sixteen():
    made = predict(hstu(512), CLUSTERS["DGX-H100"].of_size(2), RunLayout("sharded", 16, 2))
    assert made.step.value == pytest.approx(187, rel=0.1)
    published = {"attention": 79.9, "products": 43.9, "elementwise": 39.5}
    for kind, ms in published.items():
        assert made.dense_by_kind[kind] == pytest.approx(ms, rel=0.15), kind

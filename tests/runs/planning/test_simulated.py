"""What the simulation adds to a plan: failures of its job, queues of its servers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shoal.runs.planning.cluster import Estimate
from shoal.runs.planning.prediction import RunLayout
from shoal.runs.planning.presets import CLUSTERS
from shoal.runs.planning.showing import TimePlan
from shoal.runs.planning.simulate import ServedJob
from shoal.runs.planning.simulated import (
    START,
    WAITING,
    Simulated,
    barriers,
    long_job,
    served_job,
    simulate_many,
)
from shoal.runs.planning.timing import predict
from shoal.runs.planning.work import dlrm_dcnv2

GPUS = CLUSTERS["DGX-H100"].of_size(8)
CORES = CLUSTERS["x86-64"].of_size(100)
WORK = replace(dlrm_dcnv2(65536), tables=dlrm_dcnv2(1).tables[:3])


def with_layout(layout: RunLayout) -> TimePlan:
    plan = TimePlan.of(WORK, CORES)
    return replace(plan, best=predict(WORK, CORES, layout))


def test_a_job_of_many_hosts_that_fail():
    plan = TimePlan.of(WORK, GPUS)
    found = Simulated.of(plan, epochs=2000)
    job, host = found.job, GPUS.host
    assert job.hosts == 8 and job.between_failures == pytest.approx(50_000 * 3600 / 8)
    held = WORK.table_bytes / 8 + 12 * WORK.parameters
    assert job.write == pytest.approx(held / host.disk.write)
    assert job.recovery == pytest.approx(START + held / host.disk.read)
    assert job.pause < job.write  # the last bytes wait in memory while training runs
    assert job.write - job.pause < 8 * WAITING / host.disk.write
    assert found.keys["checkpoint.every_steps"] == round(found.times.interval / found.step)
    text = str(found)
    assert "2000 epochs on 8 hosts" in text and "by Young" in text and "servers" not in text
    assert found.facts()["keys"] == found.keys


def test_ranks_wait_for_the_slowest():
    """Near the prediction, whose idle part is a formula for the same."""
    for layout in (RunLayout("sharded", 64, 8, place="row"), RunLayout("ddp", 64, 8)):
        best = predict(WORK, GPUS, layout)
        steps = barriers(WORK, GPUS, best)
        assert steps is not None and steps.middle <= steps.slowest
        assert steps.mean == pytest.approx(1e-3 * best.step.value, rel=0.1)
        # No noise and equal owners: the parts add up, and nobody waits.
        still = replace(GPUS.efficiency, jitter=Estimate(0.0, 0.0, 0.0))
        column = replace(best, layout=replace(layout, place="column"))
        alike = barriers(WORK, replace(GPUS, efficiency=still), column)
        assert alike is not None and alike.waiting == pytest.approx(0, abs=1e-9)
        working = sum(ms for name, ms in best.parts.items() if name != "idle")
        assert alike.mean == pytest.approx(1e-3 * working)
    assert barriers(WORK, GPUS, predict(WORK, GPUS, RunLayout("single"))) is None


def test_a_short_job_saves_at_its_end():
    found = Simulated.of(TimePlan.of(WORK, GPUS), epochs=1)
    assert found.keys == {} and "none before the end" in str(found) and "1 epoch on" in str(found)


def test_who_saves_what():
    """All hosts of sharded, one process of ddp, every server; dense parameters come on top."""
    dense = 12 * WORK.parameters
    for layout, cluster, writers in (
        (RunLayout("sharded", 64, 8, place="row"), GPUS, 8),
        (RunLayout("ddp", 64, 8), GPUS, 1),
        (RunLayout("ps", 75, 75, 64, servers=25), CORES, 25),
    ):
        job = long_job(WORK, predict(WORK, cluster, layout), cluster, 1)
        held = WORK.table_bytes / writers + dense
        assert job.write == pytest.approx(held / cluster.host.disk.write)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_queues_of_servers(mode):
    """Simulated and by arithmetic the same, but for what overlaps and queues."""
    found = Simulated.of(with_layout(RunLayout("ps", 75, 75, 64, servers=25, mode=mode)), epochs=10)
    assert found.served is not None
    assert 0.6 < found.served[1].per_second / found.expected < 1.6
    assert (found.elastic is not None) == (mode == "async")
    assert ("a gradient's age" in str(found)) == (mode == "async")
    assert found.job.hosts == 100


def test_a_part_stands_for_many():
    """Workers and servers in proportion: as many times the batches, and the age."""
    few = ServedJob(400, 0.1, 0.02, 0.02, shares=(1 / 8,) * 8, spread=0.1)
    many = replace(few, workers=3200, shares=(1 / 64,) * 64)
    first, second = simulate_many(few), simulate_many(many)
    assert second.per_second == pytest.approx(8 * first.per_second, rel=0.02)
    assert second.age == pytest.approx(8 * first.age, rel=0.02)
    assert second.busy == pytest.approx(first.busy, rel=0.02)


def test_more_servers_have_shorter_queues():
    few, many = (
        served_job(WORK, CORES, RunLayout("ps", 64, 64, 64, servers=n, mode="async"))
        for n in (4, 16)
    )
    assert few.workers == many.workers == 64
    assert len(few.shares) == 4 and sum(many.shares) == pytest.approx(1.0)
    assert few.pull == pytest.approx(many.pull, rel=0.2)  # of all servers together

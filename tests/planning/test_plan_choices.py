"""Which plan is chosen, what it says of targets, and what does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from published_models import dlrm_dcnv2

from shoal.planning.plan_text import TimePlan
from shoal.planning.presets import CLUSTERS
from shoal.planning.ranking import (
    Target,
    advice,
    choose,
    keys,
    rank_layouts,
    sensitivity,
    smallest_cluster,
)

WORK = dlrm_dcnv2(55_296)
EIGHT = CLUSTERS["DGX-H100"]


def test_ranking():
    every = rank_layouts(WORK, EIGHT)
    titles = [one.layout.title for one in every]
    assert titles[0].startswith("sharded") and {"single", "ddp"} <= set(titles)
    fits = [one.fits for one in every]
    assert fits == sorted(fits, reverse=True)  # those that fit come first
    held = {one.layout.title: one for one in every}
    assert not held["ddp"].fits and held["ddp"].short > 100e9  # 209 GB on a device of 80
    best = choose(every)
    assert best.layout.processes == 8
    assert keys(best)["strategy.name"] == "sharded" and keys(best)["launch.nproc"] == 8


def test_what_does_not_fit():
    large = [replace(one, rows=100 * one.rows) for one in WORK.tables]
    laptop = replace(CLUSTERS["laptop"], host=replace(CLUSTERS["laptop"].host, devices=1))
    with pytest.raises(ValueError, match=r"nothing fits: .* lacks .* such hosts would do"):
        choose(rank_layouts(replace(WORK, tables=tuple(large)), laptop))


def test_more_than_memory_goes_to_tiers():
    large = replace(WORK, tables=tuple(replace(one, rows=4 * one.rows) for one in WORK.tables))
    best = choose(rank_layouts(large, EIGHT))
    assert best.layout.strategy == "tiers" and best.fits
    assert best.layout.over == "host" and 0 < best.layout.in_memory < 1
    assert "rows.tiers.gpu" in keys(best)


def test_targets():
    assert Target.read("10 epochs in 90 min") == Target(10, 5400)
    assert Target.read("1 epoch in 2 hours") == Target(1, 7200)
    assert Target.read("0.5 epoch in 1 day") == Target(0.5, 86400)
    for wrong in ("2 h", "1 epoch in two hours", "0 epochs in 2 h", "1 epoch in 1.2.3 h", ""):
        with pytest.raises(ValueError, match="--target: given"):
            Target.read(wrong)
    slow, fast = (smallest_cluster(WORK, EIGHT, Target(1, seconds)) for seconds in (600, 120))
    assert slow is not None and fast is not None
    assert slow[1].hosts == 1 < fast[1].hosts
    assert fast[0].epoch_seconds <= 120
    assert smallest_cluster(WORK, EIGHT, Target(1, 0.001)) is None


def test_sensitivity():
    found = {
        what: rate
        for what, _, rate in sensitivity(WORK, EIGHT, choose(rank_layouts(WORK, EIGHT)).layout)
    }
    assert found["batch doubled"] > 1 > found["batch halved"]
    assert found["links inside at half"] < 1 < found["memory bandwidth doubled"]
    assert "links between hosts at half" not in found  # there is one host


def test_advice_is_of_the_machine():
    """Cores have no faster products of halves, and record no steps."""
    for name, told in (("DGX-H100", True), ("x86-16", False)):
        best = replace(choose(rank_layouts(WORK, CLUSTERS[name])), binds="products of matrices")
        assert ("bfloat16" in advice(best, CLUSTERS[name])) is told
        waits = replace(best, binds="launches and waiting")
        assert ("graph" in advice(waits, CLUSTERS[name])) is told


FACTS = {
    *("format", "model", "batch", "samples", "table_bytes", "parameters", "cluster", "plans"),
    *("chosen", "keys", "binds", "advice", "sensitivity", "target"),
}
OF_A_PLAN = {
    *("layout", "batch", "step", "parts", "hidden", "dense_by_kind", "samples_per_second"),
    *("link_bytes", "device_bytes", "host_bytes", "device_room", "host_room", "epoch_seconds"),
    *("epoch_cost", "binds", "assumptions", "fits"),
}


def test_what_programs_read():
    plan = TimePlan.for_work(WORK, EIGHT, Target(1, 120))
    facts = plan.facts()
    assert set(facts) == FACTS and facts["format"] == 1
    assert all(set(one) == OF_A_PLAN for one in facts["plans"])
    assert set(facts["plans"][0]["step"]) == {"value", "low", "high"}
    assert facts["target"]["met"]["hosts"] > 1


def test_what_people_read():
    told = str(TimePlan.for_work(WORK, EIGHT.of_size(8), Target(1, 120)))
    for words in ("rows updated", "exchange between hosts", "what binds: ", "batch doubled"):
        assert words in told
    assert "target 1 epochs in 2 min: " in told and "keys of this plan:" in told
    assert "fitted to eight published runs" in told  # assumptions are printed

"""What result.json has of memory and rows: exact, and the same on any number of processes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from small import first_batches, small_config

from shoal.distributed.world import World
from shoal.embedding.service import Lookup
from shoal.runs.build import build
from shoal.training import measurements as measured


def trained(world: World, strategy: str, steps: int = 2) -> dict[str, Any]:
    """Tables and memory after some steps of BPR."""
    config = small_config(strategy__name=strategy, train__batch_size=64)
    parts = build(config, world)
    for batch in first_batches(parts.reader, world, steps):
        parts.strategy.train_step(batch)
    parts.strategy.synchronize()
    return measured.measure(parts.strategy, config)


def test_rows_are_counted_and_measured() -> None:
    config = small_config(train__batch_size=64)
    parts = build(config, World())
    batch = next(iter(first_batches(parts.reader, World(), 1)))
    before = measured.measure(parts.strategy, config)["tables"]
    assert before["user"]["trained"] == 0
    parts.strategy.train_step(batch)
    found = measured.measure(parts.strategy, config)["tables"]["user"]
    touched = len(torch.unique(batch.tensor("user_id")))
    assert found["trained"] == touched > 0
    rows = parts.strategy.rows.pull([Lookup("user", torch.arange(132))], learn=False)[0]
    norms = rows.double().norm(dim=1)
    assert found["norm"]["mean"] == pytest.approx(norms.mean().item(), rel=1e-5)
    assert found["norm"]["min"] == pytest.approx(norms.min().item(), rel=1e-5)
    assert found["rows"] == 132 and found["dim"] == 16 and "sampled" not in found
    # Rows that began as those of another run: nobody knows which of them were trained.
    assert measured.table_figures(parts.strategy, None)["user"]["trained"] is None


def test_of_a_large_table_some_rows_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trained(World(), "single")["tables"]["user"]
    monkeypatch.setattr(measured, "MOST_ROWS", 60)
    some = trained(World(), "single")["tables"]["user"]
    assert some["sampled"] == 60 and some["rows"] == 132
    assert some["norm"]["mean"] == pytest.approx(whole["norm"]["mean"], rel=0.2)
    assert some["trained"] == pytest.approx(whole["trained"], rel=0.3)


@pytest.mark.parametrize("strategy", ["ddp", "sharded"])
def test_the_same_on_three_processes(tmp_path: Path, strategy: str) -> None:
    alone = trained(World(), "single")
    ranks = run_ranks(trained, 3, tmp_path, strategy)
    assert ranks[0] == ranks[1] == ranks[2]
    assert len(ranks[0]["memory"]) == 3 and len(alone["memory"]) == 1
    for one in ranks[0]["memory"]:
        assert one["host_peak"] > 50 << 20 and one["gpu_peak"] is None
    for name, found in ranks[0]["tables"].items():
        assert found["trained"] == alone["tables"][name]["trained"]
        for key, value in found["norm"].items():
            assert value == pytest.approx(alone["tables"][name]["norm"][key], rel=1e-4)

"""`shoal plan`: what tables take of a machine, and what does not fit."""

from __future__ import annotations

import pytest
import torch
from click_model import click_config, tiny_clicks  # noqa: F401

from shoal.embedding.placements.row_memory import Machine, plan_tables_of
from shoal.embedding.rows.table import Table
from shoal.optimizers.row_optimizer import RowOptimizer
from shoal.planning.plan import plan_memory
from shoal.planning.step_counter import parts_of

CPU, GPU = torch.device("cpu"), torch.device("cuda")
SMALL = Machine(host=10**9, gpu=None)


def plan(config, device=CPU, machine=SMALL, rows=10**6):
    tables = {"users": Table("users", 16, rows), "words": Table("words", 4, None)}
    return plan_tables_of(
        config, tables, dict.fromkeys(tables, RowOptimizer("adam")), device, machine
    )


def test_the_tables_of_a_config():
    config = click_config(train__optimizer__name="adagrad")
    told = plan_memory(config, parts_of(config), SMALL)
    assert "weights   201    1   804 B  804 B    0 B  host" in told
    assert "each process: 1.6 KB of host; this machine has 1.0 GB" in told


def test_what_each_table_takes():
    told = plan(click_config())
    users, words = told.splitlines()[2:4]
    assert users.split() == [
        "users",
        "1,000,000",
        "16",
        "64.0",
        "MB",
        "128.0",
        "MB",
        "0",
        "B",
        "host",
    ]
    assert words.split()[:2] == ["words", "grows"] and words.endswith("host")
    assert "each process: 192.0 MB of host" in told


def test_sharded_and_servers_hold_a_part():
    sharded = plan(click_config(strategy__name="sharded", launch__nproc=4))
    assert "each rank holds, 4 of them" in sharded and "250,000" in sharded
    groups = plan(click_config(strategy__name="sharded", launch__nproc=4, strategy__groups=2))
    assert "each rank holds, 4 of them" in groups and "500,000" in groups
    servers = plan(click_config(strategy__name="ps", launch__servers=2))
    assert "each server holds, 2 of them" in servers and "500,000" in servers


def test_tiers(tmp_path):
    told = plan(click_config(rows__tiers__host="50MB", rows__tiers__ssd=str(tmp_path)))
    assert "rows in host, ssd" in told and f"{tmp_path}: " in told


def test_what_does_not_fit_is_refused_with_a_remedy():
    with pytest.raises(ValueError, match=r"1\.9 GB .*--rows\.tiers\.host=800\.0MB"):
        plan(click_config(), rows=10**7)
    apart = {"strategy__name": "ddp", "launch__nproc": 4}
    with pytest.raises(ValueError, match=r"4 rank\(s\) need 1\.5 GB"):
        plan(click_config(**apart), rows=2 * 10**6)
    machine = Machine(host=10**11, gpu=10**9)
    with pytest.raises(ValueError, match=r"--rows\.tiers\.gpu=0\), or .* 3 GPUs"):
        plan(click_config(), GPU, machine, rows=10**7)
    held = plan(click_config(rows__tiers__gpu=0), GPU, machine, rows=10**7)
    assert "1.9 GB of host" in held
    told = plan(click_config(rows__tiers__gpu="700MB"), GPU, machine, rows=10**7)
    assert "rows in gpu, host" in told and "of gpu" in told

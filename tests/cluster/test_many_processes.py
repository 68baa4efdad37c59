"""The ways to run on several processes give what one process gives."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from cluster_configs import MODELS, SHORT, write_config
from commands import ROOT, Command, finish, result, shoal
from ranks import free_port


def assert_equal(folder: Path, alone: Path, world_size: int) -> None:
    mine, single = result(folder), result(alone)
    assert mine["world_size"] == world_size
    assert mine["test"] == pytest.approx(single["test"], rel=0, abs=1e-6)
    assert mine["best_valid"] == pytest.approx(single["best_valid"], rel=0, abs=1e-6)
    assert mine["epochs"] == single["epochs"] and mine["best_epoch"] == single["best_epoch"]


def test_single_result_file(alone: Path) -> None:
    content = result(alone)
    assert content["epochs"] == 4 and content["world_size"] == 1
    assert set(content["test"]) == {"recall@10", "mrr@10", "ndcg@10", "hit@10", "precision@10"}
    assert {"total", "train_epoch_median", "eval_median", "startup"} <= set(content["seconds"])
    assert len((alone / "metrics.jsonl").read_text().splitlines()) == 4


def test_nproc(place: Path, short: Path, alone: Path) -> None:
    output = finish("train", short, "--nproc", "2", "--output", place / "two", cwd=place)
    assert_equal(place / "two", alone, 2)
    assert f"run: {place / 'two'}" in output and "precision@10" in output  # the table, once
    assert output.count("best valid") == 2  # a line of the log, and the head of the table
    assert "Warning" not in output


@pytest.mark.slow
def test_torchrun(place: Path, short: Path, alone: Path) -> None:
    words = ("-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={free_port()}")
    command = Command(
        (sys.executable, *words, "-m", "shoal", "train", str(short), "--output=torchrun"), place
    )
    assert command.wait() == 0, command.output
    assert_equal(place / "torchrun", alone, 2)
    assert "run: torchrun" in command.output


@pytest.mark.slow
def test_two_hosts(place: Path, short: Path, alone: Path) -> None:
    port = free_port()
    hosts = [
        shoal(
            *("train", f"--config_files={short}", "--ip=127.0.0.1", f"--port={port}", "--nproc=2"),
            *("--world_size=4", f"--group_offset={offset}", "--output", place / "hosts"),
            cwd=place / f"host-{offset}",
        )
        for offset in (2, 0)  # the second host may well be the first to come
    ]
    for host in hosts:
        assert host.wait() == 0, host.output
    assert_equal(place / "hosts", alone, 4)
    second, first = (host.output.splitlines() for host in hosts)
    assert sum("epoch 0 training [" in line for line in first) == 1 and "└" in first[-2]
    assert any(line.startswith("  (embed): Embeddings(") for line in first)  # of the model
    shown = [line.partition("[rank 2] ")[2] for line in second]  # a host shows its first rank's
    assert " joined 127.0.0.1 with ranks 2 to 3 of 4" in shown[0]
    assert [line.split("[")[0] for line in shown[1:5]] == [f"epoch {k} training " for k in range(4)]
    assert shown[5].startswith("test result: {") and shown[6].endswith("hosts (on the first host)")
    assert len(shown) == 7  # the table is the first host's


def test_one_call_from_python(place: Path, short: Path, alone: Path) -> None:
    example = str(ROOT / "examples" / "train_from_python.py")
    words = ("--config_files", str(short), "--epochs=4", "--output=called")
    command = Command((sys.executable, example, *words), place)
    assert command.wait() == 0, command.output
    assert_equal(place / "called", alone, 1)
    assert str(result(alone)["test"]["recall@10"])[:8] in command.output
    assert command.output.count("user 1: item ") == 5


def test_evaluation_is_exact_on_any_number_of_processes(place: Path, alone: Path) -> None:
    import shoal

    assert (
        shoal.evaluate(alone, output=place / "eval-1")["test"] == result(place / "eval-1")["test"]
    )
    output = finish("eval", alone, "--nproc", "2", "--output", place / "eval-2", cwd=place)
    one, two = result(place / "eval-1"), result(place / "eval-2")
    assert one["world_size"] == 1 and two["world_size"] == 2
    of_training = {"memory", "tables", "plan", "hits", "data", "higher_is_better"}
    assert set(one) == set(two) == set(result(alone)) - of_training
    for split in ("test", "best_valid", "base"):
        assert one[split] == pytest.approx(result(alone)[split], rel=0, abs=1e-8)
        assert two[split] == pytest.approx(one[split], rel=0, abs=1e-8)
    assert output.count("precision@10") == 3  # two lines of the log, one of the table


@pytest.mark.slow
def test_uneven_hosts(place: Path, short: Path, alone: Path) -> None:
    """Three processes on one host, one on the other."""
    meet = ("--ip=127.0.0.1", f"--port={free_port()}", "--world_size=4", "--launch.hosts=2")
    hosts = [
        shoal(
            *("train", short, *meet, f"--launch.host_index={number}", f"--nproc={nproc}"),
            *(f"--group_offset={offset}", "--output", place / "uneven"),
            cwd=place / f"uneven-{number}",
        )
        for number, nproc, offset in ((1, 1, 3), (0, 3, 0))
    ]
    for host in hosts:
        assert host.wait() == 0, host.output
    assert_equal(place / "uneven", alone, 4)


@pytest.mark.slow
def test_hosts_that_were_given_different_configs(place: Path, short: Path) -> None:
    port = free_port()
    hosts = [
        shoal(
            *("train", short, "--ip=127.0.0.1", f"--port={port}", "--nproc=1", "--world_size=2"),
            *(f"--group_offset={offset}", f"--learning_rate=0.00{offset + 1}"),
            *("--output", place / "differ"),
            cwd=place / f"differ-{offset}",
        )
        for offset in (0, 1)
    ]
    assert [host.wait() for host in hosts] == [2, 2]
    assert (
        "config of rank 1" in hosts[1].output
        and "train.optimizer.lr is 0.002 here and 0.001 there" in hosts[1].output
    )
    assert "another host, whose message says why" in hosts[0].output


@pytest.mark.slow
def test_spawned_ranks(place: Path, alone: Path) -> None:
    config = write_config(place / "spawn.yaml", MODELS["BPR"], SHORT, {"run.output": "spawned"})
    example = str(ROOT / "examples" / "pages" / "recbole" / "run_a.py")
    words = ("--dataset=synthetic", "--config_files", str(config), "--nproc=2", "--world_size=2")
    words += (f"--port={free_port()}",)
    command = Command((sys.executable, example, *words), place)
    assert command.wait() == 0, command.output
    assert_equal(place / "spawned", alone, 2)
    told = command.output.splitlines()[-1].removeprefix("result: ")
    assert json.loads(told.replace("'", '"')) == result(place / "spawned")["test"]

"""Where a cluster's scheduler put the replicas of a job, from the variables it sets."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest
from typer.testing import CliRunner

from shoal.cli import main as cli
from shoal.cli import replica
from shoal.cli.replica import command, find_hosts, wait_for_names
from shoal.config import Resolved
from shoal.launch.roles import find_roles

LOCAL = {"TORCHX_RANK0_HOST": "localhost"}  # TorchX says so to the first replica


@pytest.mark.parametrize(
    ("servers", "workers", "given", "environment", "hosts"),
    [
        # Slurm: a heterogeneous job, a group for each replica, in this order.
        (1, 2, None, {f"SLURM_JOB_NODELIST_HET_GROUP_{k}": f"n{k}" for k in range(3)}, "n0 n1 n2"),
        # Volcano: a task for each replica.
        (1, 1, None, {"VC_SERVER_0_HOSTS": "s.job", "VC_WORKER_0_HOSTS": "w.job"}, "s.job w.job"),
        (1, 2, None, {}, "127.0.0.1 127.0.0.1 127.0.0.1"),
        (1, 1, "a, b", {}, "a b"),  # what is given wins
    ],
)
def test_where_the_replicas_are(
    servers: int, workers: int, given: str | None, environment: dict[str, str], hosts: str
) -> None:
    assert find_hosts(servers, workers, given, {**environment, **LOCAL}) == hosts.split()


def test_as_many_hosts_as_replicas() -> None:
    with pytest.raises(ValueError, match="names 2 hosts; there are 1 servers and 2 workers"):
        find_hosts(1, 2, "a,b", LOCAL)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"TORCHX_RANK0_HOST": "job-server-0"},
        {"SLURM_JOB_NODELIST_HET_GROUP_0": "node7"},  # of a job with fewer replicas
        {"VC_SERVER_0_HOSTS": "a", "VC_WORKER_0_HOSTS": ""},
    ],
)
def test_unknown_hosts_are_asked_for(environment: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="give their hosts, servers first: --hosts="):
        find_hosts(1, 1, None, environment)


def test_every_replica_has_a_port_of_its_own() -> None:
    words = command("worker", 1, 2, 2, ["s", "t", "v", "w"], 6000)
    assert words[0] == "launch"
    options = dict(word.lstrip("-").split("=") for word in words[1:])
    assert options["servers"] == "s:6000,t:6001" and options["workers"] == "v:6002,w:6003"
    roles = find_roles(
        None, None, options["workers"], options["servers"], options["role"], int(options["index"])
    )
    assert (roles.nproc, roles.group_offset, roles.num_servers, roles.world_size) == (1, 1, 0, 2)


def test_launch_takes_a_role_on_several_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Resolved] = []
    module = import_module("shoal.runs.run")  # `shoal.run` alone is the function
    monkeypatch.setattr(module, "train", lambda resolved, resume: seen.append(resolved))
    words = ["--servers=127.0.0.1:6000", "--workers=127.0.0.2:6001,127.0.0.3:6002"]
    words += ["--role=worker", "--index=1", "--model=DNN"]
    done = CliRunner().invoke(cli.app, ["launch", *words], catch_exceptions=False)
    assert done.exit_code == 0
    launch, servers = seen[0].config.launch, seen[0].config.strategy.ps
    assert (launch.ip, launch.port) == ("127.0.0.2", 6001)  # where the workers meet
    assert (launch.nproc, launch.world_size, launch.group_offset) == (1, 2, 1)
    assert servers.addresses == ["127.0.0.1:6000"] and launch.servers == 0


def test_a_name_that_nobody_knows() -> None:
    with pytest.raises(ValueError, match=r"host 'no-such-host\.invalid' is unknown"):
        wait_for_names(["127.0.0.1", "no-such-host.invalid"], 0.0)


def test_main_becomes_shoal_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ["--role=server", "--index=0", "--servers=1", "--workers=1", "--port=6000"]
    given = ["--", "config.yaml", "--train.epochs=2"]
    monkeypatch.setattr(sys, "argv", ["replica", *own, "--hosts=127.0.0.1,127.0.0.2", *given])
    seen: list[str] = []
    monkeypatch.setattr(replica, "follow_parent", lambda: None)
    monkeypatch.setattr(cli, "main", lambda: seen.extend(sys.argv[1:]))
    replica.main()
    assert seen == [
        *("launch", "--role=server", "--index=0"),
        *("--servers=127.0.0.1:6000", "--workers=127.0.0.2:6001"),
        *("config.yaml", "--train.epochs=2"),
    ]

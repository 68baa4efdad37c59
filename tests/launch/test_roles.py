"""Roles: the same command line on every host, and each finds its own part."""

from __future__ import annotations

import socket

import pytest

from shoal.launch.__main__ import parse, section_of
from shoal.launch.roles import Roles, find_roles

HERE = "127.0.0.1"
THERE = "203.0.113.1"  # kept for documentation: no host has it


def test_one_host() -> None:
    assert find_roles() == Roles(nproc=1, num_servers=1)
    found = find_roles(3, 2)
    assert (found.nproc, found.num_servers, found.world_size) == (3, 2, 3)
    assert not found.many_hosts and found.servers == []


def test_all_of_a_list_is_here() -> None:
    found = find_roles(workers=f"{HERE}:5001, {HERE}:5002", servers=f"{HERE}:6001")
    assert found.workers == [f"{HERE}:5001", f"{HERE}:5002"]
    assert (found.nproc, found.group_offset, found.hosts, found.host_index) == (2, 0, 1, 0)
    assert (found.num_servers, found.first_server, found.world_size) == (1, 0, 2)
    assert not found.many_hosts


def test_a_part_of_a_list_is_here() -> None:
    workers = f"{THERE}:1,{THERE}:2,{HERE}:3,{HERE}:4,{HERE}:5,203.0.113.9:6"
    found = find_roles(workers=workers, servers=f"{THERE}:7,{THERE}:8,{HERE}:9")
    assert (found.nproc, found.group_offset) == (3, 2)
    assert (found.hosts, found.host_index, found.world_size) == (3, 1, 6)
    assert (found.num_servers, found.first_server) == (1, 2)
    assert found.many_hosts


def test_only_servers_or_only_workers_are_here() -> None:
    found = find_roles(workers=f"{THERE}:1", servers=f"{HERE}:2,{HERE}:3")
    assert (found.nproc, found.num_servers, found.first_server) == (0, 2, 0)
    assert found.hosts == 1
    found = find_roles(workers=f"{THERE}:1,localhost:1", servers=f"{THERE}:2")
    assert (found.nproc, found.num_servers, found.group_offset, found.host_index) == (1, 0, 1, 1)


def test_names_of_this_host() -> None:
    found = find_roles(workers="localhost:5001", servers="localhost:5002")
    assert (found.nproc, found.num_servers) == (1, 1) and not found.many_hosts


@pytest.mark.parametrize(
    "role, index, expected",
    [
        ("worker", 0, (1, 0, 3, 0, 0, 0)),
        ("worker", 2, (1, 2, 3, 2, 0, 0)),
        ("server", 1, (0, 0, 1, 0, 1, 1)),
    ],
)
def test_by_hand(role: str, index: int, expected: tuple) -> None:
    """Whatever the addresses are: nothing is looked up."""
    workers = f"{THERE}:1,no.such.host.invalid:2,{THERE}:3"
    found = find_roles(workers=workers, servers=f"{THERE}:4,{THERE}:5", role=role, index=index)
    assert expected == (
        found.nproc,
        found.group_offset,
        found.hosts,
        found.host_index,
        found.first_server,
        found.num_servers,
    )
    assert found.world_size == 3


@pytest.mark.parametrize(
    "options, message",
    [
        ({"worker_num": 0}, "--worker_num=0 --server_num=1: there must be at least one of each"),
        ({"server_num": -1}, "--worker_num=1 --server_num=-1"),
        ({"workers": "a:1"}, "--workers and --servers belong together"),
        ({"servers": "a:1"}, "--workers and --servers belong together"),
        ({"role": "worker"}, "--role needs --workers and --servers"),
        ({"workers": "a:1", "servers": "a:2", "worker_num": 1}, "not both"),
        ({"workers": "", "servers": "a:2"}, "--workers is empty; it is a list of HOST:PORT"),
        ({"workers": " , ", "servers": "a:2"}, "--workers is empty"),
        ({"workers": "a:1", "servers": "a"}, "--servers: 'a' is not HOST:PORT"),
        ({"workers": "a:1", "servers": ":5"}, "--servers: ':5' is not HOST:PORT"),
        ({"workers": "a:x", "servers": "a:2"}, "--workers: 'a:x' is not HOST:PORT"),
        ({"workers": "a:²", "servers": "a:2"}, "is not HOST:PORT"),
        ({"workers": "a:0", "servers": "a:2"}, "--workers: 'a:0' is not HOST:PORT"),
        ({"workers": "a:65536", "servers": "a:2"}, "is not HOST:PORT"),
        ({"workers": "a:1,b:1,a:1", "servers": "a:2"}, "--workers: a:1 appears twice"),
        ({"workers": "a:1,b:1", "servers": "c:1,b:1"}, "b:1 is a worker and a server"),
        (
            {"workers": "a:1", "servers": "a:2", "role": "servr"},
            "--role=servr; known are worker and server.*server",
        ),
        (
            {"workers": "a:1", "servers": "a:2", "role": "worker", "index": 1},
            "--index=1: there are 1 workers, from 0",
        ),
        (
            {"workers": "a:1", "servers": "a:2", "role": "server", "index": -1},
            "--index=-1: there are 1 servers",
        ),
    ],
)
def test_refusals(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_roles(**options)


def test_this_host_has_no_part() -> None:
    with pytest.raises(ValueError) as caught:
        find_roles(workers=f"{THERE}:1", servers="203.0.113.2:2")
    text = str(caught.value)
    assert f"none of {THERE}, 203.0.113.2 is an address of this host" in text
    assert socket.gethostname() in text and "--role and --index" in text


def test_an_unknown_host() -> None:
    with pytest.raises(ValueError, match=r"the host 'no\.such\.host\.invalid' is unknown"):
        find_roles(workers="no.such.host.invalid:1", servers=f"{HERE}:2")


@pytest.mark.parametrize("option", ["workers", "servers"])
def test_entries_of_a_host_stand_together(option: str) -> None:
    lists = {"workers": f"{HERE}:1", "servers": f"{HERE}:2"}
    lists[option] = f"{HERE}:3,{THERE}:4,{HERE}:5"
    with pytest.raises(
        ValueError, match=f"--{option}: the entries of one host must be next to each other"
    ):
        find_roles(**lists)


def test_the_old_option_of_a_script_says_the_new_one(capsys: pytest.CaptureFixture) -> None:
    options = parse(["--nproc=1", "--hosts=2", "--host_index=1", __file__])
    assert section_of(options).host_index == 1 and capsys.readouterr().err == ""
    options = parse(["--nproc=1", "--hosts=2", "--host=1", __file__])
    assert section_of(options).host_index == 1
    assert "--host is now called --host_index" in capsys.readouterr().err

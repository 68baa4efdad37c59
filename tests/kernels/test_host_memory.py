"""What memory is free: by the host, by control groups, by the limit on address space."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from shoal.kernels import host_memory
from shoal.kernels.host_memory import describe_kill, free_memory

GB = 10**9


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process in the control group /outer/inner of a host with 64 GB."""
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {64 * GB // 1024} kB\n")
    (proc / "self/cgroup").write_text("0::/outer/inner\n")
    (proc / "self/statm").write_text("1000 10 10\n")
    monkeypatch.setattr(host_memory, "PROC", proc)
    monkeypatch.setattr(host_memory, "CGROUPS", tmp_path / "groups")
    return tmp_path / "groups"


def limit(group: Path, most: str, current: int, files: int) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text(f"{most}\n")
    (group / "memory.current").write_text(f"{current}\n")
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {files}\nactive_file 0\n")


def test_a_host_without_groups(groups: Path) -> None:
    assert str(free_memory()) == "64.0 GB are free on this host"


def test_files_in_memory_are_free(groups: Path) -> None:
    """A container that has read large files is not full."""
    limit(groups, str(4 * GB), current=4 * GB - 1000, files=3 * GB)
    assert free_memory().num_bytes == 3 * GB + 1000


@pytest.mark.parametrize("group", ["outer", "outer/inner"])
def test_the_tightest_group_counts(group: str, groups: Path) -> None:
    limit(groups / "outer", "max", current=GB, files=0)
    limit(groups / "outer/inner", "max", current=GB, files=0)
    limit(groups / group, str(3 * GB), current=GB, files=0)
    assert free_memory().num_bytes == 2 * GB
    assert "control group" in str(free_memory())


def test_the_limit_on_address_space_counts(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (5 * GB, 5 * GB))
    assert free_memory().num_bytes == 5 * GB - 1000 * resource.getpagesize()
    assert "ulimit -v" in str(free_memory())


def test_signals_of_memory_are_named() -> None:
    assert "memory" in describe_kill(6) and "memory" in describe_kill(9)
    assert describe_kill(15) == "killed by signal 15 (SIGTERM)"

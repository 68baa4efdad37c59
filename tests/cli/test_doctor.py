"""`shoal doctor` on this machine, and on one where something is missing or broken."""

import json
import os
import socket
import tempfile
from pathlib import Path

import pytest
from commands import shoal as shoal_command

import shoal
from shoal.cli.main import app
from shoal.planning import machine_check
from shoal.planning.machine_check import examine


def test_what_this_machine_has(capsys: pytest.CaptureFixture[str]) -> None:
    app(["doctor", "--json"], standalone_mode=False)
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert found["shoal"]["value"] == shoal.__version__
    assert found["cores"]["value"].startswith(f"{len(os.sched_getaffinity(0))} to use")
    for name in ("python", "torch", "memory", "native core", "shared memory", "open files"):
        assert found[name]["state"] in ("good", "slow"), found[name]
    assert found["loopback"]["state"] == found["temporary files"]["state"] == "good"
    assert found["extra serve"]["value"].startswith("uvicorn ")


def test_a_report_names_no_user_host_or_place(capsys: pytest.CaptureFixture[str]) -> None:
    app(["doctor", "--report"], standalone_mode=False)
    text = capsys.readouterr().out
    assert text.startswith("```\n") and text.endswith("```\n") and "torch: " in text
    for name in (os.environ.get("USER"), socket.gethostname(), str(Path.home()), os.getcwd()):
        if name and len(name) > 3:
            assert name not in text
    assert "/" not in text.replace("samples/s", "")


def test_training_that_cannot_work_is_status_1(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(  # a core that was built from older sources
        "import sys, types\ncore = types.ModuleType('shoal._core', 'old')\n"
        "core.INTERFACE, core.__file__ = 1, '_core.so'\nsys.modules['shoal._core'] = core\n"
    )
    path = f"{tmp_path}:{Path(shoal.__file__).parents[1]}"
    command = shoal_command("doctor", cwd=tmp_path, PYTHONPATH=path)
    assert command.wait() == 1
    lines = command.output.splitlines()
    (place,) = [k for k, line in enumerate(lines) if line.startswith("✗ native core")]
    assert "make setup" in lines[place + 1] and "Training cannot work here" in lines[-1]


def test_a_machine_without_ports_or_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr(machine_check.socket, "create_server", refuse)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    monkeypatch.setattr(machine_check, "core_vectors", lambda: None)
    found = {one.name: one for one in examine()}
    assert found["loopback"].state == found["temporary files"].state == "broken"
    assert found["loopback"].advice and "TMPDIR" in found["temporary files"].advice
    assert found["native core"].state == "slow" and "make setup" in found["native core"].advice

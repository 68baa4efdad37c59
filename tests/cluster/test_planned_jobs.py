"""Jobs that a plan writes, run: sbatch's script on two nodes that share this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from commands import ROOT, Command, result
from ranks import free_port

from shoal.runs.planning import jobs
from shoal.runs.planning.prediction import RunLayout

pytestmark = pytest.mark.slow
# What the script asks of Slurm, where there is none: two nodes at one address.
PROGRAMS = {
    "scontrol": "#!/bin/sh\necho 127.0.0.1\n",
    "srun": """#!/bin/bash
SLURM_NODEID=0 "$@" & first=$!
SLURM_NODEID=1 "$@" & second=$!
wait $first && wait $second
""",
    "shoal": f'#!/bin/sh\nexec {sys.executable} -m shoal "$@"\n',
}


def test_a_script_of_sbatch(
    short: Path, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in PROGRAMS.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setattr(jobs, "MEETING_PORT", free_port())
    layout = RunLayout("sharded", processes=2, hosts=2)
    words = (str(short), "--strategy.name=sharded")
    text = jobs.write_job("slurm", jobs.Job(layout, words, cores=1, memory=1e9))
    (tmp_path / "job.sh").write_text(text)
    path = f"{folder}:{os.environ['PATH']}"
    for _ in range(2):  # started again, it finds the run finished
        command = Command(("bash", "job.sh"), tmp_path, PATH=path, PYTHONPATH=str(ROOT))
        assert command.wait() == 0, command.output
    found = result(tmp_path / "runs" / "planned")
    assert found["world_size"] == 2
    assert found["test"] == pytest.approx(result(alone)["test"], rel=0, abs=1e-6)

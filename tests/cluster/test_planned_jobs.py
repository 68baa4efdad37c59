"""Jobs that a plan writes, run here: sbatch's script on two nodes, the pods of a JobSet."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
import yaml
from commands import ROOT, Command, result
from ranks import free_port

from shoal.planning import jobs
from shoal.planning.prediction import RunLayout

pytestmark = pytest.mark.slow
# What the script asks of Slurm, where there is none: two nodes at one address.
PROGRAMS = {
    "scontrol": "#!/bin/sh\necho 127.0.0.1\n",
    "srun": """#!/bin/bash
SLURM_NODEID=0 "$@" & first=$!
SLURM_NODEID=1 "$@" & second=$!
wait $first && wait $second
""",
    "python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
    "shoal": f'#!/bin/sh\nexec {sys.executable} -m shoal "$@"\n',
}


@pytest.fixture
def path(tmp_path: Path) -> str:
    """PATH with these programs in front."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in PROGRAMS.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_the_pods_of_a_job_set(
    short: Path, alone: Path, tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server and two workers, each by its pod's command; names of pods are this machine's."""
    monkeypatch.setattr(jobs, "SERVER_PORT", free_port())
    layout = RunLayout("ps", processes=2, hosts=2, servers=1)
    job = jobs.Job(layout, (str(short), "--strategy.name=ps"), cores=1, memory=1e9)
    pods = yaml.safe_load(jobs.write_job("k8s", job))["spec"]["replicatedJobs"]
    Command(("shoal", "keys", "make", "keys"), tmp_path, PATH=path).wait()
    running = []
    for pod in pods:
        spec = pod["template"]["spec"]
        command = spec["template"]["spec"]["containers"][0]["command"]
        command = [re.sub(r"shoal-(server|worker)-0-\d\.shoal", "127.0.0.1", w) for w in command]
        for index in range(spec["completions"]):
            words = {"JOB_COMPLETION_INDEX": str(index), "PATH": path}
            running.append(Command(tuple(command), tmp_path, **words))
    for one in running:
        assert one.wait() == 0, one.output
    found = result(tmp_path / "runs" / "planned")
    assert found["world_size"] == 2
    assert found["test"] == pytest.approx(result(alone)["test"], rel=0, abs=1e-5)


def test_a_script_of_sbatch(
    short: Path, alone: Path, tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "MEETING_PORT", free_port())
    layout = RunLayout("sharded", processes=2, hosts=2)
    words = (str(short), "--strategy.name=sharded")
    text = jobs.write_job("slurm", jobs.Job(layout, words, cores=1, memory=1e9))
    (tmp_path / "job.sh").write_text(text)
    for _ in range(2):  # started again, it finds the run finished
        command = Command(("bash", "job.sh"), tmp_path, PATH=path, PYTHONPATH=str(ROOT))
        assert command.wait() == 0, command.output
    found = result(tmp_path / "runs" / "planned")
    assert found["world_size"] == 2
    assert found["test"] == pytest.approx(result(alone)["test"], rel=0, abs=1e-6)

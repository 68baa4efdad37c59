"""A Slurm of three nodes on this machine, for tests: from Debian's packages slurm-wlm and munge."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ranks import free_port

DAEMONS = ("munged", "slurmctld", "slurmd")
NEEDED = (*DAEMONS, "sbatch", "srun", "scancel", "scontrol", "squeue", "sinfo")
# The loopback network has many addresses, so that each node has a name that all can look up. One
# node would not do: Slurm gives every part of a heterogeneous job a node of its own.
NODES = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
START_SECONDS = 30.0
# TorchX asks `sacct`, which needs a database. This one asks the controller instead.
SACCT = """#!/bin/sh
echo 'JobID|JobName|State'
exec squeue --noheader --states=all --jobs="$3" --format='%i|%j|%T'
"""


class NoSlurm(RuntimeError):
    """Why there is no Slurm here."""


class Slurm:
    """The daemons: `with Slurm() as slurm: ...`; commands need slurm.environment."""

    def __init__(self) -> None:
        sbin = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
        self._programs = {name: shutil.which(name, path=sbin) for name in NEEDED}
        missing = [name for name, found in self._programs.items() if found is None]
        if missing:
            raise NoSlurm(f"Slurm is not installed ({', '.join(missing)}): slurm-wlm and munge")
        self._scratch = tempfile.TemporaryDirectory(prefix="shoal-slurm-")
        self.folder = Path(self._scratch.name)
        self._daemons: list[subprocess.Popen] = []

    def __enter__(self) -> Slurm:
        try:
            self._write()
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    @property
    def environment(self) -> dict[str, str]:
        """Variables for those who talk to this Slurm."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": str(self.folder / "bin")}

    def _write(self) -> None:
        folder, host = self.folder, socket.gethostname().partition(".")[0]
        (folder / "state").mkdir()
        (folder / "bin").mkdir()
        (folder / "bin" / "sacct").write_text(SACCT)
        (folder / "bin" / "sacct").chmod(0o755)
        (folder / "munge.key").touch(0o600)
        (folder / "munge.key").write_bytes(os.urandom(1024))
        lines = [
            "ClusterName=shoal",
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={free_port()}",
            "AuthType=auth/munge",
            f"AuthInfo=socket={folder}/munge.socket",
            f"SlurmUser={getpass.getuser()}",
            f"SlurmdUser={getpass.getuser()}",
            f"StateSaveLocation={folder}/state",
            f"SlurmdSpoolDir={folder}/spool-%n",
            f"SlurmctldPidFile={folder}/slurmctld.pid",
            f"SlurmdPidFile={folder}/slurmd-%n.pid",
            "ProctrackType=proctrack/pgid",
            "TaskPlugin=task/none",
            "MpiDefault=none",
            "ReturnToService=2",
            "SchedulerType=sched/backfill",  # the one that starts heterogeneous jobs
            "SchedulerParameters=bf_interval=1",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU",
            "SlurmdParameters=config_overrides",  # believe what is said about the nodes
            "JobAcctGatherType=jobacct_gather/none",
            "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
        ]
        lines += [
            f"NodeName={node} NodeHostname={host} NodeAddr={node} Port={free_port()} CPUs=4"
            for node in NODES
        ]
        (folder / "slurm.conf").write_text("\n".join([*lines, ""]))

    def _start(self) -> None:
        folder = self.folder
        files = {"socket": "munge.socket", "key-file": "munge.key", "log-file": "munged.txt"}
        files |= {"pid-file": "munged.pid", "seed-file": "munge.seed"}
        munge = [f"--{option}={folder / name}" for option, name in files.items()]
        self._run("munged", "--foreground", "--force", *munge)
        self._until("munged listens", lambda: (folder / "munge.socket").exists())
        self._run("slurmctld", "-D", "-c")
        for node in NODES:
            self._run("slurmd", "-D", "-N", node)
        self._until("its nodes are idle", lambda: self.ask("sinfo", "-h", "-o%T %D") == ["idle 3"])

    def _run(self, program: str, *words: str) -> None:
        path = self._programs[program]
        assert path is not None
        with open(self.folder / f"{program}-{len(self._daemons)}.log", "w") as out:
            self._daemons.append(
                subprocess.Popen(
                    [path, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    cwd=self.folder,
                    env={**os.environ, "SLURM_CONF": self.environment["SLURM_CONF"]},
                    start_new_session=True,
                )
            )

    def _until(self, what: str, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not happened():
            ended = [daemon for daemon in self._daemons if daemon.poll() is not None]
            if ended or time.monotonic() > deadline:
                told = "\n".join(
                    "".join(file.read_text().splitlines(keepends=True)[-3:])
                    for file in sorted(self.folder.glob("*.log"))
                )
                raise NoSlurm(f"Slurm's daemons cannot be started here ({what}, not so):\n{told}")
            time.sleep(0.1)

    def ask(self, program: str, *words: str) -> list[str]:
        """The lines that a command of Slurm's answers."""
        environment = {**os.environ, "SLURM_CONF": self.environment["SLURM_CONF"]}
        done = subprocess.run(
            [str(self._programs[program]), *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout.split("\n")[:-1]

    def wait(self, job: str, timeout: float) -> set[str]:
        """The states of a job's parts, when none of them goes on."""
        deadline = time.monotonic() + timeout
        while True:
            states = set(self.ask("squeue", "-h", "--states=all", f"--jobs={job}", "-o%T"))
            if not states & {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING"}:
                return states
            if time.monotonic() > deadline:
                self.ask("scancel", job)
                raise AssertionError(f"job {job} is still {states} after {timeout:.0f} s")
            time.sleep(0.2)

    def _stop(self) -> None:
        if len(self._daemons) > 1:
            self.ask("scancel", f"--user={getpass.getuser()}")
        for daemon in reversed(self._daemons):
            if daemon.poll() is None:
                daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self._scratch.cleanup()

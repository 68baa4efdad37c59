"""The one writer of jobs, as schedulers take them: sbatch, TorchX, Ray, Kubernetes.

`shoal plan --launch` prints what it writes, the TorchX components (cli/torchx.py) start replicas by
its command, and the Slurm script in docs/reference/clusters.md is its own.

Every job continues what is in its run's folder, if anything is, so a scheduler may start it again.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from shoal.config.errors import ConfigError, did_you_mean
from shoal.planning.cluster import Cluster
from shoal.planning.prediction import RunLayout

MEETING_PORT, WORKER_PORT, SERVER_PORT = 5678, 6170, 6180
SECRET = "SHOAL_SECRET=$(head -c 32 /dev/urandom | base64)"
INDEX_OF_POD = "INDEX"  # stands in a pod's command until the shell's variable takes its place
OF_PODS = 0.9  # of a host's memory; the rest is the node's
NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")


@dataclass(frozen=True)
class Job:
    """A run with the layout that a plan chose."""

    layout: RunLayout
    args: tuple[str, ...]  # what follows `shoal train`: configs and keys, those of the plan too
    cores: int  # of a host
    memory: float  # bytes of a host
    gpus: int = 0  # that a host's processes use
    output: str = "runs/planned"
    name: str = "shoal"
    image: str = "shoal"  # containers: an image that has Shoal installed
    volume: str = "shared"  # containers: a claim that all pods mount, with config, data and runs
    restarts: int = 3

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ConfigError(
                f"the job's name {self.name!r} must be lower-case letters, digits and dashes, at "
                "most 40, and begin with a letter"
            )
        if self.layout.strategy == "ps" and self.layout.servers < 1:
            raise ConfigError("a job of parameter servers needs at least one server")

    @property
    def served(self) -> bool:
        """Whether the job has parameter servers."""
        return self.layout.strategy == "ps"

    @property
    def command(self) -> list[str]:
        """Arguments of the run, without those that place its processes."""
        args = [arg for arg in self.args if not arg.startswith(PLACES)]
        return [*args, f"--output={self.output}", "--resume"]

    @property
    def restarted(self) -> list[str]:
        """Arguments of the run where Shoal itself starts failed processes again."""
        return [*self.command, *_unless(self.command, f"--launch.max_restarts={self.restarts}")]


# Keys that the scheduler's part of the command gives.
LAUNCH_KEYS = (
    "nproc",
    "world_size",
    "ip",
    "port",
    "group_offset",
    "servers",
    "hosts",
    "host_index",
    "host",  # the name that host_index had
)
PLACES = (
    *[f"--{name}=" for name in LAUNCH_KEYS],
    *[f"--launch.{name}=" for name in LAUNCH_KEYS],
    "--output=",
    "--run.output=",
    "--resume",
)


def job_of(
    layout: RunLayout,
    cluster: Cluster,
    args: Sequence[str],
    needed: float = 0.0,
    **settings: Any,
) -> Job:
    """The job of a layout on hosts of a cluster.

    A job that uses some of a host's GPUs requests the same share of its cores and memory, so that
    other jobs may have the rest. needed: bytes of a host that the plan counts; always requested.
    """
    host = cluster.host
    gpus = min(layout.per_host, host.devices) if host.on_gpu else 0
    cores, memory = max(1, host.cores), host.memory
    if 0 < gpus < host.devices and layout.strategy != "ps":  # a server has its host to itself
        cores = max(1, cores * gpus // host.devices)
        memory = min(memory, max(memory * gpus / host.devices, needed / OF_PODS))
    return Job(
        layout=layout,
        args=tuple(args),
        cores=cores,
        memory=memory,
        gpus=gpus,
        **settings,
    )


def write_job(launcher: str, job: Job) -> str:
    """The text of a file for a launcher, which begins with how to start it."""
    if launcher not in LAUNCHERS:
        raise ConfigError(
            f"--launch {launcher}: one of {', '.join(LAUNCHERS)}{did_you_mean(launcher, LAUNCHERS)}"
        )
    if job.served and launcher in ("ray", "kubeflow"):
        raise ConfigError(
            f"--launch {launcher}: it has no parameter servers; slurm, torchx and k8s have"
        )
    return LAUNCHERS[launcher](job)


def replica_command(
    role: str,
    index: str,
    workers: int,
    servers: int,
    port: int,
    hosts: str,
    args: Sequence[str],
) -> list[str]:
    """What follows `python` for one worker or server that a scheduler starts as a replica.

    index: its number in the role, or what the scheduler puts in that place.
    hosts: the host of each replica, servers first; empty where the scheduler names them.
    args: what follows `shoal launch`.
    """
    command = [
        "-u",
        "-m",
        "shoal.cli.replica",
        f"--role={role}",
        f"--index={index}",
        f"--workers={workers}",
        f"--servers={servers}",
        f"--port={port}",
    ]
    command += [f"--hosts={hosts}"] if hosts else []
    return [*command, "--", *args]


def _slurm(job: Job) -> str:
    """sbatch: one task a node, which starts the node's processes."""
    layout = job.layout
    nodes = layout.hosts + (layout.servers if job.served else 0)
    lines = [
        "#!/bin/bash",
        "# sbatch FILE: the folder it is submitted from is one that all nodes share.",
        f"#SBATCH --job-name={job.name}",
        f"#SBATCH --nodes={nodes}",
        "#SBATCH --ntasks-per-node=1",
        f"#SBATCH --cpus-per-task={job.cores}",
    ]
    if job.gpus:
        lines.append(f"#SBATCH --gpus-per-node={job.gpus}")
    lines += ["#SBATCH --requeue", "set -euo pipefail"]
    if job.served:
        last = WORKER_PORT + layout.per_host - 1
        inner = (
            f'shoal launch --servers="$servers" --workers="$workers" {_joined(job.command)} '
            "--strategy.ps.keys=keys"
        )
        lines += [
            "hosts=($(scontrol show hostnames))",
            f'servers=$(printf "%s:{SERVER_PORT}\\n" "${{hosts[@]:0:{layout.servers}}}" '
            "| paste -sd,)",
            f'workers=$(for host in "${{hosts[@]:{layout.servers}}}"; do '
            f'seq -f "$host:%.0f" {WORKER_PORT} {last}; done | head -n {layout.processes} '
            "| paste -sd,)",
            "export servers workers",
            "[ -d keys ] || shoal keys make keys   # who may speak to the servers",
        ]
    else:
        inner = (
            f"shoal train {_joined(job.restarted)} "
            f'--ip="$ip" --port={MEETING_PORT} --nproc={layout.per_host} '
            f"--world_size={layout.processes} "
            f"--group_offset=$(({layout.per_host} * SLURM_NODEID))"
        )
        lines += [
            f"export {SECRET}   # srun hands it to every node",
            "export ip=$(scontrol show hostnames | head -n 1)",
        ]
    return "\n".join([*lines, f"srun bash -c {shlex.quote(inner)}"]) + "\n"


def _torchx(job: Job) -> str:
    """A command of TorchX, which knows many schedulers."""
    layout, memory = job.layout, int(OF_PODS * job.memory / 2**20)
    lines = ["#!/bin/sh", "# sh FILE: -s may be any scheduler that TorchX knows."]
    if job.served:
        worker_cores = max(1, job.cores // layout.per_host)
        lines.append("[ -d keys ] || shoal keys make keys   # who may speak to the servers")
        component = (
            f"shoal.ps --workers {layout.processes} --servers {layout.servers} "
            f"--cpu {worker_cores} --memMB {memory // layout.per_host} "
            f"--server_cpu {job.cores} --server_memMB {memory}"
        )
        run_args = [*job.command, "--strategy.ps.keys=keys"]
        gpus = -(-job.gpus // layout.per_host)
    else:
        component = (
            f"shoal.train -j {layout.hosts}x{layout.per_host} --cpu {job.cores} --memMB {memory} "
            f"--max_retries {job.restarts}"
        )
        run_args, gpus = job.command, job.gpus
    args = component.split()
    args += ["--gpu", str(gpus)] if gpus else []
    args += ["--name", job.name]
    lines.append(f"torchx run -s slurm {_joined(args)} -- {_joined(run_args)}")
    return "\n".join(lines) + "\n"


def _ray(job: Job) -> str:
    """A job of a Ray cluster."""
    threads = [] if job.gpus else _unless(job.command, f"--run.threads={job.layout.threads}")
    args = [*job.restarted, *threads, f"--nproc={job.layout.processes}", "--ray=auto"]
    lines = [
        "#!/bin/sh",
        "# sh FILE: RAY_ADDRESS names the cluster, such as http://head:8265; config, data and the",
        "# run's folder have the same names on every node.",
        f"ray job submit -- shoal train {_joined(args)}",
    ]
    return "\n".join(lines) + "\n"


def _k8s(job: Job) -> str:
    """A JobSet: a pod for each host, or for each server and worker."""
    policy: dict[str, Any] = {}
    if job.served:
        jobs = _jobs_of_servers_and_workers(job)
        success = {"operator": "All", "targetReplicatedJobs": ["worker"]}
        policy = {"successPolicy": success}
        first_command = "shoal keys make keys   # once, in the folder that the volume holds"
    else:
        jobs = [_job_of_hosts(job)]
        first_command = (
            f"kubectl create secret generic {job.name}-secret "
            '--from-literal=secret="$(head -c 32 /dev/urandom | base64)"   # once'
        )
    job_set = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": job.name},
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": job.name},
            "failurePolicy": {"maxRestarts": job.restarts},
            **policy,
            "replicatedJobs": jobs,
        },
    }
    return f"# {first_command}\n# kubectl apply -f FILE\n" + _yaml(job_set)


def _jobs_of_servers_and_workers(job: Job) -> list[dict[str, Any]]:
    """Two jobs of a JobSet: a pod for each server, and one for each worker."""
    layout, name = job.layout, job.name
    numbers = {"server": layout.servers, "worker": layout.processes}
    hosts = [f"{name}-{role}-0-{k}.{name}" for role in numbers for k in range(numbers[role])]
    jobs = []
    for role, number in numbers.items():
        replica = replica_command(
            role,
            INDEX_OF_POD,
            workers=layout.processes,
            servers=layout.servers,
            port=SERVER_PORT,
            hosts=",".join(hosts),
            args=[*job.command, "--strategy.ps.keys=keys"],
        )
        start = _joined(["exec", "python", *replica])
        # A server has its host to itself; workers share theirs.
        shares = 1 if role == "server" else layout.per_host
        jobs.append(
            _replicated(
                job,
                role,
                start.replace(f"={INDEX_OF_POD}", '="$JOB_COMPLETION_INDEX"', 1),
                number=number,
                cores=max(1, job.cores // shares),
                gpus=0 if role == "server" else -(-job.gpus // shares),
                memory=job.memory / shares,
            )
        )
    return jobs


def _job_of_hosts(job: Job) -> dict[str, Any]:
    """The job of a JobSet in which a pod starts the ranks of a host."""
    layout, first = job.layout, f"{job.name}-host-0-0.{job.name}"
    start = (
        f"until getent hosts {first}; do sleep 1; done; exec shoal train "
        f"{_joined(job.command)} --launch.join_timeout=600 "
        f"--ip={first} --port={MEETING_PORT} --nproc={layout.per_host} "
        f"--world_size={layout.processes} "
        f'--group_offset="$(({layout.per_host} * JOB_COMPLETION_INDEX))"'
    )
    return _replicated(
        job,
        "host",
        start,
        number=layout.hosts,
        cores=job.cores,
        gpus=job.gpus,
        memory=job.memory,
        secret=layout.hosts > 1,
    )


def _replicated(
    job: Job,
    role: str,
    start: str,
    number: int,
    cores: int,
    gpus: int,
    memory: float,
    secret: bool = False,
) -> dict[str, Any]:
    """A job of equal pods, each with its number in JOB_COMPLETION_INDEX.

    JobSet names the pods by the set, the job, its number and theirs: shoal-host-0-3.
    """
    secret_source = {"secretKeyRef": {"name": f"{job.name}-secret", "key": "secret"}}
    container: dict[str, Any] = {
        "name": role,
        "image": job.image,
        "workingDir": f"/{job.volume}",
        "command": ["bash", "-c", start],
        **({"env": [{"name": "SHOAL_SECRET", "valueFrom": secret_source}]} if secret else {}),
        "resources": _resources(cores, gpus, memory),
        "volumeMounts": _mounts(job),
    }
    pod = {"restartPolicy": "Never", "containers": [container], "volumes": _volumes(job)}
    spec = {
        "parallelism": number,
        "completions": number,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    return {"name": role, "replicas": 1, "template": {"spec": spec}}


def _kubeflow(job: Job) -> str:
    """A TrainJob of Kubeflow's Trainer, whose runtime gives torchrun the meeting address."""
    start = f"cd /{job.volume} && exec torchrun -m shoal train {_joined(job.command)}"
    pod = {
        "volumes": _volumes(job),
        "containers": [{"name": "node", "volumeMounts": _mounts(job)}],
    }
    patch: dict[str, Any] = {"spec": pod}
    for _ in range(2):  # a pod's template in a job's template, a job in a set
        patch = {"spec": {"template": patch}}
    node = {"name": "node", "template": patch["spec"]["template"]}
    train_job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": job.name},
        "spec": {
            "runtimeRef": {"name": "torch-distributed"},
            "trainer": {
                "image": job.image,
                "command": ["bash", "-c", start],
                "numNodes": job.layout.hosts,
                "numProcPerNode": job.layout.per_host,
                "resourcesPerNode": _resources(job.cores, job.gpus, job.memory),
            },
            "runtimePatches": [
                {
                    "manager": "shoal",
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [node]}}},
                }
            ],
        },
    }
    head = "# kubectl apply -f FILE: Kubeflow Trainer 2.2 or later\n"
    return head + _yaml(train_job)


def _resources(cores: int, gpus: int, memory: float) -> dict[str, Any]:
    """Requests and limits of a container; a tenth of the memory is left to the node."""
    size = f"{max(1, math.floor(OF_PODS * memory / 2**30))}Gi"
    amounts: dict[str, Any] = {"cpu": str(cores), "memory": size}
    amounts |= {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return {"requests": amounts, "limits": dict(amounts)}


def _mounts(job: Job) -> list[dict[str, str]]:
    shared = {"name": job.volume, "mountPath": f"/{job.volume}"}
    return [shared, {"name": "memory", "mountPath": "/dev/shm"}]


def _volumes(job: Job) -> list[dict[str, Any]]:
    """The shared volume of all pods, and shared memory for the ranks of a host."""
    shared = {"name": job.volume, "persistentVolumeClaim": {"claimName": job.volume}}
    return [shared, {"name": "memory", "emptyDir": {"medium": "Memory"}}]


def _unless(args: Sequence[str], option: str) -> list[str]:
    """`--key=value`, unless the arguments have the key."""
    key = option.partition("=")[0] + "="
    return [] if any(arg.startswith(key) for arg in args) else [option]


def _joined(args: Sequence[str]) -> str:
    return " ".join(map(shlex.quote, args))


def _yaml(manifest: dict[str, Any]) -> str:
    return yaml.safe_dump(manifest, sort_keys=False, width=10_000)


LAUNCHERS: dict[str, Callable[[Job], str]] = {
    "slurm": _slurm,
    "torchx": _torchx,
    "ray": _ray,
    "k8s": _k8s,
    "kubeflow": _kubeflow,
}

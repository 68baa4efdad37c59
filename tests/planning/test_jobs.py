"""Jobs for schedulers: what they start, and their fields against the schedulers' own."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.config.errors import ConfigError
from shoal.planning.jobs import LAUNCHERS, Job, job_of, write_job
from shoal.planning.prediction import RunLayout
from shoal.planning.presets import CLUSTERS

SHARDED = RunLayout("sharded", 32, 4, place="row")
SERVED = RunLayout("ps", 8, 2, servers=3, mode="async")
WORDS = ["config.yaml", "--strategy.name=sharded", "--launch.nproc=8", "--data.path=a b"]


def collective(**more: Any) -> Job:
    return job_of(SHARDED, CLUSTERS["DGX-H100"], WORDS, **more)


def served(**more: Any) -> Job:
    words = ["config.yaml", "--strategy.name=ps", "--strategy.ps.mode=async"]
    return job_of(SERVED, CLUSTERS["x86-16"], words, **more)


def test_the_job_in_the_docs_is_what_is_written() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/clusters.md").read_text()
    layout = RunLayout("ddp", processes=8, hosts=2)
    job = Job(layout, ("config.yaml",), cores=8, memory=64e9, output="runs/one")
    assert f"```sh\n{write_job('slurm', job)}```\n" in page


@pytest.mark.parametrize("name", ["host", "host_index", "hosts"])
def test_a_scheduler_places_the_processes(name: str) -> None:
    job = collective()
    arguments = ("config.yaml", f"--launch.{name}=3", f"--{name}=3")
    job = Job(**{**vars(job), "args": arguments})
    assert job.command == ["config.yaml", "--output=runs/planned", "--resume"]


def check(value: Any, shape: Any, place: str) -> None:
    """Types of fields, and that there are no others; `name!` must be there."""
    if isinstance(shape, dict):
        fields = {name.rstrip("!"): inner for name, inner in shape.items()}
        assert isinstance(value, dict) and set(value) <= set(fields), f"{place}: {value}"
        missing = [name[:-1] for name in shape if name.endswith("!") and name[:-1] not in value]
        assert not missing, f"{place} has no {missing[0]}"
        for name, inner in value.items():
            check(inner, fields[name], f"{place}.{name}")
    elif isinstance(shape, list):
        assert isinstance(value, list) and value, place
        for inner in value:
            check(inner, shape[0], f"{place}[]")
    elif isinstance(shape, str):
        assert isinstance(value, str) and re.fullmatch(shape, value, re.DOTALL), f"{place}: {value}"
    else:
        assert type(value) is shape and (shape is not int or value >= 0), f"{place}: {value}"


# The fields that are used of batch/v1 Job, core/v1 Pod, JobSet and TrainJob, by name and type.
NAME, TEXT = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", ".+"
AMOUNT = {"cpu": r"\d+", "memory": r"\d+Gi", "nvidia.com/gpu": r"\d+"}
RESOURCES = {"requests": AMOUNT, "limits": AMOUNT}
VOLUME = {
    "name!": NAME,
    "persistentVolumeClaim": {"claimName!": NAME},
    "emptyDir": {"medium": "Memory"},
}
VARIABLE = {"name!": TEXT, "valueFrom": {"secretKeyRef": {"name": NAME, "key!": TEXT}}}
CONTAINER = {
    "name!": NAME,
    "image": TEXT,
    "workingDir": TEXT,
    "command": [TEXT],
    "env": [VARIABLE],
    "resources": RESOURCES,
    "volumeMounts": [{"name!": NAME, "mountPath!": TEXT}],
}
POD = {"restartPolicy": "Never|OnFailure", "containers!": [CONTAINER], "volumes": [VOLUME]}
JOB = {
    "parallelism": int,
    "completions": int,
    "completionMode": "NonIndexed|Indexed",
    "backoffLimit": int,
    "template!": {"spec": POD},
}
REPLICATED = {"name!": NAME, "replicas": int, "template": {"spec": JOB}}
JOB_SET = {
    "network": {"enableDNSHostnames": bool, "subdomain": NAME},
    "failurePolicy": {"maxRestarts": int},
    "successPolicy": {"operator!": "All|Any", "targetReplicatedJobs": [NAME]},
    "replicatedJobs": [REPLICATED],
}
TRAIN_JOB = {
    "runtimeRef!": {"name!": TEXT},
    "trainer": {
        "image": TEXT,
        "command": [TEXT],
        "numNodes": int,
        "numProcPerNode": int,
        "resourcesPerNode": RESOURCES,
    },
    "runtimePatches": [
        {
            "manager!": TEXT,
            "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [REPLICATED]}}},
        }
    ],
}
KINDS = {
    "JobSet": (r"jobset\.x-k8s\.io/v1alpha2", JOB_SET),
    "TrainJob": (r"trainer\.kubeflow\.org/v1alpha1", TRAIN_JOB),
}


def manifest(launcher: str, job: Job) -> dict[str, Any]:
    """What a manifest holds, after a check of every field."""
    made = yaml.safe_load(write_job(launcher, job))
    version, spec = KINDS[made["kind"]]
    head = {"apiVersion!": version, "kind!": TEXT, "metadata!": {"name!": NAME}, "spec!": spec}
    check(made, head, made["kind"])
    return made["spec"]


def test_a_job_of_some_gpus_asks_for_their_share_of_the_host() -> None:
    """One GPU of eight: an eighth of cores and memory, and no less than the plan counts."""
    host = CLUSTERS["DGX-H100"].host
    job = job_of(RunLayout("single"), CLUSTERS["DGX-H100"], WORDS)
    assert (job.gpus, job.cores, job.memory) == (1, host.cores // 8, host.memory / 8)
    node = manifest("k8s", job)["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    limits = node["containers"][0]["resources"]["limits"]
    assert limits["cpu"] == str(host.cores // 8) and limits["nvidia.com/gpu"] == "1"
    assert int(limits["memory"].removesuffix("Gi")) == int(0.9 * host.memory / 8 / 2**30)
    large = job_of(RunLayout("single"), CLUSTERS["DGX-H100"], WORDS, needed=host.memory / 2)
    assert host.memory / 2 <= 0.9 * large.memory <= host.memory
    some = host.with_devices(1)
    assert (some.devices, some.cores, some.memory) == (1, host.cores // 8, host.memory / 8)


def test_slurm():
    text = write_job("slurm", collective())
    for line in ("--nodes=4", "--ntasks-per-node=1", "--cpus-per-task=112", "--gpus-per-node=8"):
        assert f"#SBATCH {line}\n" in text
    assert text.startswith("#!/bin/bash\n") and "SHOAL_SECRET" in text
    last = shlex.split(text.splitlines()[-1])
    assert last[:3] == ["srun", "bash", "-c"]
    inner = shlex.split(last[3])
    assert inner[:3] == ["shoal", "train", "config.yaml"]
    assert inner.count("--nproc=8") == 1 and "--launch.nproc=8" not in inner
    assert "--data.path=a b" in inner and "--world_size=32" in inner and "--resume" in inner


def test_slurm_with_servers():
    text = write_job("slurm", served())
    assert "#SBATCH --nodes=5\n" in text and "--strategy.ps.keys=keys" in text
    # The lists of addresses, as bash makes them of the names of five nodes.
    begin = text.index("servers=")
    lists = text[begin : text.index("export servers")]
    hosts = "hosts=(a b c d e)\n"
    done = subprocess.run(
        ["bash", "-c", f"{hosts}{lists}echo $servers; echo $workers"],
        capture_output=True,
        text=True,
        check=True,
    )
    servers, workers = done.stdout.split()
    assert servers == "a:6180,b:6180,c:6180"
    assert workers == ",".join(f"{host}:{6170 + k}" for host in "de" for k in range(4))


def test_torchx():
    words = shlex.split(write_job("torchx", collective()), comments=True)
    assert words[:7] == ["torchx", "run", "-s", "slurm", "shoal.train", "-j", "4x8"]
    assert words[words.index("--gpu") + 1] == "8"
    assert words[words.index("--") + 1 :][0] == "config.yaml" and "--data.path=a b" in words
    words = shlex.split(write_job("torchx", served()), comments=True)
    begin = words.index("torchx")
    assert words[begin + 4 : begin + 9] == ["shoal.ps", "--workers", "8", "--servers", "3"]


def test_ray():
    words = shlex.split(write_job("ray", collective()), comments=True)
    assert words[:6] == ["ray", "job", "submit", "--", "shoal", "train"]
    assert "--nproc=32" in words and "--ray=auto" in words and "--launch.max_restarts=3" in words
    ranks = job_of(RunLayout("ddp", 8, 2, threads=4), CLUSTERS["x86-16"], ["config.yaml"])
    assert "--run.threads=4" in shlex.split(write_job("ray", ranks), comments=True)
    given = job_of(SHARDED, CLUSTERS["DGX-H100"], ["c.yaml", "--launch.max_restarts=9"])
    assert write_job("ray", given).count("max_restarts") == 1


def test_a_job_set_of_hosts():
    (hosts,) = manifest("k8s", collective())["replicatedJobs"]
    assert hosts["template"]["spec"]["completions"] == 4
    (container,) = hosts["template"]["spec"]["template"]["spec"]["containers"]
    command = container["command"][-1]
    assert "--ip=shoal-host-0-0.shoal" in command and "--world_size=32" in command
    assert '--group_offset="$((8 * JOB_COMPLETION_INDEX))"' in command
    assert container["env"][0]["name"] == "SHOAL_SECRET"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
    alone = job_of(RunLayout("single"), CLUSTERS["x86-16"], ["config.yaml"])
    (one,) = manifest("k8s", alone)["replicatedJobs"]
    assert "env" not in one["template"]["spec"]["template"]["spec"]["containers"][0]


def test_a_job_set_of_servers_and_workers():
    spec = manifest("k8s", served())
    servers, workers = spec["replicatedJobs"]
    assert spec["successPolicy"]["targetReplicatedJobs"] == ["worker"]
    counts = [one["template"]["spec"]["completions"] for one in (servers, workers)]
    assert counts == [3, 8]
    command = workers["template"]["spec"]["template"]["spec"]["containers"][0]["command"][-1]
    hosts = re.search(r"--hosts=(\S+)", command)
    assert hosts is not None and len(hosts[1].split(",")) == 11
    assert hosts[1].startswith("shoal-server-0-0.shoal,") and "--role=worker" in command


def test_a_train_job():
    spec = manifest("kubeflow", collective(name="nightly"))
    assert spec["trainer"]["numNodes"] == 4 and spec["trainer"]["numProcPerNode"] == 8
    command = spec["trainer"]["command"][-1]
    assert "torchrun -m shoal train config.yaml" in command and "--nproc" not in command


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("make", [collective, served])
def test_a_shell_reads_it(launcher, make):
    """Whatever a config is called, it stays one word."""
    bad = "$(touch made); '\" `x`.yaml"
    job = make()
    job = Job(**{**vars(job), "args": (bad, *job.args)})
    if make is served and launcher in ("ray", "kubeflow"):
        with pytest.raises(ConfigError, match="slurm, torchx and k8s have"):
            write_job(launcher, job)
        return
    if launcher in ("k8s", "kubeflow"):
        texts = re.findall(r"command:\n\s+- bash\n\s+- -c\n", write_job(launcher, job))
        assert texts
        spec = manifest(launcher, job)
        if launcher == "kubeflow":
            scripts = [spec["trainer"]["command"][-1]]
        else:
            pods = [one["template"]["spec"]["template"]["spec"] for one in spec["replicatedJobs"]]
            scripts = [pod["containers"][0]["command"][-1] for pod in pods]
    else:
        scripts = [write_job(launcher, job)]
    for script in scripts:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
        inner = shlex.split(script, comments=True)
        if launcher == "slurm":
            inner = shlex.split(inner[-1])
        assert bad in inner


def test_what_is_refused():
    with pytest.raises(ConfigError, match=r"one of slurm, torchx.*did you mean slurm"):
        write_job("slum", collective())
    with pytest.raises(ConfigError, match="lower-case"):
        collective(name="My Job")
    with pytest.raises(ConfigError, match="at least one server"):
        job_of(RunLayout("ps", 2), CLUSTERS["x86-16"], ["config.yaml"])

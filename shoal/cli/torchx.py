"""TorchX components: Shoal's jobs on the schedulers that TorchX knows. Only `torchx` imports this.

torchx run -s local_cwd shoal.train -j 2x4 -- CONFIG.yaml --section.key=value
torchx run -s slurm shoal.ps --workers 2 --servers 1 -- CONFIG.yaml --section.key=value

TorchX reads the annotations of a component as text and knows typing's old names only. For the same
reason annotations are not postponed here.
"""

# ruff: noqa: UP006, UP035, UP045
from typing import Dict, List, Optional

import torchx
from torchx import specs
from torchx.components import dist
from torchx.specs import macros

from shoal.planning.jobs import replica_command


def train(
    *args: str,
    j: str = "1x1",
    name: str = "shoal",
    image: str = torchx.IMAGE,
    h: Optional[str] = None,
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 4096,
    env: Optional[Dict[str, str]] = None,
    max_retries: int = 0,
    port: int = 29500,
    mounts: Optional[List[str]] = None,
) -> specs.AppDef:
    """`shoal train` on hosts × processes: sharded, ddp, or whatever the config says.

    Args:
        args: what follows `shoal train`: CONFIG.yaml --section.key=value
        j: hosts x processes of each
        name: name of the job
        image: container image that has shoal installed, where the scheduler uses images
        h: a named resource of TorchX, instead of cpu, gpu and memMB
        cpu: cores of a host
        gpu: GPUs of a host
        memMB: memory of a host
        env: variables for the processes: KEY=VALUE,KEY=VALUE
        max_retries: how often the scheduler may start the job again, from its beginning
        port: of the first host, where several hosts meet
        mounts: of containers: type=bind,src=/host,dst=/job
    """
    app = dist.ddp(
        "train",
        *args,
        m="shoal",
        j=j,
        name=name,
        image=image,
        h=h,
        cpu=cpu,
        gpu=gpu,
        memMB=memMB,
        env=env,
        max_retries=max_retries,
        rdzv_port=port,
        mounts=mounts,
    )
    app.roles[0].name = "worker"
    return app


def ps(
    *args: str,
    workers: int = 1,
    servers: int = 1,
    hosts: Optional[str] = None,
    port: int = 29500,
    name: str = "shoal",
    image: str = torchx.IMAGE,
    h: Optional[str] = None,
    cpu: int = 1,
    gpu: int = 0,
    memMB: int = 4096,
    server_h: Optional[str] = None,
    server_cpu: int = 1,
    server_memMB: int = 4096,
    env: Optional[Dict[str, str]] = None,
    mounts: Optional[List[str]] = None,
) -> specs.AppDef:
    """`shoal launch` with two roles: every replica is one parameter server or one worker.

    Args:
        args: what follows `shoal launch`: CONFIG.yaml --section.key=value
        workers: number of workers
        servers: number of servers
        hosts: host of each replica, servers first (s0,s1,w0,w1), if the scheduler names none
        port: the first server's; each replica has one, counted up from here, servers first
        name: name of the job
        image: container image that has shoal installed, where the scheduler uses images
        h: a named resource of TorchX for workers, instead of cpu, gpu and memMB
        cpu: cores of a worker
        gpu: GPUs of a worker
        memMB: memory of a worker
        server_h: a named resource of TorchX for servers, instead of server_cpu and server_memMB
        server_cpu: cores of a server
        server_memMB: memory of a server
        env: variables for all: KEY=VALUE,KEY=VALUE
        mounts: of containers: type=bind,src=/host,dst=/job
    """
    sizes = {
        "server": (servers, specs.resource(cpu=server_cpu, memMB=server_memMB, h=server_h)),
        "worker": (workers, specs.resource(cpu=cpu, gpu=gpu, memMB=memMB, h=h)),
    }
    return specs.AppDef(
        name=name,
        roles=[
            specs.Role(
                name=role,
                image=image,
                entrypoint="python",
                args=replica_command(
                    role,
                    macros.replica_id,
                    workers=workers,
                    servers=servers,
                    port=port,
                    hosts=hosts or "",
                    args=args,
                ),
                num_replicas=number,
                resource=resource,
                env=dict(env or {}),
                mounts=specs.parse_mounts(mounts) if mounts else [],
            )
            for role, (number, resource) in sizes.items()
        ],
    )

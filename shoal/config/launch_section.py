"""The sections `launch`, `start` and `run`: processes, how a run begins, and the run itself."""

import os
from typing import Annotated, Literal, Required

from pydantic import AfterValidator, BeforeValidator, Field, with_config
from typing_extensions import TypedDict

from shoal.config.errors import did_you_mean
from shoal.config.section import RUN, STRICT, WRITTEN, ReadBy, Section

EVERY_GPU = -1  # as launch.nproc
TRACKERS = ("tensorboard", "mlflow", "wandb")


class LaunchSection(Section):
    nproc: int = Field(
        1,
        ge=-1,
        description="number of processes on this host; -1: one for each visible GPU; 0: only "
        "servers",
    )
    world_size: int = Field(-1, description="number of processes on all hosts together; -1: nproc")
    ip: str = Field("localhost", description="address of the first host")
    port: int = Field(
        0, ge=0, le=65535, description="port of the first host; 0: any free one, on one host only"
    )
    group_offset: int = Field(0, ge=0, description="global rank of this host's first process")
    hosts: int = Field(0, ge=0, description="number of hosts with processes; 0: world_size / nproc")
    host_index: int = Field(0, ge=0, description="index of this host, where hosts is given")
    servers: Annotated[int, ReadBy(("ps",), refused=True)] = Field(
        0, ge=0, description="ps: number of servers started on this host"
    )
    first_server: Annotated[int, ReadBy(("ps",))] = Field(
        0, ge=0, description="ps: index of the first server of this host, counted over all hosts"
    )
    join_timeout: float = Field(
        60.0, gt=0, description="seconds to wait until all ranks have joined"
    )
    hang_timeout: float = Field(
        60.0, gt=0, description="seconds without any work after which a process counts as hanging"
    )
    grace: float = Field(
        30.0, ge=0, description="seconds in which a run may save after SIGTERM; 0: it ends at once"
    )
    max_restarts: int = Field(
        0, ge=0, description="how often a failed run is brought back from its last checkpoint"
    )
    min_nproc: int = Field(
        0,
        ge=0,
        description="one host: fewest processes to continue with where one is lost; 0: all",
    )
    regrow: float = Field(
        60.0, ge=0, description="seconds until lost processes are started again; 0: never"
    )
    secret: str | None = Field(
        None,
        description="several hosts: keys of those who may join: folder of `shoal keys make`, or "
        "file (mode 0600) with a random text; null: SHOAL_SECRET",
    )
    plain: bool = Field(
        False, description="several hosts: whoever reaches the port may join, without a secret"
    )
    encrypt: bool = Field(False, description="several hosts: encrypt what ranks send (CPUs)")
    shared_memory: bool = Field(
        True, description="ranks (CPUs) of one host talk through memory, not by sockets"
    )


@with_config(STRICT)
class PretrainedOptions(TypedDict, total=False):
    """Vectors that the rows of a table begin with."""

    file: Required[str]
    frozen: bool


class ForgettingSection(Section):
    """What becomes of users and items that new data does not name any more."""

    after: int = Field(
        0,
        ge=0,
        description="days (runs with --from) without an interaction, after which the values of a "
        "user's or item's row decay; 0: never",
    )
    factor: float = Field(
        0.5, ge=0, lt=1, description="factor by which a decaying row is multiplied every day"
    )


class StartSection(Section):
    """What training begins with, where that is not nothing."""

    run: str | None = Field(
        None, description="folder of a run whose weights training begins with (`--from`)"
    )
    vocabulary: str | None = Field(
        None, description="folder of a run whose users and items keep their numbers"
    )
    pretrained: dict[str, str | PretrainedOptions] = Field(
        default_factory=dict,
        description="table -> FILE.npy, or {file: FILE.npy, frozen: true}: rows stay as they are; "
        "FILE.txt has the ids of its rows",
    )
    value_decay: ForgettingSection = Field(default_factory=ForgettingSection)
    test_first: bool = Field(
        False, description="evaluate on all of the new data before training on all of it"
    )


def check_tracker(name: str) -> str:
    """A tracker's name; that of a class in a file is the same in every folder."""
    place, _, class_name = name.rpartition(":")
    if name not in TRACKERS and not (place and class_name):
        hint = did_you_mean(name, TRACKERS)
        raise ValueError(
            f"run.trackers: given {name!r}; allowed: {', '.join(TRACKERS)}, FILE.py:Class{hint}"
        )
    return f"{os.path.abspath(place)}:{class_name}" if place.endswith(".py") else name


class RunSection(Section):
    seed: int = Field(
        2020, description="seed of rows, parameters, order, negatives, dropout and random splits"
    )
    output: Annotated[str | None, WRITTEN] = Field(
        None, description="folder of the run; null: a new one under run.root"
    )
    root: Annotated[str, WRITTEN] = Field(
        "runs", description="folder in which new runs get their own folder"
    )
    plugins: Annotated[
        list[str],
        BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
        RUN,
    ] = Field([], description="Python files or modules that register things, run before all else")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="where tensors are computed; auto: on a GPU where there is one"
    )
    gpu_ids: str | None = Field(
        None, description='GPUs to use, e.g. "0,1,2,3"; null: all, "": none'
    )
    share_gpu: bool = Field(
        False,
        description="several processes may use one GPU, to compare strategies; what they "
        "send passes through host memory",
    )
    threads: int = Field(0, ge=0, description="threads per process; 0: cores / processes")
    tf32: bool = Field(
        False, description="matrix products on a GPU round their factors to 10 bits: much faster"
    )
    progress: bool = Field(True, description="show progress bars on a terminal")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="level of the least important lines that are logged"
    )
    log: Literal["text", "json"] = Field(
        "text", description="form of the log; json: one object per line, with the figures of epochs"
    )
    loss_decimals: int = Field(4, ge=0, description="decimals of losses in the log")
    trackers: Annotated[
        list[Annotated[str, AfterValidator(check_tracker)]],
        BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
        RUN,
    ] = Field(
        ["tensorboard"],
        description="trackers of the run: tensorboard, mlflow, wandb, or your FILE.py:Class",
    )
    project: str | None = Field(
        None,
        description="project of wandb, experiment of mlflow; null: what WANDB_PROJECT or "
        "MLFLOW_EXPERIMENT_NAME names",
    )

    @property
    def is_quiet(self) -> bool:
        """Whether only the result is wanted."""
        return self.log_level in ("warning", "error")

    @property
    def shows_bars(self) -> bool:
        """Whether progress bars are shown."""
        return self.progress and self.log == "text" and not self.is_quiet

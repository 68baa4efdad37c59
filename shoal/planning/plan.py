"""What `shoal plan CONFIG` computes: memory of rows, and the time and cost of steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from shoal.config.schema import Config
from shoal.embedding.placements.row_memory import Machine, plan_tables_of
from shoal.planning.cluster import Cluster
from shoal.planning.plan_text import TimePlan
from shoal.planning.ranking import Target
from shoal.planning.step_counter import count_work, parts_of
from shoal.runs.parts import Parts


@dataclass(frozen=True)
class RunPlan:
    """A plan of a run: memory of its rows, and times of its steps."""

    memory: str  # of the config's own strategy, on one host
    time: TimePlan | None  # None: the model has no steps

    def __str__(self) -> str:
        return "\n\n".join(str(one) for one in (self.memory, self.time) if one)

    def facts(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {} if self.time is None else self.time.facts()


def plan_config(
    config: Config, cluster: Cluster, target: Target | None = None, refuse: bool = True
) -> RunPlan:
    """Plan a config; refuse: raise an error where the config's own strategy does not fit."""
    host, parts = cluster.host, parts_of(config)
    machine = Machine(int(host.memory), int(host.device.memory) if host.on_gpu else None)
    try:
        memory = plan_memory(config, parts, machine, on_gpu=host.on_gpu)
    except ValueError as error:
        if refuse:
            raise
        memory = str(error)
    if not parts.model.trainable:
        return RunPlan(f"{memory}\n{config.model.title} is solved in closed form: no steps", None)
    return RunPlan(memory, TimePlan.for_work(count_work(config, parts), cluster, target))


def plan_memory(config: Config, parts: Parts, machine: Machine, on_gpu: bool = False) -> str:
    """Text of the rows that each process holds; ValueError with a remedy if they do not fit."""
    tables, optimizers = parts.strategy.tables, parts.strategy.row_optimizers
    if not tables:
        return f"{config.model.title} has no tables: there are no rows to place"
    device = torch.device("cuda" if on_gpu else "cpu")
    return plan_tables_of(config, tables, optimizers, device, machine)

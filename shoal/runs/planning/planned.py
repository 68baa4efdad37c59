"""What `shoal plan CONFIG` computes: memory of rows, and the time and cost of steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from shoal.config.schema import Config
from shoal.runs.build import Parts
from shoal.runs.planning.choosing import Target
from shoal.runs.planning.cluster import Cluster
from shoal.runs.planning.counting import count_work, parts_of
from shoal.runs.planning.showing import TimePlan
from shoal.runs.planning.simulated import Simulated
from shoal.runs.row_memory import Machine, plan_tables_of


@dataclass(frozen=True)
class Planned:
    """Both, as text and as facts."""

    memory: str  # of the config's own strategy, on one host
    time: TimePlan | None  # None: the model has no steps
    simulated: Simulated | None = None

    def __str__(self) -> str:
        return "\n\n".join(str(one) for one in (self.memory, self.time, self.simulated) if one)

    def facts(self) -> dict[str, Any]:
        """What `--json` prints."""
        made = {} if self.time is None else self.time.facts()
        return made if self.simulated is None else made | {"simulated": self.simulated.facts()}


def plan_run(config: Config, machine: Machine, on_gpu: bool = False) -> str:
    """What each process holds of rows; ValueError with the nearest remedy if it cannot fit."""
    return _memory(config, parts_of(config), machine, on_gpu)


def plan_config(
    config: Config, cluster: Cluster, target: Target | None = None, refuse: bool = True
) -> Planned:
    """All that is planned of a config; refuse: an error where its own strategy does not fit."""
    host, parts = cluster.host, parts_of(config)
    machine = Machine(int(host.memory), int(host.device.memory) if host.on_gpu else None)
    try:
        memory = _memory(config, parts, machine, host.on_gpu)
    except ValueError as error:
        if refuse:
            raise
        memory = str(error)
    if not parts.model.trainable:
        return Planned(f"{memory}\n{config.model.title} is solved in closed form: no steps", None)
    return Planned(memory, TimePlan.of(count_work(config, parts), cluster, target))


def _memory(config: Config, parts: Parts, machine: Machine, on_gpu: bool) -> str:
    tables, optimizers = parts.strategy.tables, parts.strategy.row_optimizers
    if not tables:
        return f"{config.model.title} has no tables: there are no rows to place"
    device = torch.device("cuda" if on_gpu else "cpu")
    return plan_tables_of(config, tables, optimizers, device, machine)

"""Which strategies read which keys. What nobody reads is named in the log, or refused.

A note is the rule: one config is used under several strategies, to compare them, and their losses
are equal. Refused is what a user would count on and not get.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shoal.config.keys import LEAVES
from shoal.config.schema import Config
from shoal.config.yaml_io import inline


@dataclass(frozen=True)
class Readers:
    """The strategies that read a key; `ps async` and `ps geo` are modes of the servers."""

    strategies: tuple[str, ...]
    refused: bool = False
    harmless: tuple[object, ...] = ()  # values that are no wish anywhere, beside the default

    @property
    def text(self) -> str:
        names = []
        for strategy in self.strategies:
            name, _, mode = strategy.partition(" ")
            names.append(f"{name} with strategy.ps.mode={mode}" if mode else name)
        return f"strategy.name={' or '.join(names)}"


STALENESS = "strategy.ps.staleness"
SHARDED, SERVERS = Readers(("sharded",)), Readers(("ps",))
IN_PROCESS = Readers(("single", "ddp", "sharded"), refused=True)
# In geo workers have rows of their own, in memory.
OVER_DISK = Readers((*IN_PROCESS.strategies, "ps sync", "ps async"), refused=True)
READ_BY = {
    "rows.tiers.gpu": IN_PROCESS,  # a user would count on memory that servers take all the same
    "rows.tiers.host": OVER_DISK,
    "rows.tiers.ssd": OVER_DISK,
    "strategy.backend": Readers(("sharded",), refused=True),
    "strategy.place": SHARDED,
    "strategy.row_by": SHARDED,
    "strategy.tables": SHARDED,
    "strategy.replicate_below": SHARDED,
    "strategy.memory": SHARDED,
    "strategy.overlap": SHARDED,
    "strategy.fused": Readers(("single", "ddp", "sharded")),
    # true needs a GPU, see `refuse_unread`; auto is content with none
    "strategy.graph": Readers(("single",), refused=True, harmless=(False,)),
    "strategy.ps.mode": SERVERS,
    "strategy.ps.dense": SERVERS,
    "strategy.ps.geo_step": Readers(("ps geo",)),
    "strategy.ps.ahead": SERVERS,
    STALENESS: Readers(("ps async",)),
    "strategy.ps.elastic": Readers(("ps async", "ps geo"), refused=True),  # one lost ends the run
    "strategy.ps.addresses": SERVERS,
    "strategy.ps.keys": Readers(("ps",), refused=True),  # nothing would be encrypted
    "strategy.ps.plain": SERVERS,
    "strategy.ps.bfloat16": SERVERS,
    "strategy.ps.compress": SERVERS,
    "strategy.ps.timeout": SERVERS,
    "strategy.ps.replicas": SERVERS,
    "strategy.ps.journal": SERVERS,
    "strategy.ps.restarts": SERVERS,
    "launch.servers": Readers(("ps",), refused=True),  # servers that no worker ever calls
    "launch.first_server": SERVERS,
}


def unread(config: Config, processes: int | None = None) -> Iterator[tuple[str, str, Readers]]:
    """(key, what is wrong, its readers) of every key that says something nobody reads.

    `processes`: how many there are, where that is known; strategy auto depends on it.
    """
    name = config.strategy.name
    own = {name, f"{name} {config.strategy.ps.mode}"}
    if name == "auto":
        several = config.launch.nproc > 1 or config.launch.world_size > 1
        own = {"ddp"} if several or (processes or 1) > 1 else {"single"}
        if processes is None:
            own.add("ddp")  # another launcher may have started several
    if config.workers_come_and_go and config.strategy.ps.staleness != LEAVES[STALENESS].default:
        text = "has no effect with strategy.ps.elastic: nobody waits for a slow worker"
        yield STALENESS, text, READ_BY[STALENESS]
    for key, readers in READ_BY.items():
        given = value_of(config, key)
        if given in (LEAVES[key].default, *readers.harmless):
            continue
        if not own & set(readers.strategies):
            text = f"has no effect under strategy {name}; it is read under {readers.text}"
            yield key, text, readers


def value_of(config: Config, key: str) -> object:
    """The value under a dotted key."""
    value: object = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def notes(config: Config) -> list[str]:
    """A line about every key without effect that is no error."""
    return [f"{key} {text}" for key, text, readers in unread(config) if not readers.refused]


def refusals(config: Config, processes: int | None = None) -> Iterator[tuple[str, str]]:
    """(key, what is wrong and the remedy) of every key without effect that is an error."""
    for key, text, readers in unread(config, processes):
        if readers.refused:
            default = inline(LEAVES[key].default)
            given = inline(value_of(config, key))
            yield key, f"given {given}, which {text}: choose that, or set {key}={default}"
    apart = config.strategy.ps.addresses and not config.launch.servers
    if config.strategy.name == "ps" and config.rows.tiers.ssd is not None and apart:
        yield (
            "rows.tiers.ssd",
            (
                "servers that were started apart (strategy.ps.addresses) have budgets of their "
                "own: leave out rows.tiers, and start them with --tiers-host and --tiers-ssd"
            ),
        )


def refuse_unread(config: Config, processes: int, device: str) -> None:
    """The same where the processes have started: what auto became and the device are known."""
    for key, text in refusals(config, processes):
        raise ValueError(f"{key}: {text}")
    if config.strategy.graph is True and device != "cuda":
        raise ValueError(
            "strategy.graph: given true, but steps are recorded as CUDA graphs, and this process "
            f"computes on {device}: set strategy.graph=false, or run.device=cuda"
        )
